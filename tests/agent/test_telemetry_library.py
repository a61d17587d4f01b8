"""Measuring and health on the simulated library: the same calls as on a device, with a device's codes and surprises."""

from __future__ import annotations

import pytest

from nodeagent.drivers.base import DriverReading
from nodeagent.drivers.nvml.health.events import EventWatch
from nodeagent.drivers.nvml.health.faults import DeviceFaults
from nodeagent.drivers.nvml.telemetry.live import LiveSlice
from nodeagent.drivers.nvml.telemetry.measure import Telemetry
from nodeagent.protocol.boards import board
from nodeagent.protocol.fault_rules import standard
from nodeagent.protocol.messages import DeviceFact
from nodeagent.simulation.machine.host import SimulatedHost
from nodeagent.simulation.nvml import SimulatedNvml
from tests.agent.builder import FakeTime


class Bench:
    """A simulated host, measured as the driver does."""

    def __init__(self, *models: str, **options: object) -> None:
        self.time = FakeTime()
        self.host = SimulatedHost(models, clock=self.time, sleep=self.time.advance, **options)  # type: ignore[arg-type]
        self.library = SimulatedNvml(self.host)
        self.library.nvmlInit()
        self.handles = {
            device.uuid: self.library.nvmlDeviceGetHandleByIndex(device.index) for device in self.host.devices
        }
        self.facts = {device.uuid: self._fact(device.uuid, device.board.id) for device in self.host.devices}
        self.slices: list[LiveSlice] = []
        self.whose: dict[str, set[int]] = {}
        self.telemetry = Telemetry(self.library, clock_ns=self.time, pids_of=self.whose.get)
        self.watch = EventWatch(self.library, self.handles, self.time, wait_ms=0)
        self.watch._wanted.set()
        self.watch._sleep = lambda seconds: None  # type: ignore[method-assign]
        self.watch.turn()
        self.faults = DeviceFaults(self.library, self.handles, self.watch, standard(), self.time)

    def _fact(self, uuid: str, model: str) -> DeviceFact:
        kind = board(model)
        return DeviceFact(uuid, 0, "nvidia", model, kind.memory_mib or 0, kind.memory_slices, ("mig",))

    def slice(self, gpu: int, profile: str, start: int) -> LiveSlice:
        """Make an instance and list it as standing."""
        device = self.host.device(gpu)
        if not device.gpu.mig_enabled:
            self.host.switch_mig(gpu)
        made = self.host.add_foreign(gpu, profile, start)
        parent = self.handles[device.uuid]
        found = None
        for index in range(self.library.nvmlDeviceGetMaxMigDeviceCount(parent)):
            try:
                handle = self.library.nvmlDeviceGetMigDeviceHandleByIndex(parent, index)
            except self.library.NVMLError:
                continue
            if self.library.nvmlDeviceGetGpuInstanceId(handle) == made.id:
                found = handle
        name = f"MIG-{gpu}-{made.id}"
        slot = LiveSlice(name, device.uuid, start, "mig", 9_984, 0, made.id, 0, found)
        self.slices.append(slot)
        return slot

    def read(self) -> DriverReading:
        self.time.advance(1)
        return self.telemetry.read(self.handles, self.facts, self.slices)

    def health(self) -> dict[str, str]:
        self.time.advance(5)
        for _ in range(20):
            self.watch.turn()
        return {fact.code: fact.device for fact in self.faults.facts()}


@pytest.mark.parametrize("model", ["h100-80gb", "h200-141gb", "b200-180gb"])
def test_busy_and_idle_slices_are_told_apart_since_hopper(model):
    bench = Bench(model)
    profile = next(p.name for p in board(model).profiles if p.memory_slices == 1 and "+" not in p.name)
    busy, idle = bench.slice(0, profile, 0), bench.slice(0, profile, 1)
    bench.host.world.spawn("/x", gpu=busy.device, gi=busy.gi_id, memory_mib=700)
    bench.read()

    one, two = bench.read().partitions

    assert one.source == two.source == "gpm"
    assert one.util_percent is not None
    assert one.util_percent > 30
    assert (two.util_percent, two.sm_percent, two.memory_used_mib) == (0.0, 0.0, 0)
    assert (one.memory_used_mib, one.sources["memory_used_mib"]) == (700, "nvml")
    assert one.partition != idle.partition


@pytest.mark.parametrize("model", ["a100-80gb", "a30-24gb"])
def test_ampere_slices_have_memory_but_no_utilisation(model):
    bench = Bench(model)
    profile = next(p.name for p in board(model).profiles if p.memory_slices == 1 and "+" not in p.name)
    slot = bench.slice(0, profile, 0)
    bench.host.world.spawn("/x", gpu=slot.device, gi=slot.gi_id, memory_mib=300)
    bench.read()

    reading = bench.read()

    assert reading.devices[0].util_percent is None
    assert reading.devices[0].source == "unavailable"
    assert reading.partitions[0].util_percent is None
    assert reading.partitions[0].memory_used_mib == 300
    assert reading.devices[0].power_w is not None


