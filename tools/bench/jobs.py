"""Batch jobs: many of a second on 16 slots from hand-in to stored log, and how soon a line can be read."""

from __future__ import annotations

import collections
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

from tools.bench import stack

JOBS = int(os.environ.get("BERTH_BENCH_JOBS", "1000"))
LINES = 100
SUBMIT = 1000  # as long as an array may be
OPEN = ("waiting", "starting", "running")


def measure() -> dict[str, Any]:
    with stack.running(is_demo=False) as here:
        world = here.start_bench_fleet()
        headers = {"Authorization": f"Bearer {world['token']}"}
        with httpx.Client(base_url=f"{here.url}/api/v1/", headers=headers, timeout=60) as portal:
            return {
                "of_a_second": _many(portal, world, "echo hello; sleep 1", JOBS),
                "of_nothing": _many(portal, world, "echo hello", JOBS // 4),
                "line_to_reader_ms": _lines(portal, world),
            }


def _hand_in(portal: httpx.Client, world: dict[str, Any], command: str, count: int) -> list[str]:
    """Hand jobs in as arrays; returns their names."""
    made: list[str] = []
    while len(made) < count:
        some = min(SUBMIT, count - len(made))
        job = {"command": ["sh", "-c", command], "resources": world["flavor"], "time": 600}
        body = {"team": world["team"], "job": {**job, "array": f"1-{some}"}}
        answer = portal.post("jobs/", json=body)
        answer.raise_for_status()
        made += answer.json()["jobs"]
    return made


def _many(portal: httpx.Client, world: dict[str, Any], command: str, count: int) -> dict[str, Any]:
    """Return jobs per second from the first call to the last log stored."""
    began = time.monotonic()
    made = _hand_in(portal, world, command, count)
    handed_in = time.monotonic()
    while portal.get("jobs/", params={"state": OPEN, "page_size": 1}).json()["results"]:
        time.sleep(0.2)
    ended = time.monotonic()
    for uid in made:
        while not (page := portal.get(f"jobs/{uid}/log/").json())["is_done"]:
            time.sleep(0.05)
        assert page["text"] == "hello\n", page
    took = time.monotonic() - began
    states = collections.Counter(
        portal.get(f"jobs/{uid}/").json()["state"] for uid in made[:: len(made) // 20]
    )
    return {
        "jobs": count,
        "per_second": round(count / (ended - began), 1),
        "per_second_logs_read": round(count / took, 1),
        "handed_in_s": round(handed_in - began, 1),
        "sampled": dict(states),
    }


def _lines(portal: httpx.Client, world: dict[str, Any]) -> dict[str, float]:
    """Return percentiles of the time from a line's print until its reader has it, who asks as the page does.

    That is when the live socket says that there is more.
    """
    job = {
        "command": ["sh", "-c", f"for i in $(seq {LINES}); do date +%s.%N; sleep 0.1; done"],
        "resources": world["flavor"],
        "time": 600,
    }
    uid = portal.post("jobs/", json={"team": world["team"], "job": job}).json()["id"]
    address = str(portal.base_url).replace("http", "ws", 1).partition("/api/")[0] + "/ws/live/"
    headers = {"Authorization": portal.headers["Authorization"]}
    with connect(address, additional_headers=headers, proxy=None) as live:
        live.send(json.dumps({"op": "subscribe", "topics": [f"job:{uid}"]}))
        late = sorted(_read_lines(portal, live, uid))
    return {"p50": round(late[len(late) // 2], 1), "p99": round(late[len(late) * 99 // 100], 1)}


def _read_lines(portal: httpx.Client, live: ClientConnection, uid: str) -> Iterator[float]:
    """Yield how many milliseconds each line took."""
    offset, rest = 0, ""
    while True:
        with suppress(TimeoutError):  # as the page, which asks now and then without being told
            while json.loads(live.recv(timeout=2))["type"] not in ("snapshot", "frame"):
                pass
        page = portal.get(f"jobs/{uid}/log/", params={"offset": offset}).json()
        now, offset = time.time(), page["next"]
        *whole, rest = (rest + page["text"]).split("\n")
        yield from ((now - float(line)) * 1000 for line in whole)
        if page["is_done"]:
            return
