from __future__ import annotations

import runpy
from pathlib import Path

CHECK = runpy.run_path(str(Path(__file__).parents[2] / ".ci" / "commit_subjects.py"))


def test_a_subject_of_more_than_72_characters_is_found() -> None:
    assert CHECK["too_long"](["x" * 72, "y" * 73]) == ["y" * 73]
