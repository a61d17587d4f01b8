"""The changelog: by release, dated, newest first, one line for each thing that users notice."""

from __future__ import annotations

import itertools
import re
from datetime import date
from pathlib import Path

LINES = (Path(__file__).parents[2] / "CHANGELOG.md").read_text().splitlines()
LONGEST = 160


def test_an_entry_is_one_line_that_is_read_at_a_glance() -> None:
    entries = [line for line in LINES if line and not line.startswith("#")][1:]

    assert [line for line in entries if line.startswith(" ") or len(line) > LONGEST] == []


def test_releases_are_dated_and_the_newest_comes_first() -> None:
    heads = [line.removeprefix("## ") for line in LINES if line.startswith("## ")]
    releases = [re.fullmatch(r"(\d+)\.(\d+)\.(\d+) – (\S+)", head) for head in heads[1:]]

    assert heads[0] == "Unreleased"
    assert all(releases)
    assert len(heads) == len(set(heads)), "a merge has written a release twice"
    order = [(*map(int, one.groups()[:3]), date.fromisoformat(one[4])) for one in releases if one]
    assert order == sorted(order, reverse=True)


def test_headings_stand_apart() -> None:
    assert [line for before, line in itertools.pairwise(LINES) if line.startswith("#") and before] == []
