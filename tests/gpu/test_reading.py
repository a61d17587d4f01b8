"""What the agent relies on when it only reads: held against real cards and against the simulated library alike."""

from __future__ import annotations

import ctypes
import json
import os
import re
from pathlib import Path

import pynvml
import pytest

from nodeagent.drivers import errors
from nodeagent.protocol.codec import decode, encode
from nodeagent.protocol.messages import Hello, Report, Samples
from tests.gpu.cards import Card
from tests.gpu.record import facts_of

MIB = 1024 * 1024


def test_the_inventory_fits_what_the_portal_accepts(card: Card) -> None:
    fact = card.fact

    assert re.fullmatch(r"GPU-[0-9a-f-]{36}", fact.uuid)
    assert re.fullmatch(r"[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-9A-F]", fact.pci_bus_id)
    assert 1024 <= fact.memory_mib <= 2**20
    assert fact.sm_count is None or 1 <= fact.sm_count <= 1000
    assert set(fact.modes) | set(fact.refusals) == {"exclusive", "mig", "mps", "memlimit", "timeslice"}
    assert all(len(sentence) > 20 for sentence in fact.refusals.values())
    hello = Hello("node", "00", "boot", "1", "nvml", card.driver.version, (fact,))
    assert decode(encode(hello)) == hello


def test_memory_is_told_and_adds_up(card: Card) -> None:
    plain = card.library.nvmlDeviceGetMemoryInfo(card.handle)
    full = card.library.nvmlDeviceGetMemoryInfo(card.handle, pynvml.nvmlMemory_v2)

    assert 0 <= plain.used <= plain.total
    assert full.total == plain.total
    assert full.used + full.free + full.reserved <= full.total + MIB


def test_utilisation_is_a_percentage_unless_mig_is_on(card: Card) -> None:
    if 1 in card.mig_modes[:1]:
        assert card.code("nvmlDeviceGetUtilizationRates", card.handle) == errors.NOT_SUPPORTED
    else:
        assert 0 <= card.library.nvmlDeviceGetUtilizationRates(card.handle).gpu <= 100


def test_two_readings_lie_within_the_bounds_of_the_protocol(card: Card) -> None:
    first = card.driver.metrics()
    card.wait(0.15)
    second = card.driver.metrics()

    samples = Samples(1, "boot", 1, second.devices, ())
    assert decode(encode(samples)) == samples
    before, after = (next(s for s in r.devices if s.device == card.uuid) for r in (first, second))
    assert after.temperature_c is None or 0 <= after.temperature_c <= 120
    assert after.power_w is None or 0 < after.power_w < 3000
    assert before.energy_mj is None or after.energy_mj is None or after.energy_mj >= before.energy_mj
    assert after.memory_used_mib is not None
    assert after.source
    assert {part.device for part in second.partitions} >= {card.uuid} or card.mig_modes[:1] == (1,)


def test_gpm_answers_whether_it_is_supported(card: Card) -> None:
    code = card.code("nvmlGpmQueryDeviceSupport", card.handle)

    assert code in (0, errors.NOT_SUPPORTED, errors.FUNCTION_NOT_FOUND)


def test_processes_have_pids_and_no_more_memory_than_the_card(card: Card) -> None:
    for process in card.driver.processes(card.uuid):
        assert process.pid > 0
        assert process.memory_mib is None or 0 <= process.memory_mib <= card.fact.memory_mib


def test_mig_sizes_are_told_with_mig_off_and_lie_on_the_card(card: Card) -> None:
    total = card.library.nvmlDeviceGetMemoryInfo(card.handle).total // MIB
    for _, info in card.profiles():
        assert 1 <= info.sliceCount <= 8
        assert 1 <= info.instanceCount <= 16
        assert 0 < info.memorySizeMB <= total
        assert 0 < info.multiprocessorCount <= (card.fact.sm_count or 10_000)

    assert bool(card.profiles()) == bool(card.mig_modes)
    assert len({info.id for _, info in card.profiles()}) == len(card.profiles())


