"""Calls of the simulated library by name, for whoever slows them down, lets them refuse or takes them away."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from nodeagent.simulation.nvml import SimulatedNvml

# What the verbs of a driver come down to in NVML; any other call has its own name.
VERBS: Final[Mapping[str, str]] = MappingProxyType({
    "observe": "nvmlDeviceGetMigMode",
    "create": "nvmlDeviceCreateGpuInstanceWithPlacement",
    "destroy": "nvmlGpuInstanceDestroy",
    "mig": "nvmlDeviceSetMigMode",
    "sleep": "nvmlDeviceSetPowerManagementLimit",
    "wake": "nvmlDeviceSetPowerManagementLimit",
})  # fmt: skip


def call_named(name: str) -> str:
    """Return the call for a verb or for one of its NVML names; raises ValueError for what is not played here."""
    found = getattr(SimulatedNvml, VERBS.get(name, name), None) if _is_name(name) else None
    if not callable(found):
        raise ValueError(
            f"{name!r} is no call of the simulated library: name a function of NVML that it plays, such as"
            f" nvmlDeviceGetMigMode, or one of {', '.join(VERBS)}"
        )
    return str(found.__name__)  # later versions of a call (_v2) are the same one


def _is_name(name: str) -> bool:
    return name in VERBS or name.startswith("nvml")
