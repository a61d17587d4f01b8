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


def test_energy_is_the_rise_of_the_counter_within_one_boot() -> None:
    book = MinuteBook()

    used = [
        book.energy_since(1, "b1", 1000),
        book.energy_since(1, "b1", 1300),
        book.energy_since(1, "b1", None),
        book.energy_since(1, "b2", 50),
        book.energy_since(1, "b2", 60),
        book.energy_since(1, "b2", 10),
    ]

    assert used == [None, 300, None, None, 10, None]


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
