"""The simulated NVML answers situation by situation as the table of codes for simulated drivers says."""

from __future__ import annotations

import ctypes

import pynvml
import pytest

from nodeagent.simulation.nvml import SimulatedNvml
from tests.agent.nvml_bench import (
    G1,
    G1ME,
    G2,
    G3,
    G4,
    G7,
    GPU_IS_LOST,
    IN_USE,
    INSUFFICIENT_RESOURCES,
    INSUFFICIENT_SIZE,
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    TIMEOUT,
    Bench,
    code_of,
)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize(
    "change",
    [
        lambda b, gi, ci: b.nvml.nvmlDeviceSetMigMode(b.gpu, 0),
        lambda b, gi, ci: b.create(G1, 3),
        lambda b, gi, ci: b.nvml.nvmlDeviceCreateGpuInstance(b.gpu, G1),
        lambda b, gi, ci: b.nvml.nvmlGpuInstanceCreateComputeInstance(gi, 0),
        lambda b, gi, ci: b.nvml.nvmlComputeInstanceDestroy(ci),
        lambda b, gi, ci: b.nvml.nvmlGpuInstanceDestroy(gi),
        lambda b, gi, ci: b.nvml.nvmlDeviceSetComputeMode(b.gpu, 0),
        lambda b, gi, ci: b.nvml.nvmlDeviceSetPersistenceMode(b.gpu, 1),
        lambda b, gi, ci: b.nvml.nvmlDeviceSetPowerManagementLimit(b.gpu, 300_000),
        lambda b, gi, ci: b.nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(b.gpu, G1),
        lambda b, gi, ci: b.listed(G1),
        lambda b, gi, ci: b.nvml.nvmlDeviceGetComputeRunningProcesses(b.gpu),
    ],
)
def test_who_is_not_root_may_change_nothing_and_list_no_instances(bench, change):
    gi, ci, _ = bench.slice(G1, 0)
    bench.host.is_root = False

    assert code_of(change, bench, gi, ci) == NO_PERMISSION


def test_who_may_open_the_mig_capability_manages_instances_but_not_the_mode(bench):
    bench.host.is_root = False
    bench.host.allow_instances()

    _, ci, _ = bench.slice(G1, 0)

    assert bench.listed(G1) == [0]
    assert code_of(bench.nvml.nvmlDeviceSetMigMode, bench.gpu, 0) == NO_PERMISSION
    assert bench.nvml.nvmlComputeInstanceDestroy(ci) == 0


def test_board_without_mig_supports_neither_mode_nor_profiles():
    bench = Bench("l40s", mig=False)

    assert code_of(bench.nvml.nvmlDeviceGetMigMode, bench.gpu) == NOT_SUPPORTED
    assert code_of(bench.nvml.nvmlDeviceSetMigMode, bench.gpu, 1) == NOT_SUPPORTED
    assert code_of(bench.nvml.nvmlDeviceGetGpuInstanceProfileInfo, bench.gpu, 0) == NOT_SUPPORTED
    assert bench.nvml.nvmlDeviceGetMaxMigDeviceCount(bench.gpu) == 0


def test_busy_ampere_accepts_the_switch_and_says_that_it_waits():
    bench = Bench("a100-40gb", mig=False)
    bench.host.hold_open(0)

    assert bench.nvml.nvmlDeviceSetMigMode(bench.gpu, 1) == IN_USE
    assert bench.nvml.nvmlDeviceGetMigMode(bench.gpu) == [0, 1]

    bench.host.release(0)
    assert bench.nvml.nvmlDeviceSetMigMode(bench.gpu, 1) == 0
    assert bench.nvml.nvmlDeviceGetMigMode(bench.gpu) == [1, 1]


def test_own_event_set_keeps_an_ampere_busy_until_it_is_freed():
    bench = Bench("a100-40gb", mig=False)
    events = bench.nvml.nvmlEventSetCreate()
    bench.nvml.nvmlDeviceRegisterEvents(bench.gpu, pynvml.nvmlEventTypeXidCriticalError, events)

    assert bench.nvml.nvmlDeviceSetMigMode(bench.gpu, 1) == IN_USE
    bench.nvml.nvmlEventSetFree(events)
    assert bench.nvml.nvmlDeviceSetMigMode(bench.gpu, 1) == 0


