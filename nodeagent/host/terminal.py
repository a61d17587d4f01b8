"""How a program gets a terminal of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# Who opens a terminal first, without having one, has it as its own from then on: job control and Ctrl-C work.
_TAKE_TERMINAL: Final = 'exec 0<>"$1" 1>&0 2>&0 && shift && exec "$@"'


def on_terminal(name: str, words: Sequence[str]) -> list[str]:
    """Return the command with which the first process of a session takes a terminal and becomes a program."""
    return ["/bin/sh", "-c", _TAKE_TERMINAL, "sh", name, *words]
