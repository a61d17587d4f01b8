from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable


def line(name: str, text: str) -> None:
    """One line of progress: who, and what happened."""
    title(f"  {name:<10} {text}")


def title(text: str) -> None:
    """A line that stands by itself."""
    # The terminal may be closed before we are done; stopping cleanly must not fail on that.
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def quote(lines: Iterable[str]) -> None:
    """The last words of a child, indented under the line that names it."""
    for text in lines:
        title(f"             | {text}")
