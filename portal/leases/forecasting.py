"""What would happen: likely start, reasons and counter-offers, by the engine on the last published picture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from portal.catalog.models import Flavor
from portal.fleet.sizes import size_names
from portal.leases import offers
from portal.leases.models import LeaseRequest
from portal.leases.offers import Candidate, Offer, as_chosen, claim_for
from portal.leases.published_snapshot import (
    HORIZON_S,
    SNAPSHOT_KEY,
    Picture,
    picture,
    published_calibration,
    published_snapshot,
)
from portal.leases.reasons import sentence
from portal.leases.requests import PRIORITIES, RequestSpec
from portal.leases.selectors import places_by_submission
from portal.policies.selectors import active_policy
from portal.teams.models import Team
from scheduler.engine import counter_offers, forecast
from scheduler.engine import free_units as engine_free_units
from scheduler.engine.alternatives import Alternative
from scheduler.engine.blocks import Block
from scheduler.engine.calibration import Calibration
from scheduler.engine.forecaster import forecaster_of
from scheduler.engine.model import Claim, Forecast, PolicyRules, Snapshot
from scheduler.engine.sleeping_nodes import awakened

MOST_OFFERS = offers.MOST_OFFERS
__all__ = [
    "SNAPSHOT_KEY",
    "Offer",
    "RequestPreview",
    "Start",
    "estimates",
    "free_units",
    "preview",
    "published_snapshot",
    "raw_waits",
    "sentence",
]


@dataclass(frozen=True, slots=True)
class Start:
    """When something will start: half of such requests by ``likely_at`` (P50), nine of ten by ``by`` (P90)."""

    likely_at: datetime
    by: datetime


@dataclass(frozen=True, slots=True)
class RequestPreview:
    """What a request would meet if it were made now; None is unknown.

    ``starts_at`` is the likely start, ``by`` the instant that nine of ten such requests start before.
    """

    starts_at: datetime | None
    is_now: bool | None
    position: int | None
    reasons: list[dict[str, Any]]
    offers: list[Offer]
    is_impossible: bool = False
    by: datetime | None = None


def free_units() -> dict[int, int | None]:
    """Return by flavor id how many units could start now; None where that is not known.

    Units of sleeping nodes count: these wake for whoever asks.
    """
    flavors = list(Flavor.objects.filter(is_active=True).select_related("device_model"))
    snapshot = published_snapshot()
    if snapshot is None:
        return {f.pk: None for f in flavors}
    snapshot = awakened(snapshot)
    sizes = size_names()
    return {
        f.pk: engine_free_units(snapshot, claim_for(-1, None, f, 1, 3600, 0, snapshot, sizes))
        for f in flavors
    }


def preview(
    *,
    team: Team,
    flavor: Flavor,
    spec: RequestSpec,
    user_id: int,
    now: datetime,
    instead_of: LeaseRequest | None = None,
) -> RequestPreview:
    """Return likely start, reasons and up to five counter-offers for a specification of a person. Changes nothing.

    ``instead_of`` is a waiting request that this one would replace: it is thought away from the queue.
    """
    seen = picture()
    if seen is None:
        return RequestPreview(None, None, None, [], [])
    policy = active_policy()
    book, probable = seen.book, seen.expected
    if instead_of is None:
        seen.play(policy)
    else:
        book, probable = _without(book, instead_of.pk), _without(probable, instead_of.pk)
    rank = PRIORITIES.get(spec.priority, 0)
    wanted = as_chosen(
        claim_for(-1, team, flavor, spec.count, spec.duration_s, rank, book, size_names(), user_id), spec
    )
    others = offers.candidates(team, wanted, flavor, spec, book)
    found, changes = counter_offers(
        probable, policy, wanted, [one.claim for one in others.values()], horizon_s=HORIZON_S
    )
    by_book = found
    if seen.expected is not seen.book:
        by_book = forecast(book, policy, [wanted], horizon_s=HORIZON_S)[wanted.id]
    clock = _Clock(book, published_calibration(), now)
    start = clock.start(found, wanted)
    is_now = clock.is_now(found.starts_at)
    chosen: list[Offer] = []
    if not is_now and not found.is_impossible:
        sooner = list(_sooner(changes, others, clock, spec))
        more = [
            *offers.booked(flavor, wanted, free_at=by_book.starts_at, now=now),
            *(offers.preemptible(flavor, wanted, start.likely_at, start.by, now=now) if start else ()),
        ]
        chosen = offers.chosen(sooner, more)
    return RequestPreview(
        starts_at=start.likely_at if start else None,
        is_now=is_now,
        position=found.position,
        reasons=[{"code": r.code, **r.detail} for r in by_book.reasons],
        offers=chosen,
        is_impossible=found.is_impossible,
        by=start.by if start else None,
    )


def estimates(requests: Sequence[LeaseRequest], *, now: datetime | None = None) -> dict[int, Start | None]:
    """Return the likely start of waiting requests by id; None where it cannot be told.

    No start is before ``now``; left out, it is the instant of the picture.
    """
    found: dict[int, Start | None] = {request.pk: None for request in requests}
    seen = picture() if found else None
    if seen is None:
        return found
    clock = _Clock(seen.book, published_calibration(), now or seen.book.taken_at)
    known = _forecasts(seen, found, active_policy())
    return found | {claim.id: clock.start(one, claim) for claim, one in known}


def kept_for_waiting() -> list[Block]:
    """Return what is kept for requests that wait, from the start promised to each; none without a picture."""
    seen = picture()
    return [] if seen is None else forecaster_of(seen.book, active_policy(), HORIZON_S).promises()


def places(requests: Sequence[LeaseRequest]) -> dict[int, int]:
    """Return by id the 1-based place of those that wait, in the order of the active policy, as a quote tells it.

    Of what the picture does not hold yet, or without a picture, it is the place by priority and time.
    """
    found = places_by_submission(requests)
    seen = picture() if found else None
    if seen is None:
        return found
    known = _forecasts(seen, found, active_policy())
    return found | {claim.id: one.position for claim, one in known}


def raw_waits(seen: Picture, request_ids: Iterable[int]) -> dict[int, float]:
    """Return the forecast wait in seconds from the picture on, uncorrected, of queued requests by id.

    Left out is who is not in the picture's queue, whose start is certain, and whose start is not known.
    """
    at = seen.book.taken_at
    return {
        claim.id: (one.starts_at - at).total_seconds()
        for claim, one in _forecasts(seen, set(request_ids), active_policy())
        if one.starts_at is not None and claim.starts_at is None and not one.is_certain
    }


def _forecasts(seen: Picture, ids: Iterable[int], policy: PolicyRules) -> list[tuple[Claim, Forecast]]:
    wanted = set(ids)
    claims = [claim for claim in seen.expected.queue if claim.id in wanted]
    found = forecast(seen.play(policy).expected, policy, claims, horizon_s=HORIZON_S) if claims else {}
    return [(claim, found[claim.id]) for claim in claims]


class _Clock:
    """Turns what the engine says of a picture into instants to show at ``now``."""

    def __init__(self, snapshot: Snapshot, calibration: Calibration, now: datetime) -> None:
        self.taken_at = snapshot.taken_at
        self.calibration = calibration
        self.now = now

    def is_now(self, starts_at: datetime | None) -> bool:
        """Say whether that start is at once."""
        return starts_at is not None and starts_at <= self.taken_at

    def start(self, found: Forecast, claim: Claim) -> Start | None:
        """Return what to show; a booked start, a place that is being made and a start at once are certain."""
        if found.starts_at is None:
            return None
        if claim.starts_at is not None or found.is_certain:
            at = max(found.starts_at, self.now) if found.is_certain else found.starts_at
            return Start(at, at)
        return self.corrected(found.starts_at)

    def corrected(self, starts_at: datetime) -> Start:
        """Return what to show for a start that was forecast, never in the past."""
        if self.is_now(starts_at):
            return Start(self.now, self.now)
        window = self.calibration.window((starts_at - self.taken_at).total_seconds())
        likely = max(self.taken_at + timedelta(seconds=window.p50_s), self.now)
        return Start(likely, max(self.taken_at + timedelta(seconds=window.p90_s), likely))


def _without(snapshot: Snapshot, claim_id: int) -> Snapshot:
    return replace(snapshot, queue=tuple(c for c in snapshot.queue if c.id != claim_id))


def _sooner(
    changes: Iterable[Alternative], others: dict[int, Candidate], clock: _Clock, spec: RequestSpec
) -> Iterator[Offer]:
    """Return the changes with their prices, as they come; what has no price is no offer."""
    for change in changes:
        other = others[change.claim.id]
        price = offers.priced(other, spec, now=clock.now)
        if price is None:
            continue
        start = clock.corrected(change.starts_at)
        yield Offer(
            change.kind, other.flavor, other.count, other.duration_s, start.likely_at,
            clock.is_now(change.starts_at), price, start.by, is_preemptible=other.claim.is_preemptible,
        )  # fmt: skip
