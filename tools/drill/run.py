"""One drill: load, faults, rest, proofs."""

from __future__ import annotations

import json
import statistics
import subprocess
import threading
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from tools.drill import promises, proofs
from tools.drill.fault import NODES, NotObserved, Step
from tools.drill.faults import FAULTS, schedule
from tools.drill.ledger import DrillLedger
from tools.drill.load import DrillLoad
from tools.drill.probe import Prober
from tools.drill.rows import read
from tools.drill.stack import DrillStack
from tools.drill.walk import SHORT, WalkResult, cases, table, walk

LOOK_EVERY_S = 10.0
REST_WITHIN_S = 120.0


@dataclass
class FaultCounts:
    """What became of the faults of one kind."""

    seen: list[str] = field(default_factory=list)
    recovered_s: list[float] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    lost: int = 0


@dataclass
class Result:
    """Everything a drill found."""

    seed: int
    trace: list[str] = field(default_factory=list)
    met: dict[str, FaultCounts] = field(default_factory=lambda: defaultdict(FaultCounts))
    broken: dict[str, list[str]] = field(default_factory=dict)
    broken_meanwhile: dict[str, list[str]] = field(default_factory=dict)
    looks: int = 0
    invariants: str = ""
    failures: list[str] = field(default_factory=list)
    answers: dict[str, int] = field(default_factory=dict)
    acknowledged: dict[str, int] = field(default_factory=dict)
    figures: list[dict[str, Any]] = field(default_factory=list)
    rest_s: float | None = None
    not_here: list[str] = field(default_factory=list)
    walked: WalkResult = field(default_factory=WalkResult)

    @property
    def is_good(self) -> bool:
        """Say whether everything was observed, recovered and proved."""
        return not (
            any(self.broken.values())
            or any(self.broken_meanwhile.values())
            or self.invariants
            or self.failures
            or self.walked.unmet
            or None in self.walked.recovered_s.values()
            or self.rest_s is None
            or any(m.unseen or m.lost for m in self.met.values())
        )


