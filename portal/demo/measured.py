"""How busy the past leases of the demo kept their devices, and what that took: some train, some were forgotten."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from nodeagent.protocol.boards import all_boards
from portal.billing.energy_factors import add_factor
from portal.billing.models import LeaseEnergy
from portal.leases.models import Lease
from portal.telemetry.models import HourRollup

SEED = 21
HOUR = timedelta(hours=1)
# Utilisation in percent around which the work of that name runs; what is not named trains.
BUSY = {"Notebook for the reading group": 31.0, "Debug data loader": 47.0, "Evaluate checkpoint": 72.0}
TRAINS = 86.0
# The part of a lease's memory around which that work peaks.
HELD = {
    "Notebook for the reading group": 0.16, "Debug data loader": 0.1, "Evaluate checkpoint": 0.3,
    "Tokeniser sweep": 0.22, "Distil student model": 0.45,
}  # fmt: skip
HOLDS = 0.78
UNMEASURED, FORGOTTEN = 0.02, 0.05


def make_hours(leases: Sequence[Lease]) -> None:
    """Write the measured hours of past leases; the same ones each time."""
    hours = HourRollup.objects.bulk_create(hour for lease in leases for hour in _hours(lease))
    by_key = {lease.pk: lease for lease in leases}
    energy = (one for hour in hours if (one := _energy(by_key[hour.lease_id], hour)))
    # Sums are kept as they are written: before tables are analysed, a statement compares all pairs of its rows.
    LeaseEnergy.objects.bulk_create(energy, batch_size=500)


def set_factors(*, since: datetime) -> None:
    """Set a factor of the grid and a PUE from an instant on, as an office might."""
    for kind, value, source in (
        ("carbon", "381", "assumed for the demo"),
        ("pue", "1.3", "assumed for the demo"),
    ):
        add_factor(
            kind=kind, site="", value=Decimal(value), source=source, starts_at=since, ends_at=None, actor=None
        )


def _energy(lease: Lease, hour: HourRollup) -> LeaseEnergy | None:
    """Return what an hour took by its utilisation; None of a board whose power is not known."""
    board = all_boards().get(lease.flavor.device_model.slug)
    if board is None or board.idle_w is None or board.limit_w is None:
        return None
    seconds, whole = hour.minutes * 60, lease.share_milli >= 1000
    watts = board.idle_w + (board.limit_w - board.idle_w) * hour.util_mean / 100
    mj = round(watts * 1000 * seconds * min(lease.share_milli, 1000) / 1000)
    return LeaseEnergy(
        lease=lease, begins=hour.hour, site=lease.node.site, measured_s=seconds if whole else 0,
        measured_mj=mj if whole else 0, estimated_s=0 if whole else seconds, estimated_mj=0 if whole else mj,
    )  # fmt: skip


def _hours(lease: Lease) -> Iterator[HourRollup]:
    if lease.activated_at is None or lease.ended_at is None:
        return
    chance = random.Random(SEED + lease.pk)  # noqa: S311 (a story, not a secret)
    around = BUSY.get(lease.request.name, TRAINS)
    is_forgotten = chance.random() < FORGOTTEN
    held = random.Random(-SEED - lease.pk)  # noqa: S311 (a story, not a secret)
    memory_mib = lease.flavor.memory_mib * lease.count * HELD.get(lease.request.name, HOLDS)
    hour = lease.activated_at.replace(minute=0, second=0, microsecond=0)
    first = hour
    while hour < lease.ended_at:
        seconds = (min(hour + HOUR, lease.ended_at) - max(hour, lease.activated_at)).total_seconds()
        minutes = min(60, math.floor(seconds / 60))
        is_left = is_forgotten and hour > first
        util = chance.uniform(0, 2) if is_left else min(99.0, max(1.0, chance.gauss(around, 7.0)))
        if minutes and chance.random() >= UNMEASURED:
            peak = round(memory_mib * held.uniform(0.85, 1.15))
            yield HourRollup(
                lease_id=lease.pk, hour=hour, minutes=minutes, util_mean=round(util, 2), memory_max_mib=peak
            )
        hour += HOUR
