"""What the agent relies on when it only reads: held against real devices and against the simulated library alike.

Return codes and rights are those of nvml.h (CUDA 13) and of NVIDIA's NVML reference; what a device, its driver or this
account may not do is skipped with the reason (told.py).
"""

from __future__ import annotations

import ctypes
import json
import math
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pynvml
import pytest

from nodeagent.drivers import errors
from nodeagent.drivers.base import ProcessFact
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.drivers.nvml.inventory.modes import VGPU_GUEST
from nodeagent.drivers.nvml.shares.memory import CONTROLLERS, ROOT
from nodeagent.drivers.nvml.telemetry import gpm
from nodeagent.drivers.owners import cgroup_of
from nodeagent.protocol.codec import decode, encode
from nodeagent.protocol.messages import Hello, Report, Samples
from tests.gpu.devices import Device
from tests.gpu.holders import NoHolderError
from tests.gpu.record import NO_SIZE, facts_of
from tests.gpu.told import MAY_NOT, skip_if_it_may_not, told, why_not

MIB = 1024 * 1024
# A program is listed when its context stands, and for a moment after its end.
LOOKS, PAUSE_S = 50, 0.1
APART_S = 0.15


def test_the_inventory_fits_what_the_portal_accepts(device: Device) -> None:
    fact = device.fact

    assert re.fullmatch(r"GPU-[0-9a-f-]{36}", fact.uuid)
    assert re.fullmatch(r"[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-9A-F]", fact.pci_bus_id)
    assert 1024 <= fact.memory_mib <= 2**20
    assert fact.sm_count is None or 1 <= fact.sm_count <= 1000
    assert set(fact.modes) | set(fact.refusals) == {"exclusive", "mig", "mps", "memlimit", "timeslice"}
    assert not set(fact.modes) & set(fact.refusals)
    assert all(len(sentence) > 20 for sentence in fact.refusals.values())
    hello = Hello("node", "00", "boot", "1", "nvml", device.driver.version, (fact,))
    assert decode(encode(hello)) == hello


def test_memory_is_told_and_adds_up(device: Device) -> None:
    doing = "reading the memory"
    plain = told(device, doing, "nvmlDeviceGetMemoryInfo", device.handle)
    full = told(device, doing, "nvmlDeviceGetMemoryInfo", device.handle, pynvml.nvmlMemory_v2)

    assert 0 <= plain.used <= plain.total
    # Since 615 the second form tells a cgroup's part of the memory to programs inside that are limited.
    assert 0 < full.total <= plain.total
    assert max(full.used, full.free, full.reserved) <= full.total
    # Where device memory is a NUMA node the kernel keeps the accounts, and they differ a little (nvml.h).
    if device.code("nvmlDeviceGetNumaNodeId", device.handle):
        assert full.used + full.free + full.reserved <= full.total + MIB


def test_utilisation_is_a_percentage_where_it_is_told(device: Device) -> None:
    rates = told(device, "reading the utilisation", "nvmlDeviceGetUtilizationRates", device.handle)

    assert 0 <= rates.gpu <= 100
    assert 0 <= rates.memory <= 100


def test_two_readings_lie_within_the_bounds_of_the_protocol(device: Device) -> None:
    first = device.driver.metrics()
    device.wait(APART_S)
    second = device.driver.metrics()

    samples = Samples(1, "boot", 1, second.devices, ())
    assert decode(encode(samples)) == samples
    before, after = (next(s for s in r.devices if s.device == device.uuid) for r in (first, second))
    assert after.temperature_c is None or 0 <= after.temperature_c <= 120
    assert after.power_w is None or 0 <= after.power_w < 3000
    assert before.energy_mj is None or after.energy_mj is None or after.energy_mj >= before.energy_mj
    if after.memory_used_mib is None:
        assert device.code("nvmlDeviceGetMemoryInfo", device.handle), (
            "the device tells its memory, the agent does not"
        )
    assert after.source
    assert {part.device for part in second.partitions} >= {device.uuid} or device.is_sliced
    for part in second.partitions:
        figures = (part.util_percent, part.sm_percent, part.tensor_percent, part.bandwidth_percent)
        assert all(figure is None or 0 <= figure <= 100 for figure in figures)


