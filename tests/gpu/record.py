"""What a card says of itself, as a JSON document: to compare the tables of this repository with."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from nodeagent.drivers.nvml.library.values import text
from nodeagent.drivers.nvml.shares.memory import CONTROLLERS
from tests.gpu.cards import Card

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


def facts_of(card: Card) -> dict[str, Any]:
    """Return model, MIG sizes with ids and places, and features of a card; refusals by NVML's code.

    Neither UUID, serial number, host name nor any process is in it.
    """
    fact, handle = card.fact, card.handle
    pci = card.answer("nvmlDeviceGetPciInfo", handle)
    return {
        "driver": card.driver.version,
        "nvml": _plain(card.answer("nvmlSystemGetNVMLVersion")),
        "kernel": "" if card.host else os.uname().release,
        "is_root": card.is_root,
        "name": _plain(card.answer("nvmlDeviceGetName", handle)),
        "pci_device_id": hex(pci.pciDeviceId >> 16) if hasattr(pci, "pciDeviceId") else pci,
        "compute_capability": _plain(card.answer("nvmlDeviceGetCudaComputeCapability", handle)),
        "memory_mib": fact.memory_mib,
        "memory_bytes": _memory(card),
        "sm_count": fact.sm_count,
        "grid": fact.grid,
        "mig_modes": list(card.mig_modes),
        "compute_mode": card.answer("nvmlDeviceGetComputeMode", handle),
        "persistence": card.answer("nvmlDeviceGetPersistenceMode", handle),
        "power_limits_mw": _plain(card.answer("nvmlDeviceGetPowerManagementLimitConstraints", handle)),
        "power_limit_mw": card.answer("nvmlDeviceGetPowerManagementLimit", handle),
        "event_types": card.answer("nvmlDeviceGetSupportedEventTypes", handle),
        "virtualization": card.answer("nvmlDeviceGetVirtualizationMode", handle),
        "numa_node": card.answer("nvmlDeviceGetNumaNodeId", handle),
        "gpm": _gpm(card),
        "codes": _codes(card),
        "cgroup_controllers": _controllers(card),
        "modes": list(fact.modes),
        "refusals": dict(fact.refusals),
        "profiles": [_profile(card, enum, info) for enum, info in card.profiles()],
    }


def _codes(card: Card) -> dict[str, int]:
    """Return how calls end whose answer would tell of processes, or depends on rights."""
    nvml, handle = card.library, card.handle
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
    codes = {call: card.code(call, *args) for call, args in asked}
    codes["no such size"] = card.code("nvmlDeviceGetGpuInstanceProfileInfo", handle, NO_SIZE)
    return codes


def _gpm(card: Card) -> Any:
    said = card.answer("nvmlGpmQueryDeviceSupport", card.handle)
    return said if isinstance(said, dict) else bool(said.isSupportedDevice)


def _memory(card: Card) -> Any:
    said = card.answer("nvmlDeviceGetMemoryInfo", card.handle, card.library.nvmlMemory_v2)
    return said if isinstance(said, dict) else {"total": said.total, "reserved": said.reserved}


def _controllers(card: Card) -> list[str] | None:
    try:
        return card.read(CONTROLLERS).split()
    except OSError:
        return None


def _profile(card: Card, enum: int, info: Any) -> dict[str, Any]:
    known = {name: int(getattr(info, name)) for name in INFO}
    return {"enum": enum, "name": text(info.name), **known, "placements": card.placements(int(info.id))}


def _plain(value: Any) -> Any:
    """Return an answer as JSON has it."""
    if isinstance(value, bytes):
        return text(value)
    return list(value) if isinstance(value, tuple) else value


class Recorder:
    """Takes down what the real card said and how each test with it ended.

    The file is written after each test: what was found before a host hangs is kept. No card is named in it.
    """

    def __init__(self, path: Path) -> None:
        """Make the file; raises OSError where it cannot be written."""
        self._path, self._uuid = path, ""
        self._facts: dict[str, Any] | None = None
        self._notes: dict[str, Any] = {}
        self._tests: dict[str, dict[str, str]] = {}
        self._write()

    def take(self, card: Card) -> None:
        """Take down the facts of a card, once."""
        if self._facts is None:
            self._uuid, self._facts = card.uuid, facts_of(card)

    def note(self, card: Card) -> None:
        """Take down what tests found out with a card."""
        self._notes.update(card.notes)

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
    """Say whether a test was one with the card of this host."""
    return nodeid.startswith("tests/gpu/") and nodeid.endswith("[real]")


def test_of(report: pytest.TestReport) -> str:
    """Return the name of a test without its card."""
    return report.nodeid.rpartition("::")[2].partition("[")[0]


def reason_of(report: pytest.TestReport) -> str:
    """Return why a test was skipped or failed, "" where it passed."""
    if report.skipped and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return "" if report.passed else str(getattr(crash, "message", report.longrepr))