def test_shares_of_a_device_are_summed_by_process():
    bench = Bench("l40s-48gb")
    device = bench.host.devices[0].uuid
    ours = bench.host.world.spawn("/a", gpu=device, memory_mib=1000)
    bench.host.world.spawn("/b", gpu=device, memory_mib=5000)
    bench.slices.append(LiveSlice("TS-a", device, 0, "timeslice", 10_000, share_milli=500))
    bench.whose["TS-a"] = {ours.pid}

    (part,) = bench.read().partitions
    ours_ended, bench.host.world.processes = bench.host.world.processes, {}
    (idle,) = bench.read().partitions

    assert ours_ended
    assert (part.memory_used_mib, part.source) == (1000, "nvml_process")
    assert part.util_percent is not None
    assert part.util_percent > 0
    assert (idle.memory_used_mib, idle.util_percent) == (0, 0.0)


def test_samples_are_given_back_when_slices_devices_and_the_agent_go():
    bench = Bench("h100-80gb", "h100-80gb")
    bench.slice(0, "1g.10gb", 0)
    bench.slice(1, "1g.10gb", 0)
    for _ in range(3):
        bench.read()
    full = bench.library.sample_count

    bench.host.lose(1)
    bench.read()
    lost = bench.library.sample_count
    bench.telemetry.close()

    assert (full, lost, bench.library.sample_count) == (8, 4, 0)


def test_reset_makes_figures_unknown_until_the_device_is_listed_anew():
    bench = Bench("h100-80gb")
    bench.slice(0, "1g.10gb", 0)
    bench.read()
    bench.host.reset(0)

    stale = bench.read()
    bench.slices = []
    device = bench.host.devices[0].uuid
    bench.handles[device] = bench.library.nvmlDeviceGetHandleByUUID(device)

    assert stale.partitions[0].util_percent is None
    assert stale.devices[0].util_percent is None
    assert bench.read().devices[0].util_percent == 0.0


def test_xid_of_a_slice_is_heard_and_one_that_loses_the_device_too():
    bench = Bench("h100-80gb", "h100-80gb")
    slot = bench.slice(0, "1g.10gb", 0)
    bench.host.xid(0, 31, gi=slot.gi_id, count=500)
    first = bench.health()
    bench.host.lose(1)

    second = bench.health()

    assert first == {"31": bench.host.devices[0].uuid}
    assert second["79"] == bench.host.devices[1].uuid


def test_xid_of_a_slice_is_told_of_the_place_where_that_slice_begins():
    bench = Bench("h100-80gb")
    for start in (0, 3, 5):
        slot = bench.slice(0, "1g.10gb", start)
    bench.host.xid(0, 94, gi=slot.gi_id)
    bench.host.xid(0, 95, gi=slot.gi_id)
    bench.watch.turn()
    bench.watch.turn()

    starts = {fact.code: fact.starts for fact in bench.faults.facts()}

    assert starts == {"94": (5,), "95": None}


def test_lost_device_leaves_the_others_watched():
    bench = Bench("h100-80gb", "h100-80gb")
    bench.host.lose(0)
    bench.health()

    bench.host.xid(1, 94)

    assert bench.health()["94"] == bench.host.devices[1].uuid
    assert bench.watch.trouble == ""


def test_uncorrected_memory_error_is_event_count_and_pending_repair_until_the_reset():
    bench = Bench("a100-80gb")
    assert bench.health() == {}
    bench.host.ecc(0)

    ill = bench.health()
    bench.host.reset(0)
    device = bench.host.devices[0].uuid
    bench.handles[device] = bench.library.nvmlDeviceGetHandleByUUID(device)

    assert set(ill) == {"ecc_uncorrected", "row_remap_pending"}
    assert bench.health() == {}
    bench.host.xid(0, 13)
    assert list(bench.health()) == ["13"]


def test_what_the_driver_asks_for_is_read_and_goes():
    bench = Bench("h100-80gb")
    bench.host.ask_for(0, 4)
    asked = bench.health()
    bench.host.ask_for(0, 0)

    assert list(asked) == ["recovery_drain_and_reset"]
    assert bench.health() == {}


def test_fifty_six_slices_cost_a_few_calls_each():
    bench = Bench(*["h100-80gb"] * 8)
    for gpu in range(8):
        for start in range(7):
            bench.slice(gpu, "1g.10gb", start)
    for _ in range(3):
        bench.read()
    before = bench.host.calls

    reading = bench.read()

    assert all(part.util_percent is not None for part in reading.partitions)
    assert bench.host.calls - before <= 56 * 3 + 8 * 10
