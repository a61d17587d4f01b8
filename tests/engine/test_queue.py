from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.errors import UnknownPolicy
from scheduler.engine.line import NOBODY, RUNNING, WAITING, age_of
from scheduler.engine.order.queue import Queue
from scheduler.engine.order.rules import POLICIES, QueuePolicy, policy_named

NODES, BOARDS = 3, 4


@dataclass
class Drill:
    """A queue driven through time; ``log`` holds (second, what, row)."""

    policy: QueuePolicy
    jobs: list[tuple[int, int, int, int]]  # submit, duration, gpus, team
    log: list[tuple[int, str, int]] = field(default_factory=list)
    nodes: int = NODES

    def __post_init__(self) -> None:
        self.jobs = sorted(self.jobs)
        gpus, teams = [job[2] for job in self.jobs], [job[3] for job in self.jobs]
        self.queue = Queue(
            self.policy, [BOARDS] * self.nodes, gpus, teams, [1.0, 1.0, 1.0], is_compiled=False
        )

    def turns(self) -> Iterator[int]:
        """Play to the end, handing out the second of each turn after it was taken."""
        left, since, run = [job[1] for job in self.jobs], [0] * len(self.jobs), [0] * len(self.jobs)
        ends: list[tuple[int, int, int]] = []
        arrived, tick = 0, 0
        while arrived < len(self.jobs) or ends:
            now = min([*(job[0] for job in self.jobs[arrived : arrived + 1]), *(e[0] for e in ends[:1])])
            now = min(now, tick) if self.queue.waiting else now
            while ends and ends[0][0] <= now:
                _, row, number = heapq.heappop(ends)
                if run[row] == number:
                    self.queue.end(row, now)
                    self.log.append((now, "end", row))
            while arrived < len(self.jobs) and self.jobs[arrived][0] <= now:
                self.queue.arrive(arrived, now)
                arrived += 1
            began, evicted = self.queue.turn(now)
            for row in evicted.tolist():
                run[row] += 1
                left[row] += 40 - (now - since[row])
                self.log.append((now, "evicted", row))
            for row in began.tolist():
                run[row] += 1
                since[row] = now
                heapq.heappush(ends, (now + left[row], row, run[row]))
                self.log.append((now, "began", row))
            tick = now + 60
            yield now


jobs_strategy = st.lists(
    st.tuples(
        st.integers(0, 4000),
        st.integers(1, 6000),
        st.sampled_from([1, 1, 2, 3, 4, 5, 8, 12]),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=14,
)
names = st.sampled_from(sorted(POLICIES))


@settings(max_examples=60, deadline=None)
@given(name=names, jobs=jobs_strategy)
def test_boards_are_conserved_and_gangs_get_all_or_none(
    name: str, jobs: list[tuple[int, int, int, int]]
) -> None:
    drill = Drill(policy_named(name), jobs)

    for _ in drill.turns():
        line, floor = drill.queue.line, drill.queue.floor
        held = np.bincount(floor.holder[floor.holder != NOBODY], minlength=len(drill.jobs))
        running = line.state == RUNNING
        assert (held == np.where(running, line.gpus, 0)).all()
        assert (floor.free == (floor.holder == NOBODY).sum(axis=1)).all()
        assert drill.queue.waiting == int((line.state == WAITING).sum())
        assert drill.queue.teams.used.sum() == held.sum()
        for row in np.flatnonzero(running & (line.gpus <= BOARDS)):
            assert len(set(np.argwhere(floor.holder == row)[:, 0])) == 1

    assert sorted(row for _, what, row in drill.log if what == "end") == list(range(len(drill.jobs)))


@settings(max_examples=40, deadline=None)
@given(name=names, jobs=jobs_strategy)
def test_same_events_give_the_same_decisions(name: str, jobs: list[tuple[int, int, int, int]]) -> None:
    one, other = Drill(policy_named(name), jobs), Drill(policy_named(name), jobs)

    assert list(one.turns()) == list(other.turns())
    assert one.log == other.log


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(["default", "fair_tree", "guarantees_first"]), jobs=jobs_strategy)
def test_nobody_is_preempted_before_its_minimum_run_or_too_often(
    name: str, jobs: list[tuple[int, int, int, int]]
) -> None:
    policy = policy_named(name)
    drill = Drill(policy, jobs)
    list(drill.turns())

    began, times = dict[int, int](), dict[int, int]()
    for now, what, row in drill.log:
        if what == "began":
            began[row] = now
        if what == "evicted":
            least = policy.guard.least_run_s * (1 + policy.guard.run_growth * times.get(row, 0))
            assert now - began[row] >= least
            times[row] = times.get(row, 0) + 1
    assert all(count <= policy.guard.most_evictions for count in times.values())