def test_two_gpm_samples_tell_percentages_of_the_whole_device(device: Device) -> None:
    with gpm_samples(device, None) as (before, after):
        found = gpm_figures(device, before, after)

    assert found, "no metric was computed"
    assert all(0 <= value <= 100 for value in found.values()), found
    device.notes["gpm"] = found


def test_two_gpm_samples_tell_percentages_of_a_slice(device: Device) -> None:
    slices = device.instances()
    if not slices:
        pytest.skip("no MIG device stands on the device; make one (nvidia-smi mig -cgi 0 -C) to ask about it")
    with gpm_samples(device, slices[0]) as (before, after):
        found = gpm_figures(device, before, after)

    assert found, "no metric was computed"
    assert all(0 <= value <= 100 for value in found.values()), found
    device.notes["gpm of a slice"] = found


def test_processes_have_pids_and_no_more_memory_than_the_device(device: Device) -> None:
    listed, memory_mib = processes(device), device.fact.memory_mib
    if not listed:
        pytest.skip(
            "nothing runs on the device; the test with a program of its own says whether it would be seen"
        )

    assert len({process.pid for process in listed}) == len(listed)
    assert all(process.pid > 0 for process in listed)
    assert all(p.memory_mib is None or 0 <= p.memory_mib <= memory_mib for p in listed)


def test_a_program_that_opens_an_idle_device_is_listed_until_it_ends(device: Device) -> None:
    if processes(device):
        pytest.skip("programs run on the device; nothing is started beside them")
    if device.is_sliced:
        pytest.skip("MIG is on; nothing is started in slices that may be somebody's")
    try:
        with device.hold("") as holder:
            seen = awaited(device, lambda listed: holder.pid in listed)
            own = seen.get(holder.pid)
            assert own is not None, f"{holder.pid} holds the device, listed are {sorted(seen)}"
            assert own.memory_mib is None or 0 <= own.memory_mib <= device.fact.memory_mib
            assert own.name
            assert cgroup_of(device.read, holder.pid) or not has_one_tree(device), (
                "nobody can tell whose it is"
            )
    except NoHolderError as no:
        pytest.skip(str(no))

    assert holder.pid not in awaited(device, lambda listed: holder.pid not in listed)
    device.notes["context_mib"] = own.memory_mib


def test_mig_sizes_are_told_with_mig_off_and_lie_on_the_device(device: Device) -> None:
    fact, profiles = device.fact, device.profiles()
    if not profiles:
        assert why_not(fact, "mig"), "no sizes are told and the agent offers MIG"
        first = device.code("nvmlDeviceGetGpuInstanceProfileInfo", device.handle, 0)
        is_guest = device.answer("nvmlDeviceGetVirtualizationMode", device.handle) == VGPU_GUEST
        may_not = not device.mig_modes or is_guest or first == errors.NO_PERMISSION
        assert may_not, f"the board has MIG, its driver tells no sizes ({first}): nothing can be offered"
        pytest.skip(why_not(fact, "mig"))

    for _, info in profiles:
        assert 1 <= info.sliceCount <= 8
        assert 1 <= info.instanceCount <= 16
        assert 0 < info.memorySizeMB <= fact.memory_mib
        assert 0 < info.multiprocessorCount <= (fact.sm_count or 10_000)
    assert device.mig_modes, "the board tells sizes and has no MIG mode"
    assert len({info.id for _, info in profiles}) == len(profiles)


def test_a_size_that_no_driver_has_is_refused(device: Device) -> None:
    code = device.code("nvmlDeviceGetGpuInstanceProfileInfo", device.handle, NO_SIZE)

    assert code in MAY_NOT | {errors.INVALID_ARGUMENT}


