"""A past that adds up: ended leases of last month and this one, metered and billed by the real code."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from psycopg.types.range import Int8Range, TimestamptzRange

from portal.accounts.models import User
from portal.billing.closing import close_period
from portal.billing.metering import meter_all, rates_by_model
from portal.billing.models import InvoiceLine
from portal.billing.notes import propose_note
from portal.billing.periods import month_bounds, period_of
from portal.catalog import pricing
from portal.catalog.models import Flavor, Rate
from portal.catalog.services import cost_milli
from portal.demo.measured import make_hours, set_factors
from portal.fleet.models import Device
from portal.leases.models import Lease, LeaseEvent, LeaseRequest, Placement, RequestEvent
from portal.leases.states import LeaseState, RequestState
from portal.teams.models import Team

SEED = 20
PURPOSES = (
    "Train segmentation head",
    "Fine-tune detector",
    "Ablation run",
    "Tokeniser sweep",
    "Evaluate checkpoint",
    "Debug data loader",
    "Distil student model",
    "Notebook for the reading group",
)


@dataclass(frozen=True, slots=True)
class SliceHistory:
    """One slice that people used one after another: where it is, who had it, how long at most it was left alone."""

    node: str
    index: int
    flavor: str
    start: int
    size: int
    users: tuple[tuple[str, str], ...]
    most_rest_h: float = 14.0


BOB, ALICE = ("bob", "perception"), ("alice", "vision")
SEG, LANG = ("bob", "segmentation"), ("charlie", "language")
ROBO, SPEECH = ("charlie", "robotics"), ("charlie", "speech")
LANES = (
    SliceHistory("gpu-01", 0, "h100-3g", 4, 4, (BOB, LANG, BOB)),
    SliceHistory("gpu-01", 0, "h100-1g", 0, 1, (BOB, SEG, LANG)),
    SliceHistory("gpu-01", 0, "h100-1g", 1, 1, (ROBO, BOB)),
    SliceHistory("gpu-01", 2, "h100", 0, 8, (ALICE, LANG)),
    SliceHistory("gpu-01", 3, "h100", 0, 8, (LANG, BOB)),
    SliceHistory("gpu-02", 0, "a100-3g", 4, 4, (SEG, SPEECH)),
    SliceHistory("gpu-02", 2, "a100-1g", 0, 1, (BOB, LANG, ROBO)),
    SliceHistory("gpu-02", 5, "a100", 0, 8, (LANG, ALICE)),
    SliceHistory("gpu-01", 1, "h100-3g", 4, 4, (SEG, BOB), 3),
    SliceHistory("gpu-01", 1, "h100-2g", 0, 2, (BOB, LANG), 2.5),
    SliceHistory("gpu-01", 4, "h100", 0, 8, (LANG, ALICE), 2),
    SliceHistory("gpu-01", 5, "h100", 0, 8, (BOB, LANG), 3),
    SliceHistory("gpu-02", 4, "a100", 0, 8, (ALICE, SEG), 2),
    SliceHistory("gpu-02", 6, "a100", 0, 8, (BOB, LANG), 2.5),
    SliceHistory("gpu-02", 7, "a100", 0, 8, (SPEECH, LANG), 2),
    SliceHistory("gpu-05", 0, "a100", 0, 8, (LANG, SEG), 3),
    SliceHistory("gpu-05", 1, "a100", 0, 8, (ALICE, LANG), 1.5),
    SliceHistory("gpu-05", 2, "a100", 0, 8, (BOB, SPEECH), 3),
)


@dataclass(frozen=True, slots=True)
class PastLease:
    """One past lease of a lane."""

    lane: SliceHistory
    username: str
    team: str
    asked_at: datetime
    starts_at: datetime
    ends_at: datetime
    duration_s: int
    is_early: bool
    purpose: str


def spans(begin: datetime, end: datetime) -> Iterator[PastLease]:
    """Return past leases lane by lane: working-day rhythm, some released early; same result each time."""
    for number, lane in enumerate(LANES):
        chance = random.Random(SEED + number)  # noqa: S311 (a story, not a secret)
        at = begin + timedelta(hours=chance.uniform(0, 20))
        while True:
            starts = at + timedelta(hours=chance.uniform(1, lane.most_rest_h), seconds=chance.random())
            duration = chance.choice((1, 2, 4, 6, 8, 12, 24)) * 3600
            is_early = chance.random() < 0.35
            ends = starts + timedelta(seconds=duration * chance.uniform(0.3, 0.9) if is_early else duration)
            is_last = ends >= end
            if is_last:  # what would run on was given back shortly before the present begins
                ends, is_early = end - timedelta(seconds=chance.uniform(0, 900)), True
            if ends <= starts:
                break
            username, team = chance.choice(lane.users)
            asked = starts - timedelta(seconds=chance.choice((0.4, 0.6, 2, 30, 400, 3000)))
            yield PastLease(
                lane, username, team, asked, starts, ends, duration, is_early, chance.choice(PURPOSES)
            )
            if is_last:
                break
            at = ends


def make_history(teams: dict[str, Team], people: dict[str, User], now: datetime) -> int:
    """Write last month's and this month's past leases, bill them and close last month. Returns how many."""
    this_month = month_bounds(now)[0]
    last_month = month_bounds(this_month - timedelta(days=1))[0]
    past = list(spans(last_month, now - timedelta(minutes=5)))
    flavors = {f.slug: f for f in Flavor.objects.select_related("device_model")}
    devices = {(d.node.name, d.index): d for d in Device.objects.select_related("node")}
    rates = rates_by_model(flavor.device_model_id for flavor in flavors.values())
    requests = LeaseRequest.objects.bulk_create(
        _request(s, flavor, teams[s.team], people[s.username], rates[flavor.device_model_id])
        for s in past
        if (flavor := flavors[s.lane.flavor])
    )
    leases = Lease.objects.bulk_create(
        _lease(s, r, devices[s.lane.node, s.lane.index]) for s, r in zip(past, requests, strict=True)
    )
    RequestEvent.objects.bulk_create(
        e for s, r in zip(past, requests, strict=True) for e in _request_events(s, r)
    )
    LeaseEvent.objects.bulk_create(
        e for s, ls in zip(past, leases, strict=True) for e in _lease_events(s, ls)
    )
    Placement.objects.bulk_create(
        _placement(s, ls, devices[s.lane.node, s.lane.index]) for s, ls in zip(past, leases, strict=True)
    )
    set_factors(since=last_month)
    period_of(last_month)
    period_of(now)
    make_hours(leases)
    meter_all(now=now)
    close_period(period=period_of(last_month), actor=people["finance"], now=now)
    _correct(people["finance"], now=now)
    return len(past)


def _correct(finance: User, *, now: datetime) -> None:
    """Let finance propose a credit note on the dearest line of the closed month, for a second person to decide."""
    line = InvoiceLine.objects.order_by("-amount_micro", "pk").first()
    if line is not None:
        cents = line.amount_micro // 10 // pricing.MINOR_MICRO * pricing.MINOR_MICRO
        propose_note(
            line=line,
            amount_micro=cents or pricing.MINOR_MICRO,
            is_credit=True,
            reason="The network of the node was slow for a day",
            lease=None,
            actor=finance,
            now=now,
        )


def _request(s: PastLease, flavor: Flavor, team: Team, user: User, rates: list[Rate]) -> LeaseRequest:
    price = pricing.quote_at(rates, flavor, count=1, duration_s=s.duration_s, starts_at=s.asked_at)
    return LeaseRequest(
        team=team,
        author=user,
        flavor=flavor,
        count=1,
        duration_s=s.duration_s,
        remaining_s=s.duration_s,
        name=s.purpose,
        state=RequestState.FULFILLED,
        cost_milli=cost_milli(flavor, 1),
        quote_micro=price.amount_micro,
        currency=price.currency,
        submitted_at=s.asked_at,
        queued_at=s.asked_at,
    )


def _lease(s: PastLease, request: LeaseRequest, device: Device) -> Lease:
    return Lease(
        request=request,
        team=request.team,
        user=request.author,
        flavor=request.flavor,
        node=device.node,
        state=LeaseState.ENDED,
        share_milli=request.flavor.share_milli,
        cost_milli=request.cost_milli,
        policy_version=1,
        starts_at=s.starts_at - timedelta(milliseconds=150),
        not_after=s.starts_at + timedelta(seconds=s.duration_s),
        activated_at=s.starts_at,
        ended_at=s.ends_at,
        clean_at=s.ends_at + timedelta(seconds=1),
        moved_at=s.ends_at + timedelta(seconds=1),
        end_reason="released" if s.is_early else "expired",
        agent_active_ms=int((s.ends_at - s.starts_at).total_seconds() * 1000),
    )


def _request_events(s: PastLease, request: LeaseRequest) -> Iterator[RequestEvent]:
    steps = (
        ("draft", "submitted", s.asked_at),
        ("submitted", "queued", s.asked_at),
        ("queued", "granted", s.starts_at - timedelta(milliseconds=150)),
        ("granted", "fulfilled", s.ends_at + timedelta(seconds=1)),
    )
    return (RequestEvent(request=request, was=was, now=now, at=at) for was, now, at in steps)


def _lease_events(s: PastLease, lease: Lease) -> Iterator[LeaseEvent]:
    clean = s.ends_at + timedelta(seconds=1)
    steps = (
        ("booked", "preparing", lease.starts_at, ""),
        ("preparing", "active", s.starts_at, ""),
        ("active", "ending", s.ends_at, lease.end_reason),
        ("ending", "cleaning", clean, ""),
        ("cleaning", "ended", clean, ""),
    )
    return (LeaseEvent(lease=lease, was=was, now=now, at=at, reason=reason) for was, now, at, reason in steps)


def _placement(s: PastLease, lease: Lease, device: Device) -> Placement:
    flavor = lease.flavor
    return Placement(
        lease=lease,
        device=device,
        team=lease.team,
        mode=flavor.mode,
        profile=flavor.profile,
        start=s.lane.start,
        size=s.lane.size,
        slots=Int8Range(s.lane.start, s.lane.start + s.lane.size),
        period=TimestamptzRange(lease.starts_at, s.ends_at + timedelta(seconds=1)),
        is_live=False,
        share_milli=flavor.share_milli,
        memory_mib=flavor.memory_mib,
    )
