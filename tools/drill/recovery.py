"""``make drill ARGS=--recovery``: on a quiet machine, from SIGKILL to the next active lease, by process."""

from __future__ import annotations

import json
import os
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.drill.fault import NODES, Step
from tools.drill.faults import FAULTS
from tools.drill.ledger import DrillLedger
from tools.drill.probe import Prober
from tools.drill.stack import DrillStack

KILLED = ("kill.web", "kill.worker", "kill.agent", "kill.valkey", "kill.postgres")
# Seconds that the reliability page promises, and those that are hoped for.
MUST_S = {name: 10.0 if name == "kill.postgres" else 5.0 for name in KILLED}
AIM_S = {name: 5.0 if name == "kill.postgres" else 2.0 for name in KILLED}
REST_S = 3.0  # longer than any pause before a restart, and than most ticks


@dataclass
class Recoveries:
    """Seconds to the next active lease, by what was killed; ``load`` is the machine's when it began."""

    took_s: dict[str, list[float]] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    load: float = 0.0

    @property
    def is_good(self) -> bool:
        return not any(self.lost.values()) and all(
            max(took) <= MUST_S[name] for name, took in self.took_s.items()
        )


def measure(stack: DrillStack, *, times: int, say: Any = print) -> Recoveries:
    """Kill each process in turn, ``times`` times over, with nobody else at work."""
    ledger = DrillLedger(stack.data / "ledger.jsonl")
    prober, found = Prober(stack, ledger), Recoveries(load=os.getloadavg()[0])
    for node in NODES * 2:
        prober.recovered(node, time.monotonic())
    for number in range(times):
        for name in KILLED:
            step = Step(number + 1, name, NODES[number % len(NODES)], 0.0, 0.0)
            outcome = FAULTS[name].inject(stack, step)
            took = prober.recovered(step.node, outcome.since)
            found.took_s.setdefault(name, [])
            if took is None:
                found.lost[name] = found.lost.get(name, 0) + 1
            else:
                found.took_s[name].append(took)
            say(f"{name:15} {'NEVER' if took is None else f'{took:.2f} s'}", flush=True)
            time.sleep(REST_S)
    ledger.close()
    return found


def report(found: Recoveries) -> str:
    """Return the table, with the machine's load beside it: on a busy one the figures say little."""
    lines = [f"\nFrom SIGKILL to the next active lease; load average {found.load:.1f} on {os.cpu_count()} cores\n",
             "| killed | times | median | worst | must | aim |", "|--|--|--|--|--|--|"]  # fmt: skip
    for name, took in found.took_s.items():
        if took:
            lines.append(
                f"| {name.removeprefix('kill.')} | {len(took)} | {statistics.median(took):.2f} s"
                f" | {max(took):.2f} s | {MUST_S[name]:g} s | {AIM_S[name]:g} s |"
            )
    lines += [f"{name}: never recovered, {count} times" for name, count in found.lost.items()]
    return "\n".join(lines)


def store(found: Recoveries, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(vars(found), indent=1))