class Drill:
    """Breaks a stack that runs, by a seed."""

    def __init__(self, stack: DrillStack, *, seed: int, actors: int = 4, pause_s: float = 0.8) -> None:
        self.stack, self.seed = stack, seed
        self.ledger = DrillLedger(stack.data / "ledger.jsonl")
        self.load = DrillLoad(stack.url, stack.world, self.ledger, seed, actors, pause_s)
        self.prober = Prober(stack, self.ledger)
        self.result = Result(seed)
        # The walk closes the first months itself, so that nobody is in its way; people get those that are left.
        self._own_months, self.load.months = self.load.months, []
        self._over = threading.Event()

    def warm(self) -> None:
        """Take one lease on every node: the first request of each process pays for imports and plans."""
        for node in NODES:
            self.prober.recovered(node, time.monotonic())

    def run(
        self,
        *,
        calm_s: float,
        faults_s: float,
        is_short: bool,
        walks: bool = True,
        most_faults: int = 400,
        say: Any = print,
    ) -> Result:
        """Let people work, first undisturbed, then while faults come; then rest and prove."""
        self.warm()
        watcher = threading.Thread(target=self._watch, daemon=True)
        self.load.start()
        watcher.start()
        began = time.monotonic()
        self._calm(calm_s)
        calm_over = time.monotonic()
        if not self.stack.has_small_disk:
            self.result.not_here.append("disk.full: PostgreSQL's folder is on no disk of its own here")
        plan = schedule(self.seed, steps=most_faults, is_short=is_short, has_disk=self.stack.has_small_disk)
        if walks:
            self.result.walked = walk(
                self.stack, self.prober, self.ledger, self._own_months,
                chosen=SHORT if is_short else cases(), until_s=calm_over + faults_s * 0.6, say=say,
            )  # fmt: skip
            self.load.months += self._own_months
        for step in plan:
            if time.monotonic() - calm_over > faults_s:
                break
            self._meet(step, say)
        faults_over = time.monotonic()
        self.load.stop()
        self.settle()
        self._over.set()
        watcher.join(30)
        self.prove()
        self.result.figures = [
            self._figures("undisturbed", began, calm_over),
            self._figures("with faults", calm_over, faults_over),
        ]
        return self.result

    def _calm(self, seconds: float) -> None:
        end, number = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            took = self.prober.recovered(NODES[number % len(NODES)], time.monotonic())
            if took is not None:
                self.result.met["(none)"].recovered_s.append(took)
            number += 1
            time.sleep(min(1.0, max(0.0, end - time.monotonic())))

    def _meet(self, step: Step, say: Any) -> None:
        met = self.result.met[step.fault]
        self.result.trace.append(str(step))
        say(f"{step}", end="", flush=True)
        try:
            outcome = FAULTS[step.fault].inject(self.stack, step)
        except (NotObserved, psycopg.Error, OSError, subprocess.SubprocessError) as no:
            met.unseen.append(f"{type(no).__name__}: {no}")
            say(f"  NOT OBSERVED: {no}", flush=True)
            return
        met.seen.append(outcome.seen)
        took = self.prober.recovered(outcome.node or step.node, outcome.since)
        if took is None:
            met.lost += 1
        else:
            met.recovered_s.append(took)
        say(f"  {outcome.seen}; recovered {'NEVER' if took is None else f'{took:.2f} s'}", flush=True)
        time.sleep(step.rest_s)

    def _watch(self) -> None:
        """Look at what must hold at every moment, every now and then; a database that is away is no finding."""
        while not self._over.wait(LOOK_EVERY_S):
            with suppress(psycopg.OperationalError, psycopg.InterfaceError), self.stack.database() as session:
                self._keep(proofs.while_running(read(session)))
                self.result.looks += 1

    def _keep(self, found: dict[str, list[str]]) -> None:
        for name, sentences in found.items():
            known = self.result.broken_meanwhile.setdefault(name, [])
            known += [one for one in sentences if one not in known]

    def settle(self) -> None:
        """Heal everything, give back what is held, and wait until nothing is under way."""
        self.stack.heal()
        began = time.monotonic()
        asked = 0.0
        while time.monotonic() - began < REST_WITHIN_S:
            with suppress(psycopg.OperationalError, psycopg.InterfaceError), self.stack.database() as session:
                if proofs.is_at_rest(session):
                    self.result.rest_s = time.monotonic() - began
                    return
                if time.monotonic() - asked > 10:
                    asked = time.monotonic()
                    self._give_back(session)
            time.sleep(0.3)

    def _give_back(self, session: psycopg.Connection[Any]) -> None:
        """Ask for the end of all that still lives: what waits is withdrawn, what runs long is released."""
        waiting = session.execute(
            "SELECT r.uid FROM leases_leaserequest r WHERE r.state IN ('queued', 'awaiting_approval')"
        ).fetchall()
        running = session.execute(
            "SELECT l.uid, r.uid FROM leases_lease l JOIN leases_leaserequest r ON r.id = l.request_id"
            " WHERE l.state IN ('active', 'preparing', 'booked', 'interrupted')"
            " AND l.not_after > clock_timestamp() + interval '4 s'"
        ).fetchall()
        for (uid,) in waiting:
            self.prober.as_operator(f"requests/{uid}/withdraw/")
        for lease, _request in running:
            self.prober.as_operator(f"leases/{lease}/release/")

    def prove(self) -> None:
        """Hold the rows at rest against the ledger, then ask the product's own checker as well."""
        with self.stack.database() as session, self.stack.valkey() as valkey:
            seen = read(session)
            self.result.broken = proofs.at_rest(seen, self.ledger, session, valkey)
            self.seen = seen
        checked = self.stack.manage("check_invariants")
        if checked.returncode:
            self.result.invariants = (checked.stdout + checked.stderr).strip()[-3000:]
        self.result.failures = list(self.ledger.failures)
        self.result.answers = dict(sorted(self.ledger.answers.items()))
        self.result.acknowledged = {
            kind: len(entries) for kind, entries in sorted(self.ledger.by_kind.items())
        }

    def _figures(self, name: str, begin: float, end: float) -> dict[str, Any]:
        waits = sorted(promises.since(self.seen, self.ledger, begin, end))
        asked = [e for e in self.ledger.by_kind["submit"] if begin <= e["heard_mono"] < end]
        minutes = max(end - begin, 0.001) / 60
        return {
            "load": name,
            "seconds": round(end - begin),
            "acknowledged_per_min": round(len({e["uid"] for e in asked}) / minutes, 1),
            "active_per_min": round(len(waits) / minutes, 1),
            "submit_to_active_p50_s": _share(waits, 50),
            "submit_to_active_p99_s": _share(waits, 99),
        }


