"""How busy the past leases of the demo kept their devices: training runs hot, notebooks idle, some were forgotten."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from datetime import timedelta

from portal.leases.models import Lease
from portal.telemetry.models import HourRollup

SEED = 21
HOUR = timedelta(hours=1)
# Utilisation in percent around which the work of that name runs; what is not named trains.
BUSY = {"Notebook for the reading group": 31.0, "Debug data loader": 47.0, "Evaluate checkpoint": 72.0}
TRAINS = 86.0
UNMEASURED, FORGOTTEN = 0.02, 0.05


def make_hours(leases: Sequence[Lease]) -> None:
    """Write the measured hours of past leases; the same ones each time."""
    HourRollup.objects.bulk_create(hour for lease in leases for hour in _hours(lease))


def _hours(lease: Lease) -> Iterator[HourRollup]:
    if lease.activated_at is None or lease.ended_at is None:
        return
    chance = random.Random(SEED + lease.pk)  # noqa: S311 (a story, not a secret)
    around = BUSY.get(lease.request.name, TRAINS)
    is_forgotten = chance.random() < FORGOTTEN
    hour = lease.activated_at.replace(minute=0, second=0, microsecond=0)
    first = hour
    while hour < lease.ended_at:
        seconds = (min(hour + HOUR, lease.ended_at) - max(hour, lease.activated_at)).total_seconds()
        minutes = min(60, math.floor(seconds / 60))
        is_left = is_forgotten and hour > first
        util = chance.uniform(0, 2) if is_left else min(99.0, max(1.0, chance.gauss(around, 7.0)))
        if minutes and chance.random() >= UNMEASURED:
            yield HourRollup(lease_id=lease.pk, hour=hour, minutes=minutes, util_mean=round(util, 2))
        hour += HOUR
