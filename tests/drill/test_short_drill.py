"""Sixty seconds of a drill: a stack of its own, people at work, faults by a seed, and every proof at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tools.drill.run import Drill, Result, report
from tools.drill.stack import running

pytestmark = [pytest.mark.stack, pytest.mark.deep]
SEED = 12
CALM_S, FAULTS = 4.0, 5
# Only a machine that is all but standing still gets here; it sees fewer faults then.
MOST_S = 150.0


@pytest.fixture(scope="module")
def result() -> Iterator[Result]:
    with running(months=2, wants_small_disk=False) as stack:
        drill = Drill(stack, seed=SEED, actors=2, pause_s=0.7)
        yield drill.run(
            calm_s=CALM_S,
            faults_s=MOST_S,
            most_faults=FAULTS,
            is_short=True,
            say=lambda *_words, **_how: None,
        )


def test_every_fault_was_seen_and_recovered_from(result: Result) -> None:
    assert sum(len(met.seen) for met in result.met.values()) >= 1, report(result)
    assert {name: met.unseen for name, met in result.met.items() if met.unseen} == {}
    assert {name: met.lost for name, met in result.met.items() if met.lost} == {}
    assert (result.walked.unmet, None in result.walked.recovered_s.values()) == ([], False), report(result)


def test_nothing_was_lost_doubled_or_billed_beyond_its_events(result: Result) -> None:
    assert result.rest_s is not None, report(result)
    assert {name: found for name, found in result.broken.items() if found} == {}, report(result)
    assert {name: found for name, found in result.broken_meanwhile.items() if found} == {}
    assert result.invariants == ""


def test_nobody_met_an_error_that_says_nothing(result: Result) -> None:
    assert result.failures == []
