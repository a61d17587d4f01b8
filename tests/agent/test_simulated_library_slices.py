"""Sessions, handles, ids and slices of the simulated NVML on every board."""

from __future__ import annotations

import pynvml
import pytest

from nodeagent.protocol.boards import all_boards
from nodeagent.simulation.machine.host import SimulatedHost
from nodeagent.simulation.nvml import SimulatedNvml
from tests.agent.nvml_bench import (
    FUNCTION_NOT_FOUND,
    G1,
    G2,
    G3,
    G4,
    G7,
    IN_USE,
    INSUFFICIENT_RESOURCES,
    INVALID_ARGUMENT,
    MIB,
    NOT_FOUND,
    NOT_SUPPORTED,
    UNINITIALIZED,
    Bench,
    code_of,
)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_library_wants_to_be_opened_first_and_again_after_it_was_closed():
    host = SimulatedHost(["h100-80gb"])
    nvml = SimulatedNvml(host)

    assert code_of(nvml.nvmlDeviceGetCount) == UNINITIALIZED
    nvml.nvmlInit()
    old = nvml.nvmlDeviceGetHandleByIndex(0)
    nvml.nvmlShutdown()
    assert code_of(nvml.nvmlDeviceGetUUID, old) == UNINITIALIZED
    nvml.nvmlInit()
    assert code_of(nvml.nvmlDeviceGetUUID, old) == INVALID_ARGUMENT


@pytest.mark.parametrize("code", [9, 12, 18])
def test_host_without_a_usable_driver_cannot_be_opened(code):
    host = SimulatedHost(["h100-80gb"])
    host.init_code = code

    assert code_of(SimulatedNvml(host).nvmlInit) == code


def test_function_that_the_driver_lacks_is_found_out_by_calling_it(bench):
    bench.host.missing = {"nvmlDeviceGetNumaNodeId"}

    assert code_of(bench.nvml.nvmlDeviceGetNumaNodeId, bench.gpu) == FUNCTION_NOT_FOUND
    assert code_of(bench.nvml.nvmlVgpuInstanceGetUUID, 1) == FUNCTION_NOT_FOUND
    assert bench.nvml.NVMLError_FunctionNotFound is pynvml.NVMLError_FunctionNotFound


def test_next_tenant_of_a_place_finds_the_same_id_and_uuid(bench):
    gi, ci, mig = bench.slice(G1, 3)
    before = bench.nvml.nvmlDeviceGetUUID(mig), bench.nvml.nvmlDeviceGetGpuInstanceId(mig)
    bench.nvml.nvmlComputeInstanceDestroy(ci)
    bench.nvml.nvmlGpuInstanceDestroy(gi)

    _, _, again = bench.slice(G1, 3)

    assert (bench.nvml.nvmlDeviceGetUUID(again), bench.nvml.nvmlDeviceGetGpuInstanceId(again)) == before
    assert before[1] == 10
    assert before[0].startswith("MIG-")
    assert before[0][18] == "5"


@pytest.mark.parametrize(
    ("model", "ids"),
    [
        ("h100-80gb", {(G7, 0): 0, (G4, 0): 1, (G3, 4): 1, (G3, 0): 2, (G2, 2): 4, (G1, 0): 7, (G1, 6): 13}),
        ("a30-24gb", {(0, 0): 0, (5, 0): 1, (5, 2): 2, (14, 0): 3, (14, 3): 6}),
    ],
)
def test_ids_follow_size_and_start(model, ids):
    found = {}
    for profile, start in ids:
        bench = Bench(model)
        gi = bench.create(profile, start)
        found[profile, start] = bench.nvml.nvmlGpuInstanceGetInfo(gi).id

    assert found == ids


def test_half_made_instance_is_listed_but_is_no_mig_device(bench):
    bench.host.add_foreign(0, "1g.10gb", 2, is_half=True)

    assert bench.listed(G1) == [2]
    for index in range(bench.nvml.nvmlDeviceGetMaxMigDeviceCount(bench.gpu)):
        assert code_of(bench.nvml.nvmlDeviceGetMigDeviceHandleByIndex, bench.gpu, index) == NOT_FOUND


