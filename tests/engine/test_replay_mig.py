"""The MIG experiment on a small scale: same requests for every rule, and ours ahead of binpack."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

import pytest

from nodeagent.protocol.boards import board
from scheduler.replay import __main__ as command
from scheduler.replay import mig


def options(*words: str) -> Namespace:
    """The options of the experiment as the command reads them."""
    parser = ArgumentParser()
    mig.add_arguments(parser)
    return parser.parse_args(words)


def served(row: dict[str, float]) -> float:
    """Compute served, in percent."""
    return row["compute_served_percent"]


@pytest.mark.deep
def test_ours_serves_more_compute_than_the_other_rules_at_high_load() -> None:
    found = mig.run(options("--requests", "3000", "--seeds", "1", "2", "--loads", "0.9"))

    rows = {row["policy"]: row for row in found["results"]}
    assert served(rows["spread"]) < served(rows["binpack"]) < served(rows["ours_untimed"])
    assert served(rows["ours_untimed"]) < served(rows["ours"])
    assert served(rows["binpack"]) < served(rows["ours_rough"])


@pytest.mark.deep
def test_binpack_repeats_the_published_figures() -> None:
    (row,) = mig.run(options("--loads", "0.9", "--policies", "binpack"))["results"]

    assert served(row) == pytest.approx(84.7, abs=1)
    assert row["requests_accepted_percent"] == pytest.approx(93.7, abs=0.5)


def test_every_rule_sees_the_same_requests() -> None:
    kind = board("h100-80gb")

    exact = mig.arrivals(kind, 16, 0.9, 50, 1)
    rough = mig.arrivals(kind, 16, 0.9, 50, 1, declares_more=True)

    assert [(one.at_s, one.profile, one.stays_s) for one in exact] == [
        (one.at_s, one.profile, one.stays_s) for one in rough
    ]
    assert all(one.declares_s == one.stays_s for one in exact)
    assert all(one.declares_s >= one.stays_s for one in rough)


def test_a_board_without_the_sizes_of_the_mix_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="a30-24gb has no slice of 1 compute and 2 memory slices"):
        mig.run(options("--board", "a30-24gb", "--requests", "1"))


def test_the_command_prints_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["mig", "--json", "--requests", "200", "--seeds", "1", "--loads", "0.7", "--policies", "ours"]

    assert command.main(words) == 0

    (line,) = capsys.readouterr().out.splitlines()
    (row,) = json.loads(line)["results"]
    assert row["policy"] == "ours"
    assert row["decisions_per_second"] > 0


def test_the_command_names_the_experiments_when_asked_for_another(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["nothing"])

    assert "'forecast', 'gang', 'mig', 'openb', 'predict', 'queue'" in capsys.readouterr().err
