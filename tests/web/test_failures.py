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
from portal.leases import lifecycle, transitions
from portal.leases.failures import (
    FORGOTTEN,
    aftermath_text,
    failure_code,
    failure_detail,
    failure_text,
    public_fault,
    why_failed,
)
from portal.leases.models import Lease, LeaseEvent, LeaseRequest
from portal.web.invoices.rows import step_of
from tests.portal.builders import H100, World, make_node

SAID = "conflict: lease lse-of-another holds that place"
UNKNOWN = "The node could not keep it."
# Words that an agent uses only while it tries again or ends something: no lease fails of them.
PASSING = {"closing", "ended"}


@pytest.fixture
def lease(world: World) -> Lease:
    """A lease of bob's that failed after ten minutes because of somebody else's work."""
    held = world.active("bob", "h100-1g-10gb")
    world.now += timedelta(seconds=600)
    lifecycle.fail_leases(transitions.lock_leases([held.pk]), at=world.now, fault=SAID)
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


def lost(world: World, lease: Lease) -> None:
    lifecycle.fail_leases(transitions.lock_leases([lease.pk]), at=world.now, fault="gpu_lost: XID 79")


def said(lease: Lease) -> tuple[str, str]:
    """What its page says of a failed lease now: why, and what becomes of its request."""
    now = Lease.objects.select_related("request").get(pk=lease.pk)
    return why_failed(now), aftermath_text(now)


AWAY = "Its GPU does not answer any more."
BACK = "Once everything it held is clean, its request goes back into the queue with the time that is left."
AGAIN = "Its request went back into the queue and has a new lease."


@pytest.mark.django_db
def test_a_part_that_ended_with_its_gang_does_not_blame_its_own_node(world: World) -> None:
    make_node("gpu-02", H100, 8, ("exclusive", "mig"), now=world.now)
    world.submit("alice", "h100", nodes=2, count=3)
    hit, beside = world.turn()
    world.ready(hit, beside)

    lost(world, hit)

    assert said(hit) == (AWAY, BACK)
    assert said(beside) == ("Another part of its gang failed, and all parts run together.", BACK)


@pytest.mark.django_db
def test_what_was_grown_goes_with_a_base_that_failed_and_leaves_it_behind_otherwise(world: World) -> None:
    world.submit("alice", "h100", most_count=3)
    (base,) = world.turn()
    world.ready(base)
    first, second = world.turn()
    world.ready(first, second)

    lost(world, first)
    while_it_stands = said(first)
    lost(world, base)

    assert while_it_stands == (AWAY, "The lease it was grown from stays.")
    assert said(first) == (AWAY, "")
    assert said(second) == ("The lease it was grown from failed.", BACK)


@pytest.mark.django_db
def test_an_old_failure_promises_nothing_that_its_next_lease_has_had(world: World) -> None:
    first = world.active("bob")
    lost(world, first)
    world.gone(first)
    (second,) = world.turn()
    world.ready(second)
    end = world.now + timedelta(seconds=60)

    running = said(first)
    lifecycle.release_lease(lease=second, actor=world.user("bob"), now=end)
    ending = said(first)
    world.gone(second, at=end)

    assert (running, ending, said(first)) == ((AWAY, AGAIN), (AWAY, AGAIN), (AWAY, ""))


@pytest.mark.django_db
def test_the_last_failure_that_is_borne_says_so_before_its_slice_is_clean(world: World) -> None:
    lease = world.active("bob")
    for _nth in range(4):
        lost(world, lease)
        assert said(lease) == (AWAY, BACK)
        world.gone(lease)
        (lease,) = world.turn()
        world.ready(lease)

    lost(world, lease)
    before = said(lease)
    world.gone(lease)

    assert before == (AWAY, "It failed too often: once everything it held is clean, its request is given up.")
    assert said(lease)[1].startswith("It failed too often, so its request was given up")
    (news,) = world.user("operator").notifications.all()
    assert (news.kind, news.target) == ("request.given_up", lease.request.uid)
    assert not world.user("bob").notifications.filter(kind="request.given_up").exists()


@pytest.mark.django_db
def test_the_page_of_a_request_that_was_given_up_says_why_and_not_what_it_waited_for(
    client: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "MAX_FAULTS", 1)
    lease = world.active("bob")
    LeaseRequest.objects.update(reasons=[{"code": "next_turn"}])
    lost(world, lease)
    world.gone(lease)

    url = reverse("web:request", args=[lease.request.uid])
    shown = page(client, world, "bob", url)
    bell = page(client, world, "operator", reverse("web:notifications"))

    assert "It failed too often, so it was given up; an operator was told." in shown
    assert url in bell
    assert "A request failed too often and was given up." in bell


@pytest.mark.django_db
def test_a_request_that_nothing_can_serve_after_a_fault_is_not_said_to_have_failed_too_often(
    world: World,
) -> None:
    lease = world.active("bob")
    lost(world, lease)
    world.gone(lease)
    (request,) = LeaseRequest.objects.filter(state="queued")

    transitions.move_requests([request], "impossible", at=world.now, reasons=[{"code": "no_such_device"}])

    assert said(lease)[1].startswith("Its request went back into the queue, but cannot be served any more")


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
def test_news_from_before_codes_were_kept_apart_give_the_code_alone(
    client: Client, world: World, lease: Lease
) -> None:
    world.user("bob").notifications.update(facts={"fault": SAID})

    headers = {"Authorization": f"Bearer {world.token('bob')}"}
    (row,) = client.get("/api/v1/notifications/", headers=headers).json()["results"]

    assert row["facts"] == {"fault": "conflict"}


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
    words = set(re.findall(r'\b(?:StepRefusal|RuntimeRefusedError)\(\s*"([a-z_]+)"', source))

    assert {"gpu_lost", "conflict", "refused_by_driver", "no_account"} <= words
    assert {word for word in words - PASSING if failure_text(word) == UNKNOWN} == set()


def test_steps_on_an_invoice_are_told_in_the_readers_language() -> None:
    back = LeaseEvent(now="active", reason="the node is back")
    failed = LeaseEvent(now="failed", reason=SAID)

    with translation.override("zh-hans"):
        told = [step_of(event).text for event in (back, failed)]

    assert "the node is back" not in told
    assert "lse-of-another" not in told[1]
    assert all(told)
