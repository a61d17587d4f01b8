"""The answer of a play: one JSON object, and what must be true of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from portal.demo.trace.bill_checks import Clocks, TeamMonth
from portal.demo.trace.runs import Run, latencies_ms, percentile, refusals

MICRO = 1_000_000


@dataclass(frozen=True, slots=True)
class PlayResult:
    """Everything a play found out."""

    runs: Sequence[Run]
    skipped: int
    overlaps: int
    clocks: Clocks
    bills: Sequence[TeamMonth]
    wall_s: float
    waits: int


def answer(played: PlayResult) -> dict[str, Any]:
    """Return the JSON object; ``invariants`` tells which promises held."""
    waits = latencies_ms(played.runs)
    submitted = [run for run in played.runs if run.request]
    ended = [run for run in submitted if run.state == "fulfilled"]
    invoiced = sum(bill.invoiced_micro for bill in played.bills)
    recomputed = sum(bill.recomputed_micro for bill in played.bills)
    found: dict[str, Any] = {
        "rows": played.skipped + len(played.runs),
        "skipped_without_gpu": played.skipped,
        "submitted": len(submitted),
        "granted": sum(bool(run.lease) for run in submitted),
        "ended": len(ended),
        "refused": refusals(played.runs),
        "overlaps": played.overlaps,
        "gpu_seconds": played.clocks.row(),
        "invoice_total": _amount(invoiced),
        "recomputed_from_usage": _amount(recomputed),
        "usage_records": sum(bill.records for bill in played.bills),
        "submit_to_active_ms": {"p50": _ms(percentile(waits, 0.5)), "p99": _ms(percentile(waits, 0.99))},
        "asked_to_wait": played.waits,
        "wall_seconds": round(played.wall_s, 1),
    }
    return {**found, "invariants": invariants(played)}


def invariants(played: PlayResult) -> dict[str, bool]:
    """Return what a play must not break, and whether it held."""
    clocks = played.clocks
    return {
        "every row came to its end": all(run.is_over for run in played.runs),
        "nothing overlaps": played.overlaps == 0,
        "every lease has its agent's clock": clocks.unknown == 0,
        "clocks agree within rounding": clocks.rounding_s < 1 and clocks.delay_s <= 1,
        "summed difference is at most 1 s per lease": clocks.summed_s <= clocks.leases,
        "invoices equal usage": all(b.invoiced_micro == b.recomputed_micro for b in played.bills),
    }


def sentences(found: Mapping[str, Any]) -> str:
    """Return the answer for people."""
    seconds, waits = found["gpu_seconds"], found["submit_to_active_ms"]
    lines = [
        f"rows {found['rows']}, of these without a GPU {found['skipped_without_gpu']}",
        f"submitted {found['submitted']}, granted {found['granted']}, ended {found['ended']}",
        f"refused {found['refused'] or 'none'}; overlaps {found['overlaps']}",
        f"GPU-seconds: {seconds['by_agents_clocks']} by the agents, {seconds['by_usage_records']} billed; "
        f"largest difference {seconds['largest_difference']} s, summed {seconds['summed_difference']} s",
        f"invoices {found['invoice_total']}, from usage records {found['recomputed_from_usage']}",
        f"submit to active: p50 {waits['p50']} ms, p99 {waits['p99']} ms; {found['wall_seconds']} s in all",
    ]
    broken = [name for name, held in found["invariants"].items() if not held]
    return "\n".join([*lines, f"NOT HELD: {'; '.join(broken)}" if broken else "every promise held"])


def _amount(micro: int) -> str:
    return f"{micro // MICRO}.{micro % MICRO // 10_000:02d}"


def _ms(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
