"""When which size is free: how many units could be booked from hour to hour, by the timeline that books."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Lock

from portal.catalog.models import Flavor
from portal.fleet.sizes import size_names
from portal.leases.offers import claim_for
from portal.leases.published_snapshot import HORIZON_S, Picture, picture
from portal.policies.selectors import active_policy
from scheduler.engine.forecaster import forecaster_of

HOUR = timedelta(hours=1)
MOST_STEPS = 7 * 24
LONGEST_STEP_H = 24


@dataclass(frozen=True, slots=True)
class FlavorHours:
    """Of one flavor, how many units are free for the whole of each step; None where it is not known."""

    flavor: Flavor
    free: list[int | None]

    def first(self, units: int = 1) -> int | None:
        """Return the number of the first step with so many free units, None for none."""
        return next((n for n, free in enumerate(self.free) if free is not None and free >= units), None)


@dataclass(frozen=True, slots=True)
class Availability:
    """Steps of ``step_h`` hours; the first one begins now, the others at full hours of ``starts``."""

    starts: list[datetime]
    step_h: int
    rows: list[FlavorHours]
    is_known: bool


# What was found on the newest picture, by what was asked: pages ask for the same again and again.
_found: dict[tuple[datetime, int, int], dict[int, list[int]]] = {}
_of: list[Picture] = []
_finding = Lock()


def availability(*, steps: int, step_h: int = 1, now: datetime) -> Availability:
    """Return how many units of each offered flavor are free in the next steps; quota and queue aside.

    What is promised to those who wait counts as taken. Four queries at most; without a picture all is unknown.
    """
    hour = now.replace(minute=0, second=0, microsecond=0)
    starts = [hour + n * step_h * HOUR for n in range(steps)]
    flavors = list(Flavor.objects.filter(is_active=True).select_related("device_model"))
    seen = picture()
    if seen is None:
        return Availability(starts, step_h, [FlavorHours(f, [None] * steps) for f in flavors], is_known=False)
    found = _free(seen, flavors, starts, step_h)
    rows = [FlavorHours(f, list(found[f.pk]) if f.pk in found else [None] * steps) for f in flavors]
    return Availability(starts, step_h, rows, is_known=True)


def free_units_at(
    flavor: Flavor, starts: Sequence[datetime], *, duration_s: int
) -> dict[datetime, int] | None:
    """Return how many units of a flavor could be booked side by side from each of these starts on; quota aside.

    None where it is not known: the scheduler has published no picture.
    """
    seen = picture()
    if seen is None:
        return None
    claim = claim_for(-1, None, flavor, 1, duration_s, 0, seen.book, size_names())
    instants = [max(start, seen.book.taken_at) for start in starts]
    found = forecaster_of(seen.book, active_policy(), HORIZON_S).free_units([claim], instants)
    return dict(zip(starts, found[-1], strict=True))


def _free(seen: Picture, flavors: list[Flavor], starts: list[datetime], step_h: int) -> dict[int, list[int]]:
    key = starts[0], len(starts), step_h
    with _finding:
        if not _of or _of[0] is not seen:
            _of[:] = [seen]
            _found.clear()
        known = _found.get(key)
        if known is not None and all(flavor.pk in known for flavor in flavors):
            return known
        sizes = size_names()
        asked = {
            -1 - number: (
                flavor,
                claim_for(-1 - number, None, flavor, 1, step_h * 3600, 0, seen.book, sizes),
            )
            for number, flavor in enumerate(flavors)
        }
        # What began in this hour is over: the first step is from now on.
        instants = [max(start, seen.book.taken_at) for start in starts]
        forecaster = forecaster_of(seen.book, active_policy(), HORIZON_S)
        units = forecaster.free_units([claim for _flavor, claim in asked.values()], instants)
        _found[key] = {asked[number][0].pk: free for number, free in units.items()}
        return _found[key]
