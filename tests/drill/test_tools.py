"""The drill's own parts: a seed is a schedule, the proxy does what it says, the proofs see what is wrong."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tools.drill import proofs
from tools.drill.faults import FAULTS, schedule
from tools.drill.proxy import DOWN, ChaosProxy
from tools.drill.rows import RowsSeen, StoredEvent

NOON = datetime(2026, 3, 3, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def test_the_same_seed_gives_the_same_faults() -> None:
    assert schedule(7, steps=80, has_disk=True) == schedule(7, steps=80, has_disk=True)
    assert schedule(7, steps=80) != schedule(8, steps=80)


def test_every_kind_of_fault_comes_before_any_comes_again() -> None:
    kinds = [step.fault for step in schedule(3, steps=len(FAULTS), has_disk=True)]

    assert sorted(kinds) == sorted(FAULTS)


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that answers what it is sent."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                line, _peer = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(line,), daemon=True).start()

    def answer(line: socket.socket) -> None:
        with line:
            while data := line.recv(100):
                line.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()


@pytest.fixture
def proxy(echo: int) -> Iterator[ChaosProxy]:
    found = ChaosProxy("127.0.0.1", echo)
    found.start()
    yield found
    found.stop()


def dial(proxy: ChaosProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=30)


def hear(line: socket.socket) -> bytes:
    """Return what comes next; nothing where the other end is gone."""
    try:
        return line.recv(100)
    except ConnectionResetError:
        return b""


def test_the_proxy_passes_on_until_it_is_cut(proxy: ChaosProxy) -> None:
    with dial(proxy) as line:
        line.sendall(b"hello")
        before = hear(line)
        proxy.cut()
        after = hear(line)
    with dial(proxy) as line:
        refused = hear(line)
    proxy.heal()
    with dial(proxy) as line:
        line.sendall(b"again")
        healed = hear(line)

    assert (before, after, refused, healed) == (b"hello", b"", b"", b"again")


def test_one_direction_can_be_lost_while_the_other_is_served(proxy: ChaosProxy) -> None:
    proxy.lines[DOWN].is_swallowed = True
    with dial(proxy) as line:
        line.settimeout(0.3)
        line.sendall(b"hello")
        with pytest.raises(TimeoutError):
            line.recv(100)

    assert (proxy.lines[DOWN].swallowed, proxy.lines["up"].passed) == (5, 5)


def a_life(**steps: float) -> list[StoredEvent]:
    """A lease's events at seconds after noon."""
    was, found = "booked", []
    for number, (now, second) in enumerate(steps.items()):
        found.append(StoredEvent(1, number, was, now, at(second)))
        was = now
    return found


def a_lease(**more: Any) -> dict[str, Any]:
    return {
        "id": 1, "uid": "lse-1", "state": "ended", "request_id": 1, "team_id": 1, "cost_milli": 1000,
        "share_milli": 1000, "price_milli": 1000, "model": 1, "not_after": at(20), "activated_at": at(1.5),
        "ended_at": at(11.9), "end_reason": "released", "is_metered": True, "is_extra": False, **more,
    }  # fmt: skip


def a_record(begin: float, end: float, **more: Any) -> dict[str, Any]:
    return {
        "lease_id": 1, "starts": at(begin), "ends": at(end), "seconds": int(end - begin), "share_milli": 1000,
        "share_milli_seconds": int(end - begin) * 1000, "micro_per_hour": 3600, "month": at(-1000),
        "month_end": at(1000), "line_id": None, "period": "open", **more,
    }  # fmt: skip


def a_place(lease: int = 1, begin: float = 1, end: float = 12.5) -> dict[str, Any]:
    return {
        "id": lease, "lease_id": lease, "device_id": 5, "host_id": None, "low": 0, "high": 8,
        "begins": at(begin), "ends": at(end), "is_empty": False, "is_live": False, "share_milli": 1000,
        "memory_mib": 10, "board_mib": 10, "node_id": 1,
    }  # fmt: skip


@pytest.fixture
def seen() -> RowsSeen:
    return RowsSeen(
        leases={1: a_lease()},
        events={1: a_life(preparing=1, active=1.5, ending=11.9, cleaning=12, ended=12.5)},
        usage={1: [a_record(1, 11)]},
        placements=[a_place()],
        requests={},
        rates={1: [(at(-5000), None, 3600)]},
        quotas=[{"team_id": 1, "used_milli": 0, "ceiling_milli": 5000}],
        teams={1: {"id": 1, "slug": "vision", "lineage": [1]}},
        audit=[],
        now=at(30),
    )


def broken(seen: RowsSeen) -> set[str]:
    found = {proof.__name__: proof(seen) for proof in (*proofs.WHILE_RUNNING, *proofs.AT_REST)}
    return {name for name, sentences in found.items() if sentences}


def test_a_life_that_is_right_breaks_no_proof(seen: RowsSeen) -> None:
    assert broken(seen) == set()


def test_a_second_too_much_or_too_little_is_seen(seen: RowsSeen) -> None:
    assert broken(replace(seen, usage={1: [a_record(1, 12)]})) == {"usage_equals_events"}
    assert broken(replace(seen, usage={1: [a_record(2, 11)]})) == {"usage_equals_events"}


def test_usage_that_overlaps_or_pays_another_price_is_seen(seen: RowsSeen) -> None:
    twice = replace(seen, usage={1: [a_record(1, 11), a_record(10, 11)]})
    cheap = replace(seen, usage={1: [a_record(1, 11, micro_per_hour=1)]})

    assert "usage_is_apart" in broken(twice)
    assert broken(cheap) == {"usage_pays_the_price_of_its_time"}


def test_a_lease_that_ends_after_its_end_is_seen(seen: RowsSeen) -> None:
    late = replace(seen, leases={1: a_lease(not_after=at(11))})

    assert broken(late) == {"nothing_overruns"}


def test_events_that_run_backwards_or_leave_a_step_out_are_seen(seen: RowsSeen) -> None:
    backwards = a_life(preparing=1, active=1.5, ending=11.9, cleaning=11.8, ended=12.5)
    gap = [event for event in seen.events[1] if event.now != "cleaning"]

    assert broken(replace(seen, events={1: backwards})) == {"steps_follow_each_other"}
    assert broken(replace(seen, events={1: gap})) == {"steps_follow_each_other"}


def test_two_who_hold_the_same_slot_are_seen_by_periods_and_by_steps(seen: RowsSeen) -> None:
    other = [replace(event, lease=2, at=event.at + timedelta(seconds=5)) for event in seen.events[1]]
    both = replace(
        seen,
        leases={**seen.leases, 2: a_lease(id=2, uid="lse-2", activated_at=at(6.5), ended_at=at(16.9))},
        events={**seen.events, 2: other},
        usage={**seen.usage, 2: [a_record(6, 16, lease_id=2)]},
        placements=[a_place(), a_place(2, 13, 18)],
    )

    (by_steps,) = proofs.nothing_overlaps(both)
    (by_period, _by_steps) = proofs.nothing_overlaps(replace(both, placements=[a_place(), a_place(2, 6, 18)]))

    assert by_steps.startswith("by steps")
    assert by_period.startswith("by period")


def test_a_quota_that_counts_wrong_is_seen(seen: RowsSeen) -> None:
    wrong = replace(seen, quotas=[{"team_id": 1, "used_milli": 1000, "ceiling_milli": 5000}])

    assert broken(wrong) == {"quotas_add_up"}
