"""The agent against a portal in this process: real sockets, real frames, simulated devices."""

from __future__ import annotations

import asyncio
import contextlib
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.backends.usage import PoolUsage, UsageReading
from nodeagent.containers.cache import ImageCache
from nodeagent.host.clock import boot_clock
from nodeagent.link.address import address_of
from nodeagent.link.agent import Agent
from nodeagent.link.enrolment import NodeEnrolment, PortalRefusedError, token_source
from nodeagent.link.identity import Identity, StateError, lock_state
from nodeagent.protocol.boards import device_facts
from nodeagent.protocol.cluster_usage import ClusterUsage, ClusterUsageRow
from nodeagent.protocol.messages import (
    Desired,
    DesiredSlot,
    HealthFact,
    Heartbeat,
    NodeImages,
    Refused,
    Report,
    Samples,
)
from nodeagent.reconcile.journal import Journal
from nodeagent.reconcile.reconciler import Reconciler
from nodeagent.reconcile.worker import Worker
from nodeagent.simulation.devices.driver import SimulatedDriver
from nodeagent.simulation.faults import Faults
from tests.agent.builder import lease
from tests.agent.fake_portal import FakePortal, listening

FACTS = device_facts("gpu-01", "h100-80gb", 2)


def slice_at(start: int, device: int = 0) -> DesiredSlot:
    return DesiredSlot(FACTS[device].uuid, "mig", start, 1, 125, 9984, "1g.10gb")


def build(state: Path, port: int, token: str = "once", faults: Faults | None = None) -> Agent:
    driver = SimulatedDriver(FACTS, state, "boot-1", faults=faults, clock=boot_clock)
    reconciler = Reconciler("gpu-01", driver, Journal(state / "journal.jsonl"), boot_clock())
    enrolment = NodeEnrolment(Identity("gpu-01", state), token_source(token, None))
    return Agent(
        address_of(f"ws://127.0.0.1:{port}"), enrolment, driver, Worker(reconciler, driver, boot_clock)
    )


@asynccontextmanager
async def running(agent: Agent) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.get_running_loop().create_task(agent.run())
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, PortalRefusedError):
            await task


@pytest.fixture
def portal(monkeypatch: pytest.MonkeyPatch) -> FakePortal:
    monkeypatch.setattr("nodeagent.link.agent.FIRST_DELAY_S", 0.01)
    return FakePortal()


async def test_agent_enrols_with_its_token_and_reports_its_devices(portal, tmp_path):
    async with listening(portal) as port, running(build(tmp_path, port)):
        report = await portal.kind(Report)

    assert portal.paths == ["/agent/v1"]
    assert portal.hellos[0].devices == FACTS
    assert (report.epoch, report.leases, report.partitions) == (1, (), ())


async def test_second_connection_shows_the_signature_alone(portal, tmp_path):
    async with listening(portal) as port:
        async with running(build(tmp_path, port)):
            await portal.kind(Report)
        portal.forget()
        async with running(build(tmp_path, port)):
            await portal.kind(Report)

    assert [bool(hello.enrol_token) for hello in portal.hellos] == [True, False]
    assert portal.hellos[1].last_epoch == 1


async def test_desired_lease_is_reported_ready_and_later_gone(portal, tmp_path):
    async with listening(portal) as port, running(build(tmp_path, port)):
        await portal.kind(Report)
        await portal.desire(lease("a", slice_at(0)), lease("b", slice_at(0, device=1)))
        ready = await portal.phase("a", "ready")
        await portal.desire(lease("b", slice_at(0, device=1)))
        gone = await portal.phase("a", "gone")

    assert {entry.phase for entry in ready.leases} == {"ready"}
    assert {fact.lease for fact in gone.partitions} == {"b"}
    assert (gone.revision, gone.leases[0].reason) == (2, "withdrawn")


async def test_acknowledged_gone_lease_is_not_told_again(portal, tmp_path):
    async with listening(portal) as port, running(build(tmp_path, port)):
        await portal.kind(Report)
        await portal.desire(lease("a", slice_at(0)))
        await portal.phase("a", "ready")
        await portal.desire()
        await portal.phase("a", "gone")
        portal.forget()
        await portal.desire(lease("b", slice_at(1)))
        later = await portal.phase("b", "ready")

    assert [entry.lease for entry in later.leases] == ["b"]


