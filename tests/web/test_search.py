from __future__ import annotations

import pytest

from portal.leases.models import LeaseRequest
from tests.portal.builders import World
from tests.web.conftest import SignedIn


def test_objects_are_found_by_name_and_by_the_begin_of_their_id(world: World, signed_in: SignedIn) -> None:
    lease = world.active("bob")
    LeaseRequest.objects.filter(pk=lease.request_id).update(name="Long context run")
    bob = signed_in("bob")

    by_name = bob.get("/search/", {"q": "context"}).text
    by_id = bob.get("/search/", {"q": lease.uid[:10].upper()}).text

    assert f'href="/leases/{lease.uid}/"' in by_name
    assert f'href="/requests/{lease.request.uid}/?show=request"' in by_name
    assert f'href="/leases/{lease.uid}/"' in by_id
    assert 'href="/cluster/gpu-01/"' in bob.get("/search/", {"q": "gpu-0"}).text
    assert 'href="/teams/perception/"' in bob.get("/search/", {"q": "percep"}).text


def test_pages_are_found_by_their_names(world: World, signed_in: SignedIn) -> None:
    found = signed_in("bob").get("/search/", {"q": "key"}, headers={"HX-Request": "true"}).text

    assert 'href="/ssh-keys/"' in found
    assert "<html" not in found
    assert "/operations/policies/" not in signed_in("bob").get("/search/").text


def test_charlie_finds_nothing_of_another_team(world: World, signed_in: SignedIn) -> None:
    lease = world.active("bob")
    LeaseRequest.objects.filter(pk=lease.request_id).update(name="Long context run")

    for text in ("context", lease.uid, lease.request.uid, "perception"):
        shown = signed_in("charlie").get("/search/", {"q": text}).text
        assert "Nothing that you may see is called" in shown


@pytest.mark.parametrize("text", ["", "x" * 5000, "%", "\\", "'", "<script>"])
def test_odd_letters_are_answered(world: World, signed_in: SignedIn, text: str) -> None:
    answer = signed_in("bob").get("/search/", {"q": text})

    assert answer.status_code == 200
    assert "<script>" not in answer.text.split("<main")[1]


def test_the_number_of_queries_does_not_grow_with_what_there_is(
    world: World, signed_in: SignedIn, django_assert_max_num_queries: object
) -> None:
    bob = signed_in("bob")
    for _nth in range(3):
        world.active("bob")

    with django_assert_max_num_queries(18):  # type: ignore[operator]
        bob.get("/search/", {"q": "lse-"})
