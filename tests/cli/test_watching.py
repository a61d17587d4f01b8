"""``berth watch`` shows what somebody else's terminal shows, and leaves the own one as it was."""

from __future__ import annotations

import os
import select

import pytest

from portal.cli.watch import TIDY, StrangerBytes, tidy

END = b"\x1b\\"


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        (b"a\x1b[31mred\x1b[0m \xc3\xa9\xe2\x9d\x9d\n", b"a\x1b[31mred\x1b[0m \xc3\xa9\xe2\x9d\x9d\n"),
        (b"a\x1b]52;c;ZXZpbA==\x07b", b"a" + END + b"b"),
        (b"a\x1b]52;c;ZXZpbA==\x1b\\b", b"a" + END * 2 + b"b"),
        (b"a\xc2\x9d52;c;ZXZpbA==\xc2\x9cb", b"a" + END + b"b"),
        (b"a\x1bPtmux;\x1b\x1b]52;c;ZXZpbA==\x07\x1b\\b", b"a" + END + b"\x1b" + END * 2 + b"b"),
        (b"\x1b\x1b]x\x07]52;c;ZXZpbA==\x07b", b"\x1b" + END + b"]52;c;ZXZpbA==\x07b"),
    ],
)
def test_control_strings_are_not_shown_wherever_a_piece_ends(sent: bytes, shown: bytes) -> None:
    for cut in range(len(sent)):
        theirs = StrangerBytes()
        assert theirs.pass_on(sent[:cut]) + theirs.pass_on(sent[cut:]) == shown
    assert StrangerBytes().pass_on(b"\x1b\n]x\x07b") == END + b"b"


def test_terminal_is_left_tidy_and_without_answers_to_what_it_was_shown() -> None:
    master, slave = os.openpty()
    try:
        os.write(master, b"\x1b[0;0R; reboot\n")
        assert select.select([slave], [], [], 1)[0]
        with os.fdopen(slave, "wb", buffering=0, closefd=False) as screen:
            tidy(slave, screen)

        assert not select.select([slave], [], [], 0)[0]
        shown = b""
        while TIDY[:8] not in shown and select.select([master], [], [], 1)[0]:  # its echo may come by itself
            shown += os.read(master, 4096)
        assert TIDY[:8] in shown
    finally:
        os.close(master)
        os.close(slave)
