"""What is said about a terminal beside its bytes: the bodies of OPEN, OPENED and CTL on a stream of that kind."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Final

from nodeagent.protocol.codec import ProtocolError

PTY: Final = "pty"
RESIZE, HANG_UP, EXIT = "resize", "hang_up", "exit"
# What a RESET says. "away": whoever looked is gone and may come back to the same shell.
AWAY: Final = "away"
KEPT_S: Final = 60
KEPT_BYTES: Final = 256 * 1024
_TERMINAL: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class OpenTerminal:
    """A terminal in one generation of one lease; ``terminal`` names one to come back to ("": a new one)."""

    kind: str
    lease: str
    generation: int
    rows: int
    columns: int
    terminal: str = ""

    def __post_init__(self) -> None:
        """Raise ProtocolError for another kind, and for a name that no terminal has."""
        if self.kind != PTY:
            raise ProtocolError("unknown_kind", "streams are terminals (pty)")
        if self.terminal and not _TERMINAL.fullmatch(self.terminal):
            raise ProtocolError("bad_name", "a terminal is named by 32 hexadecimal digits")


@dataclass(frozen=True, slots=True)
class TerminalOpened:
    """The terminal that was opened; ``is_former``: the one that was asked for, with what it showed last."""

    terminal: str
    is_former: bool


@dataclass(frozen=True, slots=True)
class TerminalWord:
    """``resize`` with rows and columns, ``hang_up``, or ``exit`` with the shell's status (None: unknown)."""

    op: str
    rows: int = 24
    columns: int = 80
    status: int | None = None

    def __post_init__(self) -> None:
        """Raise ProtocolError for a word that terminals do not know."""
        if self.op not in (RESIZE, HANG_UP, EXIT):
            raise ProtocolError("unknown_word", "a terminal is resized, hung up, or exits")


Said = OpenTerminal | TerminalOpened | TerminalWord


def body_of(said: Said) -> dict[str, Any]:
    """Return the object that goes over the wire."""
    return asdict(said)
