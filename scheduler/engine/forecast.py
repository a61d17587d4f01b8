"""When would a claim start? The engine's own rules played forward over the ends already known.

The simulation knows when live placements must end and how long claims run at most, what is booked and
which nodes go away, nothing else: no early release, no new arrivals, blocked nodes stay blocked. So it is a
bound by the book, not a prediction. ``timeline`` plays, ``forecaster`` answers.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.engine.forecaster import HORIZON_S, forecaster_of
from scheduler.engine.model import Claim, Forecast, PolicyRules, Snapshot

__all__ = ["HORIZON_S", "forecast"]


def forecast(
    snapshot: Snapshot, policy: PolicyRules, claims: Iterable[Claim], horizon_s: int = HORIZON_S
) -> dict[int, Forecast]:
    """The earliest start of each claim, by claim id: queued ones, and what-ifs with negative ids.

    Each what-if stands in the queue by the ordinary order and is judged on its own: it takes nothing
    from queued claims and what-ifs do not see each other. ``starts_at`` is None when no start was
    found within the horizon (or within the bounded number of events), with the reasons why; a claim
    that cannot start at once carries the reasons of now. ``position`` counts from 1 among the claims
    that are left waiting now. The future is played once for all that is asked about the same object.
    """
    return forecaster_of(snapshot, policy, horizon_s).ask(claims, horizon_s)