def _share(values: list[float], percent: int) -> float | None:
    if not values:
        return None
    return round(values[min(len(values) - 1, -(-len(values) * percent // 100) - 1)], 2)


def report(result: Result) -> str:
    """Return the tables that a drill prints."""
    lines = [f"\nDrill with seed {result.seed}\n", "| fault | injected | observed | recovered, median | worst |",
             "|--|--|--|--|--|"]  # fmt: skip
    for name, met in sorted(result.met.items()):
        took = sorted(met.recovered_s)
        times = len(met.seen) + len(met.unseen)
        lines.append(
            f"| {name} | {times or len(took)} | {len(met.seen) if times else '–'}"
            f" | {f'{statistics.median(took):.2f} s' if took else '–'}"
            f" | {'never' if met.lost else f'{took[-1]:.2f} s' if took else '–'} |"
        )
    lines += ["", "| load | acknowledged/min | active/min | submit to active p50 | p99 |", "|--|--|--|--|--|"]
    lines += [
        f"| {row['load']} ({row['seconds']} s) | {row['acknowledged_per_min']} | {row['active_per_min']}"
        f" | {row['submit_to_active_p50_s']} s | {row['submit_to_active_p99_s']} s |"
        for row in result.figures
    ]
    lines += [
        "",
        f"acknowledged: {json.dumps(result.acknowledged)}",
        f"answers: {json.dumps(result.answers)}",
    ]
    lines += table(result.walked)
    rest = "NEVER" if result.rest_s is None else f"after {result.rest_s:.1f} s"
    lines.append(f"everything at rest {rest}; {result.looks} looks while it ran")
    lines += [f"not observed here: {one}" for one in result.not_here]
    for name, met in sorted(result.met.items()):
        lines += [f"FAULT NOT SEEN {name}: {one}" for one in met.unseen]
    lines += [f"ORDER NOT MET {one}" for one in result.walked.unmet]
    for when, found in (("while it ran", result.broken_meanwhile), ("at rest", result.broken)):
        for name, sentences in found.items():
            if sentences:
                lines.append(f"BROKEN {when}: {name} ({len(sentences)})")
                lines += [f"    {one}" for one in sentences[:8]]
    if result.invariants:
        lines.append(f"check_invariants: {result.invariants}")
    if result.failures:
        lines.append(f"{len(result.failures)} unexpected answers:")
        lines += [f"    {one}" for one in result.failures[:12]]
    lines.append("everything holds" if result.is_good else "SOMETHING DOES NOT HOLD")
    return "\n".join(lines)


def store(result: Result, path: Path) -> None:
    """Write everything as JSON."""
    walked = {f"{point}: {action}": took for (point, action), took in result.walked.recovered_s.items()}
    met = {name: vars(one) for name, one in result.met.items()}
    body = {
        **vars(result),
        "walked": walked,
        "unmet": result.walked.unmet,
        "met": met,
        "is_good": result.is_good,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body, indent=1, default=str))
