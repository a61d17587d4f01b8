"""What the page of a month says of its sums without going through all usage."""

from __future__ import annotations

from datetime import timedelta

import pytest

from portal.billing.checklist import CloseItem, close_items, is_ready
from portal.billing.periods import period_of
from portal.common.invariants import MONEY
from portal.common.models import InvariantCheck
from tests.portal.builders import World

pytestmark = pytest.mark.django_db


def sound(world: World) -> CloseItem:
    items = close_items(period_of(world.now), now=world.now)
    return next(item for item in items if item.code == "sound")


def test_sums_that_nobody_checked_are_not_called_right(world: World) -> None:
    item = sound(world)

    assert (item.is_met, item.is_met_by_closing) == (False, True)
    assert "not checked yet" in item.sentence


def test_sums_were_right_when_they_were_checked(world: World) -> None:
    InvariantCheck.objects.create(checked_at=world.now - timedelta(minutes=20))

    item = sound(world)

    assert item.is_met
    assert f"{world.now - timedelta(minutes=20):%Y-%m-%d %H:%M} UTC" in item.sentence


def test_promise_about_money_that_did_not_hold_is_named_and_a_close_may_look_again(world: World) -> None:
    breaches = [{"name": "totals_are_their_usage"}, {"name": "one_operator"}]
    InvariantCheck.objects.create(checked_at=world.now, breaches=breaches)

    item = sound(world)

    assert (item.is_met, item.figure) == (False, 1)
    assert "totals_are_their_usage" in item.sentence
    assert "one_operator" not in item.sentence
    assert is_ready([item])


def test_only_a_close_goes_through_all_usage(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []
    monkeypatch.setattr("portal.billing.checklist.broken", lambda invariants: looked.append(invariants) or [])

    close_items(period_of(world.now), now=world.now)
    assert looked == []

    close_items(period_of(world.now), now=world.now, is_closing=True)
    assert looked == [MONEY]
