"""What programs that the agent starts do not inherit from whoever started it."""

from __future__ import annotations

import signal
from typing import Final

# Ignored where the agent was begun behind a shell's “&” (SIGINT, SIGQUIT) or by nohup (SIGHUP).
_OF_TERMINALS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


def keep_ignored_signals() -> None:
    """Ignore what this process ignores for itself alone. Safe to repeat; main thread.

    An ignored signal stays ignored in every program that is started, a handler does not: without this nobody could
    press Ctrl-C in a terminal of an agent that runs in the background.
    """
    for number in _OF_TERMINALS:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)
