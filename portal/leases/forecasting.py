"""What would happen: earliest start, reasons and counter-offers, by the engine on the last published picture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any, cast

from redis.exceptions import RedisError

from portal.catalog import pricing
from portal.catalog.models import Flavor
from portal.common.errors import BerthError
from portal.common.live import redis_client
from portal.leases.models import LeaseRequest
from portal.leases.reasons import sentence
from portal.leases.services import PRIORITIES, RequestSpec
from portal.policies.selectors import active_policy
from portal.teams.models import Team
from scheduler.engine import counter_offers, forecast, snapshot_from_json
from scheduler.engine import free_units as engine_free_units
from scheduler.engine.model import Claim, Snapshot, Work
from scheduler.engine.nearest import Change, ChangeKind

SNAPSHOT_KEY = "berth:snapshot"
HORIZON_S = 14 * 86_400
MOST_OFFERS = 5
__all__ = ["Offer", "Preview", "estimates", "free_units", "preview", "published_snapshot", "sentence"]


@dataclass(frozen=True, slots=True)
class Offer:
    """Another request that could be made instead, with its start and price."""

    kind: ChangeKind
    flavor: Flavor
    count: int
    duration_s: int
    starts_at: datetime
    is_now: bool
    quote: pricing.Quote


@dataclass(frozen=True, slots=True)
class Preview:
    """What a request would meet if it were made now; None is unknown."""

    starts_at: datetime | None
    is_now: bool | None
    position: int | None
    reasons: list[dict[str, Any]]
    offers: list[Offer]
    is_impossible: bool = False


def published_snapshot() -> Snapshot | None:
    """Return the last published picture, or None when there is none or it cannot be read."""
    try:
        raw = redis_client().get(SNAPSHOT_KEY)
    except RedisError:
        return None
    if not raw:
        return None
    try:
        return snapshot_from_json(str(raw).encode())
    except ValueError:
        return None


def free_units() -> dict[int, int | None]:
    """Return by flavor id how many units could start now; None where that is not known."""
    flavors = list(Flavor.objects.filter(is_active=True).select_related("device_model"))
    snapshot = published_snapshot()
    if snapshot is None:
        return {f.pk: None for f in flavors}
    return {f.pk: engine_free_units(snapshot, _claim(-1, None, f, 1, 3600, 0, snapshot)) for f in flavors}


def preview(
    *,
    team: Team,
    flavor: Flavor,
    count: int,
    duration_s: int,
    priority: str = "normal",
    now: datetime,
    instead_of: LeaseRequest | None = None,
    spec: RequestSpec | None = None,
) -> Preview:
    """Return earliest start, reasons and up to five counter-offers. Changes nothing.

    ``instead_of`` is a waiting request that this one would replace: it is thought away from the queue.
    ``spec`` is the whole specification, for what else was chosen: nodes, start, kind of work and the rest.
    """
    snapshot = published_snapshot()
    if snapshot is None:
        return Preview(None, None, None, [], [])
    if instead_of is not None:
        snapshot = replace(snapshot, queue=tuple(c for c in snapshot.queue if c.id != instead_of.pk))
    rank = PRIORITIES.get(priority, 0)
    wanted = _as_chosen(_claim(-1, team, flavor, count, duration_s, rank, snapshot), spec)
    others = {
        -2 - at: (f, n, s, _as_chosen(_claim(-2 - at, team, f, n, s, rank, snapshot), spec))
        for at, (f, n, s) in enumerate(_alternatives(flavor, count, duration_s))
    }
    found, changes = counter_offers(
        snapshot, active_policy(), wanted, [claim for *_, claim in others.values()], horizon_s=HORIZON_S
    )
    is_now = found.starts_at is not None and found.starts_at <= snapshot.taken_at
    starts_at = None if found.starts_at is None else max(found.starts_at, now)
    offers = () if is_now else _offers(changes, others, snapshot, now, spec)
    return Preview(
        starts_at=now if is_now else starts_at,
        is_now=is_now,
        position=found.position,
        reasons=[{"code": r.code, **r.detail} for r in found.reasons],
        offers=list(islice(offers, MOST_OFFERS)),
        is_impossible=found.is_impossible,
    )


def estimates(requests: Sequence[LeaseRequest]) -> dict[int, datetime | None]:
    """Return the expected start of waiting requests by id; None where it cannot be told."""
    snapshot = published_snapshot()
    if snapshot is None or not requests:
        return {r.pk: None for r in requests}
    known = {c.id: c for c in snapshot.queue}
    claims = [known[r.pk] for r in requests if r.pk in known]
    found = forecast(snapshot, active_policy(), claims, horizon_s=HORIZON_S) if claims else {}
    return {r.pk: found[r.pk].starts_at if r.pk in found else None for r in requests}


def _claim(
    number: int, team: Team | None, flavor: Flavor, count: int, duration_s: int, rank: int, snapshot: Snapshot
) -> Claim:
    return Claim(
        id=number,
        team_id=team.pk if team else 0,
        mode=flavor.mode,  # type: ignore[arg-type]
        count=count,
        duration_s=duration_s,
        priority=rank,
        queued_at=snapshot.taken_at,
        models=frozenset({flavor.device_model.slug}),
        profile=flavor.profile,
        share_milli=flavor.share_milli,
        memory_mib=flavor.memory_mib,
        cpu_milli=flavor.cpu_milli * count,
        host_memory_mib=flavor.host_memory_mib * count,
    )


def _as_chosen(claim: Claim, spec: RequestSpec | None) -> Claim:
    """Return the claim with everything else that was chosen; only whole boards are spread over nodes."""
    if spec is None:
        return claim
    return replace(
        claim,
        work=cast(Work, spec.work),
        is_preemptible=spec.is_preemptible,
        starts_at=spec.starts_at,
        least_duration_s=min(spec.least_duration_s, claim.duration_s),
        nodes=spec.nodes if claim.mode == "exclusive" else 1,
    )


Alternative = tuple[Flavor, int, int]


def _alternatives(flavor: Flavor, count: int, duration_s: int) -> list[Alternative]:
    """Return all that could be asked for instead: fewer, shorter, and every other flavor in this amount.

    Which of them are near enough to be offered the engine says (``scheduler.engine.nearest``).
    """
    found: list[Alternative] = [(flavor, fewer, duration_s) for fewer in range(count - 1, 0, -1)]
    if duration_s >= 2 * max(flavor.min_duration_s, 3600):
        found.append((flavor, count, duration_s // 2))
    rest = Flavor.objects.filter(is_active=True, max_count__gte=count).exclude(pk=flavor.pk)
    found += [
        (other, count, duration_s)
        for other in rest.select_related("device_model")
        if other.min_duration_s <= duration_s <= other.max_duration_s
    ]
    return found


def _offers(
    changes: Iterable[Change],
    others: Mapping[int, tuple[Flavor, int, int, Claim]],
    snapshot: Snapshot,
    now: datetime,
    spec: RequestSpec | None,
) -> Iterator[Offer]:
    """Return the changes with their prices, as they come; what has no price is no offer."""
    for change in changes:
        flavor, count, duration_s, claim = others[change.claim.id]
        try:
            price = pricing.quote(
                flavor,
                count=count * max(claim.nodes, 1),
                duration_s=duration_s,
                starts_at=now,
                price_milli=pricing.paid_milli(flavor, is_preemptible=bool(spec and spec.is_preemptible)),
            )
        except BerthError:
            continue
        is_now = change.starts_at <= snapshot.taken_at
        starts_at = now if is_now else max(change.starts_at, now)
        yield Offer(change.kind, flavor, count, duration_s, starts_at, is_now, price)
