"""What the simulated NVML measures, reports and limits: load, health, events, memory of cgroups."""

from __future__ import annotations

import threading

import pynvml
import pytest

from tests.agent.nvml_bench import (
    G1,
    INVALID_ARGUMENT,
    MIB,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    TIMEOUT,
    UNINITIALIZED,
    Bench,
    code_of,
)

CGROUP = b"/sys/fs/cgroup/berth.slice/berth-lease-a-1.service"
NO_DATA = 21
XID = pynvml.nvmlEventTypeXidCriticalError


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def whole() -> Bench:
    return Bench(mig=False)


def test_slice_lists_its_own_processes_and_the_device_all_of_them(bench):
    _, _, mig = bench.slice(G1, 0)
    uuid, world = bench.host.devices[0].uuid, bench.host.world
    inside = world.spawn("/a", gpu=uuid, gi=7, memory_mib=300)
    world.spawn("/b", gpu=uuid, gi=8)
    drawing = world.spawn("/c", gpu=uuid, gi=8, is_graphics=True)
    client = world.spawn("/d", gpu=uuid, gi=7, is_mps=True)
    nvml = bench.nvml

    (own,) = nvml.nvmlDeviceGetComputeRunningProcesses(mig)

    assert (own.pid, own.usedGpuMemory, own.gpuInstanceId) == (inside.pid, 300 * MIB, 7)
    assert len(nvml.nvmlDeviceGetComputeRunningProcesses(bench.gpu)) == 2
    assert [p.pid for p in nvml.nvmlDeviceGetGraphicsRunningProcesses(bench.gpu)] == [drawing.pid]
    assert [p.pid for p in nvml.nvmlDeviceGetMPSComputeRunningProcesses(mig)] == [client.pid]
    bench.host.is_root = False
    assert len(nvml.nvmlDeviceGetComputeRunningProcesses(mig)) == 1
    assert code_of(nvml.nvmlDeviceGetComputeRunningProcesses, bench.gpu) == NO_PERMISSION


def test_process_utilisation_says_none_in_two_ways(whole):
    ask = whole.nvml.nvmlDeviceGetProcessUtilization

    assert code_of(ask, whole.gpu, 0) == 0
    process = whole.host.world.spawn("/a", gpu=whole.host.devices[0].uuid)
    (sample,) = ask(whole.gpu, 0)
    assert sample.pid == process.pid
    assert 0 < sample.smUtil <= 100
    assert code_of(ask, whole.gpu, sample.timeStamp) == NOT_FOUND


def test_load_of_processes_shows_in_utilisation_power_temperature_and_energy(whole):
    nvml, gpu = whole.nvml, whole.gpu
    idle = nvml.nvmlDeviceGetPowerUsage(gpu), nvml.nvmlDeviceGetTemperature(gpu, 0)
    assert nvml.nvmlDeviceGetUtilizationRates(gpu).gpu == 0
    assert nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu) == 1
    nvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
    whole.host.world.spawn("/a", gpu=whole.host.devices[0].uuid, load_pattern="dummy_loop", memory_mib=1000)
    whole.now_ns += 2_000_000_000

    assert nvml.nvmlDeviceGetUtilizationRates(gpu).gpu > 90
    assert nvml.nvmlDeviceGetPowerUsage(gpu) > idle[0] + 300_000
    assert nvml.nvmlDeviceGetTemperature(gpu, 0) > idle[1]
    assert 600_000 < nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) <= 1_400_000
    one, two = nvml.nvmlDeviceGetMemoryInfo(gpu), nvml.nvmlDeviceGetMemoryInfo(gpu, nvml.nvmlMemory_v2)
    assert two.used == 1000 * MIB
    assert one.used == two.used + two.reserved
    assert two.total == two.used + two.free + two.reserved == 81559 * MIB


