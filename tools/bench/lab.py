"""A run of the lab of a month: 30,000 requests of twelve teams on 512 GPUs, under the rules of a new installation.

Requests are made by seed: most ask for one GPU, some for up to four nodes; lengths are lognormal and fill the share
of the fleet that is asked for. It is played twice, in processes beside each other, and compared byte by byte.
"""

from __future__ import annotations

import hashlib
import json
import random
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from scheduler.engine.model import PolicyRules
from scheduler.replay.history import History, history_of_trace
from scheduler.replay.jobs import Jobs
from scheduler.replay.lab import play
from scheduler.replay.turns import Cluster

REQUESTS, DAYS, NODES, GPUS, TEAMS = 30_000, 30, 64, 8, 12
LOAD = 0.7
SIZES, PARTS = (1, 2, 4, 8, 16, 32), (60, 10, 10, 15, 4, 1)


def measure() -> dict[str, Any]:
    """Seconds by the clock and of processor, peak memory, and by how many bytes two runs differ."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        one, other = pool.map(_run, range(2))
    return {
        "requests": REQUESTS,
        "gpus": NODES * GPUS,
        "wall_s": one["wall_s"],
        "cpu_s": one["cpu_s"],
        "peak_rss_mb": one["peak_rss_mb"],
        "mean_wait_s": one["mean_wait_s"],
        "allocated": one["allocated"],
        "same_bytes": one["digest"] == other["digest"],
    }


def _run(_number: int) -> dict[str, Any]:
    history = month()
    began, cpu = time.perf_counter(), time.process_time()
    found = play(history, PolicyRules())
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    return {
        "wall_s": round(wall_s, 1),
        "cpu_s": round(cpu_s, 1),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "mean_wait_s": found["waits"]["mean_s"],
        "allocated": found["utilisation"],
        "digest": hashlib.sha256(json.dumps(found).encode()).hexdigest(),
    }


def month() -> History:
    """The month that is played."""
    draw = random.Random(1)
    rows = sorted(
        (
            draw.randrange(DAYS * 86_400), draw.choices(SIZES, PARTS)[0], draw.lognormvariate(7.5, 1.8),
            draw.randrange(TEAMS),
        )
        for _ in range(REQUESTS)
    )  # fmt: skip
    scale = LOAD * NODES * GPUS * DAYS * 86_400 / sum(gpus * length for _, gpus, length, _ in rows)
    jobs = Jobs(
        [at for at, *_ in rows],
        [max(1, int(length * scale)) for _, _, length, _ in rows],
        [gpus for _, gpus, *_ in rows],
        [team for *_, team in rows],
        None,
        tuple(f"t{team}" for team in range(TEAMS)),
    )
    return history_of_trace(jobs, Cluster(NODES, GPUS))
