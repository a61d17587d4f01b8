"""The real agent on a simulated host with devices, units and processes, at the other end of the portal's socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pynvml
import pytest

from nodeagent.host.clock import boot_clock
from nodeagent.link import sampler
from nodeagent.link.enrolment import NodeEnrolment
from nodeagent.link.session import PortalSession
from nodeagent.processes.guard import Guard
from nodeagent.reconcile import worker
from nodeagent.reconcile.journal import Journal
from nodeagent.reconcile.reconciler import Reconciler
from nodeagent.reconcile.worker import Worker
from nodeagent.runtimes.names import unit_of
from nodeagent.simulation.full_host import FullHost
from nodeagent.simulation.machine.world import SimulatedProcess
from portal.agents.services import create_enrol_token
from portal.billing.metering import meter_all
from portal.billing.models import UsageRecord
from portal.common.clock import db_now
from portal.common.invariants import broken
from portal.fleet.models import Device, HealthEvent, Partition
from portal.leases.lifecycle import release_lease
from portal.leases.models import Lease, LeaseRequest, Placement
from portal.notifications.models import Notification
from portal.telemetry.processes import orphans_by_node, processes_of
from tests.agents.line import Host, until
from tests.api.conftest import Caller
from tests.portal.builders import H100, World, make_flavor
from tests.telemetry.conftest import live, rows  # noqa: F401

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("live")]
NODE = "gpu-01"
OFFER = frozenset({"exclusive", "mig", "mps"})
TICK_S = 0.02


class HardwareHost(Host):
    """A host whose devices, units and processes are simulated one by one; its agent is the one of real hosts."""

    def __init__(self, state: Path, boards: list[str]) -> None:
        super().__init__(NODE, state, ())
        self.home = FullHost(NODE, boards, self.devices, boot_clock)

    @asynccontextmanager
    async def agent(self, token: str = "", *, listens: bool = False) -> AsyncIterator[PortalSession]:
        """Run an agent with a thread per device, while the host's own time passes, until the block ends.

        ``listens``: with one more thread, for what the devices say.
        """
        driver, runtime = self.home.driver(OFFER, listens=listens), self.home.runtime()
        reconciler = Reconciler(
            self.node, driver, Journal(self.state / "journal.jsonl"), boot_clock(), runtime
        )
        worker = Worker(reconciler, driver, boot_clock, Guard(driver, runtime, self.home.read))
        enrolment = NodeEnrolment(self.identity(), lambda: token)
        tasks = [asyncio.create_task(worker.run()), asyncio.create_task(self._pass_time())]
        try:
            async with self._welcomed(enrolment, driver, worker) as (talks, line):  # type: ignore[arg-type]
                tasks.append(asyncio.create_task(talks.run()))
                try:
                    yield talks
                finally:
                    line.is_cut = True
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with contextlib.suppress(asyncio.CancelledError, AssertionError, EOFError, TimeoutError):
                    await task
            worker.close()

    async def _pass_time(self) -> None:
        while True:
            self.home.pass_time()
            await asyncio.sleep(TICK_S)

    def work_in(self, lease: Lease, *, is_stubborn: bool = False) -> SimulatedProcess:
        """Start the holder's program in the lease's unit, on the slice or device that it was given."""
        unit = self.home.systemd.units[unit_of((lease.uid, lease.generation))]
        place = Placement.objects.select_related("device").get(lease=lease)
        device = self.home.host.device(place.device.uuid)
        gi = next((i.id for i in device.gpu.instances.values() if i.start == place.start), None)
        return self.home.world.spawn(
            unit.cgroup, user="bob", gpu=device.uuid, gi=gi, memory_mib=4096, is_stubborn=is_stubborn
        )

    def slices(self) -> list[tuple[int, str, int]]:
        """Return the instances that stand on the devices: device, profile, start."""
        return [
            (device.index, i.profile.name, i.start)
            for device in self.home.host.devices
            for i in device.gpu.instances.values()
        ]


@pytest.fixture
def host(tmp_path: Path) -> HardwareHost:
    return HardwareHost(tmp_path / "state", [H100, H100])


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """Look at devices and their processes often; give a lease's processes a second to end."""
    monkeypatch.setattr(worker, "WATCH_EVERY_S", 0.2)
    monkeypatch.setattr(sampler, "PROCESSES_EVERY", 1)
    settings.LEASE_GRACE_S = 1


def token() -> str:
    return create_enrol_token(node_name=NODE, actor=None, now=db_now()).secret


