from __future__ import annotations

from collections.abc import Callable

import pytest

from nodeagent.drivers.base import DriverReading, PartitionSample
from nodeagent.drivers.nvml.telemetry.dcgm import Dcgm
from nodeagent.drivers.nvml.telemetry.live import LiveSlice
from nodeagent.drivers.nvml.telemetry.measure import Telemetry, apportion
from nodeagent.protocol.messages import DeviceFact, DeviceSample
from tests.agent.builder import FakeTime
from tests.agent.devices import Device, Devices, code, load, process

BUSY, IDLE = (80.0, 60.0, 40.0, 20.0), (0.0, 0.0, 0.0, 0.0)


def fact(uuid: str = "GPU-1", model: str = "h100-80gb", memory_mib: int = 80_000) -> DeviceFact:
    return DeviceFact(uuid, 0, "nvidia", model, memory_mib, 8, ("mig",))


def instance(
    gi: int, handle: Device | None = None, memory_mib: int = 40_000, device: str = "GPU-1"
) -> LiveSlice:
    return LiveSlice(f"MIG-{gi}", device, gi, "mig", memory_mib, gi_id=gi, ci_id=0, handle=handle)


def share(name: str, mode: str = "timeslice", milli: int = 500) -> LiveSlice:
    return LiveSlice(name, "GPU-1", 0, mode, 10_000, share_milli=milli)


WHOLE = LiveSlice("GPU-1", "GPU-1", 0, "exclusive", 80_000)


class Bench:
    """Telemetry over devices, read as often as wanted, a second apart."""

    def __init__(
        self,
        *devices: Device,
        slices: tuple[LiveSlice, ...] = (),
        model: str = "h100-80gb",
        dcgm: Dcgm | None = None,
        pids_of: Callable[[str], set[int] | None] | None = None,
    ) -> None:
        self.library, self.slices, self.time = Devices(*devices), slices, FakeTime()
        self.handles = {device.uuid: device for device in devices if device.uuid.startswith("GPU")}
        self.facts = {uuid: fact(uuid, model) for uuid in self.handles}
        self.telemetry = Telemetry(self.library, clock_ns=self.time, dcgm=dcgm, pids_of=pids_of)

    def read(self) -> DriverReading:
        self.time.advance(1)
        return self.telemetry.read(self.handles, self.facts, self.slices)

    def device(self) -> DeviceSample:
        return self.read().devices[0]

    def parts(self) -> dict[str, PartitionSample]:
        return {part.partition: part for part in self.read().partitions}


def test_whole_device_is_measured_by_nvml_and_its_counters():
    bench = Bench(
        Device("GPU-1", 37, 512, 312_500, 700_000, 48, 99, has_gpm=True, gpm={None: BUSY}), slices=(WHOLE,)
    )
    bench.read()

    sample = bench.device()

    assert (sample.util_percent, sample.memory_used_mib, sample.source) == (37.0, 512, "nvml")
    assert (sample.power_w, sample.power_limit_w, sample.temperature_c) == (312.5, 700.0, 48.0)
    assert (sample.sm_percent, sample.tensor_percent, sample.bandwidth_percent) == (60.0, 40.0, 20.0)
    assert sample.sources == dict.fromkeys(("sm_percent", "tensor_percent", "bandwidth_percent"), "gpm")
    part = bench.parts()["GPU-1"]
    assert (part.util_percent, part.power_w, part.source) == (37.0, 312.5, "nvml")


def test_device_that_tells_nothing_is_unknown_never_zero():
    sample = Bench(Device("GPU-1", used_mib=None)).device()

    assert (sample.util_percent, sample.memory_used_mib, sample.power_w) == (None, None, None)
    assert (sample.temperature_c, sample.energy_mj, sample.sm_percent) == (None, None, None)
    assert sample.source == "unavailable"


def test_slices_have_their_own_counters_from_the_second_reading_on():
    one, two = Device("MIG-1", used_mib=1000), Device("MIG-2", used_mib=0)
    device = Device("GPU-1", used_mib=1000, power_mw=300_000, has_gpm=True, gpm={1: BUSY, 2: IDLE})
    bench = Bench(device, one, two, slices=(instance(1, one), instance(2, two)))

    first, second = bench.parts(), bench.parts()

    assert (first["MIG-1"].util_percent, first["MIG-1"].source) == (None, "unavailable")
    assert (first["MIG-1"].memory_used_mib, first["MIG-1"].sources["memory_used_mib"]) == (1000, "nvml")
    busy, idle = second["MIG-1"], second["MIG-2"]
    assert (busy.util_percent, busy.sm_percent, busy.tensor_percent) == (80.0, 60.0, 40.0)
    assert (busy.bandwidth_percent, busy.source, busy.sources["power_w"]) == (20.0, "gpm", "estimate")
    assert (idle.util_percent, idle.memory_used_mib, idle.source) == (0.0, 0, "gpm")


