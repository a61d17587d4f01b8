from __future__ import annotations

from collections import Counter
from dataclasses import replace

from portal.idle.judging import IDLE_STATES, MeasuredWindow, MinuteSample, judge
from tests.idle.labelled import labelled_windows

HELD = MinuteSample(util=0.0, memory_mib=20_000, sm=0.0, bandwidth=0.0, power_w=115.0)
BUSY = HELD._replace(util=90.0, sm=60.0, power_w=500.0)


def window(*minutes: MinuteSample | None, each: int = 60, processes: int | None = 1) -> MeasuredWindow:
    return MeasuredWindow(
        list(minutes) * (each // len(minutes)), idle_w=70.0, limit_w=700.0, processes=processes
    )


def test_honest_work_is_left_alone_and_idling_in_disguise_is_found() -> None:
    """The figures of docs/idle.md: at most 1 % false positives and 5 % misses on the labelled set."""
    wrong: Counter[bool] = Counter()
    counted: Counter[bool] = Counter()
    for one in labelled_windows(seed=18, each=50):
        counted[one.is_idle] += 1
        wrong[one.is_idle] += (judge(one.window).state in IDLE_STATES) is not one.is_idle

    assert min(counted.values()) >= 700
    assert wrong[False] / counted[False] <= 0.01
    assert wrong[True] / counted[True] <= 0.05


def test_memory_that_is_held_without_work_is_held_idle_and_none_is_empty() -> None:
    held = judge(window(HELD))
    empty = judge(window(HELD._replace(memory_mib=12), processes=0))
    given_back = judge(
        replace(window(HELD, processes=None), minutes=[*[HELD] * 59, HELD._replace(memory_mib=3)])
    )

    assert (held.state, held.why, held.worked, held.known) == ("held_idle", "nothing", 0, 60)
    assert (empty.state, given_back.state) == ("empty", "empty")


def test_one_minute_of_work_in_the_window_is_enough() -> None:
    seen = judge(replace(window(HELD), minutes=[BUSY, *[HELD] * 59]))

    assert (seen.state, seen.why, seen.worked) == ("busy", "works", 1)


def test_who_was_there_lately_is_not_called_idle() -> None:
    assert judge(replace(window(HELD), is_attended=True)).why == "attended"


def test_too_little_known_is_unknown_and_never_idle() -> None:
    for given in (
        window(HELD, each=14),
        window(None),
        window(HELD, HELD, HELD, HELD, None),
        window(MinuteSample(memory_mib=20_000, power_w=70.0)),  # nothing that tells of work
    ):
        assert (judge(given).state, judge(given).why) == ("unknown", "too_few")


def test_a_full_utilisation_that_nothing_else_confirms_is_a_dummy_loop() -> None:
    inside = judge(window(HELD._replace(util=100.0, sm=0.7)))
    by_power = judge(window(MinuteSample(util=100.0, memory_mib=900, power_w=118.0)))
    nothing_contradicts = judge(window(MinuteSample(util=99.0, memory_mib=900), MinuteSample(util=100.0)))

    assert (inside.state, inside.why) == ("held_idle", "dummy_loop")
    assert (by_power.state, by_power.why) == ("held_idle", "dummy_loop")
    assert nothing_contradicts.state == "busy"


def test_the_same_small_load_each_minute_is_a_keep_alive_unless_it_moves_data() -> None:
    alike = HELD._replace(util=4.0, sm=3.5, bandwidth=0.1)

    assert judge(window(alike)).why == "keep_alive"
    assert judge(window(alike._replace(bandwidth=4.0), alike._replace(bandwidth=3.0))).state == "busy"


def test_counters_that_stand_still_tell_nothing() -> None:
    stuck = judge(window(BUSY))
    moving = judge(window(BUSY, BUSY._replace(power_w=498.2)))

    assert (stuck.state, stuck.why) == ("unknown", "stuck")
    assert moving.state == "busy"