def test_monitor_does_not_keep_a_hopper_but_a_process_does():
    bench = Bench(mig=False)
    bench.host.hold_open(0)
    process = bench.host.world.spawn("/user.slice", gpu=bench.host.devices[0].uuid)

    assert bench.nvml.nvmlDeviceSetMigMode(bench.gpu, 1) == IN_USE
    bench.host.world.signal(process.pid, kill=True)
    assert bench.nvml.nvmlDeviceSetMigMode(bench.gpu, 1) == 0


def test_ampere_in_a_guest_waits_for_a_reset_and_has_its_mode_after_it():
    bench = Bench("a100-40gb", mig=False)
    bench.host.devices[0].gpu.is_passthrough = True

    assert bench.nvml.nvmlDeviceSetMigMode(bench.gpu, 1) == RESET_REQUIRED
    assert bench.nvml.nvmlDeviceGetMigMode(bench.gpu) == [0, 1]
    assert bench.nvml.nvmlDeviceGetVirtualizationMode(bench.gpu) == 1
    bench.host.reboot()

    fresh = bench.nvml.nvmlDeviceGetHandleByIndex(0)
    assert bench.nvml.nvmlDeviceGetMigMode(fresh) == [1, 1]


@pytest.mark.parametrize(
    "call",
    [
        lambda b: b.nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(b.gpu, G1),
        lambda b: b.create(G1, 0),
        lambda b: b.nvml.nvmlDeviceCreateGpuInstance(b.gpu, G1),
        lambda b: b.listed(G1),
        lambda b: b.nvml.nvmlDeviceGetGpuInstanceById(b.gpu, 7),
    ],
)
def test_instances_are_not_supported_while_mig_is_off(call):
    assert code_of(call, Bench(mig=False)) == NOT_SUPPORTED


def test_profiles_and_placements_are_told_while_mig_is_off():
    bench = Bench(mig=False)

    info = bench.nvml.nvmlDeviceGetGpuInstanceProfileInfo(bench.gpu, pynvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE)
    count = ctypes.c_uint(0)
    bench.nvml.nvmlDeviceGetGpuInstancePossiblePlacements(bench.gpu, info.id, None, ctypes.byref(count))
    table = (bench.nvml.c_nvmlGpuInstancePlacement_t * count.value)()
    bench.nvml.nvmlDeviceGetGpuInstancePossiblePlacements(bench.gpu, info.id, table, ctypes.byref(count))

    assert (info.id, info.name, info.multiprocessorCount, info.memorySizeMB) == (G3, "MIG 3g.40gb", 60, 40448)
    assert (info.version, info.instanceCount) == (pynvml.nvmlGpuInstanceProfileInfo_v2, 2)
    assert [(place.start, place.size) for place in table] == [(0, 4), (4, 4)]


def test_placements_do_not_fit_into_an_array_that_is_too_small(bench):
    table, count = (bench.nvml.c_nvmlGpuInstancePlacement_t * 3)(), ctypes.c_uint(3)
    ask = bench.nvml.nvmlDeviceGetGpuInstancePossiblePlacements

    assert code_of(ask, bench.gpu, G1, table, ctypes.byref(count)) == INSUFFICIENT_SIZE
    assert count.value == 7


def test_enum_of_another_board_is_not_supported_and_beyond_the_last_is_invalid(bench):
    ask = bench.nvml.nvmlDeviceGetGpuInstanceProfileInfo

    assert code_of(ask, bench.gpu, pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX) == NOT_SUPPORTED
    assert code_of(ask, bench.gpu, pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT) == INVALID_ARGUMENT


@pytest.mark.parametrize(("profile", "start", "size"), [(99, 0, 1), (G3, 2, 4), (G2, 6, 2), (G3, 0, 2)])
def test_unknown_profile_and_illegal_place_are_invalid(bench, profile, start, size):
    assert code_of(bench.create, profile, start, size) == INVALID_ARGUMENT


