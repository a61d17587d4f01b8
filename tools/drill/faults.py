"""What is done to the stack. Each fault is seen to be there (a process gone, bytes lost, a refusal) or it fails."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg
import redis

from tools.bench.stack import ROOT
from tools.drill.fleet import BOARDS
from tools.drill.proxy import DOWN, UP
from tools.drill.stack import DrillStack, is_gone, state_of, until

NODES = tuple(BOARDS)


class NotObserved(Exception):
    """The fault was ordered and nobody saw it: this counts as a failure of the drill."""


@dataclass(frozen=True)
class Step:
    """One fault of a schedule, with everything that was drawn for it."""

    number: int
    fault: str
    node: str
    seconds: float
    rest_s: float

    def __str__(self) -> str:
        return (
            f"{self.number:3} {self.fault:22} {self.node:9} {self.seconds:5.1f} s, then {self.rest_s:.1f} s"
        )


@dataclass(frozen=True)
class FaultOutcome:
    """What was seen of a fault, and since when the stack may recover (monotonic)."""

    seen: str
    since: float
    node: str = ""


Inject = Callable[[DrillStack, Step], FaultOutcome]


@dataclass(frozen=True)
class DrillFault:
    """A kind of fault: what it does in one sentence, how it is done, how often it is drawn."""

    does: str
    inject: Inject
    weight: int = 2
    least_s: float = 0.0
    most_s: float = 0.0
    needs_disk: bool = False
    is_short: bool = True
    needs: str = ""
    rows: tuple[int, ...] = field(default=())


def schedule(seed: int, *, steps: int, is_short: bool = False, has_disk: bool = False) -> list[Step]:
    """Return the faults of a seed: every kind once in an order of the seed, then again, until there are enough."""
    dice, found = random.Random(f"faults/{seed}"), []
    names = sorted(
        name
        for name, fault in FAULTS.items()
        if (fault.is_short or not is_short) and (has_disk or not fault.needs_disk)
    )
    deck: list[str] = []
    while len(found) < steps:
        if not deck:
            deck = [name for name in names for _ in range(1 if not found else FAULTS[name].weight)]
            dice.shuffle(deck)
        fault = FAULTS[name := deck.pop()]
        most = min(fault.most_s, fault.least_s + 2) if is_short else fault.most_s
        found.append(
            Step(
                number=len(found) + 1,
                fault=name,
                node=dice.choice(NODES),
                seconds=round(dice.uniform(fault.least_s, most), 1),
                rest_s=round(dice.uniform(0.5, 1.0 if is_short else 4.0), 1),
            )
        )
    return found


# Processes


def _kill(name_of: Callable[[Step], str]) -> Inject:
    def inject(stack: DrillStack, step: Step) -> FaultOutcome:
        name = name_of(step)
        if not until(lambda: stack.pid(name) is not None, 20):
            raise NotObserved(f"there was no {name} to kill")
        pid = stack.pid(name)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        since = time.monotonic()
        if not until(lambda: is_gone(pid), 10, 0.002):
            raise NotObserved(f"{name} ({pid}) outlived SIGKILL")
        return FaultOutcome(f"process {pid} of {name} gone", since, step.node if name in NODES else "")

    return inject


def _kill_child(stack: DrillStack, step: Step) -> FaultOutcome:
    """One of the worker's own processes, not its parent."""
    if not until(lambda: len(stack.tree("worker")) > 1, 20):
        raise NotObserved("the worker has no children")
    victim = stack.tree("worker")[-1]
    os.kill(victim, signal.SIGKILL)
    since = time.monotonic()
    if not until(lambda: is_gone(victim), 10, 0.002):
        raise NotObserved(f"{victim} outlived SIGKILL")
    return FaultOutcome(f"process {victim} of the worker's pool gone", since)


