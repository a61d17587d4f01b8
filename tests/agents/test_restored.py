"""A database that was restored to an earlier state: its nodes obey again, nothing ends unseen. A whole agent."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeagent.protocol.boards import device_facts
from nodeagent.protocol.limits import MOST_EPOCH_JUMP
from portal.agents.acceptance import accept_node, waiting_of
from portal.agents.admission import admit
from portal.agents.errors import AgentRefused
from portal.agents.services import create_enrol_token
from portal.audit.models import AuditEntry
from portal.common.clock import db_now
from portal.common.sql import execute
from portal.fleet.models import Node
from portal.fleet.selectors import blocked_why
from portal.leases.lifecycle import release_lease
from portal.leases.models import Lease
from portal.notifications.models import Notification
from tests.agents.line import Host, until
from tests.agents.test_enrolment import NONCE, Key
from tests.agents.test_node_life import granted, state_of, token
from tests.portal.builders import H100, World
from tests.telemetry.conftest import live, rows  # noqa: F401

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("live")]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host("gpu-01", tmp_path / "state", device_facts("gpu-01", H100, 2))


def node() -> Node:
    return Node.objects.get(name="gpu-01")


def restore(revision: int, *forgotten: Lease) -> None:
    """Bring the node's row back to an earlier revision, and forget leases that were granted since."""
    ids = [lease.pk for lease in forgotten]
    execute("SET session_replication_role = replica", [])
    Node.objects.filter(name="gpu-01").update(observed_revision=revision, desired_revision=revision)
    for table in ("leases_leaseevent", "leases_placement"):
        execute(f"DELETE FROM {table} WHERE lease_id = ANY(%s)", [ids])
    execute("DELETE FROM leases_lease WHERE id = ANY(%s)", [ids])
    execute("SET session_replication_role = DEFAULT", [])


def told(kind: str) -> dict[str, object]:
    return Notification.objects.get(kind=kind, user__username="operator").facts


async def served(world: World, host: Host) -> Lease:
    """Let a node with a long past make a lease, then go away."""
    await rows(lambda: Node.objects.filter(name="gpu-01").update(desired_revision=50))
    async with host.agent(await rows(token)):
        lease = await rows(lambda: granted(world))
        await until(lambda: state_of(lease), "active")
        await until(lambda: node().observed_revision == node().desired_revision, True)
    return lease


def release(world: World, lease: Lease) -> None:
    release_lease(lease=Lease.objects.get(pk=lease.pk), actor=world.user("bob"), now=db_now())


async def test_a_release_after_a_restore_is_carried_out_and_operators_are_told(
    world: World, host: Host, settings: Any
) -> None:
    lease = await served(world, host)
    settings.ACCEPT_NODES = "operator"
    seen = await rows(lambda: node().desired_revision)
    await rows(lambda: restore(1))

    async with host.agent():
        await until(lambda: node().ahead_at, None)
        await rows(lambda: release(world, lease))
        await until(lambda: state_of(lease), "ended")

    assert await rows(lambda: node().desired_revision) > seen > 50
    assert await rows(lambda: told("node.ahead")) == {"node": "gpu-01"}
    entry = await rows(lambda: AuditEntry.objects.get(action="node.ahead"))
    assert (entry.detail["known"]["revision"], entry.detail["seen"]["revision"]) == (1, seen)


async def test_a_lease_that_a_restored_database_does_not_know_goes_on_until_an_operator_accepts(
    world: World, host: Host, settings: Any
) -> None:
    lease = await served(world, host)
    settings.ACCEPT_NODES = "operator"
    await rows(lambda: restore(1, lease))

    async with host.agent() as session:
        await until(lambda: node().unknown_leases, [lease.uid])
        assert [work.phase for work in session._reconciler.lease_records.values()] == ["ready"]
        assert (await rows(lambda: told("node.unknown_leases")))["waits"]
        assert await rows(lambda: blocked_why(node(), now=db_now())) == "unaccepted"

        waiting = await rows(lambda: waiting_of(node()))
        assert (waiting.is_ahead, waiting.unknown_leases) == (True, (lease.uid,))
        operator = world.user("operator")
        await rows(lambda: accept_node(node=node(), actor=operator, now=db_now(), seen=waiting.seen))
        await until(lambda: node().observed_revision == node().desired_revision, True)
        async with asyncio.timeout(10):
            while session._reconciler.lease_records:
                await asyncio.sleep(0.02)

    entry = await rows(lambda: AuditEntry.objects.get(action="node.accepted"))
    assert entry.detail["ended_leases"] == [lease.uid]


async def test_where_the_policy_accepts_by_itself_an_unknown_lease_ends_and_is_named(
    world: World, host: Host
) -> None:
    lease = await served(world, host)
    await rows(lambda: restore(1, lease))

    async with host.agent() as session:
        async with asyncio.timeout(10):
            while session._reconciler.lease_records:
                await asyncio.sleep(0.02)

    entry = await rows(lambda: AuditEntry.objects.get(action="node.unknown_leases"))
    assert entry.detail == {"leases": [lease.uid], "ends": True}
    assert not (await rows(lambda: told("node.unknown_leases")))["waits"]


async def test_an_agent_whose_revision_leaves_nothing_above_it_counts_afresh(
    world: World, host: Host
) -> None:
    lease = await served(world, host)
    with (host.state / "journal.jsonl").open("a") as journal:
        journal.write(f'{{"op":"seen","epoch":2,"revision":{2**53 - 1}}}\n')

    async with host.agent():
        await until(lambda: node().ahead_at, None)
        await rows(lambda: release(world, lease))
        await until(lambda: state_of(lease), "ended")

    assert host.welcome_epochs == [2, 3]
    assert await rows(lambda: node().desired_revision) < 1000


def test_a_database_from_before_the_last_enrolment_takes_a_higher_epoch(world: World) -> None:
    key = Key()
    secret = create_enrol_token(node_name="gpu-09", actor=None, now=world.now).secret
    admit(key.hello(token=secret), nonce=NONCE, now=world.now)

    assert admit(key.hello(last_epoch=7), nonce=NONCE, now=world.now).epoch == 8
    assert Node.objects.get(name="gpu-09").ahead_at == world.now

    far = key.hello(last_epoch=8 + MOST_EPOCH_JUMP + 1)
    with pytest.raises(AgentRefused, match="far_epoch"):
        admit(far, nonce=NONCE, now=world.now)
    assert Node.objects.get(name="gpu-09").epoch == 8
    assert AuditEntry.objects.filter(action="node.ahead").count() == 2, "a refused one is told too"

    secret = create_enrol_token(node_name="gpu-09", actor=None, now=world.now).secret
    assert (
        admit(replace(far, enrol_token=secret, public_key=key.public), nonce=NONCE, now=world.now).epoch == 9
    )
