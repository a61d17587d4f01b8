"""10,000 rounds of the soak, split over processes: what must be 0 and what it took."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

ROUNDS = 10_000
SUMMED = (
    "rounds",
    "changes",
    "crashes",
    "visits",
    "overlaps",
    "disturbed",
    "leaks",
    "different",
    "overcharged",
)


def measure() -> dict[str, Any]:
    """Play all rounds and add up what each process counted."""
    processes = max(2, min(8, os.cpu_count() or 2))
    began = time.monotonic()
    running = [_start(seed, ROUNDS // processes) for seed in range(1, processes + 1)]
    parts = [json.loads(process.communicate()[0]) for process in running]
    found: dict[str, Any] = {name: sum(part[name] for part in parts) for name in SUMMED}
    found["most steps to converge"] = max(part["worst_steps"] for part in parts)
    found["seeds"] = f"1 to {processes}"
    found["took_s"] = round(time.monotonic() - began)
    notes = [note for part in parts for note in part["notes"]]
    return found | {f"note {number}": note for number, note in enumerate(notes, 1)}


def _start(seed: int, rounds: int) -> subprocess.Popen[str]:
    words = [
        sys.executable,
        "-m",
        "nodeagent",
        "soak",
        "--seed",
        str(seed),
        "--rounds",
        str(rounds),
        "--json",
    ]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