def test_placement_must_be_handed_over_by_address(bench):
    place = bench.nvml.c_nvmlGpuInstancePlacement_t(0, 1)
    create = bench.nvml.nvmlDeviceCreateGpuInstanceWithPlacement

    assert code_of(create, bench.gpu, G1, place) == INVALID_ARGUMENT
    assert create(bench.gpu, G1, ctypes.pointer(place))


@pytest.mark.parametrize(
    ("standing", "wanted"),
    [((G3, 0), (G3, 0)), ((G3, 0), (G1, 3)), ((G1ME, 0), (G1ME, 5)), ((G1, 0), (G7, 0)), ((G4, 0), (G4, 0))],
)
def test_overlap_maximum_and_the_very_same_instance_are_insufficient_resources(bench, standing, wanted):
    bench.create(*standing)

    assert code_of(bench.create, *wanted) == INSUFFICIENT_RESOURCES


def test_second_compute_instance_does_not_fit_beside_one_that_spans_all(bench):
    gi, _, _ = bench.slice(G3, 4, width=2)

    assert code_of(bench.nvml.nvmlGpuInstanceCreateComputeInstance, gi, 0) == INSUFFICIENT_RESOURCES
    assert code_of(bench.nvml.nvmlGpuInstanceCreateComputeInstance, gi, 3) == INVALID_ARGUMENT


def test_profiler_of_somebody_else_keeps_instances_from_being_made(bench):
    bench.host.hold_open(0, is_profiler=True)

    assert code_of(bench.create, G1, 0) == IN_USE
    bench.host.release(0, is_profiler=True)
    assert bench.create(G1, 0)


def test_instance_goes_from_inside_out_and_only_without_processes(bench):
    gi, ci, mig = bench.slice(G2, 4, width=1)
    gi_id = bench.nvml.nvmlDeviceGetGpuInstanceId(mig)
    process = bench.host.world.spawn("/x", gpu=bench.host.devices[0].uuid, gi=gi_id)

    assert code_of(bench.nvml.nvmlGpuInstanceDestroy, gi) == IN_USE
    assert code_of(bench.nvml.nvmlComputeInstanceDestroy, ci) == IN_USE
    bench.host.world.signal(process.pid, kill=True)
    assert code_of(bench.nvml.nvmlGpuInstanceDestroy, gi) == IN_USE
    bench.nvml.nvmlComputeInstanceDestroy(ci)
    bench.nvml.nvmlGpuInstanceDestroy(gi)

    assert bench.listed(G2) == []


def test_handle_is_stale_after_destroy_and_after_reset(bench):
    gi, ci, mig = bench.slice(G1, 0)
    bench.nvml.nvmlComputeInstanceDestroy(ci)

    assert code_of(bench.nvml.nvmlComputeInstanceGetInfo, ci) == INVALID_ARGUMENT
    assert code_of(bench.nvml.nvmlDeviceGetUUID, mig) == INVALID_ARGUMENT
    bench.nvml.nvmlGpuInstanceDestroy(gi)
    assert code_of(bench.nvml.nvmlGpuInstanceGetInfo, gi) == INVALID_ARGUMENT
    other, _, _ = bench.slice(G1, 1)
    bench.host.reset(0)
    assert code_of(bench.nvml.nvmlGpuInstanceGetInfo, other) == INVALID_ARGUMENT
    assert code_of(bench.nvml.nvmlDeviceGetUUID, bench.gpu) == INVALID_ARGUMENT


def test_handles_of_another_session_mean_nothing(bench):
    other = SimulatedNvml(bench.host)
    other.nvmlInit()

    assert code_of(other.nvmlDeviceGetUUID, bench.gpu) == INVALID_ARGUMENT
    assert code_of(other.nvmlDeviceGetUUID, None) == INVALID_ARGUMENT
    assert code_of(other.nvmlGpuInstanceGetInfo, other.nvmlDeviceGetHandleByIndex(0)) == INVALID_ARGUMENT