@pytest.mark.parametrize(("features", "starts"), [((), None), (("health_slices",), (3,))])
async def test_places_of_a_fault_are_told_only_to_a_portal_that_takes_them(
    portal, tmp_path, features, starts
):
    portal.features = features
    fault = HealthFact(FACTS[0].uuid, "94", "warning", "stopped", "restart_workload", starts=(3,))
    agent = build(tmp_path, 0, faults=Faults(health=[fault]))
    async with listening(portal) as port:
        agent._address = address_of(f"ws://127.0.0.1:{port}")
        async with running(agent):
            report = await portal.until(lambda m: isinstance(m, Report) and m.health)

    assert "health_slices" in portal.hellos[0].features
    assert report.health == (replace(fault, starts=starts),)


@pytest.mark.parametrize("features", [(), ("images",)])
async def test_images_are_told_only_to_a_portal_that_takes_them_and_again_when_they_change(
    portal, tmp_path, features
):
    portal.features = features
    agent = build(tmp_path, 0)
    cache = ImageCache(tmp_path / "images.json", 9, tuple, lambda _image: None)
    agent._images, agent._features = cache, (*agent._features, "images")
    async with listening(portal) as port:
        agent._address = address_of(f"ws://127.0.0.1:{port}")
        async with running(agent):
            if features:
                assert (await portal.kind(NodeImages)).images == ()
            cache.note("", "oci:a:1", "id", "", 1 << 20)
            await portal.kind(Samples)
            if features:
                await portal.until(lambda m: isinstance(m, NodeImages) and m.images)

    assert "images" in portal.hellos[0].features
    assert any(isinstance(m, NodeImages) for m in portal.heard) == bool(features)


@pytest.mark.parametrize("features", [(), ("cluster_usage",)])
async def test_what_a_cluster_counted_is_told_only_to_a_portal_that_takes_it(portal, tmp_path, features):
    portal.features = features
    agent = build(tmp_path, 0)
    row = ClusterUsageRow("lse-1", 1, "7", 1, 100, 200, 100, "COMPLETED")

    class Books:
        def read(self, back_s):
            return UsageReading("on", (row,))

    agent._usage, agent._features = PoolUsage(Books(), lambda: 300), (*agent._features, "cluster_usage")
    async with listening(portal) as port:
        agent._address = address_of(f"ws://127.0.0.1:{port}")
        async with running(agent):
            if features:
                told = await portal.kind(ClusterUsage)
                assert (told.books, told.told_at, told.rows) == ("on", 300, (row,))
            await portal.kind(Samples)

    assert any(isinstance(m, ClusterUsage) for m in portal.heard) == bool(features)


async def test_samples_and_heartbeats_flow(portal, tmp_path):
    async with listening(portal) as port, running(build(tmp_path, port)):
        samples = await portal.kind(Samples)
        beat = await portal.kind(Heartbeat)

    assert len(samples.devices) == 2
    assert beat.boot_id == "boot-1"


async def test_bad_frames_of_the_portal_change_nothing(portal, tmp_path):
    async with listening(portal) as port, running(build(tmp_path, port)):
        await portal.kind(Report)
        for frame in ("", "[]", "{}", b"\xff", '{"v":1,"type":"desired"}', "[" * 100_000):
            await portal.send(frame)
        await portal.desire(lease("stray", slice_at(3)), node="gpu-99")
        await portal.desire(lease("a", slice_at(0)))
        report = await portal.phase("a", "ready")

    assert [entry.lease for entry in report.leases] == ["a"]
    assert len(portal.hellos) == 1


async def test_leases_go_on_while_the_portal_is_away(portal, tmp_path):
    async with listening(portal) as port, running(build(tmp_path, port)):
        await portal.kind(Report)
        await portal.desire(lease("a", slice_at(0)))
        await portal.phase("a", "ready")
        portal.forget()
        await portal.socket.close()
        report = await portal.phase("a", "ready")

    assert len(portal.hellos) == 2
    assert (report.revision, portal.hellos[1].last_revision) == (1, 1)


async def test_agent_started_before_the_portal_finds_it(portal, tmp_path, unused_port: Callable[[], int]):
    port = unused_port()
    async with running(build(tmp_path, port)), listening(portal, port):
        await portal.kind(Report)


