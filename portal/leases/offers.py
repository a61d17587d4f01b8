"""What could be asked for instead, with start and price: candidates for the engine, offers for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal, cast

from portal.catalog import pricing
from portal.catalog.models import Flavor
from portal.common.errors import BerthError
from portal.fleet.sizes import size_names
from portal.leases.models import LeaseRequest
from portal.leases.requests import RequestSpec
from portal.teams.models import Team
from scheduler.engine.alternatives import ChangeKind
from scheduler.engine.model import Claim, Snapshot, Work

OfferKind = ChangeKind | Literal["preemptible"]
MOST_OFFERS = 5
LEAST_S = 900
BOOK_EVERY_S = 300  # a booked start is on the next five minutes


@dataclass(frozen=True, slots=True)
class Offer:
    """Another request that could be made instead, with its start and price.

    ``starts_at`` is the likely start and ``by`` the one that nine of ten keep (None: not known).
    ``is_preemptible`` pays less and may be taken back; ``booked_at`` books that start, which then is certain.
    """

    kind: OfferKind
    flavor: Flavor
    count: int
    duration_s: int
    starts_at: datetime
    is_now: bool
    quote: pricing.Quote
    by: datetime | None = None
    is_preemptible: bool = False
    booked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something else to ask for, as a what-if claim of the engine."""

    flavor: Flavor
    count: int
    duration_s: int
    claim: Claim


def claim_for(
    number: int,
    team: Team | None,
    flavor: Flavor,
    count: int,
    duration_s: int,
    rank: int,
    snapshot: Snapshot,
    sizes: Mapping[tuple[int, str], str],
    user_id: int = 0,
) -> Claim:
    """Return the what-if claim of that (negative) number for units of a flavor, asked for now.

    ``sizes`` are those behind other names (``portal.fleet.sizes.size_names``). ``user_id`` is who asks: orders weigh
    what people have used, and somebody unknown, who has used nothing, would be told a place before everybody.
    """
    return Claim(
        id=number,
        team_id=team.pk if team else 0,
        user_id=user_id,
        mode=flavor.mode,  # type: ignore[arg-type]
        count=count,
        duration_s=duration_s,
        priority=rank,
        queued_at=snapshot.taken_at,
        models=frozenset({flavor.device_model.slug}),
        profile=sizes.get((flavor.device_model_id, flavor.profile), flavor.profile),
        share_milli=flavor.share_milli,
        memory_mib=flavor.memory_mib,
        cpu_milli=flavor.cpu_milli * count,
        host_memory_mib=flavor.host_memory_mib * count,
    )


def as_chosen(claim: Claim, spec: RequestSpec | LeaseRequest) -> Claim:
    """Return the claim with everything else that was chosen; only whole boards are spread over nodes."""
    return replace(
        claim,
        work=cast(Work, spec.work),
        is_preemptible=spec.is_preemptible,
        starts_at=spec.starts_at,
        least_duration_s=min(spec.least_duration_s, claim.duration_s),
        nodes=spec.nodes if claim.mode == "exclusive" else 1,
    )


def candidates(
    team: Team, wanted: Claim, flavor: Flavor, spec: RequestSpec, snapshot: Snapshot
) -> dict[int, Candidate]:
    """Return all that could be asked for instead, by claim id: fewer, shorter, and other flavors.

    Which of them are near enough to be offered the engine says (``scheduler.engine.alternatives``).
    """
    count, duration_s, sizes = wanted.count, wanted.duration_s, size_names()
    asked: list[tuple[Flavor, int, int]] = [(flavor, fewer, duration_s) for fewer in range(count - 1, 0, -1)]
    least = max(flavor.min_duration_s, LEAST_S)
    asked += [(flavor, count, duration_s // part) for part in (2, 4) if duration_s // part >= least]
    rest = Flavor.objects.filter(is_active=True).exclude(pk=flavor.pk).select_related("device_model")
    asked += [
        (other, amount, duration_s)
        for other in rest
        if other.min_duration_s <= duration_s <= other.max_duration_s
        for amount in sorted({count, (count + 1) // 2, 1}, reverse=True)
        if amount <= other.max_count
    ]
    return {
        number: Candidate(
            f,
            n,
            s,
            as_chosen(
                claim_for(number, team, f, n, s, wanted.priority, snapshot, sizes, wanted.user_id), spec
            ),
        )
        for number, (f, n, s) in zip(range(-2, -2 - len(asked), -1), asked, strict=True)
    }


def priced(candidate: Candidate, spec: RequestSpec, *, now: datetime) -> pricing.Quote | None:
    """Return what the candidate costs, None where it has no price."""
    return _quote(candidate.flavor, candidate.claim, candidate.duration_s, now, spec.is_preemptible)


def preemptible(
    flavor: Flavor, wanted: Claim, starts_at: datetime, by: datetime, *, now: datetime
) -> Iterator[Offer]:
    """Return the same for less, for those who let others preempt it: one offer, or none where it saves nothing."""
    if wanted.is_preemptible or flavor.preemptible_milli >= 1000:
        return
    price = _quote(flavor, wanted, wanted.duration_s, now, True)
    if price is not None:
        yield Offer(
            "preemptible", flavor, wanted.count, wanted.duration_s, starts_at, False, price, by,
            is_preemptible=True,
        )  # fmt: skip


def booked(flavor: Flavor, wanted: Claim, *, free_at: datetime | None, now: datetime) -> Iterator[Offer]:
    """Return the same at a fixed time: when it is free by the book, on the next five minutes; or nothing."""
    if wanted.starts_at is not None or free_at is None or free_at <= now:
        return
    late = -free_at.timestamp() % BOOK_EVERY_S
    at = free_at + timedelta(seconds=late)
    price = _quote(flavor, wanted, wanted.duration_s, at, wanted.is_preemptible)
    if price is not None:
        yield Offer(
            "later", flavor, wanted.count, wanted.duration_s, at, False, price, at, booked_at=at,
            is_preemptible=wanted.is_preemptible,
        )  # fmt: skip


def chosen(sooner: Sequence[Offer], more: Sequence[Offer], most: int = MOST_OFFERS) -> list[Offer]:
    """Return at most so many offers: what starts sooner, but with a place kept for each other kind."""
    kept = list(more)[:2]
    return [*list(sooner)[: most - len(kept)], *kept]


def _quote(
    flavor: Flavor, claim: Claim, duration_s: int, at: datetime, is_preemptible: bool
) -> pricing.Quote | None:
    try:
        return pricing.quote(
            flavor,
            team_id=claim.team_id,
            is_preemptible=is_preemptible,
            count=claim.count * max(claim.nodes, 1),
            duration_s=duration_s,
            starts_at=at,
            price_milli=pricing.paid_milli(flavor, is_preemptible=is_preemptible),
            leases=pricing.leases_of(claim.nodes, claim.count),
        )
    except BerthError:
        return None


__all__ = [
    "MOST_OFFERS",
    "Candidate",
    "Offer",
    "OfferKind",
    "as_chosen",
    "booked",
    "candidates",
    "chosen",
    "claim_for",
    "preemptible",
    "priced",
]
