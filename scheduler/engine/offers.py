"""What could start sooner than what was asked."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from scheduler.engine.forecast import forecast
from scheduler.engine.model import Claim, Forecast, Policy, Snapshot


def counter_offers(
    snapshot: Snapshot, policy: Policy, claim: Claim, alternatives: Iterable[Claim]
) -> list[Forecast]:
    """The alternatives that would start sooner than ``claim``, the soonest first.

    Alternatives are what-ifs with negative ids of their own; equal starts keep the order given. An
    alternative that never starts, or no sooner than the claim itself, is no offer and left out.
    """
    others = list(alternatives)
    known = forecast(snapshot, policy, [claim, *others])
    own = known[claim.id].starts_at
    starts: list[tuple[datetime, int, Forecast]] = []
    for at, other in enumerate(others):
        answer = known[other.id]
        if answer.starts_at is not None and (own is None or answer.starts_at < own):
            starts.append((answer.starts_at, at, answer))
    return [answer for _, _, answer in sorted(starts, key=lambda s: s[:2])]
