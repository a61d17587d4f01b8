"""Live data: CPU of a frame, a minute of 10,000 slices, reconnects, and the map of 10,000 GPUs in Chromium."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from tools.bench import cluster_map, lost_minutes, minutes
from tools.bench.stack import NOT_INHERITED, ROOT


def measure() -> dict[str, Any]:
    return {
        "20 browsers, 800 GPUs": _frames(),
        "200 browsers, 2,000 GPUs (frame p99 must 1,000 ms, aim 300)": _frames(
            "--nodes=250", "--browsers=200"
        ),
        **minutes.measure(),
        **lost_minutes.measure(),
        **cluster_map.measure(),
    }


def _frames(*options: str) -> dict[str, Any]:
    env = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    command = [sys.executable, "-m", "tools.bench_live", "--json", *options]
    made = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(made.stdout.strip().splitlines()[-1])
    return found
