from __future__ import annotations

from portal.leases.models import LeaseRequest, request_uid
from portal.leases.states import RequestState
from portal.policies.demand import current_demand, demand_of
from portal.policies.models import DemandTable
from scheduler import demand, snapshot
from scheduler.engine.demand import Demand, Form
from scheduler.engine.learning.demand import ENOUGH
from tests.portal.builders import World

WHOLE = Form(0, 0, 1000, 1, "h100-80gb")


def learn(world: World) -> DemandTable | None:
    return demand.learn(snapshot.take(now=world.now), now=world.now)


def asked(world: World, flavor: str, times: int, state: str = RequestState.QUEUED) -> None:
    """Let the same thing have been asked for so many times."""
    first = world.submit(flavor=flavor)
    copies = []
    for _ in range(times - 1):
        copy = LeaseRequest.objects.get(pk=first.pk)
        copy.pk, copy.uid, copy.state = None, request_uid(), state
        copies.append(copy)
    LeaseRequest.objects.bulk_create(copies)


def test_nothing_is_taken_for_known_until_enough_requests_have_come(world: World) -> None:
    asked(world, "h100", ENOUGH - 1)

    assert learn(world) is None
    assert current_demand() == Demand()


def test_the_mix_of_the_last_requests_becomes_the_next_version(world: World) -> None:
    asked(world, "h100", ENOUGH)

    made = learn(world)

    assert made is not None
    assert (made.version, made.requests, made.made_at) == (1, ENOUGH, world.now)
    assert current_demand() == demand_of(made)
    assert dict(current_demand().forms) == {WHOLE: 10_000}
    assert dict(current_demand().prices) == {1000: 1000.0}  # thousandths of a board


def test_slices_say_nothing_about_whole_boards_and_shares(world: World) -> None:
    asked(world, "h100-1g-10gb", ENOUGH)

    assert learn(world) is None


def test_an_equal_mix_makes_no_new_version(world: World) -> None:
    asked(world, "h100", ENOUGH)
    learn(world)
    asked(world, "h100", 7)

    assert learn(world) is None
    assert DemandTable.objects.count() == 1


def test_a_mix_that_changed_makes_the_next_version_and_keeps_the_old(world: World) -> None:
    asked(world, "h100", ENOUGH)
    learn(world)
    asked(world, "l40s-quarter", ENOUGH)

    made = learn(world)

    assert made is not None
    assert made.version == 2
    assert DemandTable.objects.count() == 2
    assert sum(number for form, number in current_demand().forms if form.milli < 1000) == 5000


def test_requests_that_come_to_an_end_make_a_new_version_of_an_equal_mix(world: World) -> None:
    asked(world, "h100", ENOUGH)
    learn(world)
    asked(world, "h100", ENOUGH, RequestState.FULFILLED)

    made = learn(world)

    assert made is not None
    assert (made.version, made.churn_milli) == (2, 475)
    assert current_demand().churn_milli == 475
