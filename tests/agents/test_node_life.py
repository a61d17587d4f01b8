"""What becomes of leases when a node is enrolled again, gets a newer agent or loses its key: a whole agent, live."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodeagent.link.enrolment import PortalRefusedError
from nodeagent.protocol.boards import device_facts
from nodeagent.simulation.devices.driver import SimulatedDriver
from portal.agents.services import create_enrol_token, revoke_node
from portal.common.clock import db_now
from portal.common.invariants import broken
from portal.fleet.models import Node, Partition
from portal.leases.models import Lease, LeaseEvent, LeaseRequest, Placement
from tests.agents.line import PATIENCE_S, Host, until
from tests.portal.builders import H100, World
from tests.telemetry.conftest import live, rows  # noqa: F401

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("live")]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host("gpu-01", tmp_path / "state", device_facts("gpu-01", H100, 2))


def token() -> str:
    return create_enrol_token(node_name="gpu-01", actor=None, now=db_now()).secret


def granted(world: World) -> Lease:
    world.submit("bob", "h100-1g-10gb", at=db_now(), duration_s=7200)
    (lease,) = world.turn(db_now())
    return lease


def state_of(lease: Lease) -> str:
    return Lease.objects.get(pk=lease.pk).state


def events_of(lease: Lease) -> list[str]:
    return list(LeaseEvent.objects.filter(lease=lease).order_by("id").values_list("now", flat=True))


def partition_of(lease: Lease) -> str:
    return Placement.objects.get(lease=lease).partition_uuid


async def test_enrolled_again_with_its_state_folder_the_agent_keeps_its_leases(
    world: World, host: Host
) -> None:
    async with host.agent(await rows(token)):
        lease = await rows(lambda: granted(world))
        await until(lambda: state_of(lease), "active")
        partition = await rows(lambda: partition_of(lease))
    (host.state / "agent.key").unlink()

    async with host.agent(await rows(token)):
        seen = lambda: list(Partition.objects.exclude(lease_uid="").values_list("uuid", flat=True))  # noqa: E731
        await until(seen, [partition])
        await until(lambda: Node.objects.filter(name="gpu-01", observed_revision__gte=1).exists(), True)

    assert host.welcome_epochs == [2, 3]
    assert await rows(lambda: events_of(lease)) == ["preparing", "active"]
    assert await rows(lambda: partition_of(lease)) == partition
    assert await rows(broken) == []


async def test_enrolled_again_without_its_journal_the_leases_are_lost_and_their_requests_wait_again(
    world: World, host: Host
) -> None:
    async with host.agent(await rows(token)):
        lease = await rows(lambda: granted(world))
        await until(lambda: state_of(lease), "active")
    seen_at = await rows(lambda: Node.objects.get(name="gpu-01").last_seen_at)
    host.lose_state()

    async with host.agent(await rows(token)):
        await until(lambda: state_of(lease), "ended")

    lost = await rows(lambda: Lease.objects.get(pk=lease.pk))
    request = await rows(lambda: LeaseRequest.objects.get(pk=lease.request_id))
    assert (lost.end_reason, lost.fault) == (
        "fault",
        "the node's agent came back without its records of this lease",
    )
    assert lost.ended_at == max(seen_at, lost.activated_at)
    assert request.state == "queued"
    assert 7190 <= request.remaining_s <= 7200
    assert (
        await rows(
            lambda: world.user("bob").notifications.filter(kind="lease.failed", target=lease.uid).count()
        )
        == 1
    )
    assert await rows(broken) == []


async def test_with_its_key_but_without_its_journal_the_leases_are_lost_as_well(
    world: World, host: Host
) -> None:
    async with host.agent(await rows(token)):
        lease = await rows(lambda: granted(world))
        await until(lambda: state_of(lease), "active")
    (host.state / "journal.jsonl").unlink()

    async with host.agent():
        await until(lambda: state_of(lease), "ended")

    assert (await rows(lambda: LeaseRequest.objects.get(pk=lease.request_id).state)) == "queued"


async def test_an_old_agent_with_the_old_key_is_refused_once_the_node_was_enrolled_again(
    world: World, host: Host, tmp_path: Path
) -> None:
    old = Host("gpu-01", tmp_path / "old", host.facts)
    async with old.agent(await rows(token)):
        pass
    async with host.agent(await rows(token)):
        with pytest.raises(PortalRefusedError) as no:
            async with old.agent():
                pass

    assert no.value.code == "bad_signature"


async def test_a_newer_agent_takes_over_without_a_break_in_lease_or_money(
    world: World, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with host.agent(await rows(token)):
        lease = await rows(lambda: granted(world))
        await until(lambda: state_of(lease), "active")
        before = await rows(lambda: Lease.objects.get(pk=lease.pk))
        steps, partition = await rows(lambda: (events_of(lease), partition_of(lease)))

    touched: list[str] = []
    for verb in ("create", "destroy"):
        monkeypatch.setattr(SimulatedDriver, verb, _noting(touched, getattr(SimulatedDriver, verb)))
    monkeypatch.setattr("nodeagent.link.session.__version__", "99.0.0")
    async with host.agent():
        await until(lambda: Node.objects.get(name="gpu-01").agent_version, "99.0.0")
        await until(
            lambda: Node.objects.filter(name="gpu-01", last_seen_at__gt=before.activated_at).exists(), True
        )

    after = await rows(lambda: Lease.objects.get(pk=lease.pk))
    assert (after.state, after.activated_at, after.not_after) == (
        "active",
        before.activated_at,
        before.not_after,
    )
    assert (await rows(lambda: events_of(lease)), await rows(lambda: partition_of(lease))) == (
        steps,
        partition,
    )
    assert touched == []
    assert host.welcome_epochs == [2, 2]
    assert await rows(broken) == []


async def test_a_forgotten_key_turns_the_connected_agent_away_at_once(world: World, host: Host) -> None:
    async with host.agent(await rows(token)):
        node = await rows(lambda: Node.objects.get(name="gpu-01"))
        await rows(lambda: revoke_node(node=node, actor=world.user("operator"), now=db_now()))

        with pytest.raises(PortalRefusedError) as no:
            async with host.agent():
                pass
        assert host.talk is not None
        await asyncio.wait([host.talk], timeout=PATIENCE_S)  # its own refusal is a message, on its way still

    assert no.value.code == "bad_signature"
    assert host.refusals == ["stale_epoch"]


def _noting(calls: list[str], verb: Callable[..., Any]) -> Callable[..., Any]:
    """Return a driver's verb that leaves its name whenever it is called."""

    def called(*args: Any, **options: Any) -> Any:
        calls.append(verb.__name__)
        return verb(*args, **options)

    return called
