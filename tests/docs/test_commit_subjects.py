from __future__ import annotations

import itertools
import runpy
from pathlib import Path

CHECK = runpy.run_path(str(Path(__file__).parents[2] / ".ci" / "commit_subjects.py"))


def test_a_subject_of_more_than_72_characters_is_found() -> None:
    assert CHECK["too_long"](["x" * 72, "y" * 73]) == ["y" * 73]


def test_the_changelog_is_by_release_and_its_headings_stand_apart() -> None:
    lines = (Path(__file__).parents[2] / "CHANGELOG.md").read_text().splitlines()
    releases = [line for line in lines if line.startswith("## ")]

    assert any(line.startswith("## 0.1.0 – 20") for line in releases)
    for before, line in itertools.pairwise(lines):
        assert not line.startswith("### ") or before == ""
