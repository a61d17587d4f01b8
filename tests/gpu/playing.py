"""Playing the suites for real devices on simulated hosts, test by test: how each ends, and what is different then."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nodeagent.simulation.machine.host import SimulatedHost
from tests.gpu.conftest import leave_as_it_was
from tests.gpu.devices import Device, simulated
from tests.gpu.guard import NotAllowedError, require_writable

Prepare = Callable[[SimulatedHost], object]


@dataclass(frozen=True)
class Variant:
    """A host to play a suite on: a board, what is special about it, and which tests it must skip.

    ``prepare`` happens before the agent starts, ``later`` after it.
    """

    name: str
    board: str = "h100-80gb"
    skips: frozenset[str] = frozenset()
    options: dict[str, Any] = field(default_factory=dict)
    prepare: Prepare = lambda host: None
    later: Prepare = lambda host: None


@dataclass
class Ends:
    """How tests ended: those skipped and those failed, by name, with the reason."""

    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def cases_of(suite: ModuleType, fixture: str) -> dict[str, Callable[[Device], None]]:
    """Return the tests of a suite that take a device by this fixture."""
    found = inspect.getmembers(suite, inspect.isfunction)
    return {
        name: test
        for name, test in found
        if name.startswith("test_") and [*inspect.signature(test).parameters] == [fixture]
    }


@contextmanager
def device_of(variant: Variant) -> Iterator[tuple[Device, SimulatedHost]]:
    """Open the device of a variant, as the agent finds it."""
    with tempfile.TemporaryDirectory(prefix="berth-") as folder:
        device = simulated(Path(folder), variant.board, **variant.options)
        assert device.host is not None
        variant.prepare(device.host)
        device.driver.close()
        device.driver = device.agent()
        variant.later(device.host)
        try:
            yield device, device.host
        finally:
            device.driver.close()


def read_through(device: Device, suite: ModuleType) -> Ends:
    """Run all tests of a suite that only read, one after the other on the same device."""
    ends = Ends()
    for name, test in cases_of(suite, "device").items():
        _end(ends, name, lambda test=test: test(device))  # type: ignore[misc]
    return ends


def write_through(variant: Variant, suite: ModuleType) -> Ends:
    """Run all tests of a suite that change a device, each on a host of its own, which must be as before afterwards."""
    ends = Ends()
    for name, test in cases_of(suite, "writable").items():
        with device_of(variant) as (device, host):
            before = everything(host)
            _end(ends, name, lambda test=test, device=device: _write(test, device))  # type: ignore[misc]
            if name not in ends.failed and everything(host) != before:
                ends.failed[name] = f"left {everything(host)}, found {before}"
    return ends


def everything(host: SimulatedHost) -> dict[str, Any]:
    """Return all of a simulated host that anybody could notice later: settings, instances, processes, listeners."""
    return {
        "devices": [
            (
                device.gpu.mig_enabled,
                device.gpu.pending_mig,
                [(i.id, i.profile.name, i.start, sorted(i.compute)) for i in device.gpu.instances.values()],
                device.compute_mode,
                device.is_persistent,
                device.power_limit_mw,
                dict(device.limits),
                device.generation,
            )
            for device in host.devices
        ],
        "processes": sorted((p.pid, p.cgroup, p.gpu, p.memory_mib) for p in host.world.processes.values()),
        "cgroups": sorted(host.cgroups),
        "passing dmem": sorted(host.passing_dmem),
        "listeners": len(host.listeners),
    }


def _write(test: Callable[[Device], None], device: Device) -> None:
    try:
        require_writable(device, allowed=True)
    except NotAllowedError as no:
        pytest.skip(str(no))
    with leave_as_it_was(device):
        test(device)


def _end(ends: Ends, name: str, run: Callable[[], None]) -> None:
    try:
        run()
    except pytest.skip.Exception as why:
        ends.skipped[name] = str(why)
    except (pytest.fail.Exception, Exception) as why:
        ends.failed[name] = f"{type(why).__name__}: {why}"