def state_of(lease: Lease) -> str:
    return Lease.objects.get(pk=lease.pk).state


def place_of(lease: Lease) -> Placement:
    return Placement.objects.select_related("device").get(lease=lease)


def end(lease: Lease) -> None:
    release_lease(lease=lease, actor=lease.user, now=db_now())


async def granted(world: World, flavor: str, **more: Any) -> Lease:
    def ask() -> Lease:
        request = world.submit("bob", flavor, at=db_now(), **more)
        world.turn(db_now())
        return Lease.objects.select_related("user").get(request=request)

    lease: Lease = await rows(ask)
    await until(lambda: state_of(lease), "active")
    return lease


async def test_a_slice_goes_from_request_to_unit_and_back_and_is_charged_as_its_agent_counts(
    world: World, host: HardwareHost
) -> None:
    async with host.agent(await rows(token)):
        lease = await granted(world, "h100-1g-10gb")
        place = await rows(lambda: place_of(lease))
        unit = host.home.systemd.units[unit_of((lease.uid, lease.generation))]
        seen = (await rows(lambda: access(world, "bob", lease))).json()
        strangers = [await rows(partial(access, world, name, lease)) for name in ("operator", "charlie")]
        standing = host.slices()
        await asyncio.sleep(1.2)  # long enough to be charged for
        await rows(lambda: end(lease))
        await until(lambda: state_of(lease), "ended")
        await until(lambda: Partition.objects.exclude(lease_uid="").count(), 0)

    assert standing == [(place.device.index, "1g.10gb", place.start)]
    assert (seen["entrance"]["unit"], seen["entrance"]["is_isolated"]) == (unit.name, True)
    assert {answer.status_code for answer in strangers} == {403, 404}
    (slot,) = seen["slots"]
    caps = [node for node in slot["device_nodes"] if node.startswith("/dev/nvidia-caps/")]
    assert len(caps) == 2
    assert all(f"{node} rw" in unit.properties["DeviceAllow"].split("\n") for node in slot["device_nodes"])
    assert host.slices() == []
    assert host.home.systemd.units == {}
    assert await rows(lambda: charged_beside_agent(lease)) <= 1000
    assert await rows(broken) == []


def access(world: World, name: str, lease: Lease) -> Any:
    """Ask as this person how a lease is entered."""
    return Caller(world.token(name)).get(f"leases/{lease.uid}/access/")


def charged_beside_agent(lease: Lease) -> int:
    """Return by how many milliseconds bill and agent differ."""
    meter_all(now=db_now())
    seconds = sum(UsageRecord.objects.filter(lease=lease).values_list("seconds", flat=True))
    agents = Lease.objects.get(pk=lease.pk).agent_active_ms
    assert agents is not None
    assert agents > 1000
    return abs(seconds * 1000 - agents)


async def test_a_share_of_a_card_is_served_by_its_holders_own_daemon(
    world: World, host: HardwareHost
) -> None:
    async with host.agent(await rows(token)):
        await until(lambda: "mps" in Device.objects.get(node__name=NODE, index=0).modes, True)
        await rows(lambda: make_flavor("h100-fifth", "H100 fifth", H100, "mps", "", 200, 16_000, 4))
        lease = await granted(world, "h100-fifth")
        daemons = [(daemon.device, daemon.uid) for daemon in host.home.mps.daemons.values()]
        place = await rows(lambda: place_of(lease))
        unit = host.home.systemd.units[unit_of((lease.uid, lease.generation))]
        await rows(lambda: end(lease))
        await until(lambda: state_of(lease), "ended")

    assert daemons == [(place.device.uuid, 1002)]
    assert f"/dev/nvidia{place.device.index}" in "".join(place.access["nodes"])
    assert "CUDA_MPS_PIPE_DIRECTORY" in unit.properties["Environment"]
    assert host.home.mps.daemons == {}
    assert host.home.systemd.units == {}


async def test_a_program_that_ignores_the_end_costs_its_grace_and_nobody_pays_for_it(
    world: World, host: HardwareHost
) -> None:
    async with host.agent(await rows(token)):
        lease = await granted(world, "h100-1g-10gb")
        process = await rows(lambda: host.work_in(lease, is_stubborn=True))
        began = boot_clock()
        await rows(lambda: end(lease))
        await until(lambda: state_of(lease), "ended")
        took_s = (boot_clock() - began) / 1e9

    assert process.pid not in host.home.world.processes
    assert host.slices() == []
    assert took_s >= 1, "it was given its grace"
    active_ms = (await rows(lambda: Lease.objects.get(pk=lease.pk))).agent_active_ms
    assert active_ms < took_s * 1000 + 5000
    assert await rows(broken) == []