def _kill_backend(stack: DrillStack, step: Step) -> FaultOutcome:
    """One session of PostgreSQL: its server then ends all others, as after a crash."""
    with stack.database() as session:
        pids = session.execute(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        ).fetchall()
    if not pids:
        raise NotObserved("nobody had a session")
    pid = pids[step.number % len(pids)][0]
    os.kill(pid, signal.SIGKILL)
    since = time.monotonic()
    if not until(lambda: is_gone(pid), 10, 0.002):
        raise NotObserved(f"backend {pid} outlived SIGKILL")
    return FaultOutcome(f"backend {pid} gone", since)


def _freeze(name_of: Callable[[Step], str]) -> Inject:
    def inject(stack: DrillStack, step: Step) -> FaultOutcome:
        name = name_of(step)
        if not until(lambda: stack.pid(name) is not None, 20):
            raise NotObserved(f"there was no {name} to stop")
        pids = stack.tree(name)
        _signal(pids, signal.SIGSTOP)
        try:
            if not until(lambda: state_of(pids[0]) in ("T", "t"), 5):
                raise NotObserved(f"{name} did not stop")
            time.sleep(step.seconds)
        finally:
            _signal(pids, signal.SIGCONT)
        node = step.node if name in NODES else ""
        return FaultOutcome(
            f"{len(pids)} process(es) of {name} stopped for {step.seconds:g} s", time.monotonic(), node
        )

    return inject


def _signal(pids: Iterable[int], signum: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signum)


def _second(kind: str) -> Inject:
    def inject(stack: DrillStack, step: Step) -> FaultOutcome:
        log = stack.data / f"second-{kind}.log"
        was = log.stat().st_size if log.exists() else 0
        other = stack.second(kind)
        try:
            time.sleep(step.seconds)
            if other.poll() is not None:
                raise NotObserved(f"the second {kind} ended: {_said(stack, log.name, was)[-300:]}")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(other.pid, signal.SIGKILL)
            other.wait(10)
        return FaultOutcome(f"two {kind}s for {step.seconds:g} s, then {other.pid} killed", time.monotonic())

    return inject


def _said(stack: DrillStack, name: str, since: int) -> str:
    path = stack.data / name
    return path.read_text(errors="replace")[since:] if path.exists() else ""


# Network between agents and portal


def _cut(stack: DrillStack, step: Step) -> FaultOutcome:
    proxy = stack.nodes[step.node].proxy
    closed, refused = proxy.closed, proxy.refused
    proxy.cut()
    try:
        time.sleep(step.seconds)
        if not until(lambda: proxy.closed > closed or proxy.refused > refused, 6):
            raise NotObserved(f"nobody was connected to {step.node}")
    finally:
        proxy.heal()
    seen = f"{proxy.closed - closed} ends closed, {proxy.refused - refused} connections refused"
    return FaultOutcome(seen, time.monotonic(), step.node)


def _drop(stack: DrillStack, step: Step) -> FaultOutcome:
    proxy = stack.nodes[step.node].proxy
    closed = proxy.closed
    until(lambda: bool(proxy._open), 10)
    proxy.drop()
    since = time.monotonic()
    if not until(lambda: proxy.closed > closed, 5):
        raise NotObserved(f"nobody was connected to {step.node}")
    return FaultOutcome(f"{proxy.closed - closed} ends of a connection closed", since, step.node)


def _swallow(*directions: str) -> Inject:
    def inject(stack: DrillStack, step: Step) -> FaultOutcome:
        proxy = stack.nodes[step.node].proxy
        was = {name: proxy.lines[name].swallowed for name in directions}
        for name in directions:
            proxy.lines[name].is_swallowed = True
        try:
            time.sleep(step.seconds)
            lost = lambda: sum(proxy.lines[name].swallowed - was[name] for name in directions)  # noqa: E731
            # Nothing goes down a quiet line by itself: wait for the portal to have something to say.
            if not until(lambda: lost() > 0, 30):
                raise NotObserved(f"nothing was sent {' and '.join(directions)} on the line of {step.node}")
            seen = f"{lost()} bytes lost {' and '.join(directions)}"
        finally:
            proxy.heal()
        return FaultOutcome(seen, time.monotonic(), step.node)

    return inject


