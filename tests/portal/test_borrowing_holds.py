"""The rows keep what the engine promises of cohorts: what is borrowed is never more than what is lent."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Barrier

import pytest
from django.db import connections, transaction
from django.utils import timezone

from portal.common.errors import QuotaExceeded
from portal.common.retry import with_retries
from portal.common.sql import fetch
from portal.quotas import services
from portal.quotas.models import Cohort, Quota
from portal.quotas.selectors import headroom, smallest_ceiling
from portal.teams.models import Team
from scheduler import snapshot
from scheduler.engine.quota import Budget
from tests.portal.builders import World, build_world

pytestmark = pytest.mark.django_db


def share(world: World, **guarantees: int) -> Cohort:
    """Put teams into one cohort, each with its guarantee, and no ceilings anywhere."""
    cohort = Cohort.objects.create(name="Labs", created_at=timezone.now())
    Quota.objects.update(ceiling_milli=None, guaranteed_milli=0)
    for slug, guaranteed in guarantees.items():
        Quota.objects.filter(team__slug=slug).update(guaranteed_milli=guaranteed, cohort=cohort)
    return cohort


def test_a_team_may_borrow_what_others_do_not_use_and_no_more(world: World) -> None:
    share(world, vision=1000, language=2000)

    services.reserve([(world.team("perception"), 3000)])
    with pytest.raises(QuotaExceeded) as refused, transaction.atomic():
        services.reserve([(world.team("perception"), 1)])

    assert refused.value.facts["headroom"] == 0
    assert Quota.objects.get(team__slug="vision").used_milli == 3000


def test_a_limit_to_lending_is_kept_and_the_figures_say_so(world: World) -> None:
    share(world, vision=1000, language=2000)
    Quota.objects.filter(team__slug="language").update(lending_milli=500)
    services.reserve([(world.team("perception"), 1200)])

    found = headroom(world.team("perception"))

    assert (found.left_milli, found.bound_by, found.cohort) == (300, "Vision", "Labs")
    assert (found.borrowed_milli, found.lendable_milli) == (200, 300)
    assert smallest_ceiling(world.team("perception")) == 1500


def test_outside_of_any_cohort_nothing_is_said_to_be_borrowed(world: World) -> None:
    found = headroom(world.team("perception"))

    assert (found.borrowed_milli, found.lendable_milli, found.cohort) == (None, None, "")


def test_several_grants_of_one_turn_count_together(world: World) -> None:
    share(world, vision=1000, language=1000, robotics=0)

    with pytest.raises(QuotaExceeded), transaction.atomic():
        services.reserve([(world.team("vision"), 1500), (world.team("robotics"), 600)])

    assert not Quota.objects.filter(used_milli__gt=0).exists()


@pytest.mark.parametrize("seed", range(4))
def test_rows_and_engine_answer_alike_over_random_grants_and_ends(world: World, seed: int) -> None:
    share(world, vision=2000, language=1500, robotics=1000)
    Quota.objects.filter(team__slug="robotics").update(lending_milli=300)
    Quota.objects.filter(team__slug="vision").update(ceiling_milli=4000)
    random, live = Random(seed), []
    for _ in range(30):
        if live and random.random() < 0.4:
            services.free([live.pop(random.randrange(len(live)))])
            continue
        team, cost = world.team(random.choice(["perception", "speech", "robotics"])), random.randint(1, 1500)
        budget = Budget(snapshot.take(now=world.now).quotas)
        try:
            with transaction.atomic():
                services.reserve([(team, cost)])
        except QuotaExceeded:
            assert not budget.allows(team.pk, cost)
            continue
        assert budget.allows(team.pk, cost)
        live.append((team, cost))


@pytest.mark.django_db(transaction=True)
def test_a_race_for_what_is_lent_never_borrows_more() -> None:
    share(build_world(), vision=0, robotics=0, language=5000)
    barrier = Barrier(4)

    def racer(number: int) -> int:
        barrier.wait()
        team, won = Team.objects.get(slug=("vision", "robotics")[number % 2]), 0
        for _ in range(4):
            try:
                with_retries(lambda: reserve_some(team, 1000))
                won += 1
            except QuotaExceeded:
                pass
        connections.close_all()
        return won

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(racer, range(4))) == 5


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("already_in", [True, False])
def test_who_joins_while_another_waits_for_the_rows_is_not_missed(already_in: bool) -> None:
    """A team's turn waits for its row; meanwhile another joins and borrows, or it is put into the cohort itself."""
    cohort = share(build_world(), vision=0, language=5000)
    Quota.objects.filter(team__slug="robotics").update(guaranteed_milli=0, ceiling_milli=None)
    if not already_in:
        Quota.objects.filter(team__slug="vision").update(cohort=None)

    def late() -> int:
        try:
            with_retries(lambda: reserve_some(Team.objects.get(slug="vision"), 3000))
        except QuotaExceeded as refused:
            return int(refused.facts["headroom"])
        finally:
            connections.close_all()
        return -1

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            Quota.objects.select_for_update().get(team__slug="vision")
            waiting = pool.submit(late)
            while not waiting.done() and not fetch("SELECT 1 FROM pg_locks WHERE NOT granted"):
                pass
            Quota.objects.filter(team__slug="vision").update(cohort=cohort)
            Quota.objects.filter(team__slug="robotics").update(cohort=cohort, used_milli=4000)
        assert waiting.result(timeout=60) == 1000

    assert Quota.objects.get(team__slug="vision").used_milli == 0


@transaction.atomic
def reserve_some(team: Team, cost: int) -> None:
    services.reserve([(team, cost)])
