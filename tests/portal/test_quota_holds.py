from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.db import IntegrityError, connections, transaction

from portal.common.errors import QuotaExceeded
from portal.common.retry import with_retries
from portal.quotas import services
from portal.quotas.models import Quota
from portal.quotas.selectors import headroom
from portal.teams.models import Team
from tests.portal.builders import World, build_world

pytestmark = pytest.mark.django_db


def test_use_is_counted_for_the_team_and_everything_above_it(world: World) -> None:
    services.reserve([(world.team("perception"), 700)])

    used = dict(Quota.objects.values_list("team__slug", "used_milli"))
    assert (used["perception"], used["vision"], used["northwind"], used["language"]) == (700, 700, 700, 0)


def test_a_parents_ceiling_binds_its_children(world: World) -> None:
    services.reserve([(world.team("segmentation"), 7_500)])

    with pytest.raises(QuotaExceeded) as refused, transaction.atomic():
        services.reserve([(world.team("perception"), 600)])

    assert refused.value.facts["headroom"] == 500
    assert headroom(world.team("perception")).left_milli == 500


def test_the_database_refuses_an_overrun_that_code_forgot_to_check(world: World) -> None:
    with pytest.raises(IntegrityError, match="quota_ceiling_holds"), transaction.atomic():
        Quota.objects.filter(team__slug="robotics").update(used_milli=4_001)


@pytest.mark.django_db(transaction=True)
def test_a_race_for_the_last_units_fills_the_quota_exactly() -> None:
    build_world()
    barrier = Barrier(8)

    def racer(_number: int) -> int:
        won = 0
        barrier.wait()
        team = Team.objects.get(slug="robotics")
        for _ in range(10):
            try:
                with_retries(lambda: reserve_one(team))
                won += 1
            except QuotaExceeded:
                pass
        connections.close_all()
        return won

    with ThreadPoolExecutor(8) as pool:
        won = sum(pool.map(racer, range(8)))

    assert won == 40
    assert Quota.objects.get(team__slug="robotics").used_milli == 4_000


@transaction.atomic
def reserve_one(team: Team) -> None:
    services.reserve([(team, 100)])


def test_quota_edits_notice_that_somebody_was_faster(world: World) -> None:
    team = world.team("robotics")
    edit = {"team": team, "actor": world.user("operator"), "now": world.now, "version": 1}
    services.set_quota(**edit, guaranteed_milli=100, ceiling_milli=5_000)

    with pytest.raises(services.Conflict):
        services.set_quota(**edit, guaranteed_milli=100, ceiling_milli=6_000)

    assert Quota.objects.get(team=team).ceiling_milli == 5_000
