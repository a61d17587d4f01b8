"""What a turn reads about how long requests run."""

from __future__ import annotations

from scheduler.engine.learning.lengths import Curves, LengthRecord, curves_of
from scheduler.engine.model import Learned


def chance_to_pass(learned: Learned, team: int, bins: int) -> float:
    """How likely a request of the team, of any size, lasts for longer than so many bins."""
    (row,) = [chances for who, group, chances in learned.lengths if (who, group) == (team, -1)]
    return sum(row[bins:])


def test_those_that_have_not_ended_count_as_longer_than_so_far() -> None:
    record = LengthRecord()
    for _ in range(50):
        record.note(1, 1, 100.0)

    alone = record.learned(1)
    beside = record.learned(1, [(1, 1, 50_000.0)] * 50)

    assert chance_to_pass(beside, 1, 20) > 2 * chance_to_pass(alone, 1, 20)


def test_a_size_nobody_had_is_like_its_team_and_a_new_team_like_everybody() -> None:
    record = LengthRecord()
    for _ in range(1000):
        record.note(1, 1, 60.0)
        record.note(2, 1, 60_000.0)
    curves = Curves(record.learned(1))

    assert curves.rank(1, 8, 0, 0) == curves.rank(1, 32, 0, 0) < curves.rank(2, 8, 0, 0)
    assert curves.rank(1, 8, 0, 0) < curves.rank(7, 1, 0, 0) < curves.rank(2, 8, 0, 0)


def test_without_anything_learned_a_request_is_the_longer_the_longer_it_has_run() -> None:
    curves = curves_of(Learned())

    ranks = [curves.rank(1, 1, age, 0) for age in (0, 10, 1000, 100_000)]

    assert ranks == sorted(ranks)
    assert curves.rank(1, 1, 0, 60) < curves.rank(1, 1, 0, 6000)


def test_a_prediction_counts_as_much_as_predictions_were_right() -> None:
    right = LengthRecord()
    for _ in range(200):
        right.note(1, 1, 60.0, 60.0)
        right.note(1, 1, 6000.0, 6000.0)
    curves = curves_of(right.learned(1))

    assert curves.rank(1, 1, 0, 60) < curves.rank(1, 1, 0, 0) < curves.rank(1, 1, 0, 6000)
    assert curves_of(right.learned(1)) is not curves
