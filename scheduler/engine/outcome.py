"""What a snapshot will probably come to: leases end, and claims run, as long as was learned, not as long as asked.

The time asked for is a bound by the book; most people give a slice back long before. With a prediction the
length is taken as log-normal around it, and what is still to come is asked *given that it already ran that
long*: a lease that outlives its prediction is not about to end, it is one of the long ones. Without a
prediction the time asked for stays.
"""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timedelta
from statistics import NormalDist

from scheduler.engine.model import Claim, Held, Running, Snapshot

EXPECTED, LONG = 0.5, 0.9
# Standard deviation of the logarithm of a length around its prediction; docs/prediction.md measures it.
SPREAD = 1.2
_NORMAL = NormalDist()
_NEARLY = 1.0 - 1e-9


def left_s(predicted_s: int, ran_s: float, most_s: float, level: float = EXPECTED) -> float:
    """Seconds still to run that this share of such requests stays below, at most ``most_s``.

    ``predicted_s`` is the median of the whole length, 0 for unknown: then ``most_s``.
    """
    if predicted_s <= 0 or most_s <= 0:
        return max(most_s, 0.0)
    begun = _NORMAL.cdf(math.log(max(ran_s, 1e-3) / predicted_s) / SPREAD)
    share = begun + level * (1.0 - begun)
    if share >= _NEARLY:
        return most_s
    total = predicted_s * math.exp(SPREAD * _NORMAL.inv_cdf(max(share, 1e-9)))
    return min(max(total - ran_s, 1.0), most_s)


def outcome(snapshot: Snapshot, level: float = EXPECTED) -> Snapshot:
    """The snapshot with ends of leases, and lengths of claims, that this share stays below; never longer than asked.

    Claims keep the time they ask for where bookings or outages come, because it decides whether they fit
    before these.
    """
    ends = {run.lease_id: _end(run, snapshot.taken_at, level) for run in snapshot.running if run.predicted_s}
    bound = bool(snapshot.bookings or snapshot.outages)
    return replace(
        snapshot,
        held=_held(snapshot, ends) if ends else snapshot.held,
        queue=snapshot.queue if bound else tuple(_claim(one, level) for one in snapshot.queue),
    )


def _end(run: Running, now: datetime, level: float) -> datetime:
    began = max((now - run.started_at).total_seconds(), 0.0)
    most = (run.until - now).total_seconds()
    return now + timedelta(seconds=left_s(run.predicted_s, run.ran_s + began, most, level))


def _claim(claim: Claim, level: float) -> Claim:
    if not claim.predicted_s:
        return claim
    length = math.ceil(left_s(claim.predicted_s, claim.ran_s, claim.duration_s, level))
    return replace(claim, duration_s=max(min(length, claim.duration_s), 1))


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
