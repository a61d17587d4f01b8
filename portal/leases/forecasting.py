"""What would happen: earliest start, reasons and counter-offers, by the engine on the last published picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from redis.exceptions import RedisError

from portal.catalog import pricing
from portal.catalog.models import Flavor
from portal.common.errors import BerthError
from portal.common.live import redis_client
from portal.leases.models import LeaseRequest
from portal.leases.reasons import sentence
from portal.leases.services import PRIORITIES
from portal.policies.selectors import active_policy
from portal.teams.models import Team
from scheduler.engine import forecast, snapshot_from_json
from scheduler.engine import free_units as engine_free_units
from scheduler.engine.model import Claim, Forecast, Snapshot

SNAPSHOT_KEY = "berth:snapshot"
HORIZON_S = 14 * 86_400
__all__ = ["Offer", "Preview", "estimates", "free_units", "preview", "published_snapshot", "sentence"]
OfferKind = Literal["smaller", "other", "fewer", "shorter", "later"]


@dataclass(frozen=True, slots=True)
class Offer:
    """Another request that could be made instead, with its start and price."""

    kind: OfferKind
    flavor: Flavor
    count: int
    duration_s: int
    starts_at: datetime
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
    *, team: Team, flavor: Flavor, count: int, duration_s: int, priority: str = "normal", now: datetime
) -> Preview:
    """Return earliest start, reasons and up to five counter-offers. Changes nothing."""
    snapshot = published_snapshot()
    if snapshot is None:
        return Preview(None, None, None, [], [])
    rank = PRIORITIES.get(priority, 0)
    wanted = _claim(-1, team, flavor, count, duration_s, rank, snapshot)
    others = _alternatives(flavor, count, duration_s)
    claims = [wanted] + [
        _claim(-2 - i, team, f, n, s, rank, snapshot) for i, (_kind, f, n, s) in enumerate(others)
    ]
    answers = forecast(snapshot, active_policy(), claims, horizon_s=HORIZON_S)
    found = answers[wanted.id]
    is_now = found.starts_at is not None and found.starts_at <= snapshot.taken_at
    offers: list[Offer] = []
    if not is_now:
        for (kind, f, n, s), claim in zip(others, claims[1:], strict=True):
            offer = _offer(kind, f, n, s, answers[claim.id], found, now)
            if offer is not None:
                offers.append(offer)
    offers.sort(key=lambda o: (o.starts_at, -o.quote.amount_micro))
    starts_at = None if found.starts_at is None else max(found.starts_at, now)
    return Preview(
        starts_at=now if is_now else starts_at,
        is_now=is_now,
        position=found.position,
        reasons=[{"code": r.code, **r.detail} for r in found.reasons],
        offers=offers[:5],
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


Alternative = tuple[OfferKind, Flavor, int, int]


def _alternatives(flavor: Flavor, count: int, duration_s: int) -> list[Alternative]:
    """Return what else could be asked for: fewer, shorter, smaller on the same model, another model."""
    found: list[Alternative] = []
    if count > 1:
        found.append(("fewer", flavor, count // 2, duration_s))
    if duration_s > 2 * 3600:
        found.append(("shorter", flavor, count, duration_s // 2))
    rest: Iterable[Flavor] = (
        Flavor.objects.filter(is_active=True).exclude(pk=flavor.pk).select_related("device_model")
    )
    for other in rest:
        if not other.min_duration_s <= duration_s <= other.max_duration_s or count > other.max_count:
            continue
        if other.device_model_id == flavor.device_model_id and other.memory_mib < flavor.memory_mib:
            found.append(("smaller", other, count, duration_s))
        elif other.memory_mib >= flavor.memory_mib and other.memory_mib <= 3 * flavor.memory_mib:
            found.append(("other", other, count, duration_s))
    return found[:12]


def _offer(
    kind: OfferKind,
    flavor: Flavor,
    count: int,
    duration_s: int,
    other: Forecast,
    wanted: Forecast,
    now: datetime,
) -> Offer | None:
    """Return the alternative as an offer when it starts earlier than what was asked for."""
    if other.starts_at is None or (wanted.starts_at is not None and other.starts_at >= wanted.starts_at):
        return None
    try:
        price = pricing.quote(flavor, count=count, duration_s=duration_s, starts_at=now)
    except BerthError:
        return None
    return Offer(kind, flavor, count, duration_s, max(other.starts_at, now), price)
