"""What a form, the API and a waiting request are offered instead: near things with start and price."""

from __future__ import annotations

from datetime import timedelta

import pytest

from portal.catalog.models import Flavor
from portal.common.live import redis_client
from portal.leases import forecasting
from portal.leases.forecasting import SNAPSHOT_KEY, RequestPreview
from portal.leases.requests import RequestSpec
from portal.policies.models import Policy
from portal.quotas.models import PersonUsage
from scheduler import snapshot
from scheduler.engine import snapshot_to_json
from tests.portal.builders import World, make_flavor, make_node

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def no_picture() -> None:
    redis_client().delete(SNAPSHOT_KEY)


def preview(world: World, flavor: str, **more: object) -> RequestPreview:
    redis_client().set(SNAPSHOT_KEY, snapshot_to_json(snapshot.take(now=world.now)))
    instead_of = more.pop("instead_of", None)
    spec = RequestSpec(**{"flavor": flavor, "duration_s": 3600, **more})  # type: ignore[arg-type]
    return forecasting.preview(
        team=world.team("perception"),
        flavor=world.flavors[flavor],
        spec=spec,
        user_id=world.user("bob").pk,
        now=world.now,
        instead_of=instead_of,  # type: ignore[arg-type]
    )


def test_what_starts_now_is_offered_however_much_memory_it_has(world: World) -> None:
    world.active("charlie", "h100", count=8, duration_s=7200)
    world.flavors["l40s"] = make_flavor("l40s", "L40S whole", "l40s-48gb", "exclusive", "", 0, 0, 4)

    found = preview(world, "h100-1g-10gb")

    assert not found.is_now
    assert found.starts_at == world.now + timedelta(hours=2)
    assert [(o.kind, o.flavor.slug, o.is_now) for o in found.offers] == [
        ("other", "l40s-quarter", True),
        ("other", "l40s", True),
        ("later", "h100-1g-10gb", False),
    ]
    assert all(offer.starts_at == world.now for offer in found.offers if offer.is_now)
    assert all(offer.quote.amount_micro > 0 for offer in found.offers)


def test_the_largest_number_that_fits_is_offered_before_a_smaller_size(world: World) -> None:
    world.active("charlie", "h100", count=3, duration_s=7200)

    found = preview(world, "h100", count=8)

    assert (found.offers[0].kind, found.offers[0].count, found.offers[0].is_now) == ("fewer", 5, True)
    assert len(found.offers) <= forecasting.MOST_OFFERS


def test_nothing_above_the_teams_quota_is_offered(world: World) -> None:
    world.active("bob", "h100", count=7, duration_s=7200)
    world.active("charlie", "h100", count=1, duration_s=7200)
    world.active("bob", "l40s-quarter", count=3, duration_s=7200)

    found = preview(world, "h100", count=2)

    assert all(offer.count * offer.flavor.share_milli <= 1000 for offer in found.offers if offer.is_now)
    assert not any(offer.flavor.slug == "h100" and offer.is_now for offer in found.offers)


def test_what_has_no_price_is_no_offer(world: World) -> None:
    world.active("charlie", "h100", count=8, duration_s=7200)
    make_node("gpu-05", "a30-24gb", 1, ("exclusive",), now=world.now)
    make_flavor("a30", "A30 whole", "a30-24gb", "exclusive", "", 0, 0, 1)

    offers = preview(world, "h100-1g-10gb").offers

    assert [offer.flavor.slug for offer in offers if offer.is_now] == ["l40s-quarter"]


def test_what_starts_now_needs_no_offer(world: World) -> None:
    found = preview(world, "h100")

    assert found.is_now
    assert found.offers == []


def test_a_waiting_request_is_thought_away_when_something_would_replace_it(world: World) -> None:
    world.active("charlie", "h100", count=7, duration_s=7200)
    waiting = world.submit("bob", "h100", count=2)
    other = world.submit("charlie", "h100", count=1)
    world.turn()

    beside = preview(world, "h100", count=2)
    instead = preview(world, "h100", count=2, instead_of=waiting)

    assert other.pk
    assert (beside.position, instead.position) == (2, 1)


def test_the_same_is_offered_for_a_fixed_time_and_for_less(world: World) -> None:
    world.active("charlie", "h100", count=8, duration_s=7200)
    Flavor.objects.filter(slug="h100").update(preemptible_milli=600)
    world.flavors["h100"].refresh_from_db()

    offers = {offer.kind: offer for offer in preview(world, "h100").offers}

    assert offers["later"].booked_at == offers["later"].starts_at == offers["later"].by
    assert world.now + timedelta(hours=2) <= offers["later"].starts_at < world.now + timedelta(hours=2.1)
    assert offers["preemptible"].is_preemptible
    assert offers["preemptible"].quote.amount_micro == offers["later"].quote.amount_micro * 6 // 10


def test_what_may_be_preempted_already_is_not_offered_for_less_again(world: World) -> None:
    world.active("charlie", "h100", count=8, duration_s=7200)
    Flavor.objects.filter(slug="h100").update(preemptible_milli=600)
    world.flavors["h100"].refresh_from_db()

    offers = preview(world, "h100", is_preemptible=True).offers

    assert offers
    assert "preemptible" not in {offer.kind for offer in offers}


def test_at_least_three_things_are_offered_where_anything_starts_sooner(world: World) -> None:
    world.active("charlie", "h100", count=8, duration_s=7200)

    assert len(preview(world, "h100", count=4, duration_s=4 * 3600).offers) >= 3


def test_equal_requests_of_one_person_are_told_ordered_places_and_starts(world: World) -> None:
    Policy.objects.create(
        version=7, name="default", is_active=True, created_at=world.now, body={"order": "default"}
    )
    PersonUsage.objects.create(
        team=world.team("perception"), user=world.user("bob"), used_milli_s=10**9, as_of=world.now
    )
    world.active("charlie", "h100", count=8, duration_s=3600)
    told = []
    for seconds in range(3):
        told.append(preview(world, "h100", count=8, duration_s=7200))
        world.submit("bob", "h100", count=8, duration_s=7200, at=world.now - timedelta(seconds=30 - seconds))

    assert [one.position for one in told] == [1, 2, 3]
    starts = [one.starts_at for one in told]
    assert starts == [world.now + timedelta(hours=1 + 2 * n) for n in range(3)]