def _delay(stack: DrillStack, step: Step) -> FaultOutcome:
    proxy = stack.nodes[step.node].proxy
    passed = proxy.lines[UP].passed
    for line in proxy.lines.values():
        line.delay_s = 0.7
    try:
        time.sleep(step.seconds)
    finally:
        proxy.heal()
    if proxy.lines[UP].passed == passed:
        raise NotObserved("nothing came through the slow line")
    return FaultOutcome(
        f"{proxy.lines[UP].passed - passed} bytes 0.7 s late each way", time.monotonic(), step.node
    )


def _flap(stack: DrillStack, step: Step) -> FaultOutcome:
    proxy = stack.nodes[step.node].proxy
    closed, end = proxy.closed, time.monotonic() + step.seconds
    while time.monotonic() < end:
        until(lambda: bool(proxy._open), 3)
        proxy.drop()
        time.sleep(0.8)
    if proxy.closed == closed:
        raise NotObserved("no connection was there to be closed")
    return FaultOutcome(
        f"{(proxy.closed - closed) // 2} connections closed one after the other", time.monotonic(), step.node
    )


# Stores


def _flush(stack: DrillStack, step: Step) -> FaultOutcome:
    with stack.valkey() as valkey:
        valkey.set("drill:mark", 1)
        valkey.flushall()
        since = time.monotonic()
        if valkey.exists("drill:mark"):
            raise NotObserved("the mark is still there")
    return FaultOutcome("a mark set before was gone", since)


def _valkey_full(stack: DrillStack, step: Step) -> FaultOutcome:
    with stack.valkey() as valkey:
        valkey.config_set("maxmemory", 1)
        try:
            try:
                valkey.set("drill:more", 1)
            except redis.exceptions.ResponseError as refused:
                seen = str(refused)[:40]
            else:
                raise NotObserved("a write was taken in spite of maxmemory")
            time.sleep(step.seconds)
        finally:
            valkey.config_set("maxmemory", 0)
    return FaultOutcome(f"{seen}… for {step.seconds:g} s", time.monotonic())


def _row_lock(stack: DrillStack, step: Step) -> FaultOutcome:
    """A foreign session holds rows that everybody changes; it is busy, so nobody ends it."""
    return _held(stack, step, is_busy=True)


def _idle_lock(stack: DrillStack, step: Step) -> FaultOutcome:
    """A foreign session holds the same rows and does nothing."""
    return _held(stack, step, is_busy=False)


def _held(stack: DrillStack, step: Step, *, is_busy: bool) -> FaultOutcome:
    waited, held = 0, 0
    with stack.database() as session, stack.database() as watcher:
        session.execute("SET lock_timeout = '15s'")
        with (
            suppress(psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected),
            session.transaction(),
        ):
            held = len(session.execute("SELECT id FROM quotas_quota ORDER BY id FOR UPDATE").fetchall())
            end = time.monotonic() + step.seconds
            while time.monotonic() < end:
                if is_busy:
                    session.execute("SELECT pg_sleep(0.2)")
                else:
                    time.sleep(0.2)
                (found,) = watcher.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                ).fetchone()  # type: ignore[misc]
                waited = max(waited, found)
            session.execute("SELECT 1")
    if not held:
        raise NotObserved("the rows could not be locked")
    return FaultOutcome(
        f"{held} quota rows held for {step.seconds:g} s, at most {waited} waited", time.monotonic()
    )


def _terminate(stack: DrillStack, step: Step) -> FaultOutcome:
    with stack.database() as session:
        (count,) = session.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        ).fetchone()  # type: ignore[misc]
    if not count:
        raise NotObserved("nobody had a session")
    return FaultOutcome(f"{count} sessions ended", time.monotonic())


