"""What a device says of itself, as a JSON document: to compare the tables of this repository with."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from nodeagent.drivers.nvml.library.values import text
from nodeagent.drivers.nvml.shares.memory import CONTROLLERS
from tests.gpu.devices import Device

FORMAT = 1
MIB = 1024 * 1024
INFO = (
    "id",
    "isP2pSupported",
    "sliceCount",
    "instanceCount",
    "multiprocessorCount",
    "copyEngineCount",
    "decoderCount",
    "encoderCount",
    "jpegCount",
    "ofaCount",
    "memorySizeMB",
)
# A constant that no driver has: how its list of sizes ends.
NO_SIZE = 9999


def facts_of(device: Device) -> dict[str, Any]:
    """Return model, MIG sizes with ids and places, and features of a device; refusals by NVML's code.

    Neither UUID, serial number, host name nor any process is in it.
    """
    fact, handle = device.fact, device.handle
    pci = device.answer("nvmlDeviceGetPciInfo", handle)
    return {
        "driver": device.driver.version,
        "nvml": _plain(device.answer("nvmlSystemGetNVMLVersion")),
        "kernel": "" if device.host else os.uname().release,
        "is_root": device.is_root,
        "name": _plain(device.answer("nvmlDeviceGetName", handle)),
        "pci_device_id": hex(pci.pciDeviceId >> 16) if hasattr(pci, "pciDeviceId") else pci,
        "compute_capability": _plain(device.answer("nvmlDeviceGetCudaComputeCapability", handle)),
        "memory_mib": fact.memory_mib,
        "memory_bytes": _memory(device),
        "sm_count": fact.sm_count,
        "grid": fact.grid,
        "mig_modes": list(device.mig_modes),
        "compute_mode": device.answer("nvmlDeviceGetComputeMode", handle),
        "persistence": device.answer("nvmlDeviceGetPersistenceMode", handle),
        "power_limits_mw": _plain(device.answer("nvmlDeviceGetPowerManagementLimitConstraints", handle)),
        "power_limit_mw": device.answer("nvmlDeviceGetPowerManagementLimit", handle),
        "event_types": device.answer("nvmlDeviceGetSupportedEventTypes", handle),
        "virtualization": device.answer("nvmlDeviceGetVirtualizationMode", handle),
        "numa_node": device.answer("nvmlDeviceGetNumaNodeId", handle),
        "gpm": _gpm(device),
        "codes": _codes(device),
        "cgroup_controllers": _controllers(device),
        "modes": list(fact.modes),
        "refusals": dict(fact.refusals),
        "profiles": [_profile(device, enum, info) for enum, info in device.profiles()],
    }


def _codes(device: Device) -> dict[str, int]:
    """Return how calls end whose answer would tell of processes, or depends on rights."""
    nvml, handle = device.library, device.handle
    limits = nvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=b"/sys/fs/cgroup")
    asked: tuple[tuple[str, tuple[Any, ...]], ...] = (
        ("nvmlDeviceGetUtilizationRates", (handle,)),
        ("nvmlDeviceGetProcessUtilization", (handle, 0)),
        ("nvmlDeviceGetComputeRunningProcesses", (handle,)),
        ("nvmlDeviceGetGraphicsRunningProcesses", (handle,)),
        ("nvmlDeviceGetMPSComputeRunningProcesses", (handle,)),
        ("nvmlDeviceGetMaxMigDeviceCount", (handle,)),
        ("nvmlDeviceGetTotalEnergyConsumption", (handle,)),
        ("nvmlDeviceGetRemappedRows", (handle,)),
        ("nvmlDeviceGetMemoryLimits_v1", (handle, limits)),
    )
    codes = {call: device.code(call, *args) for call, args in asked}
    codes["no such size"] = device.code("nvmlDeviceGetGpuInstanceProfileInfo", handle, NO_SIZE)
    return codes


def _gpm(device: Device) -> Any:
    said = device.answer("nvmlGpmQueryDeviceSupport", device.handle)
    return said if isinstance(said, dict) else bool(said.isSupportedDevice)


def _memory(device: Device) -> Any:
    said = device.answer("nvmlDeviceGetMemoryInfo", device.handle, device.library.nvmlMemory_v2)
    return said if isinstance(said, dict) else {"total": said.total, "reserved": said.reserved}


def _controllers(device: Device) -> list[str] | None:
    try:
        return device.read(CONTROLLERS).split()
    except OSError:
        return None


def _profile(device: Device, enum: int, info: Any) -> dict[str, Any]:
    known = {name: int(getattr(info, name)) for name in INFO}
    return {"enum": enum, "name": text(info.name), **known, "placements": device.placements(int(info.id))}


def _plain(value: Any) -> Any:
    """Return an answer as JSON has it."""
    if isinstance(value, bytes):
        return text(value)
    return list(value) if isinstance(value, tuple) else value


class Recorder:
    """Takes down what the real device said and how each test with it ended.

    The file is written after each test: what was found before a host hangs is kept. No device is named in it.
    """

    def __init__(self, path: Path) -> None:
        """Make the file; raises OSError where it cannot be written."""
        self._path, self._uuid = path, ""
        self._facts: dict[str, Any] | None = None
        self._notes: dict[str, Any] = {}
        self._tests: dict[str, dict[str, str]] = {}
        self._write()

    def take(self, device: Device) -> None:
        """Take down the facts of a device, once."""
        if self._facts is None:
            self._uuid, self._facts = device.uuid, facts_of(device)

    def note(self, device: Device) -> None:
        """Take down what tests found out with a device."""
        self._notes.update(device.notes)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take down how a test ended: whatever was not passed says why."""
        if not is_real(report.nodeid):
            return
        name = test_of(report)
        is_news = not report.passed or report.when == "call"
        if is_news and self._tests.get(name, {}).get("outcome") != "failed":
            self._tests[name] = {"outcome": report.outcome, "why": reason_of(report)}
        self._write()

    def _write(self) -> None:
        document = {"format": FORMAT, "card": self._facts, "tests": self._tests, "found": self._notes}
        said = json.dumps(document, indent=1)
        self._path.write_text(
            (said.replace(self._uuid, "GPU") if self._uuid else said) + "\n", encoding="utf-8"
        )


def is_real(nodeid: str) -> bool:
    """Say whether a test was one with the device of this host."""
    return nodeid.startswith("tests/gpu/") and nodeid.endswith("[real]")


def test_of(report: pytest.TestReport) -> str:
    """Return the name of a test without its device."""
    return report.nodeid.rpartition("::")[2].partition("[")[0]


def reason_of(report: pytest.TestReport) -> str:
    """Return why a test was skipped or failed, "" where it passed."""
    if report.skipped and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return "" if report.passed else str(getattr(crash, "message", report.longrepr))
