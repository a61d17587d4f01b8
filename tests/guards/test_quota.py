"""What a team may have: refused with a sentence and the figure, before the database has to."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from portal.audit.models import AuditEntry
from portal.common.errors import Conflict, Invalid, QuotaExceeded, TooManyWaiting
from portal.quotas import services as quotas
from portal.quotas.models import Quota
from tests.portal.builders import World

pytestmark = pytest.mark.django_db


def test_more_than_a_ceiling_is_refused_with_what_is_left(world: World) -> None:
    with pytest.raises(QuotaExceeded) as refused, transaction.atomic():
        quotas.reserve([(world.team("robotics"), 4_001)])

    assert (refused.value.facts["wanted"], refused.value.facts["headroom"]) == (4_001, 4_000)


def change(world: World, **figures: Any) -> Quota:
    sent = {"guaranteed_milli": 1_000, "ceiling_milli": 4_000, "version": 1, **figures}
    return quotas.set_quota(team=world.team("robotics"), actor=world.user("operator"), now=world.now, **sent)


def test_a_quota_that_somebody_changed_meanwhile_is_not_written_over(world: World) -> None:
    change(world)

    with pytest.raises(Conflict, match="since you opened it"):
        change(world, ceiling_milli=None)


def test_a_ceiling_below_what_is_used_is_refused_by_its_field(world: World) -> None:
    Quota.objects.filter(team__slug="robotics").update(used_milli=2_000)

    with pytest.raises(Invalid) as refused:
        change(world, ceiling_milli=1_999)

    assert "uses more than this" in str(refused.value.fields["ceiling"])


@pytest.mark.parametrize("lending", [-1, 1_001])
def test_nobody_lends_more_than_is_guaranteed(lending: int, world: World) -> None:
    with pytest.raises(Invalid) as refused:
        change(world, lending_milli=lending)

    assert set(refused.value.fields) == {"lending"}


def test_a_change_is_written_down_with_what_was_before(world: World) -> None:
    change(world, ceiling_milli=5_000)

    told = AuditEntry.objects.get(action="quota.changed")
    assert (told.actor, told.detail["before"]["ceiling"], told.detail["after"]["ceiling"]) == (
        world.user("operator"),
        4_000,
        5_000,
    )


def test_a_teams_queue_has_an_end(world: World, settings: Any) -> None:
    settings.MAX_WAITING_PER_TEAM = 2
    world.submit()
    world.submit()

    with pytest.raises(TooManyWaiting):
        world.submit()
