"""From `make up` to the first page, the first time and the second, and the memory 10 s after that page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tools.bench import machine, stack

SETTLED_AFTER_S = 10


def measure() -> dict[str, Any]:
    with stack.running(is_demo=True) as here:
        first = here.up_after_s
        here.stop()
        here.start()
        second = here.up_after_s
        time.sleep(SETTLED_AFTER_S)
        pss = memory_mb(here)
    return {
        "first_start_s": round(first, 2),
        "second_start_s": round(second, 2),
        "pss_mb": round(sum(pss.values()), 1),
        "pss_mb_by_program": {name: round(value, 1) for name, value in sorted(pss.items())},
    }


def memory_mb(here: stack.BenchStack) -> dict[str, float]:
    """Return the proportional set size of every process of the stack, summed by program, in MB."""
    found: dict[str, float] = {}
    for pid in here.pids():
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            name = machine.program(pid)
        except OSError:
            continue
        pss = next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        found[name] = found.get(name, 0) + pss * 1024 / 1e6
    return found
