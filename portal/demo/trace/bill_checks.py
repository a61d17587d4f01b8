"""After a play: do the two clocks agree, does the bill add up, did anything overlap."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import Any
from urllib.parse import quote

from portal.demo.trace.calls import ApiRefusal, Body, TraceClient

METERED_WITHIN_S, ASK_EVERY_S = 120.0, 2.0
CENT, MICRO, SHARE_HOUR = 10_000, 1_000_000, 1000 * 3600


@dataclass(frozen=True, slots=True)
class Clocks:
    """GPU-seconds of leases by the agents' monotonic clocks and by the usage records.

    ``rounding_s`` is billed against the portal's own instants (below 1 s: both ends are floored to
    whole seconds); ``delay_s`` is the agents' clock against the same instants (news takes a moment).
    """

    leases: int
    unknown: int
    agents_s: float
    billed_s: int
    largest_s: float
    summed_s: float
    over_1s: int
    rounding_s: float
    delay_s: float

    def row(self) -> dict[str, Any]:
        """Return it for the answer, to the millisecond."""
        return {
            "leases": self.leases,
            "leases_without_agents_clock": self.unknown,
            "by_agents_clocks": round(self.agents_s, 3),
            "by_usage_records": self.billed_s,
            "largest_difference": round(self.largest_s, 3),
            "summed_difference": round(self.summed_s, 3),
            "leases_over_1s": self.over_1s,
            "largest_by_rounding": round(self.rounding_s, 3),
            "largest_by_delay": round(self.delay_s, 3),
        }


@dataclass(frozen=True, slots=True)
class TeamMonth:
    """A team's month: the invoice's total and the same from usage records, in micro-units."""

    team: str
    month: str
    invoiced_micro: int
    recomputed_micro: int
    records: int


async def portal_time(api: TraceClient, *, operator: str) -> str:
    """Return the portal's time as it writes it."""
    return str((await api.get("/api/v1/fleet/overlaps/", token=operator))["checked_at"])


async def overlaps(api: TraceClient, *, operator: str) -> int:
    """Return how many pairs of placements overlap or ever did, by a query over the rows."""
    found = await api.get("/api/v1/fleet/overlaps/", token=operator)
    return int(found["live"]) + int(found["ever"])


async def clocks(api: TraceClient, leases: Mapping[str, int], *, since: str, operator: str) -> Clocks:
    """Compare both clocks for leases (id to GPU count) once all are metered; raises ApiRefusal if not."""
    path = f"/api/v1/fleet/accounting/?since={quote(since)}&page_size=2000&ordering=id"
    deadline = asyncio.get_running_loop().time() + METERED_WITHIN_S
    while True:
        rows = [r async for r in api.pages(path, token=operator) if r["lease"] in leases]
        if len(rows) >= len(leases) and all(r["is_metered"] for r in rows):
            return compare(rows, leases)
        if asyncio.get_running_loop().time() > deadline:
            raise ApiRefusal(0, "not_metered", f"{len(rows)} of {len(leases)} leases are accounted for")
        await asyncio.sleep(ASK_EVERY_S)


def compare(rows: Sequence[Body], gpus: Mapping[str, int]) -> Clocks:
    """Compare both clocks lease by lease; the two totals count each lease once for every GPU it held."""
    known = [r for r in rows if r["agent_active_ms"] is not None]
    spans = [(_at(r["ended_at"]) - _at(r["activated_at"])).total_seconds() for r in known]
    agents = [r["agent_active_ms"] / 1000 for r in known]
    billed = [r["billed_s"] for r in known]
    differences = [b - a for a, b in zip(agents, billed, strict=True)]
    return Clocks(
        leases=len(rows),
        unknown=len(rows) - len(known),
        agents_s=sum(a * gpus[r["lease"]] for a, r in zip(agents, known, strict=True)),
        billed_s=sum(b * gpus[r["lease"]] for b, r in zip(billed, known, strict=True)),
        largest_s=max(map(abs, differences), default=0.0),
        summed_s=abs(sum(differences)),
        over_1s=sum(abs(d) > 1 for d in differences),
        rounding_s=max((abs(b - s) for b, s in zip(billed, spans, strict=True)), default=0.0),
        delay_s=max((abs(a - s) for a, s in zip(agents, spans, strict=True)), default=0.0),
    )


async def bills(
    api: TraceClient, teams: Iterable[str], months: Iterable[str], *, operator: str
) -> list[TeamMonth]:
    """Return each team's month twice: as invoiced and recomputed from its usage records."""
    return [await _bill(api, t, m, operator) for m in sorted(set(months)) for t in sorted(set(teams))]


async def _bill(api: TraceClient, team: str, month: str, operator: str) -> TeamMonth:
    """Read invoice and usage; again when the meter wrote a record between the two readings."""
    for _ in range(5):
        before = await _total(api, team, month, operator)
        path = f"/api/v1/usage/?team={quote(team)}&month={month}&page_size=2000&ordering=id"
        records = [r async for r in api.pages(path, token=operator)]
        if before == await _total(api, team, month, operator):
            break
    return TeamMonth(team, month, before, recompute(records), len(records))


async def _total(api: TraceClient, team: str, month: str, operator: str) -> int:
    found = await api.get(f"/api/v1/invoices/{quote(team)}/{month}/", token=operator)
    return micro(found["total"]["amount"])


def recompute(records: Iterable[Body]) -> int:
    """Return what usage records cost in micro-units: exact, rounded half up to the cent once."""
    exact = sum(
        (
            Fraction(r["share_milli_seconds"] * micro(r["price_per_hour"]["amount"]), SHARE_HOUR)
            for r in records
        ),
        Fraction(0),
    )
    return int((exact / CENT + Fraction(1, 2)) // 1) * CENT


def micro(amount: str) -> int:
    """Return a decimal string in micro-units."""
    return int(Fraction(amount) * MICRO)


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text)