def _disk_full(stack: DrillStack, step: Step) -> FaultOutcome:
    """PostgreSQL's disk has not a byte left; its own log says so or our own write is refused."""
    folder = stack.places.postgres
    ballast = folder / "ballast"
    try:
        with ballast.open("wb", buffering=0) as out:
            block = b"\0" * 65_536
            try:
                while True:
                    out.write(block)
            except OSError as refused:
                seen = refused.strerror
            until_s = time.monotonic() + step.seconds
            while time.monotonic() < until_s:  # what is given back meanwhile is taken again
                with suppress(OSError):
                    out.write(block)
                time.sleep(0.2)
        left = shutil.disk_usage(folder).free
        if left > 2_000_000:
            raise NotObserved(f"{left} bytes were left")
    finally:
        ballast.unlink(missing_ok=True)
    return FaultOutcome(f"{seen} for {step.seconds:g} s", time.monotonic())


# Nodes


def _wall_clock(stack: DrillStack, step: Step) -> FaultOutcome:
    """The node's wall clock is a day or five minutes off, either way: its agent starts anew with it."""
    offset = (86_400.0, -86_400.0, 300.0, -300.0)[step.number % 4]
    agent, said = stack.nodes[step.node], len(stack.log_of(step.node))
    stack.stop_agent(step.node)
    agent.wall_offset_s = offset
    stack.start_agent(step.node)
    stack.want_agent(step.node)
    try:
        if not until(lambda: "wall clock of this node is off by" in stack.log_of(step.node)[said:], 20):
            raise NotObserved("the agent did not say that its clock is off")
        time.sleep(step.seconds)
    finally:
        agent.wall_offset_s = 0.0  # from its next start on
    return FaultOutcome(f"wall clock of {step.node} off by {offset:+.0f} s", time.monotonic(), step.node)


def _reboot(stack: DrillStack, step: Step) -> FaultOutcome:
    """The host reboots: what was on its devices is gone, and its boot has another name."""
    with stack.database() as session:
        before = session.execute("SELECT boot_id FROM fleet_node WHERE name = %s", [step.node]).fetchone()
    stack.stop_agent(step.node, signal.SIGKILL)
    stack.start_agent(step.node, more=("--reboot",))
    stack.want_agent(step.node)

    def is_seen() -> bool:
        with suppress(psycopg.Error), stack.database() as session:
            query = "SELECT boot_id FROM fleet_node WHERE name = %s"
            return bool(session.execute(query, [step.node]).fetchone() != before)
        return False

    if not until(is_seen, 30, 0.2):
        raise NotObserved("the portal did not hear of another boot")
    return FaultOutcome("the portal knows another boot", time.monotonic(), step.node)