def test_device_without_a_figure_of_its_own_is_the_sum_of_its_slices_and_says_so():
    device = Device("GPU-1", has_gpm=True, gpm={1: BUSY, 2: IDLE})
    bench = Bench(device, slices=(instance(1), instance(2)))
    bench.read()

    sample = bench.device()

    assert (sample.util_percent, sample.source) == (40.0, "estimate")
    assert sample.sources["sm_percent"] == "unavailable"


def test_device_with_one_unknown_slice_has_no_sum():
    device = Device("GPU-1", has_gpm=True, gpm={1: BUSY})
    bench = Bench(device, slices=(instance(1), instance(2)))
    bench.read()

    assert (bench.device().util_percent, bench.device().source) == (None, "unavailable")


def test_ampere_slices_are_unknown_without_an_exporter_and_known_with_one():
    def page(url: str) -> str:
        return (
            'DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="GPU-1",GPU_I_ID="1"} 0.5\n'
            'DCGM_FI_PROF_DRAM_ACTIVE{UUID="GPU-1",GPU_I_ID="1"} 0.25\n'
        )

    def bench(dcgm: Dcgm | None) -> Bench:
        slot = Device("MIG-1", used_mib=300)
        return Bench(Device("GPU-1"), slot, slices=(instance(1, slot),), model="a100-80gb", dcgm=dcgm)

    without, with_one = bench(None), bench(Dcgm("http://localhost:9400/metrics", fetch=page))

    assert (without.parts()["MIG-1"].util_percent, without.parts()["MIG-1"].source) == (None, "unavailable")
    assert without.parts()["MIG-1"].memory_used_mib == 300
    part = with_one.parts()["MIG-1"]
    assert (part.util_percent, part.bandwidth_percent, part.source) == (50.0, 25.0, "dcgm")
    assert (part.sm_percent, part.sources["sm_percent"]) == (None, "unavailable")


def test_exporter_is_not_asked_where_the_device_has_counters():
    asked = []
    dcgm = Dcgm("http://localhost:9400/metrics", fetch=lambda url: asked.append(url) or "")
    bench = Bench(Device("GPU-1", has_gpm=True, gpm={1: BUSY}), slices=(instance(1),), dcgm=dcgm)
    bench.read()

    assert bench.parts()["MIG-1"].source == "gpm"
    assert asked == []


def test_half_made_instance_is_listed_without_figures():
    half = LiveSlice("GPU-1/gi3", "GPU-1", 4, "mig", 20_000, gi_id=3)
    bench = Bench(Device("GPU-1", power_mw=100_000), slices=(half,))

    part = bench.parts()["GPU-1/gi3"]

    assert (part.util_percent, part.memory_used_mib, part.power_w) == (None, None, None)


def test_lost_device_is_unknown_and_its_neighbour_is_measured():
    lost, well = Device("GPU-1", 50, 100, 1000), Device("GPU-2", 20, 30, 90_000)
    bench = Bench(lost, well, slices=(WHOLE, LiveSlice("GPU-2", "GPU-2", 0, "exclusive", 80_000)))
    lost.is_lost = True

    reading = bench.read()

    gone, there = reading.devices
    assert (gone.util_percent, gone.memory_used_mib, gone.power_w, gone.source) == (
        None,
        None,
        None,
        "unavailable",
    )
    assert (there.util_percent, there.memory_used_mib) == (20.0, 30)
    assert [part.util_percent for part in reading.partitions] == [None, 20.0]


def test_device_lost_in_the_middle_of_a_reading_leaves_no_half_truth():
    class Falling(Devices):
        def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
            if name == "nvmlDeviceGetTemperature":
                self.devices[0].is_lost = True
            return super().__getattr__(name)

    bench = Bench(Device("GPU-1", 50, 100, 1000, heat=40))
    bench.telemetry = Telemetry(Falling(*bench.library.devices), clock_ns=bench.time)

    assert (bench.device().util_percent, bench.device().memory_used_mib) == (None, None)


