from __future__ import annotations

import pytest

from portal.telemetry.minutes import MinuteBook, MinuteSums, read, texts


def test_a_minute_with_unknown_seconds_has_the_mean_of_the_known_ones() -> None:
    sums = MinuteSums()

    sums.add(20.0, 1000)
    sums.add(None, None)
    sums.add(40.0, 3000)

    assert (sums.samples, sums.util_mean, sums.util_max, sums.memory_max_mib) == (3, 30.0, 40.0, 3000)


def test_a_minute_without_any_known_second_stays_unknown() -> None:
    sums = MinuteSums()

    sums.add(None, None)

    assert (sums.util_mean, sums.util_max, sums.memory_max_mib, sums.energy_mj) == (None, None, None, None)


def test_the_first_second_of_the_next_minute_hands_out_the_last_one() -> None:
    book = MinuteBook()
    first, nothing = book.minute("n1", 119.9)
    first.devices[1] = MinuteSums(samples=1)

    second, over = book.minute("n1", 120.0)

    assert nothing is None
    assert over is first
    assert (first.begins, second.begins) == (60, 120)


def test_a_silent_node_s_minute_is_handed_out_by_the_clock() -> None:
    book = MinuteBook()
    minute, _none = book.minute("n1", 100.0)

    assert book.overdue(now=121.0) == []
    assert book.overdue(now=126.0) == [minute]
    assert book.overdue(now=126.0) == []


def energies(*samples: tuple[float, str, int | None]) -> list[tuple[int | None, bool]]:
    book = MinuteBook()
    return [book.energy_since(1, boot, counter, at=at, limit_w=700.0) for at, boot, counter in samples]


def test_energy_is_the_rise_of_the_counter_within_one_boot() -> None:
    used = energies(
        (0.0, "b1", 1000),
        (1.0, "b1", 1300),
        (2.0, "b1", None),
        (3.0, "b2", 50),
        (4.0, "b2", 60),
        (5.0, "b2", 10),
    )

    assert used == [(None, False), (300, False), (None, False), (None, False), (10, False), (None, True)]


def test_a_counter_that_rises_beyond_the_limit_of_its_model_is_refused_and_followed_on() -> None:
    used = energies((0.0, "b", 0), (1.0, "b", 700_000), (2.0, "b", 9_000_000), (3.0, "b", 9_700_000))

    assert used == [(None, False), (700_000, False), (None, True), (700_000, False)]


def test_a_counter_cannot_gain_by_many_small_lies() -> None:
    used = energies(*((n / 10, "b", 500_000 * n) for n in range(100)))

    assert sum(step or 0 for step, _refused in used) <= 700_000 * 1.1 * 11
    assert sum(refused for _step, refused in used) > 50


def test_samples_that_were_held_up_and_come_together_are_all_counted() -> None:
    used = energies((0.0, "b", 0), (5.0, "b", 700_000), (5.01, "b", 1_400_000), (5.02, "b", 2_100_000))

    assert used[1:] == [(700_000, False)] * 3


def test_what_a_counter_rose_by_over_a_long_silence_is_nobody_s() -> None:
    used = energies((0.0, "b", 0), (300.0, "b", 21_000_000), (301.0, "b", 21_070_000))

    assert used == [(None, False), (None, False), (70_000, False)]


def test_a_minute_survives_being_written_and_read() -> None:
    minute, _none = MinuteBook().minute("n1", 60.0)
    minute.leases[9] = MinuteSums(samples=60, util_known=0)

    (text,) = texts([minute])

    assert read(text) == minute


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"node":"n","begins":"x","devices":{},"leases":{}}', "null"]
)
def test_a_broken_text_is_refused_as_such(text: str) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        read(text)