@settings(max_examples=60, deadline=None)
@given(jobs=jobs_strategy)
def test_who_is_protected_is_never_preempted(jobs: list[tuple[int, int, int, int]]) -> None:
    policy = policy_named("default")
    policy = replace(policy, care=policy.care._replace(protect_s=600, protect_part=1.0))
    drill = Drill(policy, jobs)

    was = np.zeros(len(jobs), bool)
    seen = 0
    for _ in drill.turns():
        evicted = [row for _, what, row in drill.log[seen:] if what == "evicted"]
        seen = len(drill.log)
        assert not was[evicted].any()
        was = drill.queue.line.protected.copy()


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.tuples(st.integers(3, 4), st.integers(3, 4)),
    durations=st.tuples(st.integers(1, 40_000), st.integers(1, 40_000)),
    gap=st.integers(0, 5000),
)
def test_two_requests_for_the_same_place_do_not_chase_each_other(
    sizes: tuple[int, int], durations: tuple[int, int], gap: int
) -> None:
    policy = policy_named("default")
    drill = Drill(policy, [(1, durations[0], sizes[0], 0), (1 + gap, durations[1], sizes[1], 1)], nodes=1)
    list(drill.turns())

    times = drill.queue.line.evictions.tolist()
    for count, duration in zip(times, [job[1] for job in drill.jobs], strict=True):
        least = sum(policy.guard.least_run_s * (1 + policy.guard.run_growth * at) for at in range(count))
        assert least <= duration + 40 * count
        assert count <= policy.guard.most_evictions
    last = max(now for now, what, _ in drill.log if what == "end")
    idle = max(gap - durations[0], 0)
    assert last == 1 + sum(durations) + idle + 40 * sum(times), "the node was busy all the time"


def at_second(drill: Drill, second: int) -> list[tuple[str, int]]:
    for now in drill.turns():
        if now == second:
            break
    return [(what, row) for at, what, row in drill.log if at == second]


def test_a_gang_preempts_all_it_needs_in_one_go() -> None:
    drill = Drill(policy_named("two_level"), [(0, 50_000, 4, 1), (0, 50_000, 8, 0), (30_000, 60, 12, 2)])

    assert at_second(drill, 30_000) == [("evicted", 0), ("evicted", 1), ("began", 2)]


def test_nobody_is_preempted_for_a_request_that_would_not_fit_then() -> None:
    drill = Drill(policy_named("two_level"), [(0, 50_000, 8, 0), (29_000, 50_000, 4, 1), (30_000, 60, 12, 2)])

    assert at_second(drill, 30_000) == []


def test_of_several_nodes_the_one_with_the_least_loss_is_cleared_and_the_fewest_go() -> None:
    jobs = [(0, 50_000, 4, 0), (1, 50_000, 4, 0), (2, 50_000, 1, 0), (3, 50_000, 3, 0), (30_000, 60, 2, 1)]
    drill = Drill(policy_named("two_level"), jobs)

    assert at_second(drill, 30_000) == [("evicted", 3), ("began", 4)]


def test_a_team_inside_its_guarantee_takes_from_one_above_its_own() -> None:
    borrower = [(0, 50_000, 4, 0)] * 3

    plain, guaranteed = (
        at_second(Drill(policy_named(name), [*borrower, (9_000, 40_000, 4, 1)]), 9_000)
        for name in ("fifo", "guarantees_first")
    )

    assert plain == []
    assert guaranteed == [("evicted", 0), ("began", 3)]


def test_a_team_that_lost_its_guarantee_to_a_better_score_takes_it_back_at_the_next_pass() -> None:
    one_each = [(0, 50_000, 4, team) for team in range(3)]
    drill = Drill(policy_named("guarantees_first"), [*one_each, (9_000, 50_000, 4, 1)])

    assert at_second(drill, 9_060) == [("evicted", 1), ("began", 0)]
    assert drill.log[-4:-2] == [(9_000, "evicted", 0), (9_000, "began", 3)]


def test_the_team_that_used_less_is_served_first_by_the_fair_tree() -> None:
    history = [(0, 3_000, 4, 0)] * 3
    blocker = [(3_000, 600, 4, 2)] * 3
    drill = Drill(policy_named("fair_tree"), [*history, *blocker, (3_100, 600, 4, 0), (3_101, 600, 4, 1)])
    list(drill.turns())

    began = {row: now for now, what, row in drill.log if what == "began"}
    assert began[7] < began[6]


def test_repaying_the_cost_of_a_preemption_adds_nothing_to_the_age() -> None:
    queue = Queue(policy_named("two_level"), [4], [4, 4], [0, 0], [1.0], is_compiled=False)
    queue.arrive(0, 0)
    queue.turn(0)
    queue.arrive(1, 5000)
    assert queue.turn(5000)[1].tolist() == [0]
    queue.end(1, 5100)
    queue.turn(5100)

    ages = [age_of(queue.line, 0, now) for now in (5100, 5130, 5140, 5150)]

    assert ages == [5000, 5000, 5000, 5010]


def test_who_has_waited_long_comes_before_a_slightly_shorter_one() -> None:
    policy = policy_named("default")
    queue = Queue(policy, [4], [4, 4, 3], [0, 0, 0], [1.0], is_compiled=False)
    queue.arrive(0, 0)
    queue.turn(0)
    queue.arrive(1, 1)
    queue.arrive(2, 40_000)

    queue.end(0, 40_000)

    assert queue.turn(40_000)[0].tolist() == [1]


def test_an_unknown_queue_policy_is_refused_and_the_choices_are_named() -> None:
    with pytest.raises(UnknownPolicy, match="default_no_preemption"):
        policy_named("astrology")
