"""What a snapshot will probably come to: leases end, and claims run, as long as was learned, not as long as asked.

The time asked for is a bound by the book; most people give a slice back long before. How long requests of a team
and size run is learned from those that have ended and those that have not, and what is predicted of one counts as
far as predictions were right: the same lengths that the order of the queue reads (``engine.learning.lengths``).
What is still to come is asked *given that it already ran that long*: a lease that outlives its prediction is not
about to end, it is one of the long ones. Where nothing was learned and nothing is predicted the time asked for
stays.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np

from scheduler.engine.columns import Floats
from scheduler.engine.learning.bins import HIGH, LOW, bin_of
from scheduler.engine.learning.lengths import Curves, curves_of
from scheduler.engine.model import Claim, Held, Running, Snapshot
from scheduler.engine.order.costs import units_of

EXPECTED, LONG = 0.5, 0.9
_EDGES: Floats = np.log2(np.append(np.maximum(LOW, 0.5), HIGH[-1]))


class RemainingLengths:
    """How long requests probably still run: the quantile ``level`` of the lengths that are left at their age."""

    def __init__(self, curves: Curves, level: float = EXPECTED, *, is_learned: bool = True) -> None:
        self._curves = curves
        self._level = level
        self._is_learned = is_learned
        self._below: dict[tuple[int, int, int], Floats] = {}

    def left_s(self, team: int, units: int, ran_s: float, predicted_s: int, most_s: float) -> float:
        """Seconds still to run, at most ``most_s``; that where nothing is known."""
        if most_s <= 0 or not (predicted_s or self._is_learned):
            return max(most_s, 0.0)
        below = self._below_of(team, units, predicted_s)
        begun = float(np.interp(math.log2(max(ran_s, 0.5)), _EDGES, below))
        length = math.exp2(np.interp(begun + self._level * (1.0 - begun), below, _EDGES))
        return min(max(length - ran_s, 1.0), most_s)

    def _below_of(self, team: int, units: int, predicted_s: int) -> Floats:
        """How likely the length is below each edge of a bin."""
        key = team, units, bin_of(predicted_s) if predicted_s > 1 else -1
        found = self._below.get(key)
        if found is None:
            chance = self._curves.chance(team, units, predicted_s)
            found = self._below[key] = np.append(0.0, np.cumsum(chance / chance.sum()))
        return found


def outcome(snapshot: Snapshot, level: float = EXPECTED) -> Snapshot:
    """The snapshot with ends of leases, and lengths of claims, that this share stays below; never longer than asked.

    Claims keep the time they ask for where bookings or outages come, because it decides whether they fit
    before these.
    """
    lengths = RemainingLengths(curves_of(snapshot.learned), level, is_learned=snapshot.learned.version > 0)
    units = Counter[int]()
    for run in snapshot.running:
        units[run.claim_id] += run.count * (not run.is_extra)
    ends = {
        run.lease_id: _end(run, lengths, units[run.claim_id] or run.count, snapshot.taken_at)
        for run in snapshot.running
    }
    likely = {claim.id: _length(claim, lengths) for claim in snapshot.queue}
    return replace(
        snapshot,
        held=_held(snapshot, ends) if ends else snapshot.held,
        likely_s={
            claim.id: likely[claim.id] for claim in snapshot.queue if likely[claim.id] < claim.duration_s
        },
    )


def _end(run: Running, lengths: RemainingLengths, units: int, now: datetime) -> datetime:
    ran = run.ran_s + max((now - run.started_at).total_seconds(), 0.0)
    most = (run.until - now).total_seconds()
    return now + timedelta(seconds=lengths.left_s(run.team_id, units, ran, run.predicted_s, most))


def _length(claim: Claim, lengths: RemainingLengths) -> int:
    left = lengths.left_s(claim.team_id, units_of(claim), claim.ran_s, claim.predicted_s, claim.duration_s)
    return max(min(math.ceil(left), claim.duration_s), 1)


def _held(snapshot: Snapshot, ends: dict[int, datetime]) -> tuple[Held, ...]:
    """What is held, until the new ends; a board held for shares is free when its last share is."""
    now = snapshot.taken_at
    found = [
        replace(one, until=min(one.until, ends[one.lease_id]))
        if one.lease_id in ends and one.until > now
        else one
        for one in snapshot.held
    ]
    last: dict[int, datetime] = {}
    for one in found:
        if not one.is_host:
            last[one.device_id] = max(one.until, last.get(one.device_id, one.until))
    return tuple(
        replace(one, until=min(one.until, last[one.device_id]))
        if one.is_host and one.until > now and one.device_id in last
        else one
        for one in found
    )
