"""Names and units under which agents and portal show devices to Prometheus: those of NVIDIA's DCGM exporter.

Dashboards made for that exporter show them as they are. Labels are the exporter's, and three of ours: ``slice`` is
where the slice of a lease begins ("" for a whole device), ``lease`` and ``team`` are whose it is ("" for nobody's).
https://docs.nvidia.com/datacenter/dcgm/latest/dcgm-api/dcgm-api-field-ids.html
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

LABELS: Final = ("Hostname", "gpu", "UUID", "modelName", "slice", "lease", "team")
UTIL: Final = "DCGM_FI_DEV_GPU_UTIL"
FB_USED: Final = "DCGM_FI_DEV_FB_USED"
FB_FREE: Final = "DCGM_FI_DEV_FB_FREE"
POWER: Final = "DCGM_FI_DEV_POWER_USAGE"
POWER_LIMIT: Final = "DCGM_FI_DEV_POWER_MGMT_LIMIT"
TEMPERATURE: Final = "DCGM_FI_DEV_GPU_TEMP"
ENERGY: Final = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
XID: Final = "DCGM_FI_DEV_XID_ERRORS"
SM: Final = "DCGM_FI_PROF_SM_ACTIVE"
TENSOR: Final = "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"
BANDWIDTH: Final = "DCGM_FI_PROF_DRAM_ACTIVE"
# What each says; memory in MiB, power in watts, activity as a part of 1.
FIELDS: Final[Mapping[str, str]] = MappingProxyType({
    UTIL: "Utilisation in percent.",
    FB_USED: "Device memory in use, in MiB.",
    FB_FREE: "Device memory that is free, in MiB.",
    POWER: "Power draw in W; of a slice an estimate.",
    POWER_LIMIT: "Power limit in W.",
    TEMPERATURE: "Temperature in C.",
    ENERGY: "Energy used since the driver was loaded, in mJ.",
    XID: "The last XID that is still open, 0 for none.",
    SM: "Part of the multiprocessors at work, 0 to 1.",
    TENSOR: "Part of the tensor cores at work, 0 to 1.",
    BANDWIDTH: "Part of the memory bandwidth in use, 0 to 1.",
})  # fmt: skip


def figures(
    *,
    util: float | None = None,
    memory_used_mib: int | None = None,
    memory_mib: int | None = None,
    power_w: float | None = None,
    power_limit_w: float | None = None,
    temperature_c: float | None = None,
    energy_mj: int | None = None,
    sm: float | None = None,
    tensor: float | None = None,
    bandwidth: float | None = None,
) -> dict[str, float]:
    """Return what is known by DCGM's names; what is unknown (None) is left out. Percentages come as 0 to 100."""
    is_known = memory_used_mib is not None and memory_mib is not None
    free = max(0, (memory_mib or 0) - (memory_used_mib or 0)) if is_known else None
    known = {
        UTIL: util, FB_USED: memory_used_mib, FB_FREE: free, POWER: power_w, POWER_LIMIT: power_limit_w,
        TEMPERATURE: temperature_c, ENERGY: energy_mj, SM: _part(sm), TENSOR: _part(tensor),
        BANDWIDTH: _part(bandwidth),
    }  # fmt: skip
    return {name: float(value) for name, value in known.items() if value is not None}


def _part(percent: float | None) -> float | None:
    return None if percent is None else percent / 100
