"""Where a figure was measured: without this it means nothing."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
PACKAGES = ("django", "celery", "psycopg", "uvicorn", "redis", "channels", "websockets")


def describe() -> dict[str, Any]:
    return {
        "commit": _commit(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "packages": {name: version(name) for name in PACKAGES},
    }


def load() -> list[float]:
    """Return the load averages of 1, 5 and 15 minutes: others may use the machine as well."""
    return [round(value, 1) for value in os.getloadavg()]


def cpu_ms(pids: Iterable[int]) -> dict[str, float]:
    """Return the CPU milliseconds these processes have used, by program: other work on the machine is out."""
    found: dict[str, float] = {}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            name = program(pid)
        except OSError:
            continue
        found[name] = found.get(name, 0.0) + (int(fields[11]) + int(fields[12])) * TICK_MS
    return found


def cpu_per_request(before: dict[str, float], after: dict[str, float], count: int) -> dict[str, float]:
    """Return the CPU milliseconds of each program and of all per request."""
    spent = {name: round((after[name] - before.get(name, 0.0)) / count, 2) for name in sorted(after)}
    return {**spent, "all": round(sum(spent.values()), 2)}


def program(pid: int) -> str:
    """Return which part of the stack a process is; raises OSError when it is gone."""
    command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    for word, name in (("nodeagent", "agents"), ("postgres", "postgres"), ("valkey", "valkey")):
        if word in command.split("portal.embedded")[0]:
            return name
    # Forks of the supervisor are named after their program.
    return Path(f"/proc/{pid}/comm").read_text().strip()


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def _processor() -> str:
    with open("/proc/cpuinfo") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()
