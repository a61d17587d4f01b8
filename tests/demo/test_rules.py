from __future__ import annotations

from portal.demo.rules import make_rules
from portal.policies.selectors import active_policy
from portal.quotas.cohorts import cohorts, promises
from portal.quotas.grants import grants_of
from portal.quotas.models import Cohort, PriorityGrant
from tests.portal.builders import World
from tests.portal.conftest import world  # noqa: F401


def test_the_demo_has_pools_a_cohort_and_a_priority_and_is_safe_to_repeat(world: World) -> None:  # noqa: F811
    for _ in range(2):
        make_rules(world.teams, world.people, world.now)

    assert active_policy().pools.times
    [standing] = cohorts()
    assert [share.team.slug for share in standing.shares] == ["language", "vision"]
    assert (Cohort.objects.count(), PriorityGrant.objects.count()) == (1, 1)
    assert [grant.reason for grant in grants_of(world.team("speech"))] == ["Conference deadline"]
    assert promises().guaranteed_milli >= 32_000