def test_constants_that_nobody_knows_are_refused_as_the_end_of_the_list(card: Card) -> None:
    code = card.code("nvmlDeviceGetGpuInstanceProfileInfo", card.handle, 9999)

    assert code in (errors.INVALID_ARGUMENT, errors.NOT_SUPPORTED)
    assert code == errors.INVALID_ARGUMENT or not card.mig_modes


def test_places_are_told_to_those_who_may_know_and_lie_on_one_grid(card: Card) -> None:
    for _, info in card.profiles():
        places = card.placements(info.id)
        if places == errors.NO_PERMISSION:
            assert "mig" in card.fact.refusals
            continue
        assert isinstance(places, list)
        assert places
        assert len(set(places)) == len(places)
        assert len({size for _, size in places}) == 1
        assert all(start >= 0 and start + size <= card.fact.grid for start, size in places)


def test_instances_cannot_be_listed_while_mig_is_off(card: Card) -> None:
    if card.mig_modes != (0, 0):
        pytest.skip("the board has no MIG, or it is on")
    _, info = card.profiles()[0]
    rows, number = (pynvml.c_nvmlGpuInstance_t * info.instanceCount)(), ctypes.c_uint(info.instanceCount)

    code = card.code("nvmlDeviceGetGpuInstances", card.handle, info.id, rows, ctypes.byref(number))

    assert code in (errors.NOT_SUPPORTED, errors.NO_PERMISSION)
    assert card.library.nvmlDeviceGetMaxMigDeviceCount(card.handle) == 0


def test_what_stands_on_the_card_can_be_reported(card: Card) -> None:
    report = Report(1, "boot", 1, 1, (), tuple(card.driver.observe(card.uuid)), tuple(card.driver.health()))

    assert decode(encode(report)) == report


def test_events_can_be_heard_and_quiet_is_a_timeout(card: Card) -> None:
    nvml = card.library
    kinds = nvml.nvmlDeviceGetSupportedEventTypes(card.handle)
    chosen = nvml.nvmlEventSetCreate()
    try:
        nvml.nvmlDeviceRegisterEvents(card.handle, kinds & pynvml.nvmlEventTypeXidCriticalError, chosen)
        code = card.code("nvmlEventSetWait_v2", chosen, 1)
    finally:
        nvml.nvmlEventSetFree(chosen)

    assert kinds & pynvml.nvmlEventTypeXidCriticalError
    assert code == errors.TIMEOUT


def test_memory_limits_are_there_or_the_function_is_missing(card: Card) -> None:
    asked = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=b"/sys/fs/cgroup/berth-nobody")

    code = card.code("nvmlDeviceGetMemoryLimits_v1", card.handle, asked)

    allowed = (
        errors.FUNCTION_NOT_FOUND,
        errors.NOT_FOUND,
        errors.INVALID_ARGUMENT,
        errors.NOT_SUPPORTED,
        999,
    )
    assert code in allowed
    if code == errors.FUNCTION_NOT_FOUND:
        assert "615" in card.fact.refusals["memlimit"]


def test_a_device_that_is_not_here_is_not_found(card: Card) -> None:
    code = card.code("nvmlDeviceGetHandleByUUID", "GPU-00000000-0000-4000-8000-000000000000")

    assert code in (errors.NOT_FOUND, errors.INVALID_ARGUMENT)


def test_reading_changes_nothing(card: Card) -> None:
    before = card.state()

    card.driver.inventory()
    card.driver.metrics()
    card.driver.health()
    card.driver.catalogue(card.uuid)

    assert card.state() == before


def test_facts_of_the_card_can_be_recorded(
    card: Card, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    is_real = card.host is None
    target = (
        Path(os.environ.get("BERTH_GPU_FACTS", "")) if is_real and "BERTH_GPU_FACTS" in os.environ else None
    )
    path = target or tmp_path / "facts.json"

    path.write_text(json.dumps(facts_of(card), indent=1), encoding="utf-8")

    facts = json.loads(path.read_text(encoding="utf-8"))
    assert facts["memory_mib"] == card.fact.memory_mib
    assert len(facts["profiles"]) == len(card.profiles())
    assert all({"id", "name", "memorySizeMB", "placements"} <= set(row) for row in facts["profiles"])
