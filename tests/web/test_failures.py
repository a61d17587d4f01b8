"""Who lost a lease reads why and what comes next; what a node said of others stays with operators."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import translation

import nodeagent
from portal.fleet.models import Node
from portal.leases import lifecycle, moves
from portal.leases.failures import FORGOTTEN, failure_code, failure_detail, failure_text, public_fault
from portal.leases.models import Lease
from tests.portal.builders import World

SAID = "conflict: lease lse-of-another holds that place"
UNKNOWN = "The node could not keep it."
# Words that an agent uses only while it tries again or ends something: no lease fails of them.
PASSING = {"closing", "ended"}


@pytest.fixture
def lease(world: World) -> Lease:
    """A lease of bob's that failed after ten minutes because of somebody else's work."""
    held = world.active("bob", "h100-1g-10gb")
    world.now += timedelta(seconds=600)
    lifecycle.fail_leases(moves.lock_leases([held.pk]), at=world.now, fault=SAID)
    held.refresh_from_db()
    Node.objects.update(last_seen_at=world.now)
    return held


def page(client: Client, world: World, name: str, url: str, language: str = "en") -> str:
    client.force_login(world.user(name))
    response = client.get(url, headers={"Accept-Language": language})
    assert response.status_code == 200
    return response.content.decode()


@pytest.mark.django_db(transaction=True)
def test_the_page_says_why_and_what_becomes_of_the_request(
    client: Client, world: World, lease: Lease
) -> None:
    url = reverse("web:lease", args=[lease.uid])

    before = page(client, world, "bob", url)
    world.gone(lease, at=world.now)
    queued = page(client, world, "bob", url)
    world.turn()
    again = page(client, world, "bob", url)

    for shown in (before, queued, again):
        assert "Something else stands in its place on the GPU." in shown
    assert before.index("Failed: the clock stopped") < before.index("The slice is cleaned")
    assert "its request goes back into the queue" in before
    assert "Its request is back in the queue with the time that is left." in queued
    assert "has a new lease" in again


@pytest.mark.django_db
def test_only_operators_read_what_the_node_said(client: Client, world: World, lease: Lease) -> None:
    url = reverse("web:lease", args=[lease.uid])
    bell = page(client, world, "bob", reverse("web:notifications"))

    assert "lse-of-another" not in page(client, world, "bob", url)
    assert "lse-of-another" in page(client, world, "operator", url)
    assert "Something else stands in its place on the GPU. The time after that is not billed." in bell
    assert "lse-of-another" not in str(list(world.user("bob").notifications.values_list("facts")))


@pytest.mark.django_db
def test_the_api_gives_the_code_to_all_and_the_detail_to_operators(
    client: Client, world: World, lease: Lease
) -> None:
    def told(name: str) -> tuple[str, str, str]:
        headers = {"Authorization": f"Bearer {world.token(name)}"}
        row = client.get(f"/api/v1/leases/{lease.uid}/", headers=headers).json()
        steps = client.get(f"/api/v1/leases/{lease.uid}/events/", headers=headers).json()["results"]
        (reason,) = [step["reason"] for step in steps if step["now"] == "failed"]
        assert row["fault"] == "Something else stands in its place on the GPU."
        return row["fault_code"], row["fault_detail"], reason

    assert told("bob") == ("conflict", "", "conflict")
    assert told("operator") == ("conflict", "lease lse-of-another holds that place", "conflict")


@pytest.mark.django_db
def test_it_is_said_in_the_readers_language(client: Client, world: World, lease: Lease) -> None:
    shown = page(client, world, "bob", reverse("web:lease", args=[lease.uid]), "zh-hans")

    assert "Something else stands" not in shown
    with translation.override("zh-hans"):
        assert failure_text(SAID) in shown


@pytest.mark.parametrize(
    ("fault", "code", "detail", "public"),
    [
        ("gpu_lost: it is away", "gpu_lost", "it is away", "gpu_lost"),
        ("gpu_lost", "gpu_lost", "", "gpu_lost"),
        ("odd_word: 1: 2", "odd_word", "1: 2", "odd_word"),
        (FORGOTTEN, "", FORGOTTEN, FORGOTTEN),
        ("It broke: badly", "", "It broke: badly", ""),
        ("", "", "", ""),
    ],
)
def test_a_fault_is_its_code_and_what_was_said(fault: str, code: str, detail: str, public: str) -> None:
    assert (failure_code(fault), failure_detail(fault), public_fault(fault)) == (code, detail, public)


def test_every_code_of_the_agent_has_a_sentence() -> None:
    source = "".join(
        path.read_text(encoding="utf-8") for path in Path(nodeagent.__file__).parent.rglob("*.py")
    )
    words = set(re.findall(r'\b(?:Refusal|RuntimeRefusedError)\(\s*"([a-z_]+)"', source))

    assert {"gpu_lost", "conflict", "refused_by_driver", "no_account"} <= words
    assert {word for word in words - PASSING if failure_text(word) == UNKNOWN} == set()
