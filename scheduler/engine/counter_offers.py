"""What could start sooner than what was asked."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.engine.alternatives import Alternative, nearest, ranked, varied
from scheduler.engine.forecaster import HORIZON_S, forecaster_of
from scheduler.engine.model import Claim, Forecast, PolicyRules, Snapshot

# Alternatives that a forecast looks at; each one may keep it busy up to its horizon.
MOST_NOW = 8
MOST_SOONER = 4


def counter_offers(
    snapshot: Snapshot,
    policy: PolicyRules,
    claim: Claim,
    candidates: Iterable[Claim],
    horizon_s: int = HORIZON_S,
) -> tuple[Forecast, tuple[Alternative, ...]]:
    """The claim's own forecast, and which candidates would start sooner.

    Candidates are what-ifs with negative ids of their own. Those that have room now are looked at first,
    then the nearest of the others; at most MOST_NOW and MOST_SOONER of them. Changes that start now come
    first, the nearest to what was asked first, then those that start later, the soonest first. A claim that
    starts now needs no offer; a candidate that never starts, or no sooner than the claim, is none.
    """
    forecaster = forecaster_of(snapshot, policy, horizon_s)
    with forecaster.lock:
        others = {change.claim.id: change for change in ranked(forecaster.began, claim, candidates)}
        now = nearest(forecaster.began, claim, [change.claim for change in others.values()], most=MOST_NOW)
    has_room = {change.claim.id for change in now}
    rest = varied((change for id_, change in others.items() if id_ not in has_room), MOST_SOONER)
    asked = [change.claim for change in (*now, *rest)]
    known = forecaster.ask([claim, *asked], horizon_s)
    own = known[claim.id]
    found = []
    for other in asked:
        start = known[other.id].starts_at
        if start is not None and (own.starts_at is None or start < own.starts_at):
            change = others[other.id]
            found.append(Alternative(change.kind, change.claim, start, change.far))
    return own, tuple(sorted(found, key=lambda change: (change.starts_at, change.far)))
