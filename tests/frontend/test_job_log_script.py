"""What a page draws of a job's output: text and colours as classes, whatever else its bytes would do."""

from __future__ import annotations

import json

import pytest

from tests.frontend.test_scripts import needs_node, run


def drawn(*lines: str) -> list[list[list[object]]]:
    """Return lines as parts of text with their classes, each begun with what was in force before it."""
    body = """(lines => { let classes = []; return lines.map(line => {
      const row = parts(folded(line), classes); classes = row.classes; return row.found; }); })"""
    return run("job-log.js", "parts, folded", f"{body}({json.dumps(lines)})")


@needs_node
def test_colours_become_classes_and_hold_until_they_are_put_back() -> None:
    assert drawn("a \x1b[1;31mred", "still\x1b[0m not") == [
        [["a ", []], ["red", [1, 31]]],
        [["still", [1, 31]], [" not", []]],
    ]
    assert drawn("\x1b[31;92mlast\x1b[39m none\x1b[38;5;9m!") == [[["last", [92]], [" none", []], ["!", []]]]


@needs_node
@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("10 %\r20 %\r100 %", "100 %"),
        ("kept\r\r", "kept"),
        ("\x1b]0;title\x07a\x1b]52;c;ZXZpbA==\x1b\\b", "ab"),
        ("a\x1b[2J\x1b[1;1Hb\x1b[?1049hc\x1bcd", "abcd"),
        ("bell\x07 nul\x00 back\x08 csi\x9b", "bell nul back csi"),
        ("evil\u202etxt.exe\u2066", "eviltxt.exe"),
        ("<img src=x onerror=alert(1)>", "<img src=x onerror=alert(1)>"),
        ("end of a piece\x1b[", "end of a piece["),
    ],
)
def test_whatever_would_steer_a_terminal_is_left_out(line: str, seen: str) -> None:
    (parts,) = drawn(line)

    assert "".join(str(text) for text, _classes in parts) == seen
