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
from typing import Any

import psycopg

from tools.bench.stack import ROOT
from tools.drill import faults_line as line
from tools.drill import faults_stores as stores
from tools.drill.fault import NODES, DrillFault, FaultOutcome, Inject, NotObserved, Step
from tools.drill.proxy import DOWN, UP
from tools.drill.stack import DrillStack, is_gone, state_of, until


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
    "line.drop": DrillFault("an agent's connection closed once", line.drop),
    "line.cut": DrillFault("no connection between an agent and the portal", line.cut, 1, 3, 30),
    "line.half_up": DrillFault(
        "the portal hears nothing of an agent, not the reverse", line.swallow(UP), 1, 3, 20
    ),
    "line.half_down": DrillFault(
        "an agent hears nothing of the portal, not the reverse", line.swallow(DOWN), 1, 3, 20
    ),
    "line.silent": DrillFault(
        "a connection that stays open and carries nothing", line.swallow(UP, DOWN), 1, 3, 20
    ),
    "line.slow": DrillFault("every piece between agent and portal 0.7 s late", line.delay, 1, 4, 15),
    "line.flapping": DrillFault(
        "an agent's connection closed again and again", line.flap, 1, 4, 15, is_short=False
    ),
    "valkey.flushall": DrillFault("FLUSHALL of Valkey", stores.flush),
    "valkey.full": DrillFault("Valkey refuses writes: no memory left", stores.valkey_full, 1, 3, 15),
    "database.row_lock": DrillFault(
        "a foreign session holds the quota rows, busy", stores.row_lock, 1, 3, 12
    ),
    "database.idle_lock": DrillFault(
        "a foreign session holds the quota rows, idle", stores.idle_lock, 1, 3, 12
    ),
    "database.terminated": DrillFault("every session of PostgreSQL ended", stores.terminate),
    "two.workers": DrillFault(
        "a second worker, killed after a while", _second("worker"), 1, 6, 15, is_short=False
    ),
    "two.beats": DrillFault("a second beat, killed after a while", _second("beat"), 1, 6, 15, is_short=False),
    "node.wall_clock": DrillFault("a node's wall clock is off", _wall_clock, 1, 3, 10, is_short=False),
    "node.reboot": DrillFault("a node reboots", _reboot, 1),
    "node.cloned": DrillFault("two agents with one node's key", _clone, 1, 3, 10, is_short=False),
    "disk.full": DrillFault("PostgreSQL's disk is full", stores.disk_full, 1, 4, 12, needs_disk=True),
}


def describe(step: Step) -> dict[str, Any]:
    return {"fault": step.fault, "node": step.node, "seconds": step.seconds, "rest_s": step.rest_s}