def test_places_are_told_to_those_who_may_know_and_lie_on_one_grid(device: Device) -> None:
    fact, told_of = device.fact, 0
    for _, info in device.profiles():
        places = device.placements(info.id)
        if isinstance(places, int):
            assert why_not(fact, "mig"), f"places are refused ({places}) and the agent offers MIG"
            continue
        assert len(set(places)) == len(places)
        assert len({size for _, size in places}) <= 1
        assert all(start >= 0 and start + size <= fact.grid for start, size in places)
        told_of += bool(places)

    if not told_of:
        assert "mig" not in fact.modes
        pytest.skip(why_not(fact, "mig"))


def test_no_instance_is_told_while_mig_is_off(device: Device) -> None:
    if device.mig_modes != (0, 0) or not (profiles := device.profiles()):
        pytest.skip("the board has no MIG, or it is on")
    _, info = profiles[0]
    rows, number = (pynvml.c_nvmlGpuInstance_t * info.instanceCount)(), ctypes.c_uint(info.instanceCount)

    code = device.code("nvmlDeviceGetGpuInstances", device.handle, info.id, rows, ctypes.byref(number))

    assert code in (errors.NOT_SUPPORTED, errors.NO_PERMISSION) or (code, number.value) == (0, 0)
    assert device.instances() == []
    assert device.driver.observe(device.uuid) == []


def test_what_stands_on_the_device_can_be_reported(device: Device) -> None:
    report = Report(
        1, "boot", 1, 1, (), tuple(device.driver.observe(device.uuid)), tuple(device.driver.health())
    )

    assert decode(encode(report)) == report


def test_events_can_be_heard_and_quiet_is_a_timeout(device: Device) -> None:
    doing, nvml = "listening for events", device.library
    kinds = told(device, doing, "nvmlDeviceGetSupportedEventTypes", device.handle)
    if not kinds & pynvml.nvmlEventTypeXidCriticalError:
        pytest.skip(f"the device tells no XID by events (kinds {kinds:#x}); the kernel log has them")
    chosen = nvml.nvmlEventSetCreate()
    try:
        told(
            device,
            doing,
            "nvmlDeviceRegisterEvents",
            device.handle,
            pynvml.nvmlEventTypeXidCriticalError,
            chosen,
        )
        code = device.code("nvmlEventSetWait_v2", chosen, 1)
    finally:
        nvml.nvmlEventSetFree(chosen)

    # An XID may come in just now.
    assert code in (errors.TIMEOUT, 0)


def test_memory_limits_are_read_or_refused_in_a_way_the_agent_knows(device: Device) -> None:
    # A driver that keeps limits by itself answers NOT_SUPPORTED, one with the kernel's controller NOT_FOUND, for
    # groups without any; reading needs no rights (NVIDIA, "MPS v3 Memory Partitioning").
    nobody = device.memory_limit(f"{ROOT}/berth-nobody")
    if nobody == errors.FUNCTION_NOT_FOUND:
        assert "615" in why_not(device.fact, "memlimit")
        pytest.skip(why_not(device.fact, "memlimit"))
    own = device.memory_limit(f"{ROOT}{own_cgroup(device)}")

    known = (errors.NOT_FOUND, errors.INVALID_ARGUMENT, errors.NOT_SUPPORTED, errors.NO_PERMISSION)
    for found in (nobody, own):
        if isinstance(found, int):
            assert found in (*known, errors.UNKNOWN)
        else:
            assert 0 <= found[0] <= found[1]
    device.notes["memory limit of no cgroup"], device.notes["memory limit of this cgroup"] = nobody, own


def test_a_device_that_is_not_here_is_not_found(device: Device) -> None:
    code = device.code("nvmlDeviceGetHandleByUUID", "GPU-00000000-0000-4000-8000-000000000000")

    assert code in (errors.NOT_FOUND, errors.INVALID_ARGUMENT)


