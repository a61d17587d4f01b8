"""What may be chosen beside flavor, number and time, and how gangs and growth look on their pages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import Client

from portal.catalog.models import Flavor
from portal.fleet.models import Node
from portal.leases.models import Lease, LeaseRequest
from tests.portal.builders import H100, World, make_node
from tests.web.conftest import Publish, SignedIn

NEW, QUOTE = "/requests/new/", "/requests/quote/"
GOOD = {"team": "perception", "flavor": "h100", "count": "1", "duration": "2 h"}
CLOSED, OPEN = 'id="more-choices">', 'id="more-choices" open>'


@pytest.fixture
def wide(world: World) -> World:
    """The small installation with a second node of 8 x H100."""
    world.nodes["gpu-02"] = make_node("gpu-02", H100, 8, ("exclusive", "mig"), now=world.now)
    return world


def send(client: Client, **change: str):
    return client.post(NEW, {**GOOD, **change})


def test_the_form_is_as_simple_as_ever_until_more_is_chosen(world: World, signed_in: SignedIn) -> None:
    client = signed_in("bob")

    assert CLOSED in client.get(NEW).text
    for more in ("nodes=2", "nodes=0", "is_preemptible=1", "most_count=4", "least=1+h", "work=training"):
        assert OPEN in client.get(f"{NEW}?{more}").text, more


def test_a_start_in_an_address_fills_the_field_in_the_zone_of_the_page(
    world: World, signed_in: SignedIn
) -> None:
    text = signed_in("bob").get(NEW, {"starts_at": "2027-03-01T14:30:00+02:00"}).text

    assert 'value="2027-03-01T12:30"' in text
    assert OPEN in text
    assert "Time zone: UTC" in text


def test_everything_that_was_chosen_is_asked_for(world: World, signed_in: SignedIn) -> None:
    starts_at = (world.now + timedelta(days=1)).replace(second=0)

    answer = send(
        signed_in("bob"), work="training", is_preemptible="on", least="30 min", most_count="3",
        starts_at=f"{starts_at:%Y-%m-%dT%H:%M}",
    )  # fmt: skip

    assert answer.status_code == 302
    made = LeaseRequest.objects.get()
    assert (made.work, made.is_preemptible, made.least_duration_s) == ("training", True, 1800)
    assert (made.starts_at, made.most_count, made.nodes) == (starts_at, 3, 1)


def test_fields_left_empty_ask_for_nothing_special(world: World, signed_in: SignedIn) -> None:
    send(signed_in("bob"), starts_at="", least="", nodes="", most_count="")

    made = LeaseRequest.objects.get()
    assert (made.starts_at, made.least_duration_s, made.nodes, made.most_count) == (None, 0, 1, 0)
    assert not made.is_preemptible


@pytest.mark.parametrize(
    "change",
    [
        {"work": "play"},
        {"starts_at": "soon"},
        {"starts_at": "2001-01-01T10:00"},
        {"least": "a while"},
        {"least": "3 h"},
        {"nodes": "-1"},
        {"nodes": "9" * 30},
        {"nodes": "2", "flavor": "h100-1g-10gb"},
        {"most_count": "99"},
    ],
)
def test_what_makes_no_sense_is_marked_in_the_open_section(
    world: World, signed_in: SignedIn, change: dict[str, str]
) -> None:
    answer = send(signed_in("bob"), **change)

    assert answer.status_code == 422
    assert OPEN in answer.text
    assert 'class="field-error"' in answer.text
    assert not LeaseRequest.objects.exists()


def test_the_quote_counts_all_nodes_and_says_what_was_chosen(
    wide: World, signed_in: SignedIn, publish: Publish
) -> None:
    Flavor.objects.filter(slug="h100").update(preemptible_milli=600)
    publish(wide.now)

    text = signed_in("bob").get(QUOTE, {**GOOD, "nodes": "2", "count": "3", "is_preemptible": "on"}).text

    assert "2 nodes with 3 × H100 whole each" in text
    assert "25.92" in text  # 6 boards x 2 h x 3.60 x 0.6
    assert "43.20" in text
    assert "Right away" in text


def test_a_running_gang_shows_all_its_parts_on_its_page_and_on_each(wide: World, signed_in: SignedIn) -> None:
    request = wide.submit("alice", "h100", nodes=2, count=2)
    leases = wide.turn()
    wide.ready(*leases)
    client = signed_in("alice")

    page = client.get(f"/requests/{request.uid}/")
    part = client.get(f"/leases/{leases[1].uid}/").text

    assert page.status_code == 200
    assert "part 1 of 2" in page.text
    assert leases[1].uid in page.text
    assert "part 2 of 2" in part
    assert f"/leases/{leases[0].uid}/" in part
    assert "export BERTH_NODES=gpu-01,gpu-02" in part


def test_growth_can_be_stopped_on_the_page_and_what_was_grown_given_back(
    world: World, signed_in: SignedIn
) -> None:
    request = world.submit("alice", "h100", most_count=3)
    world.ready(*world.turn())
    grown = world.turn()
    world.ready(*grown)
    client = signed_in("alice")

    page = client.get(f"/requests/{request.uid}/").text
    client.post(f"/requests/{request.uid}/growth/", {"most_count": "1"})
    client.post(f"/leases/{grown[0].uid}/release/")

    assert page.count("· grown ·") == 2
    assert page.count("Give back lse-") == 2
    assert "gpu-01 · grown" in page
    assert "Stop growing" in page
    request.refresh_from_db()
    assert request.most_count == 1
    assert Lease.objects.get(pk=grown[0].pk).state == "ending"
    assert Lease.objects.filter(request=request, state="active").count() == 2


@pytest.mark.parametrize("most", ["", "x", "0", "99", "9" * 30])
def test_nonsense_for_growth_changes_nothing(world: World, signed_in: SignedIn, most: str) -> None:
    request = world.submit("bob", "h100", most_count=3)

    answer = signed_in("bob").post(f"/requests/{request.uid}/growth/", {"most_count": most})

    assert answer.status_code == 302
    request.refresh_from_db()
    assert request.most_count == 3


def test_who_approves_reads_what_was_chosen(world: World, signed_in: SignedIn) -> None:
    team = world.team("perception")
    team.approval_above_gpu_seconds = 7200 * 3
    team.save()
    world.submit("bob", "h100", duration_s=7200, most_count=4, is_preemptible=True)

    text = signed_in("approver").get("/approvals/").text

    assert "to 4 while devices idle" in text
    assert "Preemptible" in text


def test_a_lease_that_was_cut_short_says_so(world: World, signed_in: SignedIn) -> None:
    lease = world.active("bob")
    Lease.objects.filter(pk=lease.pk).update(cut_by="maintenance")

    assert "Shorter than you asked for" in signed_in("bob").get(f"/leases/{lease.uid}/").text


def test_charlie_neither_sees_nor_changes_a_strangers_gang_or_growth(
    wide: World, signed_in: SignedIn
) -> None:
    gang = wide.submit("alice", "h100", nodes=2, count=1)
    elastic = wide.submit("bob", "h100", most_count=3)
    leases = wide.turn()
    charlie = signed_in("charlie")

    assert charlie.get(f"/requests/{gang.uid}/").status_code == 404
    assert all(charlie.get(f"/leases/{lease.uid}/").status_code == 404 for lease in leases)
    assert charlie.post(f"/requests/{elastic.uid}/growth/", {"most_count": "1"}).status_code == 404
    elastic.refresh_from_db()
    assert elastic.most_count == 3


@pytest.fixture
def with_apps(settings: Any) -> None:
    settings.GATEWAYS = [":8001"]
    settings.APPS_DOMAIN = "*.localhost"


@pytest.mark.usefixtures("with_apps")
def test_the_form_asks_what_to_run_and_begins_with_what_was_run_last(
    world: World, signed_in: SignedIn
) -> None:
    client = signed_in("bob")
    at = {"headers": {"host": "localhost"}}
    first = client.get(NEW, **at).text

    send(client, opens="ssh")

    assert 'value="notebook" checked' in first
    assert 'href="/jobs/#job-form"' in first
    assert LeaseRequest.objects.get().opens == "ssh"
    assert 'value="ssh" checked' in client.get(NEW, **at).text
    assert 'value="terminal" checked' in client.get(f"{NEW}?opens=terminal", **at).text


def test_without_a_gateway_the_form_offers_a_job_or_the_device(world: World, signed_in: SignedIn) -> None:
    text = signed_in("bob").get(f"{NEW}?opens=notebook").text

    assert 'value="device" checked' in text
    assert 'value="notebook"' not in text
    assert 'value="terminal"' not in text


def test_nothing_else_can_be_opened_not_even_by_hand_in_the_database(
    world: World, signed_in: SignedIn
) -> None:
    assert send(signed_in("bob"), opens="game").status_code == 422
    request = world.submit("bob", "h100")
    for wrong in ({"opens": "game"}, {"opens": "notebook", "is_job": True}):
        with pytest.raises(IntegrityError), transaction.atomic():
            LeaseRequest.objects.filter(pk=request.pk).update(**wrong)


@pytest.mark.usefixtures("with_apps")
@pytest.mark.parametrize(
    ("opens", "waiting", "button"),
    [
        ("notebook", "a button here opens JupyterLab", "Open JupyterLab"),
        ("terminal", "a button here opens the terminal", "Open the terminal"),
        ("ssh", "the command for SSH stands here", "berth ssh lse-"),
    ],
)
def test_the_waiting_page_says_what_opens_and_shows_it_first_once_active(
    world: World, signed_in: SignedIn, opens: str, waiting: str, button: str
) -> None:
    Node.objects.update(features=["streams"])
    bob, charlie = signed_in("bob"), signed_in("charlie")
    at = {"headers": {"host": "localhost"}}
    request = world.submit("bob", "h100", opens=opens, at=world.now - timedelta(minutes=2))
    address = f"/requests/{request.uid}/"
    before = bob.get(address, **at)
    (lease,) = world.turn()
    world.ready(lease)

    refreshed = bob.get(address, headers={"host": "localhost", "HX-Request": "true"}).text
    page = bob.get(f"/leases/{lease.uid}/", **at)

    assert waiting in before.text
    # What comes with a refresh keeps the policy of the page it came into: that one has to allow where it leads.
    assert ("http://*.localhost" in before["Content-Security-Policy"]) == (opens == "notebook")
    assert button in refreshed
    assert button in page.text
    assert "http://*.localhost" in page["Content-Security-Policy"]
    assert "Your lease has started" in bob.get("/notifications/").text
    colleague = charlie.get(f"/leases/{lease.uid}/", **at)
    assert colleague.status_code == 404 or button not in colleague.text


def test_who_hardly_waited_is_not_told_of_the_start(world: World, signed_in: SignedIn) -> None:
    world.submit("bob", "h100", opens="terminal")
    world.ready(*world.turn())

    assert "has started" not in signed_in("bob").get("/notifications/").text
