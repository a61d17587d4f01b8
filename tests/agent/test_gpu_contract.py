"""The suites for real devices, played over every host that somebody may run them on.

They run on hardware that few have, so what they assume must not fail there for reasons that are no fault: what a
device, a driver or an account may not do is skipped, and each variant here says which tests that is. A device that
tells something wrong is found all the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from nodeagent.drivers import errors
from nodeagent.drivers.nvml.shares.memory import NO_LIMIT, ROOT, MemoryLimits
from nodeagent.simulation.machine.host import SimulatedHost
from nodeagent.simulation.nvml import SimulatedNvml
from tests.gpu import test_reading, test_writing
from tests.gpu.devices import Device
from tests.gpu.holders import SimulatedHolder
from tests.gpu.playing import Prepare, Variant, cases_of, device_of, everything, read_through, write_through

LIMITS = ("nvmlDeviceGetMemoryLimits_v1", "nvmlDeviceSetMemoryLimits_v1")
PROGRAM = "test_a_program_that_opens_an_idle_device_is_listed_until_it_ends"
LISTED = frozenset({"test_processes_have_pids_and_no_more_memory_than_the_device"})
# Skipped on every idle device without slices.
IDLE = LISTED | {"test_two_gpm_samples_tell_percentages_of_a_slice"}
NO_GPM = frozenset({"test_two_gpm_samples_tell_percentages_of_the_whole_device"})
NO_MIG = frozenset(
    {
        "test_mig_sizes_are_told_with_mig_off_and_lie_on_the_device",
        "test_places_are_told_to_those_who_may_know_and_lie_on_one_grid",
        "test_no_instance_is_told_while_mig_is_off",
    }
)
MIG_ON = frozenset(
    {
        "test_utilisation_is_a_percentage_where_it_is_told",
        "test_no_instance_is_told_while_mig_is_off",
        PROGRAM,
    }
)
NOT_LISTED = LISTED | {PROGRAM}
NO_MEMORY = frozenset({"test_memory_is_told_and_adds_up"})
NO_INSTANCES = frozenset({"test_no_instance_is_told_while_mig_is_off"})
EVENTS = "test_events_can_be_heard_and_quiet_is_a_timeout"
NO_LIMITS = frozenset({"test_memory_limits_are_read_or_refused_in_a_way_the_agent_knows"})
NO_PLACES = frozenset({"test_places_are_told_to_those_who_may_know_and_lie_on_one_grid"})
SLICES = frozenset(
    {
        "test_slices_are_made_at_exact_places_found_by_the_next_agent_and_removed",
        "test_what_is_made_at_the_same_place_again_is_found_by_its_new_name",
    }
)
BEYOND = "test_a_program_gets_no_memory_beyond_its_limit_and_keeps_its_share_from_going"
LIMITED = frozenset({"test_a_memory_limit_holds_is_given_back_and_gone_at_the_end", BEYOND})
OFFERED = "test_memory_limits_are_offered_where_the_driver_keeps_them_and_nowhere_else"
NO_SUCH_LIMITS = LIMITED | {OFFERED}
WRITES = frozenset(cases_of(test_writing, "writable"))


def refuses(call: str, code: int) -> Prepare:
    """Let a call always end with a code."""

    def prepare(host: SimulatedHost) -> None:
        host.faults.refusals[call] = Always(code)

    return prepare


class Always(deque[int]):
    """One code for ever, in the place of codes that are answered one by one."""

    def __init__(self, code: int) -> None:
        super().__init__([code])

    def popleft(self) -> int:
        """Return the code and keep it."""
        return self[0]


def sliced(host: SimulatedHost) -> None:
    """Switch MIG on and make an instance, as somebody with nvidia-smi would."""
    host.switch_mig(0)
    host.add_foreign(0, host.devices[0].board.profiles[-1].name, 0)


def half_sliced(host: SimulatedHost) -> None:
    host.switch_mig(0)
    host.add_foreign(0, host.devices[0].board.profiles[-1].name, 0, is_half=True)


def pending(host: SimulatedHost) -> None:
    host.devices[0].gpu.pending_mig = True


def busy(host: SimulatedHost) -> None:
    host.world.spawn("/user.slice", gpu=host.devices[0].uuid, name="train", memory_mib=500)


def guest(host: SimulatedHost) -> None:
    host.devices[0].is_vgpu = True


def passes_on(host: SimulatedHost) -> None:
    host.has_dmem = True
    host.passing_dmem.add("")


def guest_without_sizes(host: SimulatedHost) -> None:
    guest(host)
    tells_no_sizes(host)


tells_no_sizes = refuses("nvmlDeviceGetGpuInstanceProfileInfo", errors.NOT_SUPPORTED)
hides_memory = refuses("nvmlDeviceGetMemoryInfo", errors.NO_PERMISSION)

NOT_SUPPORTED, NO_PERMISSION = errors.NOT_SUPPORTED, errors.NO_PERMISSION
OLD = ("nvmlGpmQueryDeviceSupport", "nvmlDeviceGetNumaNodeId", *LIMITS)
RUNNING = IDLE - LISTED | {PROGRAM}
SLICED = MIG_ON | LISTED
READING = [
    Variant("Ampere", "a100-80gb", IDLE | NO_GPM),
    Variant("Ampere with four slices", "a30-24gb", IDLE | NO_GPM),
    Variant("Ada, without MIG", "l40s-48gb", IDLE | NO_GPM | NO_MIG),
    Variant("Hopper", skips=IDLE),
    Variant("Hopper with more memory", "h200-141gb", IDLE),
    Variant("Grace Hopper", "gh200-144gb", IDLE),
    Variant("Blackwell", "b200-180gb", IDLE),
    Variant("Grace Blackwell", "gb200-186gb", IDLE),
    Variant("Blackwell for workstations", "rtx-pro-6000-blackwell-96gb", IDLE),
    Variant("a vGPU guest", skips=IDLE, prepare=guest),
    Variant("a vGPU guest without sizes", skips=IDLE | NO_MIG, prepare=guest_without_sizes),
    Variant("MIG on, with an instance", skips=SLICED, prepare=sliced),
    Variant("MIG on, with half an instance", skips=SLICED | IDLE, prepare=half_sliced),
    Variant("MIG on, empty", skips=SLICED | IDLE, prepare=lambda h: h.switch_mig(0)),
    Variant("MIG on, Ampere", "a100-80gb", SLICED | NO_GPM | IDLE, prepare=sliced),
    Variant("MIG waits for an idle device", "a100-80gb", IDLE | NO_GPM | NO_INSTANCES, prepare=pending),
    Variant("a program runs", skips=RUNNING, prepare=busy),
    Variant("another compute mode", skips=IDLE, prepare=lambda h: setattr(h.devices[0], "compute_mode", 3)),
    Variant("no CUDA library", skips=IDLE | {PROGRAM}, options={"has_cuda": False}),
    Variant("nobody's account", skips=IDLE | NO_PLACES, options={"is_root": False}),
    Variant("nobody's account, MIG on", skips=SLICED | NO_PLACES, options={"is_root": False}, prepare=sliced),
    Variant("the kernel keeps memory limits", skips=IDLE, prepare=lambda h: setattr(h, "has_dmem", True)),
    Variant(
        "driver 535", "a100-80gb", IDLE | NO_GPM | NO_LIMITS, {"driver_version": "535.54", "missing": OLD}
    ),
    Variant("driver 550", skips=IDLE | NO_LIMITS, options={"driver_version": "550.54", "missing": LIMITS}),
    Variant("memory is root's once MIG is on", skips=SLICED | NO_MEMORY, prepare=sliced, later=hides_memory),
]
REFUSALS: list[tuple[str, int, frozenset[str]]] = [
    (
        "nvmlDeviceGetUtilizationRates",
        NOT_SUPPORTED,
        frozenset({"test_utilisation_is_a_percentage_where_it_is_told"}),
    ),
    ("nvmlDeviceGetComputeRunningProcesses", NO_PERMISSION, NOT_LISTED),
    ("nvmlDeviceGetComputeRunningProcesses", NOT_SUPPORTED, NOT_LISTED),
    ("nvmlDeviceGetGraphicsRunningProcesses", NOT_SUPPORTED, frozenset()),
    ("nvmlDeviceGetMPSComputeRunningProcesses", NOT_SUPPORTED, frozenset()),
    ("nvmlDeviceGetMemoryLimits_v1", NO_PERMISSION, frozenset()),
    ("nvmlDeviceGetMemoryLimits_v1", NOT_SUPPORTED, frozenset()),
    ("nvmlDeviceGetMemoryLimits_v1", errors.NOT_FOUND, frozenset()),
    ("nvmlDeviceGetGpuInstancePossiblePlacements", NOT_SUPPORTED, NO_PLACES),
    ("nvmlDeviceGetGpuInstances", NO_PERMISSION, frozenset()),
    ("nvmlDeviceGetGpuInstanceProfileInfo", NO_PERMISSION, NO_MIG),
    ("nvmlDeviceGetMaxMigDeviceCount", NOT_SUPPORTED, frozenset()),
    (
        "nvmlDeviceRegisterEvents",
        NOT_SUPPORTED,
        frozenset({EVENTS}),
    ),
    ("nvmlGpmQueryDeviceSupport", NOT_SUPPORTED, NO_GPM),
    ("nvmlGpmSampleGet", NOT_SUPPORTED, NO_GPM),
    ("nvmlGpmSampleGet", NO_PERMISSION, NO_GPM),
    ("nvmlDeviceGetComputeMode", NOT_SUPPORTED, frozenset()),
    ("nvmlDeviceGetVirtualizationMode", NOT_SUPPORTED, frozenset()),
    ("nvmlDeviceGetPowerUsage", NOT_SUPPORTED, frozenset()),
    ("nvmlDeviceGetTemperature", NOT_SUPPORTED, frozenset()),
    ("nvmlDeviceGetSerial", NOT_SUPPORTED, frozenset()),
    ("nvmlDeviceGetNumaNodeId", NOT_SUPPORTED, frozenset()),
]


WRITING = [
    Variant("Ampere", "a100-80gb"),
    Variant("Ampere with four slices", "a30-24gb"),
    Variant("Ada, without MIG", "l40s-48gb", SLICES),
    Variant("Hopper"),
    Variant("Blackwell", "gb200-186gb"),
    Variant("Blackwell for workstations", "rtx-pro-6000-blackwell-96gb"),
    Variant("the kernel keeps memory limits", prepare=lambda h: setattr(h, "has_dmem", True)),
    Variant("the root passes them on already", prepare=passes_on),
    Variant("driver 550", skips=NO_SUCH_LIMITS, options={"missing": LIMITS}),
    Variant("no CUDA library", skips=frozenset({BEYOND}), options={"has_cuda": False}),
    Variant("a monitor holds the device", "a100-80gb", SLICES, later=lambda h: h.hold_open(0)),
    Variant(
        "a virtual machine",
        "a100-80gb",
        SLICES,
        later=lambda h: setattr(h.devices[0].gpu, "is_passthrough", True),
    ),
    Variant("a vGPU guest", skips=SLICES, prepare=guest),
    Variant("nobody's account", skips=WRITES, options={"is_root": False}),
    Variant("a program runs", skips=WRITES, prepare=busy),
    Variant("MIG on", skips=WRITES, prepare=sliced),
    Variant("MIG waits for an idle device", "a100-80gb", WRITES, prepare=pending),
    Variant(
        "processes are not told", skips=WRITES, prepare=refuses("nvmlDeviceGetComputeRunningProcesses", 4)
    ),
]


@pytest.mark.parametrize("variant", READING, ids=lambda variant: variant.name)
def test_a_host_skips_what_it_cannot_and_nothing_is_different_afterwards(variant: Variant) -> None:
    with device_of(variant) as (device, host):
        before, changes = everything(host), list[str]()
        host.on_change = changes.append

        ends = read_through(device, test_reading)

        assert ends.failed == {}
        assert set(ends.skipped) == variant.skips
        assert all(len(reason) > 20 for reason in ends.skipped.values())
        assert (everything(host), changes, device.library.sample_count) == (before, [], 0)


@pytest.mark.parametrize(
    ("call", "code", "skips"), REFUSALS, ids=[f"{call} {code}" for call, code, _ in REFUSALS]
)
def test_a_refusal_that_nvml_names_is_no_failure(call: str, code: int, skips: frozenset[str]) -> None:
    variant = Variant(call, prepare=refuses(call, code))
    with device_of(variant) as (device, host):
        before = everything(host)

        ends = read_through(device, test_reading)

        assert ends.failed == {}
        assert set(ends.skipped) == IDLE | skips
        assert everything(host) == before


@pytest.mark.parametrize("variant", WRITING, ids=lambda variant: variant.name)
def test_whatever_is_written_is_put_back(variant: Variant) -> None:
    ends = write_through(variant, test_writing)

    assert ends.failed == {}
    assert set(ends.skipped) == variant.skips
    assert all(len(reason) > 20 for reason in ends.skipped.values())


# Devices that tell something wrong


def wrong(name: str, change: Callable[..., Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """Let a call of the library answer ``change(its answer, *its arguments)``."""
    real = getattr(SimulatedNvml, name)

    def lie(self: Any, *args: Any) -> Any:
        return change(real(self, *args), self, *args)

    return lambda patch: patch.setattr(SimulatedNvml, name, lie)


def all_used(memory: Any, *_: Any) -> Any:
    memory.used = 2 * memory.total
    return memory


def too_busy(rates: Any, *_: Any) -> Any:
    rates.gpu = 255
    return rates


def too_active(query: Any, *_: Any) -> Any:
    query.metrics[1].value = 100.5
    return query


def too_big(info: Any, *_: Any) -> Any:
    info.memorySizeMB = 10**6
    return info


def twice_the_same(answer: Any, _: Any, handle: Any, profile: int, rows: Any, count: Any) -> Any:
    if rows is not None and len(rows) > 1:
        rows[1].start = rows[0].start
    return answer


def switched(watts: Any, session: SimulatedNvml, *_: Any) -> Any:
    session.host.devices[0].compute_mode = 3
    return watts


LIES: list[tuple[str, Callable[..., Any], str]] = [
    ("nvmlDeviceGetComputeRunningProcesses", lambda listed, *_: [], PROGRAM),
    ("nvmlDeviceGetMemoryInfo", all_used, *NO_MEMORY),
    ("nvmlDeviceGetUtilizationRates", too_busy, "test_utilisation_is_a_percentage_where_it_is_told"),
    ("nvmlGpmMetricsGet", too_active, *NO_GPM),
    (
        "nvmlDeviceGetGpuInstanceProfileInfo",
        too_big,
        "test_mig_sizes_are_told_with_mig_off_and_lie_on_the_device",
    ),
    ("nvmlDeviceGetGpuInstancePossiblePlacements", twice_the_same, *NO_PLACES),
    ("nvmlDeviceGetPowerUsage", switched, "test_reading_changes_nothing"),
]
WRONG_REFUSALS: list[tuple[str, int, str]] = [
    ("nvmlDeviceGetComputeRunningProcesses", errors.UNKNOWN, PROGRAM),
    ("nvmlDeviceGetMemoryInfo", errors.UNKNOWN, *NO_MEMORY),
    ("nvmlDeviceGetSupportedEventTypes", errors.UNKNOWN, EVENTS),
    ("nvmlDeviceRegisterEvents", errors.INVALID_ARGUMENT, EVENTS),
    ("nvmlEventSetWait_v2", errors.UNKNOWN, EVENTS),
    ("nvmlGpmMetricsGet", errors.INVALID_ARGUMENT, *NO_GPM),
    ("nvmlDeviceGetMemoryLimits_v1", errors.TIMEOUT, *NO_LIMITS),
]


@pytest.mark.parametrize(("call", "change", "test"), LIES, ids=[f"{call}, {test}" for call, _, test in LIES])
def test_a_device_that_tells_something_wrong_is_found(
    call: str, change: Callable[..., Any], test: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong(call, change)(monkeypatch)

    with device_of(Variant(call)) as (device, _):
        assert test in read_through(device, test_reading).failed


@pytest.mark.parametrize(
    ("call", "code", "test"), WRONG_REFUSALS, ids=[f"{call} {code}" for call, code, _ in WRONG_REFUSALS]
)
def test_a_refusal_that_means_something_else_is_found(call: str, code: int, test: str) -> None:
    with device_of(Variant(call, later=refuses(call, code))) as (device, _):
        assert test in read_through(device, test_reading).failed


def test_a_driver_that_tells_no_sizes_of_a_board_with_mig_is_found() -> None:
    with device_of(Variant("no sizes", prepare=tells_no_sizes)) as (device, _):
        ends = read_through(device, test_reading)

    assert [*ends.failed] == ["test_mig_sizes_are_told_with_mig_off_and_lie_on_the_device"]


def test_a_library_that_finds_whatever_is_asked_for_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        SimulatedNvml, "nvmlDeviceGetHandleByUUID", lambda self, uuid: self.nvmlDeviceGetHandleByIndex(0)
    )

    with device_of(Variant("any")) as (device, _):
        assert "test_a_device_that_is_not_here_is_not_found" in read_through(device, test_reading).failed


def test_a_limit_that_does_not_hold_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedHolder, "take", lambda self, mib: 0)

    assert [*write_through(Variant("loose"), test_writing).failed] == [BEYOND]


def test_a_limit_that_stays_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = SimulatedNvml.nvmlDeviceSetMemoryLimits_v1

    def only_tighter(self: Any, handle: Any, limits: Any) -> None:
        if limits.softLimit:
            real(self, handle, limits)

    monkeypatch.setattr(SimulatedNvml, "nvmlDeviceSetMemoryLimits_v1", only_tighter)

    assert set(write_through(Variant("sticky"), test_writing).failed) >= LIMITED


def test_a_root_cgroup_that_goes_on_passing_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "pass_on_as", lambda self, before: None)

    ends = write_through(Variant("dmem", prepare=lambda h: setattr(h, "has_dmem", True)), test_writing)

    assert set(ends.failed) == NO_SUCH_LIMITS
    assert all("dmem" in why for why in ends.failed.values())


def test_a_driver_that_tells_no_limit_by_refusing_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    # As drivers do that keep limits by themselves, where neither a cgroup nor what is above it has any.
    real = SimulatedNvml.nvmlDeviceGetMemoryLimits_v1

    def silent(self: Any, handle: Any, limits: Any) -> None:
        is_root = limits.nameSpace in (ROOT, ROOT.encode())
        if not is_root:
            real(self, handle, limits)
        if is_root or limits.hardLimit == NO_LIMIT:
            raise pynvml.NVMLError(errors.NOT_SUPPORTED)

    monkeypatch.setattr(SimulatedNvml, "nvmlDeviceGetMemoryLimits_v1", silent)

    with device_of(Variant("misc")) as (device, _):
        assert read_through(device, test_reading).failed == {}
    ends = write_through(Variant("misc"), test_writing)
    # Either the agent offers limits there, or the suite says that it should.
    assert set(ends.failed) <= {OFFERED}
    assert OFFERED not in ends.skipped


def test_limits_that_are_not_offered_though_the_driver_keeps_them_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MemoryLimits, "why_not", lambda *_, **__: "not on this host, it is said")

    ends = write_through(Variant("shy"), test_writing)

    assert [*ends.failed] == [OFFERED]
    assert "not on this host" in ends.failed[OFFERED]
