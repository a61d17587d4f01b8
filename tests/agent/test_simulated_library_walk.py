"""Random calls on the simulated NVML, with crashes, resets and foreign instances, never break a device's rules."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.simulation.faults import Faults, SimulatedCrash
from nodeagent.simulation.machine.host import SimulatedHost
from nodeagent.simulation.nvml import SimulatedNvml

MODELS = ("h100-80gb", "a30-24gb", "rtx-pro-6000-blackwell-96gb", "gb200-186gb")
REFUSALS = {
    errors.INVALID_ARGUMENT,
    errors.NOT_SUPPORTED,
    errors.NOT_FOUND,
    errors.IN_USE,
    errors.GPU_IS_LOST,
    errors.INSUFFICIENT_RESOURCES,
}
DEEDS = (
    "create",
    "create",
    "create",
    "compute",
    "compute",
    "uncompute",
    "destroy",
    "destroy",
    "process",
    "end",
)
RARE = ("foreign", "half", "reset", "reboot", "lose", "mode", "restart")

steps = st.lists(
    st.tuples(st.sampled_from(DEEDS * 6 + RARE), st.integers(0, 40), st.integers(0, 12), st.booleans()),
    min_size=15,
    max_size=60,
)


def recent(handles: list[Any], which: int) -> Any:
    """Return one of the last handles: older ones are mostly stale."""
    return handles[-1 - which % min(len(handles), 6)]


class Walker:
    """An agent without sense: it keeps every handle it ever got and uses them in any order."""

    def __init__(self, model: str) -> None:
        self.host = SimulatedHost([model], clock=lambda: 0)
        self.host.switch_mig(0)
        self.device = self.host.devices[0]
        self.gis: list[Any] = []
        self.cis: list[Any] = []
        self.start()

    def start(self) -> None:
        self.host.end_agent()
        self.nvml = SimulatedNvml(self.host)
        self.nvml.nvmlInit()
        self.gpu = self.nvml.nvmlDeviceGetHandleByIndex(0)

    def do(self, deed: str, which: int, start: int, flag: bool) -> None:
        profiles = self.device.board.profiles
        profile = profiles[which % len(profiles)]
        match deed:
            case "create":
                legal = start if flag else profile.starts[start % len(profile.starts)]
                place = self.nvml.c_nvmlGpuInstancePlacement_t(legal, profile.memory_slices)
                create = self.nvml.nvmlDeviceCreateGpuInstanceWithPlacement
                self.gis.append(create(self.gpu, profile.profile_id, ctypes.byref(place)))
            case "compute" if self.gis:
                gi = recent(self.gis, which)
                self.cis.append(self.nvml.nvmlGpuInstanceCreateComputeInstance(gi, start % 5 if flag else 0))
            case "uncompute" if self.cis:
                self.nvml.nvmlComputeInstanceDestroy(recent(self.cis, which))
            case "destroy" if self.gis:
                self.nvml.nvmlGpuInstanceDestroy(recent(self.gis, which))
            case "process":
                self.host.world.spawn("/x", gpu=self.device.uuid, gi=which % 15)
            case "end":
                self.host.world.reboot()
            case "foreign" | "half":
                self.host.add_foreign(0, profile.name, start, is_half=deed == "half")
            case "reset":
                self.host.reset(0)
            case "lose":
                self.host.lose(0)
            case "mode":
                self.nvml.nvmlDeviceSetMigMode(self.gpu, int(flag))
            case "reboot":
                self.host.reboot()
                self.host.switch_mig(0)
                self.start()
            case "restart":
                self.start()

    def attempt(self, step: tuple[str, int, int, bool]) -> int:
        """Do a step and return the code it was refused with, 0 for none."""
        try:
            self.do(*step)
        except pynvml.NVMLError as no:
            return int(no.value)
        except NvmlLikeError as no:
            return no.code
        return 0

    def state(self) -> list[tuple[int, int, int]]:
        return [(i.start, i.id, len(i.compute)) for i in self.device.gpu.instances.values()]

    def check(self) -> None:
        instances = list(self.device.gpu.instances.values())
        slots = [slot for instance in instances for slot in instance.span]
        assert len(slots) == len(set(slots))
        assert all(0 <= slot < self.device.board.memory_slices for slot in slots)
        for profile in self.device.board.profiles:
            assert sum(i.profile is profile for i in instances) <= profile.max_instances
        computes = [c for i in instances for c in i.compute.values()]
        assert len({c.mig_index for c in computes}) == len(computes)
        for instance in instances:
            assert 0 <= instance.id < 15
            taken = [s for c in instance.compute.values() for s in range(c.start, c.start + c.slices)]
            assert len(taken) == len(set(taken))
            assert all(slot < instance.profile.compute_slices for slot in taken)


@settings(max_examples=100, deadline=None)
@given(model=st.sampled_from(MODELS), walk=steps)
def test_random_calls_never_leave_overlap_nor_exceed_a_maximum(model, walk):
    walker = Walker(model)

    for step in walk:
        assert walker.attempt(step) in REFUSALS | {0}
        walker.check()


@settings(max_examples=50, deadline=None)
@given(walk=steps, which=st.integers(0, 30), is_before=st.booleans())
def test_crash_before_a_change_leaves_all_as_it_was_and_after_it_all_is_done(walk, which, is_before):
    walker, seen = Walker("h100-80gb"), []

    def crash(name: str) -> None:
        seen.append(name)
        if len(seen) > which and name.endswith(".before" if is_before else ".after"):
            raise SimulatedCrash(name)

    walker.host.on_change = crash
    for step in walk:
        stood = walker.state()
        try:
            walker.attempt(step)
        except SimulatedCrash:
            is_same = walker.state() == stood
            assert is_same or not is_before
            assert is_before or not is_same or step[0] == "mode"
            break


@pytest.mark.parametrize("name", ["nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceDestroy"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_named_crash_point_kills_the_agent_and_spares_the_host(name, when):
    faults = Faults(crash_at={f"{name}.{when}"})
    walker = Walker("h100-80gb")
    walker.host.on_change = faults.point

    died = []
    for deed, start in (("create", 2), ("destroy", 0)):
        try:
            walker.do(deed, 0, start, False)
        except SimulatedCrash as crash:
            died.append(str(crash))
    assert died == [f"{name}.{when}"]
    faults.crash_at.clear()
    walker.start()

    is_there = (name, when) in {
        ("nvmlDeviceCreateGpuInstanceWithPlacement", "after"),
        ("nvmlGpuInstanceDestroy", "before"),
    }
    assert [i.start for i in walker.device.gpu.instances.values()] == ([2] if is_there else [])
    walker.do("create", 0, 5, False)
