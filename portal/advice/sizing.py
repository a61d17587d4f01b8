"""What size a workload needs, judged from what was measured: pure, no database.

Memory decides what would do: a size must hold the measured peak and a margin. Activity decides how much longer the
same work would take: a part ``a`` of the time was work, which a size of the speed ``s`` does in ``a / s``; the rest
stays as it was. That is the most it can take where multiprocessors bound it (docs/adr/0054).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django.db import models
from django.utils.translation import gettext_lazy as _

from portal.catalog.models import Flavor
from portal.fleet.models import Mode
from portal.telemetry.runs import SM, UTIL, MeasuredRun

LEAST_MIN = 15  # minutes of a run below which it says nothing about the next one
# Above the peak: a tenth for the next run's own data, and at least 1 GiB for what one look a second does not see and
# for the context, which other devices may make larger.
MARGIN_PART, LEAST_MARGIN_MIB = 10, 1024
LEAST_WHOLE = 3
LEAST_SAVING_MILLI = 100
MOST_STRETCH = 1.5  # nobody waits for longer than half as long again to save
LEAST_ACTIVITY = 0.025
OWN_HARDWARE = (Mode.EXCLUSIVE, Mode.MIG)


class SizeVerdict(models.TextChoices):
    """What was found about the size of leases."""

    SMALLER = "smaller", _("Another size would do for less")
    FITS = "fits", _("It fits")
    UNUSED = "unused", _("Nothing computed")
    NOT_MEASURED = "not_measured", _("Not measured")
    TOO_SHORT = "too_short", _("Too short to tell")
    NO_PRICE = "no_price", _("No price to compare with")


@dataclass(frozen=True, slots=True)
class PricedSize:
    """A flavor with what the same count and time of it cost, in micro-units; ``speed_milli`` None is unknown."""

    flavor: Flavor
    amount_micro: int
    speed_milli: int | None


@dataclass(frozen=True, slots=True)
class MeasuredNeed:
    """What runs needed together: the highest peak, the mean activity (0 to 1), and on how many runs that rests."""

    runs: int
    due_min: int
    known_min: int
    peak_mib: int | None
    activity: float | None
    signal: str

    @property
    def memory_mib(self) -> int | None:
        """Return the memory that each unit must have: the peak of all units together and the margin."""
        return None if self.peak_mib is None else self.peak_mib + margin_mib(self.peak_mib)


@dataclass(frozen=True, slots=True)
class SizeAdvice:
    """What is said about a size. ``size`` is what would do for less, None unless ``verdict`` is SMALLER.

    ``seconds`` is the time that both prices are for, ``stretch`` how many times as long the same work takes at most,
    ``speed_percent`` the speed against what was held; None is unknown.
    """

    verdict: SizeVerdict
    need: MeasuredNeed
    flavor: Flavor
    count: int
    seconds: int
    currency: str
    held: PricedSize | None = None
    size: PricedSize | None = None
    stretch: float | None = None

    @property
    def saved_micro(self) -> int:
        """Return what the other size costs less for the same time, in micro-units."""
        return self.held.amount_micro - self.size.amount_micro if self.held and self.size else 0

    @property
    def saved_percent(self) -> int:
        """Return the same in percent, rounded down."""
        return 100 * self.saved_micro // self.held.amount_micro if self.held and self.saved_micro else 0

    @property
    def speed_percent(self) -> int | None:
        """Return the speed of the other size in percent of the one held."""
        if self.held is None or self.size is None:
            return None
        speed = _speed(self.size, self.held)
        return None if speed is None else round(speed * 100)


def margin_mib(peak_mib: int) -> int:
    """Return what a size must have above a measured peak."""
    return max(LEAST_MARGIN_MIB, -(-peak_mib // MARGIN_PART))


def need_of(
    runs: Sequence[MeasuredRun], *, is_same_work: bool = False
) -> tuple[MeasuredNeed, SizeVerdict | None]:
    """Return what runs needed together, and why that says nothing; None where it does.

    Runs that were too short count for the peak alone. One that is not measured whole might have needed more than all
    others, so that nothing is said then; of runs of the same work three that are whole tell enough, and what is known
    of the others counts for the peak.
    """
    long = [run for run in runs if run.due_min >= LEAST_MIN]
    whole = [run for run in long if run.is_whole]
    told = whole or long
    minutes = sum(run.due_min for run in told if run.activity is not None)
    busy = sum(run.activity * run.due_min for run in told if run.activity is not None)
    need = MeasuredNeed(
        runs=len(told),
        due_min=sum(run.due_min for run in long),
        known_min=sum(min(run.known_min, run.due_min) for run in long),
        peak_mib=max((run.peak_mib for run in runs if run.peak_mib is not None), default=None),
        activity=busy / minutes if minutes else None,
        signal="" if not minutes else SM if {run.signal for run in told} == {SM} else UTIL,
    )
    if not long:
        return need, SizeVerdict.TOO_SHORT
    if not (all(run.is_whole for run in runs) or (is_same_work and len(whole) >= LEAST_WHOLE)):
        return need, SizeVerdict.NOT_MEASURED
    if need.activity is None or need.activity < LEAST_ACTIVITY:
        return need, SizeVerdict.UNUSED
    return need, None


def may_replace(flavor: Flavor, held: Flavor, need: MeasuredNeed) -> bool:
    """Say whether a flavor holds what was measured, on hardware of its own or shared as before, of the same vendor."""
    return (
        flavor.pk != held.pk
        and need.memory_mib is not None
        and flavor.memory_mib >= need.memory_mib
        and flavor.device_model.vendor == held.device_model.vendor
        and (flavor.mode in OWN_HARDWARE or flavor.mode == held.mode)
    )


def best_size(
    held: PricedSize,
    others: Sequence[PricedSize],
    activity: float,
    *,
    may_ask: Callable[[Flavor, float | None], bool],
) -> tuple[PricedSize, float | None] | None:
    """Return the size that does the same work for least, with how many times as long it takes; None if none saves.

    It saves a tenth at least, also after it took longer; where nobody knows the speed, of the same time. ``may_ask``
    is asked last, for a flavor and the stretch, from the best one on.
    """
    ranked = []
    for size in others:
        speed = _speed(size, held)
        stretch = None if speed is None else max(1.0, 1 - activity + activity / speed)
        pays = size.amount_micro * (stretch or 1.0)
        saves = pays * 1000 <= held.amount_micro * (1000 - LEAST_SAVING_MILLI) and held.amount_micro > 0
        if saves and (stretch is None or stretch <= MOST_STRETCH):
            ranked.append((stretch is None, pays, -(size.speed_milli or 0), size.flavor.pk, size, stretch))
    ranked.sort(key=lambda row: row[:4])
    for *_rest, size, stretch in ranked:
        if may_ask(size.flavor, stretch):
            return size, stretch
    return None


def _speed(size: PricedSize, held: PricedSize) -> float | None:
    """Return how fast one size is against another; None where nobody told one of them."""
    return size.speed_milli / held.speed_milli if size.speed_milli and held.speed_milli else None
