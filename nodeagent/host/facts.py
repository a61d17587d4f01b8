"""What a node is beside its devices: CPU and memory that leases may take, and where it stands."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MEMINFO: Final = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class HostFacts:
    """CPU in thousandths of a core and memory in MiB; None is unknown and limits nothing. "" is unknown."""

    cpu_milli: int | None = None
    memory_mib: int | None = None
    site: str = ""
    rack: str = ""


def cpu_milli() -> int | None:
    """Return the CPU that this process may run on, in thousandths of a core."""
    try:
        return len(os.sched_getaffinity(0)) * 1000
    except (AttributeError, OSError):
        cores = os.cpu_count()
        return None if cores is None else cores * 1000


def memory_mib(meminfo: Path = MEMINFO) -> int | None:
    """Return the host's memory in MiB as the kernel counts it (``MemTotal``), None where it does not say."""
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    for line in lines:
        name, _, rest = line.partition(":")
        words = rest.split()
        if name == "MemTotal" and len(words) == 2 and words[0].isdigit() and words[1] == "kB":
            return int(words[0]) // 1024
    return None