def _clone(stack: DrillStack, step: Step) -> FaultOutcome:
    """A second agent with the same key and journal: a disk was copied."""
    state = stack.data / "agents" / step.node
    copy = stack.data / "agents" / f"{step.node}.copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(state, copy)
    log = stack.data / f"{step.node}.copy.log"
    was = log.stat().st_size if log.exists() else 0
    words = stack.agent_options(step.node) | {"state": str(copy), "run-dir": str(copy) + ".run"}
    with log.open("ab") as out:
        other = subprocess.Popen(
            [sys.executable, "-m", "nodeagent", *(part for k, v in words.items() for part in (f"--{k}", v))],
            cwd=ROOT, env=stack.agent_environment(), stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    try:
        both = "another agent connected with this node's key"
        said = len(stack.log_of(step.node))
        if not until(lambda: "connected to" in log.read_text(errors="replace")[was:], 20):
            raise NotObserved(f"the copy did not connect: {log.read_text(errors='replace')[was:][-300:]}")
        until(lambda: both in stack.log_of(step.node)[said:], 5)
        time.sleep(step.seconds)
    finally:
        with suppress(ProcessLookupError):
            other.kill()
        other.wait(10)
        shutil.rmtree(copy, ignore_errors=True)
    return FaultOutcome(f"two agents were {step.node} for {step.seconds:g} s", time.monotonic(), step.node)


def named(name: str) -> Callable[[Step], str]:
    return lambda _step: name


def _node(step: Step) -> str:
    return step.node


FAULTS: dict[str, DrillFault] = {
    "kill.web": DrillFault("SIGKILL of the web server", _kill(named("web")), rows=(1, 2, 3)),
    "kill.worker": DrillFault("SIGKILL of the worker", _kill(named("worker")), rows=(4, 5, 6)),
    "kill.worker_child": DrillFault("SIGKILL of a process of the worker's pool", _kill_child),
    "kill.beat": DrillFault("SIGKILL of beat", _kill(named("beat"))),
    "kill.agent": DrillFault("SIGKILL of a node's agent", _kill(_node)),
    "kill.valkey": DrillFault("SIGKILL of Valkey", _kill(named("valkey"))),
    "kill.postgres": DrillFault("SIGKILL of PostgreSQL's postmaster", _kill(named("postgres"))),
    "kill.backend": DrillFault("SIGKILL of one session of PostgreSQL", _kill_backend),
    "stop.web": DrillFault("SIGSTOP of the web server", _freeze(named("web")), 1, 3, 30),
    "stop.worker": DrillFault("SIGSTOP of the worker with its pool", _freeze(named("worker")), 1, 3, 40),
    "stop.beat": DrillFault("SIGSTOP of beat", _freeze(named("beat")), 1, 3, 40),
    "stop.agent": DrillFault("SIGSTOP of a node's agent", _freeze(_node), 1, 3, 40),
    "stop.valkey": DrillFault("SIGSTOP of Valkey", _freeze(named("valkey")), 1, 3, 20),
    "stop.postgres": DrillFault(
        "SIGSTOP of PostgreSQL with all sessions", _freeze(named("postgres")), 1, 3, 20
    ),
    "line.drop": DrillFault("an agent's connection closed once", _drop),
    "line.cut": DrillFault("no connection between an agent and the portal", _cut, 1, 3, 30),
    "line.half_up": DrillFault(
        "the portal hears nothing of an agent, not the reverse", _swallow(UP), 1, 3, 20
    ),
    "line.half_down": DrillFault(
        "an agent hears nothing of the portal, not the reverse", _swallow(DOWN), 1, 3, 20
    ),
    "line.silent": DrillFault(
        "a connection that stays open and carries nothing", _swallow(UP, DOWN), 1, 3, 20
    ),
    "line.slow": DrillFault("every piece between agent and portal 0.7 s late", _delay, 1, 4, 15),
    "line.flapping": DrillFault(
        "an agent's connection closed again and again", _flap, 1, 4, 15, is_short=False
    ),
    "valkey.flushall": DrillFault("FLUSHALL of Valkey", _flush),
    "valkey.full": DrillFault("Valkey refuses writes: no memory left", _valkey_full, 1, 3, 15),
    "database.row_lock": DrillFault("a foreign session holds the quota rows, busy", _row_lock, 1, 3, 12),
    "database.idle_lock": DrillFault("a foreign session holds the quota rows, idle", _idle_lock, 1, 3, 12),
    "database.terminated": DrillFault("every session of PostgreSQL ended", _terminate),
    "two.workers": DrillFault(
        "a second worker, killed after a while", _second("worker"), 1, 6, 15, is_short=False
    ),
    "two.beats": DrillFault("a second beat, killed after a while", _second("beat"), 1, 6, 15, is_short=False),
    "node.wall_clock": DrillFault("a node's wall clock is off", _wall_clock, 1, 3, 10, is_short=False),
    "node.reboot": DrillFault("a node reboots", _reboot, 1),
    "node.cloned": DrillFault("two agents with one node's key", _clone, 1, 3, 10, is_short=False),
    "disk.full": DrillFault("PostgreSQL's disk is full", _disk_full, 1, 4, 12, needs_disk=True),
}


def describe(step: Step) -> dict[str, Any]:
    return {"fault": step.fault, "node": step.node, "seconds": step.seconds, "rest_s": step.rest_s}
