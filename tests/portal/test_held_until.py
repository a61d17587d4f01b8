"""How long what is granted may be held: not into what is booked or shut behind any slot of it."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from portal.leases.gangs import PREPARE_MARGIN
from scheduler.engine.model import Booking, DeviceInfo, Grant, GrantedSlot, Held, NodeInfo, Outage, Snapshot
from scheduler.gangs import held_until
from tests.engine.builder import NOON

HOUR = timedelta(hours=1)
BOARDS = tuple(DeviceInfo(i, 1, "h100", 8, 80_000, 1000, frozenset({"mig"})) for i in (1, 2))


def slot(start: int, size: int = 2, device: int = 1) -> GrantedSlot:
    return GrantedSlot(device, "mig", start, size, 250, 20_000)


def until(
    *slots: GrantedSlot, booked: tuple[int, int] | None = None, outages: tuple[Outage, ...] = ()
) -> datetime:
    """When two hours of these slots are over at the latest, with (start, size) of board 1 booked in an hour."""
    bookings: tuple[Booking, ...] = ()
    if booked is not None:
        held = Held(1, *booked, "mig", 1, 9, NOON + 3 * HOUR, 250)
        bookings = (Booking(NOON + HOUR, held),)
    picture = Snapshot(NOON, (NodeInfo(1, "n"),), BOARDS, (), (), (), bookings=bookings, outages=outages)
    return held_until(Grant(1, 1, 1, slots, 250 * len(slots), 7200), 7200, picture, now=NOON)


@pytest.mark.parametrize("slots", [(slot(0), slot(4)), (slot(4), slot(0))])
@pytest.mark.parametrize("booked", [(0, 2), (1, 1), (4, 2), (3, 2)])
def test_each_slice_of_a_board_ends_before_what_is_booked_behind_it(
    slots: tuple[GrantedSlot, ...], booked: tuple[int, int]
) -> None:
    assert until(*slots, booked=booked) == NOON + HOUR


@pytest.mark.parametrize("slots", [(slot(0), slot(4)), (slot(0, device=2), slot(2, device=2))])
def test_what_is_booked_beside_the_slices_does_not_end_them(slots: tuple[GrantedSlot, ...]) -> None:
    assert until(*slots, booked=(6, 2)) == NOON + 2 * HOUR + PREPARE_MARGIN


def test_a_share_ends_before_anything_that_is_booked_on_its_board() -> None:
    assert until(slot(0, 0), booked=(6, 2)) == NOON + HOUR
    assert until(slot(0), slot(4), booked=(0, 0)) == NOON + HOUR


def test_an_outage_of_the_node_ends_all_of_it() -> None:
    shut = Outage(1, NOON + HOUR, NOON + 2 * HOUR)

    assert until(slot(0), slot(4), outages=(shut,)) == NOON + HOUR