def gpm(bench: Bench, gi: int | None, pause_ns: int, ids: list[int]) -> list[tuple[int, float]]:
    nvml = bench.nvml
    samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
    for sample in samples:
        if gi is None:
            nvml.nvmlGpmSampleGet(bench.gpu, sample)
        else:
            nvml.nvmlGpmMigSampleGet(bench.gpu, gi, sample)
        bench.now_ns += pause_ns
    wanted = nvml.c_nvmlGpmMetricsGet_t()
    wanted.version, wanted.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(ids)
    wanted.sample1, wanted.sample2 = samples
    for place, number in enumerate(ids):
        wanted.metrics[place].metricId = number
    nvml.nvmlGpmMetricsGet(wanted)
    for sample in samples:
        nvml.nvmlGpmSampleFree(sample)
    return [(wanted.metrics[n].nvmlReturn, wanted.metrics[n].value) for n in range(len(ids))]


def test_slice_at_work_is_measured_apart_from_its_idle_neighbour(bench):
    bench.slice(G1, 0)
    bench.slice(G1, 1)
    bench.host.world.spawn("/a", gpu=bench.host.devices[0].uuid, gi=7, load_pattern="dummy_loop")

    busy, idle = (gpm(bench, gi, 200_000_000, [1, 2, 5, 10, 9999]) for gi in (7, 8))

    assert [code for code, _ in busy] == [0, 0, 0, 0, NOT_SUPPORTED]
    assert 95 < busy[0][1] <= 100
    assert busy[0][1] > busy[1][1] > busy[3][1] > busy[2][1] > 0
    assert [value for _, value in idle[:4]] == [0, 0, 0, 0]
    assert gpm(bench, None, 200_000_000, [1])[0][1] == pytest.approx(busy[0][1] * 16 / 132, rel=0.05)
    assert bench.nvml.sample_count == 0


def test_samples_too_close_give_no_figure(bench):
    bench.slice(G1, 0)

    assert gpm(bench, 7, 50_000_000, [1]) == [(NO_DATA, 0.0)]


def test_performance_samples_begin_with_hopper():
    bench = Bench("a100-40gb")
    bench.slice(G1, 0)
    sample = bench.nvml.nvmlGpmSampleAlloc()

    assert bench.nvml.nvmlGpmQueryDeviceSupport(bench.gpu).isSupportedDevice == 0
    assert code_of(bench.nvml.nvmlGpmMigSampleGet, bench.gpu, 7, sample) == NOT_SUPPORTED
    hopper = Bench()
    assert hopper.nvml.nvmlGpmQueryDeviceSupport(hopper.gpu).isSupportedDevice == 1


def fields(bench: Bench, *ids: int) -> list[tuple[int, int]]:
    values = bench.nvml.nvmlDeviceGetFieldValues(bench.gpu, list(ids))
    return [(value.nvmlReturn, value.value.ullVal) for value in values]


def test_memory_errors_are_counted_and_repaired_by_a_reset(bench):
    bench.host.ecc(0, count=2)
    bench.host.ecc(0, count=3, is_corrected=True)
    bench.host.ask_for(0, pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET)
    count = bench.nvml.nvmlDeviceGetTotalEccErrors

    assert (count(bench.gpu, 1, 0), count(bench.gpu, 0, 0)) == (2, 3)
    assert bench.nvml.nvmlDeviceGetRemappedRows(bench.gpu) == (0, 2, 1, 0)
    action = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    assert fields(bench, action, 1) == [(0, 1), (NOT_SUPPORTED, 0)]
    bench.host.reset(0)
    bench.gpu = bench.nvml.nvmlDeviceGetHandleByIndex(0)

    assert (count(bench.gpu, 1, 0), count(bench.gpu, 1, 1)) == (0, 2)
    assert bench.nvml.nvmlDeviceGetRemappedRows(bench.gpu) == (0, 2, 0, 0)
    assert fields(bench, action) == [(0, 0)]