def test_absent_ids_and_gaps_among_mig_devices_are_not_found(bench):
    first, second = bench.slice(G1, 0), bench.slice(G1, 1)
    bench.nvml.nvmlComputeInstanceDestroy(first[1])
    by_index = bench.nvml.nvmlDeviceGetMigDeviceHandleByIndex

    assert code_of(bench.nvml.nvmlDeviceGetGpuInstanceById, bench.gpu, 12) == NOT_FOUND
    assert code_of(bench.nvml.nvmlGpuInstanceGetComputeInstanceById, second[0], 5) == NOT_FOUND
    assert code_of(by_index, bench.gpu, 0) == NOT_FOUND
    assert ctypes.addressof(by_index(bench.gpu, 1).contents) == ctypes.addressof(second[2].contents)
    assert code_of(by_index, bench.gpu, 7) == INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("model", "mig", "most"), [("h100-80gb", True, 7), ("h100-80gb", False, 0), ("l40s", False, 0)]
)
def test_mig_devices_are_counted_only_while_mig_is_on(model, mig, most):
    bench = Bench(model, mig=mig)

    assert bench.nvml.nvmlDeviceGetMaxMigDeviceCount(bench.gpu) == most


@pytest.mark.parametrize(
    "call",
    [
        lambda n, h: n.nvmlDeviceGetUtilizationRates(h),
        lambda n, h: n.nvmlDeviceGetEncoderUtilization(h),
        lambda n, h: n.nvmlDeviceGetDecoderUtilization(h),
        lambda n, h: n.nvmlDeviceGetProcessUtilization(h, 0),
        lambda n, h: n.nvmlDeviceGetAccountingMode(h),
    ],
)
def test_utilisation_is_not_supported_under_mig_on_device_and_slice(bench, call):
    _, _, mig = bench.slice(G1, 0)

    assert code_of(call, bench.nvml, bench.gpu) == NOT_SUPPORTED
    assert code_of(call, bench.nvml, mig) == NOT_SUPPORTED


def test_quiet_event_set_times_out(bench):
    events = bench.nvml.nvmlEventSetCreate()
    bench.nvml.nvmlDeviceRegisterEvents(bench.gpu, 8, events)

    assert code_of(bench.nvml.nvmlEventSetWait_v2, events, 0) == TIMEOUT


@pytest.mark.parametrize(
    "call",
    [
        lambda b: b.nvml.nvmlDeviceGetUUID(b.gpu),
        lambda b: b.nvml.nvmlDeviceGetMemoryInfo(b.gpu),
        lambda b: b.nvml.nvmlDeviceGetMigMode(b.gpu),
        lambda b: b.nvml.nvmlDeviceGetMaxMigDeviceCount(b.gpu),
        lambda b: b.nvml.nvmlDeviceGetComputeRunningProcesses(b.gpu),
        lambda b: b.nvml.nvmlDeviceGetFieldValues(b.gpu, [230]),
        lambda b: b.nvml.nvmlDeviceGetPowerUsage(b.gpu),
        lambda b: b.create(G1, 0),
    ],
)
def test_device_off_the_bus_answers_nothing_and_its_neighbour_everything(call):
    bench = Bench(count=2)
    bench.host.lose(0)
    neighbour = bench.nvml.nvmlDeviceGetHandleByIndex(1)

    assert bench.nvml.nvmlDeviceGetCount() == 2
    assert code_of(call, bench) == GPU_IS_LOST
    assert bench.nvml.nvmlDeviceGetUUID(neighbour) == bench.host.devices[1].uuid


@pytest.mark.parametrize(("model", "stays"), [("a100-40gb", True), ("a30-24gb", True), ("h200-141gb", False)])
def test_reboot_ends_instances_and_only_ampere_remembers_its_mode(model, stays):
    bench = Bench(model)
    bench.host.add_foreign(0, bench.host.devices[0].board.profiles[0].name, 0)
    bench.host.reboot()

    fresh = bench.nvml.nvmlDeviceGetHandleByIndex(0)

    assert code_of(bench.nvml.nvmlDeviceGetUUID, bench.gpu) == INVALID_ARGUMENT
    assert bench.nvml.nvmlDeviceGetMigMode(fresh) == [stays, stays]
    assert bench.host.devices[0].gpu.instances == {}
