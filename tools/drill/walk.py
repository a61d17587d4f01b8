"""A walk over every failpoint: the process that passes it dies, waits or fails there, and Berth goes on."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from portal.common.failpoints import POINTS
from tools.drill.fault import NODES
from tools.drill.ledger import DrillLedger
from tools.drill.probe import Prober
from tools.drill.stack import DrillStack

ACTIONS = ("kill", "sleep 3000", "raise")
MET_WITHIN_S = 45.0
# The few of the short form: one on either side of the commits that matter most.
SHORT = (("turn.committed", "kill"), ("report.before_commit", "raise"), ("driver.gi.after", "kill"))


@dataclass
class WalkResult:
    """What became of each case, by (point, action): seconds until the next lease, None where none came."""

    recovered_s: dict[tuple[str, str], float | None] = field(default_factory=dict)
    unmet: list[str] = field(default_factory=list)


def cases() -> list[tuple[str, str]]:
    """Return every point with every action."""
    return list(itertools.product(POINTS, ACTIONS))


def walk(
    stack: DrillStack,
    prober: Prober,
    ledger: DrillLedger,
    months: list[str],
    *,
    chosen: Iterable[tuple[str, str]],
    until_s: float,
    say: Any,
) -> WalkResult:
    """Order each fault, see that it was met, and wait for the next lease. Ends early at an instant (monotonic)."""
    found, nodes = WalkResult(), itertools.cycle(NODES)
    for point, action in chosen:
        if time.monotonic() > until_s:
            break
        known = stack.hits(point)
        ledger.is_tolerant = action == "raise"
        stack.order(point, action)
        met = _provoke(stack, prober, point, months, next(nodes), len(known))
        if met is None:
            stack.revoke_orders()
            found.unmet.append(f"{point}: {action}")
            say(f"    {point}: {action}  NOT MET", flush=True)
            continue
        node, since, took = met
        # A device on which a start failed rests for minutes: that is meant, so an operator ends it here.
        rests = action == "raise" and point.startswith("driver.")
        took = took or prober.recovered(node, since, clears=rests)
        if rests:
            prober.clear_devices()
        ledger.is_tolerant = False
        found.recovered_s[point, action] = took
        say(f"    {point}: {action}  recovered {'NEVER' if took is None else f'{took:.2f} s'}", flush=True)
    stack.revoke_orders()
    ledger.is_tolerant = False
    return found


def _provoke(
    stack: DrillStack, prober: Prober, point: str, months: list[str], node: str, known: int
) -> tuple[str, float, float | None] | None:
    """Do what passes a point until somebody met the order.

    Returns the node that is concerned, when the order was met (monotonic), and how many seconds later a lease that
    was under way became active, if one did.
    """
    end = time.monotonic() + MET_WITHIN_S
    node = "drill-02" if point.startswith(("driver.gi", "driver.ci", "driver.un")) else node
    before = {stack.pid(name): name for name in NODES}
    while time.monotonic() < end:
        began, took = time.monotonic(), None
        if point.startswith("close.") and months and prober.close(months[0]):
            months.pop(0)
        elif not point.startswith(("meter.", "expire.", "close.")):
            took = prober.recovered(node, began, within_s=15)
        if len(hits := stack.hits(point)) > known:
            pid, at = hits[-1]
            concerned = before.get(pid, node)
            is_later = took is not None and concerned == node and began + took > at
            return concerned, at, began + took - at if is_later and took is not None else None
        time.sleep(0.1)
    return None


def table(found: WalkResult) -> list[str]:
    """Return the walk as lines of a table."""
    if not found.recovered_s:
        return []
    lines = ["", f"| failpoint | {' | '.join(ACTIONS)} |", "|--|--|--|--|"]
    for point in dict.fromkeys(point for point, _action in found.recovered_s):
        cells = []
        for action in ACTIONS:
            took = found.recovered_s.get((point, action), 0.0)
            is_done = (point, action) in found.recovered_s
            cells.append("–" if not is_done else "never" if took is None else f"{took:.2f} s")
        lines.append(f"| {point} | {' | '.join(cells)} |")
    return lines