def test_xid_names_device_and_slice(bench):
    events = bench.listen()
    bench.host.xid(0, 31, gi=7, ci=0)
    bench.host.xid(0, 79)
    bench.host.ecc(0)

    first, second = (bench.nvml.nvmlEventSetWait_v2(events, 0) for _ in range(2))

    assert (first.eventType, first.eventData, first.gpuInstanceId, first.computeInstanceId) == (XID, 31, 7, 0)
    assert (second.eventData, second.gpuInstanceId) == (79, 0xFFFFFFFF)
    assert bench.nvml.nvmlDeviceGetUUID(first.device) == bench.host.devices[0].uuid
    assert code_of(bench.nvml.nvmlEventSetWait_v2, events, 0) == TIMEOUT


def test_mig_devices_and_unknown_kinds_cannot_be_listened_to(bench):
    _, _, mig = bench.slice(G1, 0)
    events = bench.nvml.nvmlEventSetCreate()

    assert code_of(bench.nvml.nvmlDeviceRegisterEvents, mig, XID, events) == NOT_SUPPORTED
    assert code_of(bench.nvml.nvmlDeviceRegisterEvents, bench.gpu, 1 << 40, events) == NOT_SUPPORTED
    assert bench.nvml.nvmlDeviceGetSupportedEventTypes(bench.gpu) & XID


def test_lost_device_is_told_as_xid_79_and_then_as_lost(bench):
    events = bench.listen()
    bench.host.lose(0)

    assert bench.nvml.nvmlEventSetWait_v2(events, 0).eventData == 79
    assert code_of(bench.nvml.nvmlEventSetWait_v2, events, 0) == 15


def test_events_of_before_a_reset_are_heard_no_more(bench):
    events = bench.listen()
    bench.host.reset(0)
    bench.host.xid(0, 31)

    assert code_of(bench.nvml.nvmlEventSetWait_v2, events, 0) == TIMEOUT


@pytest.mark.parametrize(
    ("wake", "answer"),
    [
        (lambda b, s: b.host.xid(0, 48), 48),
        (lambda b, s: b.nvml.nvmlEventSetFree(s), -INVALID_ARGUMENT),
        (lambda b, s: b.nvml.nvmlShutdown(), -UNINITIALIZED),
        (lambda b, s: b.host.end_agent(), -UNINITIALIZED),
    ],
)
def test_waiting_thread_is_woken_by_event_free_and_end(bench, wake, answer):
    events, told, waits = bench.listen(), [], threading.Event()

    def wait() -> None:
        waits.set()
        try:
            told.append(bench.nvml.nvmlEventSetWait_v2(events, 30_000).eventData)
        except pynvml.NVMLError as no:
            told.append(-no.value)

    thread = threading.Thread(target=wait)
    thread.start()
    waits.wait(30)
    wake(bench, events)
    thread.join(30)

    assert not thread.is_alive()
    assert told in ([answer], [-INVALID_ARGUMENT], [-UNINITIALIZED])


def test_storm_keeps_the_newest_events(bench):
    events = bench.listen()
    bench.host.xid(0, 13, count=5000)
    bench.host.xid(0, 94)

    heard = [bench.nvml.nvmlEventSetWait_v2(events, 0).eventData for _ in range(4096)]

    assert heard[-1] == 94
    assert code_of(bench.nvml.nvmlEventSetWait_v2, events, 0) == TIMEOUT


def test_threads_may_call_at_once(bench):
    failures: list[BaseException] = []

    def work(start: int) -> None:
        try:
            for _ in range(30):
                gi, ci, mig = bench.slice(G1, start)
                assert bench.nvml.nvmlDeviceGetGpuInstanceId(mig) == 7 + start
                bench.nvml.nvmlComputeInstanceDestroy(ci)
                bench.nvml.nvmlGpuInstanceDestroy(gi)
        except BaseException as no:
            failures.append(no)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert failures == []
    assert bench.listed(G1) == []


