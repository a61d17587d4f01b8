"""What a workshop would cost at most, whether it needs an approval, and whether there is room for everybody."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from portal.catalog.models import Flavor
from portal.common.errors import Conflict
from portal.leases.availability import free_units_at
from portal.leases.requests import needs_approval, quote_of
from portal.leases.workshops import WorkshopSpec
from portal.teams.models import Team

HOUR: Final = timedelta(hours=1)
LOOK_AHEAD: Final = 72  # hours in which another time is looked for
MOST_TIMES: Final = 3


@dataclass(frozen=True, slots=True)
class WorkshopQuote:
    """What so many seats would be; nothing is kept for them yet.

    ``price_micro`` None: no price is in force. ``free`` is how many could be booked at that time, None: not known;
    ``others`` are later starts with room for everybody, looked for where that one has not.
    """

    seats: int
    price_micro: int | None
    currency: str
    needs_approval: bool
    free: int | None
    others: tuple[datetime, ...]

    @property
    def is_short(self) -> bool:
        """Say whether there is room for fewer than come."""
        return self.free is not None and self.free < self.seats


def quote_workshop(
    team: Team, flavor: Flavor, spec: WorkshopSpec, seats: int, *, now: datetime
) -> WorkshopQuote:
    """Return what a workshop that was checked would be; changes nothing."""
    try:
        one = quote_of(team, flavor, spec.of_one, now=now)
        price, unit = one.amount_micro * seats, one.currency
    except Conflict:
        price, unit = None, ""
    starts = [spec.starts_at + n * HOUR for n in range(LOOK_AHEAD)]
    found = free_units_at(flavor, starts, duration_s=spec.duration_s)
    free = None if found is None else found[spec.starts_at]
    others = () if found is None else tuple(at for at in starts[1:] if found[at] >= seats)
    return WorkshopQuote(
        seats=seats,
        price_micro=price,
        currency=unit,
        needs_approval=needs_approval(team, flavor, count=seats, duration_s=spec.duration_s),
        free=free,
        others=others[:MOST_TIMES] if free is not None and free < seats else (),
    )
