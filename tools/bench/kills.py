"""Numbered lines of jobs while agents, gateway and web are killed: how many are lost or doubled in the store."""

from __future__ import annotations

import collections
import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any, TypeVar

import httpx

from tools.bench import fleet, stack

T = TypeVar("T")
KILLS = int(os.environ.get("BERTH_BENCH_KILLS", "50"))
JOBS = 8
SEED = 1
# A child of the supervisor that is killed again within ten seconds is started later each time.
REST_S = (2.5, 4.5)
BACK_WITHIN_S, DONE_WITHIN_S = 60.0, 120.0
# A hundred lines at a time, as fast as they go, so that pieces are cut within them; asked to end, it says how many.
SCRIPT = (
    "exec 2>/dev/null; n=0; trap 'echo end $n; exit 0' TERM; "
    'while :; do for i in {1..100}; do n=$((n+1)); echo "line $n"; done; sleep 0.3; done'
)


def measure() -> dict[str, Any]:
    with stack.running(is_demo=False) as here:
        world = here.start_bench_fleet()
        headers = {"Authorization": f"Bearer {world['token']}"}
        with httpx.Client(base_url=f"{here.url}/api/v1/", headers=headers, timeout=30) as portal:
            return _measure(here, world, portal)


def _measure(here: stack.BenchStack, world: dict[str, Any], portal: httpx.Client) -> dict[str, Any]:
    job = {
        "command": ["bash", "-c", SCRIPT],
        "resources": world["flavor"],
        "time": 3600,
        "array": f"1-{JOBS}",
    }
    made = _asked(portal, "POST", "jobs/", {"team": world["team"], "job": job})["jobs"]
    _until(lambda: all(_asked(portal, "GET", f"jobs/{uid}/")["state"] == "running" for uid in made) or None)
    killed = _kill(here, world)
    for uid in made:
        _asked(portal, "POST", f"jobs/{uid}/cancel/", {})
    lost = doubled = lines = 0
    for uid in made:
        said = _log(portal, uid).splitlines()
        count = int(said[-1].removeprefix("end "))
        seen = collections.Counter(said[:-1])
        lines += count
        lost += sum(f"line {n}" not in seen for n in range(1, count + 1))
        doubled += len(said) - 1 - len(seen)
        strange = seen.keys() - {f"line {n}" for n in range(1, count + 1)}
        assert not strange, f"the store has what was never printed: {sorted(strange)[:5]}"
    return {"kills": killed, "jobs": JOBS, "lines": lines, "lines_lost": lost, "lines_doubled": doubled}


def _kill(here: stack.BenchStack, world: dict[str, Any]) -> dict[str, int]:
    """Kill one after the other, each once it is back; returns how often which."""
    dice = random.Random(SEED)
    killed: collections.Counter[str] = collections.Counter()
    for turn in itertools.islice(itertools.cycle(("agent", "gateway", "web")), KILLS):
        if turn == "agent":
            at = killed["agent"] % len(here.agents)
            here.agents[at].kill()
            here.agents[at].wait(10)
            here.agents[at] = here.start_agent(fleet.NODES[at], world["enrol"][fleet.NODES[at]])
        else:
            os.kill(_until(lambda: here.pid_of(turn)), signal.SIGKILL)  # noqa: B023 - asked at once
        killed[turn] += 1
        time.sleep(dice.uniform(*REST_S))
    return dict(killed)


def _asked(portal: httpx.Client, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """Return the answer to a call, repeated while nobody is there."""
    key = {"Idempotency-Key": f"bench-{random.getrandbits(64):x}"}

    def answer() -> Any:
        try:
            response = portal.request(method, path, json=body, headers=key)
        except httpx.TransportError:
            return None
        return response.json() if response.is_success else None

    return _until(answer)


def _log(portal: httpx.Client, uid: str) -> str:
    """Return the whole log of a job, once all of it is stored."""
    text, offset = "", 0
    until = time.monotonic() + DONE_WITHIN_S
    while time.monotonic() < until:
        page = _asked(portal, "GET", f"jobs/{uid}/log/?offset={offset}")
        text, offset = text + str(page["text"]), page["next"]
        if page["is_done"]:
            return text
        if not page["text"]:
            time.sleep(0.1)
    raise RuntimeError(f"the log of {uid} is not complete: it ends with {text[-60:]!r}")


def _until(ask: Callable[[], T | None]) -> T:
    """Return the first answer that is one; raises RuntimeError when there is none for long."""
    until = time.monotonic() + BACK_WITHIN_S
    while time.monotonic() < until:
        found = ask()
        if found:
            return found
        time.sleep(0.05)
    raise RuntimeError("the stack did not come back")
