"""Which nodes sleep and which wake, by hand and over random days."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler.engine.model import (
    Booking,
    Claim,
    DeviceInfo,
    Held,
    NodeInfo,
    Outage,
    PolicyRules,
    Running,
    Snapshot,
    TeamQuota,
)
from scheduler.engine.plan import plan
from scheduler.engine.policy import Sleep, SleepTime
from scheduler.engine.sleep import LEAD_S, NodePower, PowerOrders, allowed, orders
from scheduler.engine.sleeping_nodes import ASLEEP
from tests.engine.builder import NOON, Cluster

ALWAYS = Sleep((SleepTime(tuple(range(7)), 0, 1440, awake=0),), after_s=900)
NIGHTS = Sleep((SleepTime((0, 1, 2, 3, 4), 20 * 60, 6 * 60, awake=1),), after_s=900, zone="Europe/Berlin")
LONG_AGO = NOON - timedelta(hours=2)


def told(cluster: Cluster, *power: NodePower, sleep: Sleep = ALWAYS, **more: object) -> PowerOrders:
    return orders(replace(cluster.snapshot(), **more), PolicyRules(sleep=sleep), power)


def idle(node_id: int, since: datetime = LONG_AGO, **more: object) -> NodePower:
    return NodePower(node_id, False, since, **more)


def sleeping(node_id: int, **more: object) -> NodePower:
    return NodePower(node_id, True, LONG_AGO, **more)


def booked(device_id: int, minutes: int) -> Booking:
    starts = NOON + timedelta(minutes=minutes)
    return Booking(starts, Held(device_id, 0, 8, "exclusive", 1, 9, starts + timedelta(hours=1), 1000))


def with_awake(awake: int) -> Sleep:
    return replace(ALWAYS, times=(replace(ALWAYS.times[0], awake=awake),))


def test_a_node_that_has_idled_long_enough_sleeps_and_a_busy_or_fresh_one_does_not(cluster):
    cluster.node("idle")
    cluster.node("busy").hold(0)
    cluster.node("fresh")

    found = told(cluster, idle(1), NodePower(2), idle(3, NOON - timedelta(minutes=14)))

    assert found == PowerOrders(sleep=((1, "idle"),))


def test_what_is_held_counts_even_where_the_rows_say_idle(cluster):
    cluster.node("a").hold(0)

    assert told(cluster, idle(1)) == PowerOrders()


def test_enough_idle_nodes_of_each_model_stay_ready(cluster):
    for name in ("a", "b", "c"):
        cluster.node(name)
    cluster.node("other", "l40s-48gb")

    found = told(cluster, *(idle(n) for n in (1, 2, 3, 4)), sleep=with_awake(1))

    assert found == PowerOrders(sleep=((2, "idle"), (3, "idle")))


def test_when_too_few_are_ready_one_more_wakes(cluster):
    cluster.node("a").hold(0)
    cluster.node("b", blocked=ASLEEP)
    cluster.node("c", blocked=ASLEEP)

    found = told(cluster, NodePower(1), sleeping(2), sleeping(3), sleep=with_awake(1))

    assert found == PowerOrders(wake=((2, "ready"),))


def test_one_that_is_being_woken_counts_as_ready_so_that_no_other_wakes(cluster):
    cluster.node("a", blocked=ASLEEP)
    cluster.node("b", blocked=ASLEEP)

    assert told(cluster, idle(1, NOON), sleeping(2), sleep=with_awake(1)) == PowerOrders()


def test_a_claim_that_fits_nowhere_else_wakes_as_many_nodes_as_it_needs(cluster):
    cluster.node("a").hold(0)
    for name in ("b", "c", "d"):
        cluster.node(name, blocked=ASLEEP)
    cluster.request("gang", count=1, nodes=2)

    found = told(cluster, NodePower(1), *(sleeping(n) for n in (2, 3, 4)))

    assert [why for _, why in found.wake] == ["claim", "claim"]


@pytest.mark.parametrize("ceiling", [0, 500])
def test_a_claim_that_may_not_start_wakes_nobody(cluster, ceiling):
    cluster.team("vision", ceiling=ceiling)
    cluster.node("a", blocked=ASLEEP)
    cluster.request("x")

    assert told(cluster, sleeping(1)) == PowerOrders()


def test_a_claim_for_another_model_wakes_nobody(cluster):
    cluster.node("a", blocked=ASLEEP)
    cluster.node("b", "l40s-48gb").hold(0)
    cluster.request("x", models=("l40s-48gb",))

    assert told(cluster, sleeping(1), NodePower(2)) == PowerOrders()


def test_a_claim_waits_for_the_sleeping_node_and_is_not_impossible(cluster):
    cluster.node("a", blocked=ASLEEP, host={"wake_s": 40})
    cluster.node("b", blocked=ASLEEP)
    cluster.request("x")

    turn = cluster.plan()

    assert turn.codes("x") == ["node_waking"]
    assert not turn.waits["x"].is_impossible
    assert turn.reason("x", "node_waking").detail == {
        "nodes": ["a", "b"],
        "ready_at": (NOON + timedelta(seconds=40)).isoformat(),
    }


def test_how_long_waking_takes_is_unknown_before_the_first_time(cluster):
    cluster.node("a", blocked=ASLEEP)
    cluster.request("x")

    assert cluster.plan().reason("x", "node_waking").detail["ready_at"] is None


def test_a_sleeping_node_that_would_not_help_is_no_reason(cluster):
    cluster.node("a", devices=2).hold(0)
    cluster.node("b", devices=1, blocked=ASLEEP)
    cluster.request("x", count=2)

    assert "node_waking" not in cluster.plan().codes("x")


def test_a_node_wakes_before_what_is_booked_on_it_and_does_not_fall_asleep_shortly_before(cluster):
    cluster.node("a", blocked=ASLEEP)
    cluster.node("b", blocked=ASLEEP)
    cluster.node("c")
    bookings = (booked(1, LEAD_S // 60), booked(2, LEAD_S // 60 + 1), booked(3, 20))

    found = told(cluster, sleeping(1), sleeping(2), idle(3), bookings=bookings)

    assert found == PowerOrders(wake=((1, "booking"),))


def test_silent_nodes_and_those_in_maintenance_are_left_alone(cluster):
    cluster.node("silent", blocked="offline")
    cluster.node("mended")
    outage = Outage(2, NOON - timedelta(minutes=1), NOON + timedelta(hours=1))

    assert told(cluster, idle(1), idle(2), outages=(outage,)) == PowerOrders()


def test_a_cordoned_node_may_sleep_and_is_not_counted_as_ready(cluster):
    cluster.node("out", blocked="cordoned")
    cluster.node("in")

    assert told(cluster, idle(1), idle(2), sleep=with_awake(1)) == PowerOrders(sleep=((1, "idle"),))


def test_an_operators_word_goes_before_the_policy(cluster):
    cluster.node("a")
    cluster.node("b")
    cluster.node("c", blocked=ASLEEP)

    by_word = (idle(1, NOON, rule="asleep"), idle(2, rule="awake"), sleeping(3, rule="awake"))

    assert told(cluster, *by_word, sleep=Sleep()) == PowerOrders(
        sleep=((1, "operator"),), wake=((3, "operator"),)
    )
    assert told(cluster, *by_word) == PowerOrders(sleep=((1, "operator"),), wake=((3, "operator"),))


def test_all_wake_when_the_policy_no_longer_lets_nodes_sleep_but_those_an_operator_sent(cluster):
    cluster.node("a", blocked=ASLEEP)
    cluster.node("b", blocked=ASLEEP)

    assert told(cluster, sleeping(1), sleeping(2, rule="asleep"), sleep=Sleep()).wake == ((1, "hours"),)


@pytest.mark.parametrize(
    ("at", "may"),
    [
        ("2026-03-02 19:30", True),  # Monday 20:30 in Berlin
        ("2026-03-02 18:30", False),
        ("2026-03-07 04:30", True),  # Saturday morning belongs to Friday night
        ("2026-03-07 05:30", False),
        ("2026-03-08 04:30", False),
        ("2026-03-31 03:30", True),  # summer time: 5:30
        ("2026-03-31 04:30", False),
    ],
)
def test_sleep_times_are_meant_in_their_zone_and_run_past_midnight(at, may):
    assert (allowed(NIGHTS, datetime.fromisoformat(at).replace(tzinfo=UTC)) is not None) is may


def test_nobody_falls_asleep_for_a_nap_and_all_wake_before_the_day_begins(cluster):
    cluster.node("a")
    cluster.node("b", blocked=ASLEEP)
    sleep = replace(NIGHTS, times=(replace(NIGHTS.times[0], awake=0),), zone="UTC")
    snapshot = cluster.snapshot()

    def at(text: str) -> PowerOrders:
        now = datetime.fromisoformat(f"2026-03-03 {text}").replace(tzinfo=UTC)
        return orders(replace(snapshot, taken_at=now), PolicyRules(sleep=sleep), (idle(1), sleeping(2)))

    assert at("05:30") == PowerOrders(sleep=((1, "idle"),))
    assert at("05:45") == PowerOrders()
    assert at("05:56") == PowerOrders(wake=((2, "hours"),))


def test_a_sleeping_node_can_be_booked_for_later(cluster):
    cluster.node("a", blocked=ASLEEP, host={"wake_s": 60})
    cluster.request("x", starts_at=NOON + timedelta(hours=8))

    turn = cluster.plan()

    assert turn.grants["x"].starts_at == NOON + timedelta(hours=8)


def test_a_forecast_counts_on_waking_and_says_so_meanwhile(cluster):
    cluster.node("a", blocked=ASLEEP, host={"wake_s": 90})
    cluster.node("b", blocked="cordoned")
    claim = cluster.claim(-1)

    (found,) = cluster.forecast(claim).values()

    assert found.starts_at == NOON + timedelta(seconds=90)
    assert found.reasons[0].code == "node_waking"


def test_a_quarantined_board_of_a_sleeping_node_is_not_counted_on(cluster):
    cluster.node("a", blocked=ASLEEP)
    cluster.change(1, blocked="quarantined")

    assert cluster.start_of(cluster.claim(-1)) is None


def test_nobody_is_told_to_go_for_a_claim_that_a_node_is_woken_for(cluster):
    cluster.node("a").hold(0, lease=7)
    running = Running(7, 70, 1, 1, 1, LONG_AGO, NOON + timedelta(hours=1), 1000, is_preemptible=True)
    cluster.request("x", priority=1)
    alone = replace(cluster.snapshot(), running=(running,))
    cluster.node("b", blocked=ASLEEP)
    helped = replace(cluster.snapshot(), running=(running,))

    assert [p.lease_id for p in plan(alone, PolicyRules()).preemptions] == [7]
    assert plan(helped, PolicyRules()).preemptions == ()


class Days:
    """A small fleet over days, minute by minute: requests come, run and end, nodes obey after a while."""

    WAKE = timedelta(minutes=2)

    def __init__(
        self, sleep: Sleep, arrivals: list[tuple[int, int, int]], booking: tuple[int, int] | None
    ) -> None:
        self.policy = PolicyRules(sleep=sleep, place="binpack", keep_empty=4.0)
        self.now = NOON
        self.nodes = {n: NodePower(n, False, NOON) for n in (1, 2, 3, 4)}
        self.devices = tuple(
            DeviceInfo(10 * n + i, n, "a100", 1, 40_000, 1000, frozenset({"exclusive"}), index=i)
            for n in self.nodes
            for i in range(2)
        )
        self.awake_at: dict[int, datetime] = {}
        self.held: list[Held] = []
        self.queue: list[Claim] = []
        self.arrivals = defaultdict(list)
        for number, (minute, count, minutes) in enumerate(arrivals, 1):
            self.arrivals[minute].append((number, count, minutes))
        self.bookings: tuple[Booking, ...] = ()
        if booking is not None:
            starts = NOON + timedelta(minutes=booking[0])
            until = starts + timedelta(minutes=booking[1])
            self.bookings = (Booking(starts, Held(10, 0, 1, "exclusive", 1, 999, until, 1000)),)
        self.log: list[tuple[datetime, int, str]] = []

    def is_up(self, node: int) -> bool:
        return not self.nodes[node].is_asleep and self.awake_at.get(node, NOON) <= self.now

    def snapshot(self) -> Snapshot:
        return Snapshot(
            self.now,
            tuple(NodeInfo(n, f"n{n}", "" if self.is_up(n) else ASLEEP) for n in self.nodes),
            self.devices,
            tuple(self.held),
            tuple(self.queue),
            (TeamQuota(1, None, None, 0),),
            bookings=self.bookings,
        )

    def left_free(self) -> list[tuple[Claim, DeviceInfo]]:
        """Claims for one board that have waited longer than waking takes, with each board free beside them.

        But boards on a node that is up and owed to a claim for two, which this one would be in the way of.
        """
        late = self.now - self.WAKE - timedelta(minutes=2)
        # What holds a board now decides when it is free, not what is booked on it for later.
        taken = {h.device_id: h.until for h in (*(b.held for b in self.bookings), *self.held)}
        is_pair_waiting = any(claim.count == 2 for claim in self.queue)

        def is_owed(claim: Claim, board: DeviceInfo) -> bool:
            both_free = max(
                (until for i, until in taken.items() if i // 10 == board.node_id), default=self.now
            )
            ends = self.now + timedelta(seconds=claim.duration_s)
            return is_pair_waiting and self.is_up(board.node_id) and self.now < both_free < ends

        return [
            (claim, board)
            for claim in self.queue
            for board in self.devices
            if claim.count == 1 and claim.queued_at <= late
            if board.id not in taken and not is_owed(claim, board)
        ]

    def minute(self, number: int) -> None:
        self.now = NOON + timedelta(minutes=number)
        self.held = [h for h in self.held if h.until > self.now]
        for booking in self.bookings:
            if booking.starts_at <= self.now:
                assert self.is_up(booking.held.device_id // 10)
                self.held.append(booking.held)
        self.bookings = tuple(b for b in self.bookings if b.starts_at > self.now)
        self.queue += [
            Claim(i, 1, "exclusive", count, minutes * 60, 0, self.now)
            for i, count, minutes in self.arrivals[number]
        ]
        self.grant()
        busy = {h.device_id // 10 for h in self.held}
        for n, node in self.nodes.items():
            since = None if n in busy else node.idle_since or self.now
            self.nodes[n] = replace(node, idle_since=since)
        self.obey(orders(self.snapshot(), self.policy, tuple(self.nodes.values())), busy)

    def grant(self) -> None:
        if not self.queue:
            return
        for grant in plan(self.snapshot(), self.policy).grants:
            self.queue = [claim for claim in self.queue if claim.id != grant.claim_id]
            until = self.now + timedelta(seconds=grant.duration_s)
            for slot in grant.slots:
                assert self.is_up(slot.device_id // 10)
                self.held.append(Held(slot.device_id, 0, 1, "exclusive", 1, grant.claim_id, until, 1000))

    def obey(self, found: PowerOrders, busy: set[int]) -> None:
        for n, why in found.sleep:
            assert n not in busy
            assert self.is_up(n)
            self.nodes[n] = replace(self.nodes[n], is_asleep=True)
            self.log.append((self.now, n, f"sleep {why}"))
        for n, why in found.wake:
            assert self.nodes[n].is_asleep
            self.awake_at[n] = self.now + self.WAKE
            self.nodes[n] = replace(self.nodes[n], is_asleep=False, idle_since=self.awake_at[n])
            self.log.append((self.now, n, f"wake {why}"))


ARRIVALS = st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 2), st.integers(1, 400)), max_size=30)

# At minute 438 a pair waits for the second board of a node, one minute more, and a single stays off the first.
ONE_BOARD_KEPT_FOR_A_PAIR = [
    *((0, 2, 217), (0, 2, 213), (0, 1, 1), (0, 1, 1), (17, 2, 248), (112, 1, 82), (139, 1, 172)),
    *((160, 1, 245), (200, 1, 357), (200, 1, 1), (245, 2, 217), (317, 1, 398), (337, 1, 1), (359, 2, 212)),
    *((401, 2, 272), (434, 1, 38), (478, 1, 346), (517, 1, 1), (587, 2, 103), (898, 1, 1), (1127, 1, 1)),
    *((1453, 2, 1), (1585, 1, 1), (1588, 1, 1)),
]

# A single waits beside a board that is kept for a pair until its other board is free, long before it is booked.
ONE_BOARD_FREE_BEFORE_A_BOOKING = [
    *((746, 1, 1), (1, 1, 1), (259, 1, 67), (474, 1, 178), (347, 2, 195), (1929, 2, 399), (128, 2, 386)),
    *((199, 2, 321), (448, 1, 1), (316, 1, 359), (0, 1, 1), (0, 1, 293), (953, 1, 1), (0, 1, 273), (0, 1, 1)),
    *((0, 1, 1), (222, 2, 69), (0, 1, 1), (472, 2, 360), (0, 1, 1), (229, 1, 319), (0, 1, 1), (0, 1, 1)),
    *((805, 1, 107), (778, 2, 1), (0, 1, 1), (98, 1, 315)),
]


@pytest.mark.deep
@settings(max_examples=25, deadline=None)
@example(ONE_BOARD_KEPT_FOR_A_PAIR, None, 1, 900)
@example(ONE_BOARD_FREE_BEFORE_A_BOOKING, (1428, 10), 0, 600)
@given(
    ARRIVALS,
    st.none() | st.tuples(st.integers(60, 2000), st.integers(10, 200)),
    st.integers(0, 2),
    st.sampled_from([600, 900, 3600]),
)
def test_over_random_days_nodes_do_not_flap_and_nobody_waits_for_a_node_that_could_be_woken(
    arrivals, booking, awake, after_s
):
    time = SleepTime(tuple(range(7)), 20 * 60, 6 * 60, awake)
    days = Days(Sleep((time,), after_s=after_s), arrivals, booking)

    for number in range(2200):
        days.minute(number)
        assert not days.left_free(), "a claim for one board waits beside a free one"

    last: dict[int, tuple[datetime, str]] = {}
    for at, node, what in days.log:
        before = last.get(node)
        if what.startswith("sleep") and before is not None:
            assert at - before[0] >= timedelta(seconds=after_s), "awake for too short"
        if what in ("wake hours", "wake booking") and before is not None:
            assert at - before[0] >= timedelta(seconds=LEAD_S), "asleep for a nap"
        last[node] = (at, what)
