from __future__ import annotations

from typing import Any

from portal.demo.trace import report
from portal.demo.trace.bill_checks import TeamMonth, compare, recompute
from portal.demo.trace.mapping import BOB, TraceRequest
from portal.demo.trace.report import PlayResult, answer, invariants
from portal.demo.trace.runs import Run, percentile

WISH = TraceRequest("pod-1", BOB, "h100", 1, "normal", 2.0, 62)


def ended(**more: Any) -> Run:
    made: dict[str, Any] = {
        "request": "req-1", "lease": "lse-1", "state": "fulfilled", "posted_at": 1.0, "active_at": 1.2,
        "over_at": 4.0,
    }  # fmt: skip
    return Run(WISH, 0, **(made | more))


def row(agent_ms: int | None, billed_s: int, *, seconds: float = 2.5, lease: str = "lse-1") -> dict[str, Any]:
    return {
        "lease": lease,
        "agent_active_ms": agent_ms,
        "billed_s": billed_s,
        "activated_at": "2026-11-01T10:00:00Z",
        "ended_at": f"2026-11-01T10:00:{seconds:09.6f}Z",
    }


def played(**more: Any) -> PlayResult:
    made: dict[str, Any] = {
        "runs": [ended()],
        "skipped": 3,
        "overlaps": 0,
        "clocks": compare([row(2520, 2)], {"lse-1": 1}),
        "bills": [TeamMonth("vision", "2026-11", 1_230_000, 1_230_000, 4)],
        "wall_s": 3.0,
        "waits": 0,
    }
    return PlayResult(**(made | more))


def broken(found: PlayResult) -> list[str]:
    return [name for name, held in invariants(found).items() if not held]


def test_clocks_are_compared_lease_by_lease() -> None:
    rows = [row(2520, 2), row(2510, 3, lease="lse-2")]

    found = compare(rows, {"lse-1": 1, "lse-2": 8})

    assert (found.leases, found.unknown, found.over_1s, found.billed_s) == (2, 0, 0, 26)
    assert round(found.agents_s, 3) == 22.6
    assert round(found.largest_s, 3) == 0.52
    assert round(found.summed_s, 3) == 0.03
    assert (round(found.rounding_s, 3), round(found.delay_s, 3)) == (0.5, 0.02)


def test_a_lease_without_its_agents_clock_is_unknown_and_not_zero() -> None:
    found = compare([row(None, 2)], {"lse-1": 1})

    assert (found.unknown, found.billed_s, found.largest_s) == (1, 0, 0.0)
    assert "every lease has its agent's clock" in broken(played(clocks=found))


def test_a_sound_play_breaks_no_promise() -> None:
    assert broken(played()) == []
    assert report.sentences(answer(played())).endswith("every promise held")


def test_every_broken_promise_is_found() -> None:
    cases = {
        "every row came to its end": {"runs": [ended(state="granted")]},
        "nothing overlaps": {"overlaps": 1},
        "clocks agree within rounding": {"clocks": compare([row(2520, 4)], {"lse-1": 1})},
        "summed difference is at most 1 s per lease": {"clocks": compare([row(2520, 4)], {"lse-1": 1})},
        "invoices equal usage": {"bills": [TeamMonth("vision", "2026-11", 1_230_000, 1_240_000, 4)]},
    }

    for promise, change in cases.items():
        assert promise in broken(played(**change))
        assert promise in report.sentences(answer(played(**change)))


def test_two_invoices_that_are_wrong_in_opposite_ways_do_not_cancel_out() -> None:
    bills = [
        TeamMonth("vision", "2026-11", 10_000, 20_000, 1),
        TeamMonth("language", "2026-11", 20_000, 10_000, 1),
    ]

    assert broken(played(bills=bills)) == ["invoices equal usage"]


def test_refusals_are_counted_by_reason() -> None:
    refused = ended(request="", state="refused", reason="impossible", lease="", active_at=None)
    given_up = ended(state="withdrawn", reason="waits: quota", lease="", active_at=None)

    found = answer(played(runs=[ended(), refused, given_up, given_up]))

    assert found["refused"] == {"impossible": 1, "waits: quota": 2}
    assert (found["submitted"], found["granted"], found["ended"]) == (3, 1, 1)


def test_usage_is_rounded_once_and_not_record_by_record() -> None:
    third = {"share_milli_seconds": 1000, "price_per_hour": {"amount": "12.00", "currency": "EUR"}}

    assert recompute([third] * 3) == 10_000
    assert recompute([third]) == 0


def test_a_percentile_is_a_value_that_was_measured() -> None:
    assert percentile([], 0.5) is None
    assert percentile([5.0], 0.99) == 5.0
    assert percentile(map(float, range(1, 101)), 0.5) == 50.0
    assert percentile(map(float, range(1, 101)), 0.99) == 99.0