def limits(bench: Bench, cgroup: bytes = CGROUP) -> tuple[int, int, int]:
    found = bench.nvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=cgroup)
    bench.nvml.nvmlDeviceGetMemoryLimits_v1(bench.gpu, found)
    return found.softLimit, found.hardLimit, found.currentUsed


def limit(bench: Bench, soft: int, hard: int, cgroup: bytes = CGROUP) -> None:
    asked = bench.nvml.c_nvmlSetMemoryLimits_v1_t(nameSpace=cgroup, softLimit=soft, hardLimit=hard)
    bench.nvml.nvmlDeviceSetMemoryLimits_v1(bench.gpu, asked)


def test_memory_limit_holds_for_a_cgroup_until_it_is_cleared(whole):
    whole.host.world.spawn(
        "/berth.slice/berth-lease-a-1.service", gpu=whole.host.devices[0].uuid, memory_mib=7
    )
    free = limits(whole)

    limit(whole, 4 << 30, 4 << 30)

    assert limits(whole) == (4 << 30, 4 << 30, 7 * MIB)
    limit(whole, 1 << 30, pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX)
    assert limits(whole)[0] == 1 << 30
    limit(whole, 0, pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX)
    assert limits(whole) == free == (0, pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX, 7 * MIB)


def test_memory_limit_ends_with_its_cgroup(whole):
    process = whole.host.world.spawn(CGROUP.decode())
    limit(whole, 1 << 30, 1 << 30)
    whole.host.world.signal(process.pid, kill=True)

    assert code_of(limits, whole) == INVALID_ARGUMENT
    whole.host.world.spawn(CGROUP.decode())
    assert limits(whole) == (0, pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX, 0)


def test_memory_limit_wants_a_cgroup_root_and_a_device_without_mig(whole, bench):
    assert code_of(limit, whole, 1, 1) == INVALID_ARGUMENT
    whole.host.cgroups.add(CGROUP.decode())
    assert code_of(limit, whole, 2, 1) == INVALID_ARGUMENT
    assert code_of(limit, whole, 1, 1, b"berth.slice") == INVALID_ARGUMENT
    whole.host.is_root = False
    assert code_of(limit, whole, 1, 1) == NO_PERMISSION
    bench.host.cgroups.add(CGROUP.decode())
    assert code_of(limit, bench, 1, 1) == NOT_SUPPORTED
    whole.host.missing.add("nvmlDeviceSetMemoryLimits_v1")
    assert code_of(limit, whole, 1, 1) == 13


def test_compute_mode_is_forgotten_at_reboot_and_fixed_under_mig(whole, bench):
    whole.nvml.nvmlDeviceSetComputeMode(whole.gpu, 3)
    whole.nvml.nvmlDeviceSetPersistenceMode(whole.gpu, 1)
    assert whole.nvml.nvmlDeviceGetComputeMode(whole.gpu) == 3
    whole.host.reboot()
    fresh = whole.nvml.nvmlDeviceGetHandleByIndex(0)

    assert whole.nvml.nvmlDeviceGetComputeMode(fresh) == 0
    assert whole.nvml.nvmlDeviceGetPersistenceMode(fresh) == 0
    assert code_of(bench.nvml.nvmlDeviceSetComputeMode, bench.gpu, 3) == NOT_SUPPORTED


def test_power_limit_stays_within_its_range(whole):
    nvml, gpu = whole.nvml, whole.gpu
    lowest, highest = nvml.nvmlDeviceGetPowerManagementLimitConstraints(gpu)

    assert code_of(nvml.nvmlDeviceSetPowerManagementLimit, gpu, lowest - 1) == INVALID_ARGUMENT
    nvml.nvmlDeviceSetPowerManagementLimit(gpu, lowest)

    assert nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) == lowest < highest
    whole.host.world.spawn("/a", gpu=whole.host.devices[0].uuid, load_pattern="dummy_loop")
    assert nvml.nvmlDeviceGetPowerUsage(gpu) <= lowest
