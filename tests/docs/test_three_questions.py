"""The architecture page tells a reader where three things are done: that they are done there, and nowhere else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
# What only the answer's function does, by what stands in its text.
DONE_BY = {
    "Where is the wait reason worded?": ("portal", r"_SENTENCES\.get\("),
    "Where is a MIG slice made?": ("nodeagent", r"\"nvmlDeviceCreateGpuInstance\w*\""),
    "Where is an hour priced?": ("portal", r"\b\w*seconds \* \w*micro_per_hour\b"),
}
# Played devices, and what checks the bills of the demo by a way of its own.
ELSEWHERE = ("nodeagent/simulation/", "portal/demo/")


def functions(folder: str, what: str) -> Iterator[tuple[str, str]]:
    """Yield place and text of each function below a folder, methods as ``Class.method``, of files with ``what``."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(ELSEWHERE) or "/migrations/" in name:
            continue
        text = path.read_text()
        if not re.search(what, text):
            continue
        for node in ast.parse(text).body:
            inside = node.body if isinstance(node, ast.ClassDef) else [node]
            prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
            for one in inside:
                if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{name}::{prefix}{one.name}", ast.get_source_segment(text, one) or ""


@pytest.mark.parametrize("question", DONE_BY)
def test_the_page_answers_with_the_one_place_where_it_is_done(question: str) -> None:
    folder, what = DONE_BY[question]
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| {question} |"))
    answer = re.findall(r"`([^`]+)`", row)[0]

    assert [place for place, text in functions(folder, what) if re.search(what, text)] == [answer]