async def test_new_node_without_a_valid_token_gives_up_with_the_reason(portal, tmp_path):
    async with listening(portal) as port:
        with pytest.raises(PortalRefusedError) as refused:
            await build(tmp_path, port, token="wrong").run()

    assert refused.value.code == "bad_token"
    assert [bool(hello.enrol_token) for hello in portal.hellos] == [True, False]


async def test_known_node_that_is_refused_keeps_working_and_comes_back(portal, tmp_path):
    async with listening(portal) as port, running(build(tmp_path, port)) as task:
        await portal.kind(Report)
        await portal.desire(lease("a", slice_at(0)))
        await portal.phase("a", "ready")
        portal.forget()
        portal.refusal = Refused("bad_signature", "Enrol the node again.")
        await portal.socket.close()
        while len(portal.hellos) < 2:
            await asyncio.sleep(0.01)
        assert not task.done()
        portal.refusal = None
        await portal.phase("a", "ready")


async def test_slow_devices_work_side_by_side_on_the_newest_goal(portal, tmp_path):
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()

    def sleep(seconds: float) -> None:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(5)

    agent = build_slow(tmp_path, sleep)
    async with listening(portal) as port, running(agent(port)):
        await portal.kind(Report)
        await portal.desire(
            lease("a", slice_at(0)), lease("b", slice_at(0, device=1)), lease("c", slice_at(1))
        )
        await portal.phase("a", "preparing")
        await portal.desire(lease("a", slice_at(0)), lease("b", slice_at(0, device=1)))
        gate.set()
        await portal.phase("b", "ready")
        gone = await portal.phase("c", "gone")

    assert {fact.lease for fact in gone.partitions} <= {"a", "b"}


def build_slow(state: Path, sleep: Callable[[float], None]) -> Callable[[int], Agent]:
    def make(port: int) -> Agent:
        faults = Faults(latency_s={"create": 1.0})
        driver = SimulatedDriver(FACTS, state, "boot-1", faults=faults, clock=boot_clock, sleep=sleep)
        reconciler = Reconciler("gpu-01", driver, Journal(state / "journal.jsonl"), boot_clock())
        enrolment = NodeEnrolment(Identity("gpu-01", state), token_source("once", None))
        worker = Worker(reconciler, driver, boot_clock)
        return Agent(address_of(f"ws://127.0.0.1:{port}"), enrolment, driver, worker)

    return make


def test_key_is_made_once_and_only_its_owner_can_read_it(tmp_path):
    first, second = Identity("gpu-01", tmp_path), Identity("gpu-01", tmp_path)

    assert first.public_key() == second.public_key()
    assert stat.S_IMODE((tmp_path / "agent.key").stat().st_mode) == 0o600


def test_damaged_key_is_answered_with_what_to_do(tmp_path):
    (tmp_path / "agent.key").write_text("nonsense")

    with pytest.raises(StateError, match="enrol the node again"):
        Identity("gpu-01", tmp_path)


def test_two_agents_cannot_share_a_state_folder(tmp_path):
    lock_state(tmp_path / "state")

    with pytest.raises(StateError, match="another agent"):
        lock_state(tmp_path / "state")


async def test_node_of_another_portal_is_enrolled_anew_and_obeys_it(portal, tmp_path):
    portal.epoch = 7
    async with listening(portal) as port, running(build(tmp_path, port)):
        await portal.kind(Report)
    newer = FakePortal("fresh")

    async with listening(newer) as port, running(build(tmp_path, port, token=f"fresh.{newer.public_key}")):
        await newer.kind(Report)
        await newer.desire(lease("a", slice_at(0)))
        report = await newer.phase("a", "ready")

    assert [bool(hello.enrol_token) for hello in newer.hellos] == [False, True]
    assert report.epoch == 1


async def test_frame_that_breaks_the_agent_inside_is_survived(portal, tmp_path, monkeypatch):
    real = Worker.accept

    def break_once(worker: Worker, desired: Desired) -> None:
        monkeypatch.setattr(Worker, "accept", real)
        raise ZeroDivisionError

    monkeypatch.setattr(Worker, "accept", break_once)
    async with listening(portal) as port, running(build(tmp_path, port)):
        await portal.kind(Report)
        await portal.desire()
        await portal.desire(lease("a", slice_at(0)))
        await portal.phase("a", "ready")

    assert len(portal.hellos) == 1