def test_reading_changes_nothing(device: Device) -> None:
    before = device.state()

    device.driver.inventory()
    device.driver.metrics()
    device.driver.health()
    device.driver.catalogue(device.uuid)
    with suppress(NvmlLikeError):
        device.driver.processes(device.uuid)
    facts_of(device)

    assert device.state() == before


def test_what_the_device_says_makes_a_record(device: Device) -> None:
    facts = json.loads(json.dumps(facts_of(device)))

    assert facts["memory_mib"] == device.fact.memory_mib
    assert len(facts["profiles"]) == len(device.profiles())
    assert all({"id", "name", "memorySizeMB", "placements"} <= set(row) for row in facts["profiles"])
    assert device.uuid not in json.dumps(facts)


# Asking


def processes(device: Device) -> list[ProcessFact]:
    """Return what runs on the device, or skip where this account may not know."""
    try:
        return device.driver.processes(device.uuid)
    except NvmlLikeError as no:
        skip_if_it_may_not(no)
        raise


def awaited(device: Device, is_so: Any) -> dict[int, ProcessFact]:
    """Return the processes by pid, once they are as asked for; otherwise as they are after some seconds."""
    for _ in range(LOOKS):
        listed = {process.pid: process for process in processes(device)}
        if is_so(listed):
            break
        device.wait(PAUSE_S)
    return listed


@contextmanager
def gpm_samples(device: Device, gi_id: int | None) -> Iterator[tuple[Any, Any]]:
    """Take two samples of the device, or of one GPU instance, or skip where it has none; both are freed."""
    doing, nvml = "sampling performance counters", device.library
    support = told(device, doing, "nvmlGpmQueryDeviceSupport", device.handle)
    if not support.isSupportedDevice:
        pytest.skip("the device has no GPM; boards from Hopper on do")
    # nvml.h names no code for a whole device that is sliced; the agent takes any for "unknown".
    sliced = frozenset({errors.INVALID_ARGUMENT} if gi_id is None and device.is_sliced else ())
    call, which = ("nvmlGpmSampleGet", ()) if gi_id is None else ("nvmlGpmMigSampleGet", (gi_id,))
    with ExitStack() as stack:
        taken = []
        for _ in range(2):
            room = nvml.nvmlGpmSampleAlloc()
            stack.callback(nvml.nvmlGpmSampleFree, room)
            if taken:
                device.wait(APART_S)
            told(device, doing, call, device.handle, *which, room, beside=sliced)
            taken.append(room)
        yield taken[0], taken[1]


def gpm_figures(device: Device, before: Any, after: Any) -> dict[int, float]:
    """Return the metrics that were computed from two samples, by id; what is not a number is not yet computed."""
    query = pynvml.c_nvmlGpmMetricsGet_t()
    query.version, query.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(gpm.METRICS)
    for place, metric in enumerate(gpm.METRICS):
        query.metrics[place].metricId = metric
    query.sample1, query.sample2 = before, after
    answer = told(device, "comparing performance counters", "nvmlGpmMetricsGet", query)
    rows = [answer.metrics[place] for place in range(len(gpm.METRICS))]
    return {
        int(row.metricId): float(row.value)
        for row in rows
        if row.nvmlReturn == 0 and not math.isnan(row.value)
    }


def has_one_tree(device: Device) -> bool:
    """Say whether the host has cgroups of version 2 alone, by which shares are told apart."""
    try:
        return bool(device.read(CONTROLLERS))
    except OSError:
        return False


def own_cgroup(device: Device) -> str:
    """Return the cgroup of this process below the mount point, "" where it cannot be read."""
    try:
        lines = device.read("/proc/self/cgroup").splitlines()
    except OSError:
        return ""
    return next((line[3:] for line in lines if line.startswith("0::")), "").rstrip("/")