def test_smaller_compute_instances_share_the_memory_of_their_gpu_instance(bench):
    gi = bench.create(G3, 4)
    first = bench.nvml.nvmlGpuInstanceCreateComputeInstance(gi, 0)
    second = bench.nvml.nvmlGpuInstanceCreateComputeInstance(gi, 0)
    a, b = (bench.nvml.nvmlComputeInstanceGetInfo(ci) for ci in (first, second))
    bench.host.world.spawn("/x", gpu=bench.host.devices[0].uuid, gi=1, ci=1, memory_mib=100)

    assert [a.placement.start, b.placement.start] == [0, 1]
    assert bench.nvml.nvmlDeviceGetUUID(a.device) != bench.nvml.nvmlDeviceGetUUID(b.device)
    assert bench.nvml.nvmlDeviceGetMemoryInfo(a.device).used == 100 * MIB
    assert bench.nvml.nvmlDeviceGetComputeRunningProcesses(a.device) == []
    assert len(bench.nvml.nvmlDeviceGetComputeRunningProcesses(b.device)) == 1
    assert bench.nvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(gi, 0) == 1
    assert bench.nvml.nvmlComputeInstanceDestroy(first) == 0
    assert code_of(bench.nvml.nvmlComputeInstanceDestroy, second) == IN_USE


def test_mig_device_tells_its_parent_and_what_it_has(bench):
    _, _, mig = bench.slice(G2, 2, width=1)
    nvml = bench.nvml

    attributes = nvml.nvmlDeviceGetAttributes_v2(mig)

    assert nvml.nvmlDeviceIsMigDeviceHandle(mig).value == 1
    assert (
        nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig))
        == bench.host.devices[0].uuid
    )
    assert (attributes.multiprocessorCount, attributes.memorySizeMB) == (32, 20096)
    assert nvml.nvmlDeviceGetMemoryInfo(mig, version=nvml.nvmlMemory_v2).total == 20096 * MIB
    assert nvml.nvmlDeviceGetName(mig) == "NVIDIA H100 80GB HBM3 MIG 2g.20gb"
    assert code_of(nvml.nvmlDeviceGetPowerUsage, mig) == NOT_SUPPORTED
    by_uuid = nvml.nvmlDeviceGetHandleByUUID(nvml.nvmlDeviceGetUUID(mig))
    assert nvml.nvmlDeviceGetGpuInstanceId(by_uuid) == nvml.nvmlDeviceGetGpuInstanceId(mig)


def test_virtual_gpu_of_a_guest_cannot_be_partitioned():
    bench = Bench(mig=False)
    bench.host.devices[0].is_vgpu = True

    assert bench.nvml.nvmlDeviceGetVirtualizationMode(bench.gpu) == 2
    assert code_of(bench.nvml.nvmlDeviceSetMigMode, bench.gpu, 1) == NOT_SUPPORTED


def test_driver_chooses_the_first_free_place_where_none_is_named(bench):
    bench.create(G3, 0)

    gi = bench.nvml.nvmlDeviceCreateGpuInstance(bench.gpu, G3)

    assert bench.nvml.nvmlGpuInstanceGetInfo(gi).placement.start == 4
    assert code_of(bench.nvml.nvmlDeviceCreateGpuInstance, bench.gpu, G3) == INSUFFICIENT_RESOURCES


@pytest.mark.parametrize(
    "model",
    # Of some only the names of their sizes are known: nothing can be played of those.
    [b.id for b in all_boards().values() if b.vendor == "nvidia" and any(p.sm_count for p in b.profiles)],
)
def test_every_mig_board_can_be_cut_into_each_of_its_profiles_at_each_legal_place(model):
    bench = Bench(model)
    nvml, made = bench.nvml, 0
    for enum in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(bench.gpu, enum)
        except nvml.NVMLError_NotSupported:
            continue
        assert min(info.memorySizeMB, info.multiprocessorCount, info.sliceCount, info.instanceCount) > 0
        for start in next(p.starts for p in bench.host.devices[0].board.profiles if p.nvml_enum == enum):
            width = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[info.sliceCount]
            gi, ci, mig = bench.slice(info.id, start, width)
            assert nvml.nvmlDeviceGetMemoryInfo(mig).total == info.memorySizeMB * MIB
            assert nvml.nvmlDeviceGetAttributes_v2(mig).multiprocessorCount == info.multiprocessorCount
            nvml.nvmlComputeInstanceDestroy(ci)
            nvml.nvmlGpuInstanceDestroy(gi)
            made += 1

    assert made == sum(len(p.starts) for p in bench.host.devices[0].board.profiles)