async def test_a_fault_on_one_slice_of_a_card_is_news_for_its_holder_and_for_nobody_else_there(
    world: World, host: HardwareHost
) -> None:
    async with host.agent(await rows(token), listens=True):
        hit, beside = [await granted(world, "h100-1g-10gb") for _ in range(2)]
        place, other = [await rows(lambda one=lease: place_of(one)) for lease in (hit, beside)]
        device = host.home.host.device(place.device.uuid)
        gi = next(one.id for one in device.gpu.instances.values() if one.start == place.start)
        await until(
            lambda: any(
                ear.hears(device, pynvml.nvmlEventTypeXidCriticalError)
                for ear in list(host.home.host.listeners)
            ),
            True,
        )
        host.home.host.xid(device.uuid, 94, gi=gi)
        await until(
            lambda: list(HealthEvent.objects.filter(code="94").values_list("device_id", "starts")),
            [(place.device_id, [place.start])],
        )
        told = await rows(
            lambda: list(Notification.objects.filter(kind="lease.health").values_list("target", flat=True))
        )

    assert place.device_id == other.device_id
    assert [target.partition("#")[0] for target in told] == [hit.uid]


async def test_a_card_that_is_lost_takes_its_own_lease_along_and_no_other(
    world: World, host: HardwareHost
) -> None:
    async with host.agent(await rows(token)):
        sick = await granted(world, "h100")
        well = await granted(world, "h100-1g-10gb")
        process = await rows(lambda: host.work_in(well))
        place = await rows(lambda: place_of(sick))
        host.home.host.lose(place.device.uuid)
        await until(lambda: Device.objects.get(pk=place.device_id).health, "quarantined")
        await until(lambda: Lease.objects.get(pk=sick.pk).end_reason, "fault")
        other = await rows(lambda: Device.objects.get(node__name=NODE, index=1 - place.device.index).health)
        codes = await rows(lambda: set(HealthEvent.objects.values_list("code", flat=True)))
        assert await rows(lambda: state_of(well)) == "active"

    assert other == "ok"
    assert "79" in codes
    assert process.pid in host.home.world.processes
    assert [device for device, _, _ in host.slices()] == [1 - place.device.index]


@pytest.mark.parametrize("restarts", [False, True], ids=["agent goes on", "node restarts"])
async def test_what_was_lost_with_a_card_waits_in_the_queue_again(
    world: World, host: HardwareHost, restarts: bool
) -> None:
    async with host.agent(await rows(token)):
        sick = await granted(world, "h100")
        place = await rows(lambda: place_of(sick))
        process = await rows(lambda: host.work_in(sick))
        host.home.host.lose(place.device.uuid)
        await until(lambda: Lease.objects.get(pk=sick.pk).end_reason, "fault")
        if not restarts:
            await until(lambda: state_of(sick), "ended")
    if restarts:
        host.home.reboot()
        async with host.agent():
            await until(lambda: state_of(sick), "ended")

    asked = await rows(lambda: LeaseRequest.objects.get(pk=sick.request_id))
    assert asked.state == "queued"
    assert 3500 < asked.remaining_s <= 3600
    assert process.pid not in host.home.world.processes
    assert (await rows(lambda: Device.objects.get(pk=place.device_id))).health == "quarantined"
    assert await rows(broken) == []


async def test_a_process_that_no_lease_explains_is_shown_and_left_alone(
    world: World, host: HardwareHost
) -> None:
    async with host.agent(await rows(token)):
        lease = await granted(world, "h100-1g-10gb")
        held = await rows(lambda: host.work_in(lease))
        device = host.home.host.device(1)
        stray = host.home.world.spawn("/user.slice/user-1003.slice", user="charlie", gpu=device.uuid)
        await until(lambda: orphans_by_node([NODE], now=db_now()), {NODE: 1})
        shown = await rows(lambda: processes_of(NODE, now=db_now()))

    by_pid = {row.pid: (row.state, row.device, row.lease) for row in shown.rows}
    assert by_pid[stray.pid] == ("orphan", device.uuid, "")
    assert by_pid[held.pid][::2] == ("held", lease.uid)
    assert {stray.pid, held.pid} <= host.home.world.processes.keys()
