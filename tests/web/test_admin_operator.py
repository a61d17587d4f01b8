from __future__ import annotations

import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from portal.accounts.services import digest_of
from portal.agents.models import EnrolToken
from portal.audit.models import AuditEntry
from portal.fleet.models import Device, Health, HealthEvent, Node
from tests.portal.builders import H100, World, make_node
from tests.web.conftest import SignedIn

ACTIONS = (
    "/operations/nodes/gpu-01/cordon/",
    "/operations/nodes/gpu-01/uncordon/",
    "/operations/nodes/gpu-01/revoke/",
    "/operations/nodes/enrol/",
    "/operations/devices/any/clear/",
)


@pytest.fixture
def faulty(world: World) -> Device:
    """A device that an event has taken out of service."""
    device = Device.objects.get(node__name="gpu-01", index=3)
    HealthEvent.objects.create(
        node=device.node,
        device=device,
        code="xid-79",
        severity="critical",
        detail="fell off the bus",
        at=world.now,
    )
    Device.objects.filter(pk=device.pk).update(health=Health.QUARANTINED, health_reason="fell off the bus")
    return device


def test_the_list_tells_state_driver_devices_and_open_events(
    world: World, signed_in: SignedIn, faulty: Device
) -> None:
    text = signed_in("operator").get("/operations/nodes/").text

    assert "gpu-01" in text
    assert "simulated" in text
    assert "XID 79" in text
    assert f"/operations/devices/{faulty.uuid}/clear/" in text


@pytest.mark.parametrize("name", ["alice", "bob", "charlie", "finance", "approver"])
def test_nobody_but_operators_works_on_nodes(world: World, signed_in: SignedIn, name: str) -> None:
    client = signed_in(name)

    assert client.get("/operations/nodes/").status_code == 403
    assert client.get("/operations/audit/").status_code == 403
    assert {client.post(path, {"reason": "x", "name": "gpu-09"}).status_code for path in ACTIONS} == {403}
    assert not Node.objects.filter(is_cordoned=True).exists()
    assert not Node.objects.filter(name="gpu-09").exists()


def test_a_node_goes_out_of_service_with_a_reason_and_comes_back(world: World, signed_in: SignedIn) -> None:
    operator = signed_in("operator")

    asked = operator.get("/cluster/gpu-01/").text
    operator.post("/operations/nodes/gpu-01/cordon/", {"reason": "memory exchange"})
    out = Node.objects.get(name="gpu-01")
    page = operator.get("/cluster/gpu-01/").text
    operator.post("/operations/nodes/gpu-01/uncordon/")

    assert 'name="reason"' in asked
    assert (out.is_cordoned, out.cordon_reason) == (True, "memory exchange")
    assert "memory exchange" in page
    assert not Node.objects.get(name="gpu-01").is_cordoned


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("", "Say why"),
        ("   ", "Say why"),
        ("x" * 201, "at most 200 characters"),
        ("a\x00b", "Null characters are not allowed"),
    ],
)
def test_a_node_does_not_go_without_a_usable_reason(
    world: World, signed_in: SignedIn, reason: str, said: str
) -> None:
    answer = signed_in("operator").post("/operations/nodes/gpu-01/cordon/", {"reason": reason}, follow=True)

    assert said in answer.text
    assert not Node.objects.get(name="gpu-01").is_cordoned


def test_clearing_health_lets_the_device_take_work(world: World, signed_in: SignedIn, faulty: Device) -> None:
    answer = signed_in("operator").post(f"/operations/devices/{faulty.uuid}/clear/")

    faulty.refresh_from_db()
    assert answer.status_code == 302
    assert faulty.health == Health.OK
    assert not HealthEvent.objects.filter(cleared_at=None).exists()


def test_enrolling_shows_the_command_with_a_token_that_is_only_kept_as_a_digest(
    world: World, signed_in: SignedIn
) -> None:
    answer = signed_in("operator").post("/operations/nodes/enrol/", {"name": "gpu-09"})

    secret = re.findall(r"enr_[\w-]+", answer.text)[0]
    command = answer.text.replace(" \\\n ", "")
    assert "python -m nodeagent --portal ws://testserver --allow-plain --node gpu-09 --state" in command
    assert "no-store" in answer.headers["Cache-Control"]
    assert bytes(EnrolToken.objects.get(node__name="gpu-09").digest) == digest_of(secret)


@pytest.mark.parametrize("name", ["", "gpu 09", "gpu/09", "x" * 61, "gpu\x0009", "<script>"])
def test_bad_input_enrols_nothing(world: World, signed_in: SignedIn, name: str) -> None:
    answer = signed_in("operator").post("/operations/nodes/enrol/", {"name": name})

    assert answer.status_code == 422
    assert "field-error" in answer.text
    assert Node.objects.count() == 2


def test_actions_on_what_is_not_there_are_missing_pages(world: World, signed_in: SignedIn) -> None:
    operator = signed_in("operator")

    assert operator.post("/operations/nodes/gpu-99/cordon/", {"reason": "x"}).status_code == 404
    assert operator.post("/operations/devices/GPU-nothing/clear/").status_code == 404
    assert operator.get("/operations/nodes/gpu-01/cordon/").status_code == 405


def test_the_audit_list_filters(world: World, signed_in: SignedIn) -> None:
    operator = signed_in("operator")
    operator.post("/operations/nodes/gpu-01/cordon/", {"reason": "memory exchange"})
    world.submit("bob")

    everything = operator.get("/operations/audit/").text
    cordons = operator.get("/operations/audit/?action=cordon&actor=oper&since=2024-01-01").text
    nothing = operator.get("/operations/audit/?until=2023-01-01").text

    assert "node.cordoned" in everything
    assert "request.submitted" in everything
    assert "node.cordoned" in cordons
    assert "request.submitted" not in cordons
    assert "No entry matches" in nothing


@pytest.mark.parametrize(
    "query",
    ["since=yesterday", "since=9999-99-99", "until=9999-12-31", "page=-4", "page=x", "actor=" + "x" * 500],
)
def test_bad_filters_never_break_the_audit_list(world: World, signed_in: SignedIn, query: str) -> None:
    assert signed_in("operator").get("/operations/audit/?" + query).status_code == 200


def test_lists_take_a_fixed_number_of_queries(world: World, signed_in: SignedIn) -> None:
    operator = signed_in("operator")
    paths = ("/operations/nodes/", "/operations/audit/")
    counts = {path: _queries(operator, path) for path in paths}
    for n in range(4, 9):
        make_node(f"gpu-0{n}", H100, 2, ("exclusive",), now=world.now)
        AuditEntry.objects.create(actor=world.user("bob"), action="x.y", target=f"gpu-0{n}", at=world.now)

    assert {path: _queries(operator, path) for path in paths} == counts
    assert max(counts.values()) <= 12


def _queries(client: object, path: str) -> int:
    with CaptureQueriesContext(connection) as seen:
        assert client.get(path).status_code == 200  # type: ignore[attr-defined]
    return len(seen)