def test_no_buffer_is_left_when_slices_go_or_the_agent_ends():
    device = Device("GPU-1", has_gpm=True, gpm={None: BUSY, 1: BUSY, 2: BUSY})
    bench = Bench(device, slices=(instance(1), instance(2)))
    for _ in range(3):
        bench.read()
    held = len(bench.library.buffers)

    bench.slices = (instance(1),)
    bench.read()

    assert (held, len(bench.library.buffers)) == (6, 4)
    bench.telemetry.close()
    assert bench.library.buffers == set()


def test_shares_are_the_sum_of_their_processes():
    device = Device("GPU-1", 60, 5000, 300_000)
    device.running = [process(11, 1000), process(12, 500), process(21, 2000)]
    device.load = [load(11, 10, 1_000), load(11, 20, 9_000), load(12, 5, 9_000), load(21, 35, 9_000)]
    bench = Bench(
        device, slices=(share("TS-a"), share("TS-b")), pids_of={"TS-a": {11, 12, 99}, "TS-b": {21}}.get
    )

    parts = bench.parts()

    assert (parts["TS-a"].memory_used_mib, parts["TS-b"].memory_used_mib) == (1500, 2000)
    assert (parts["TS-a"].sm_percent, parts["TS-b"].sm_percent) == (50.0, 70.0)
    assert parts["TS-a"].source == "nvml_process"
    assert parts["TS-a"].power_w is not None


def test_share_whose_processes_nobody_knows_is_unknown():
    device = Device("GPU-1", 60, 5000, 300_000, running=[process(11, 1000)], load=[])
    part = Bench(device, slices=(share("TS-a"),), pids_of=lambda partition: None).parts()["TS-a"]

    assert (part.util_percent, part.memory_used_mib, part.source) == (None, None, "unavailable")
    assert part.sources["power_w"] == "unavailable"


@pytest.mark.parametrize("quiet", [[], code(0), code(6)])
def test_no_samples_mean_idle_whether_told_as_success_or_not_found(quiet):
    device = Device("GPU-1", 0, 10, running=[process(11, 10)], load=quiet)
    part = Bench(device, slices=(share("TS-a"),), pids_of=lambda partition: {11}).parts()["TS-a"]

    assert (part.util_percent, part.source) == (0.0, "nvml_process")


def test_process_figures_that_are_refused_are_unknown_but_memory_stays():
    device = Device("GPU-1", 0, 10, running=[process(11, 10)], load=code(4))
    part = Bench(device, slices=(share("TS-a"),), pids_of=lambda partition: {11}).parts()["TS-a"]

    assert (part.util_percent, part.memory_used_mib, part.source) == (None, 10, "unavailable")
    assert part.sources["memory_used_mib"] == "nvml_process"


def test_process_that_does_not_tell_its_memory_makes_the_sum_unknown():
    device = Device("GPU-1", 0, 10, running=[process(11, 10), process(12, None)], load=[])
    part = Bench(device, slices=(share("TS-a"),), pids_of=lambda partition: {11, 12}).parts()["TS-a"]

    assert part.memory_used_mib is None


def test_mps_client_whose_work_is_booked_on_the_server_is_unknown_not_idle():
    device = Device("GPU-1", 90, 10, mps=[process(11, 10)], load=[load(7, 90, 5)])
    bench = Bench(device, slices=(share("MPS-a", "mps"),), pids_of=lambda partition: {11})

    busy = bench.parts()["MPS-a"]
    device.util, device.load = 0, []
    idle = bench.parts()["MPS-a"]

    assert (busy.util_percent, idle.util_percent) == (None, 0.0)


def test_power_of_slices_is_never_more_than_the_device_draws():
    its = [instance(1), instance(2, memory_mib=20_000)]

    shares = apportion(300.0, fact(), its, [80.0, 40.0])

    assert sum(w for w in shares if w is not None) <= 300.0
    assert shares[0] is not None
    assert shares[1] is not None
    assert shares[0] > 2 * shares[1]


def test_power_of_idle_slices_is_by_size_and_of_unknown_ones_unknown():
    its = [instance(1), instance(2, memory_mib=20_000)]

    assert apportion(80.0, fact(), its, [0.0, 0.0]) == [40.0, 20.0]
    assert apportion(80.0, fact(), its, [50.0, None]) == [None, None]
    assert apportion(None, fact(), its, [50.0, 50.0]) == [None, None]
    assert apportion(80.0, fact(), [share("TS-a", milli=0)], [50.0]) == [None]


def test_board_that_no_table_knows_has_no_idle_part():
    its = [instance(1), instance(2)]

    assert apportion(300.0, fact(model="new-board"), its, [100.0, 0.0]) == [300.0, 0.0]
