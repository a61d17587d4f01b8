from __future__ import annotations

import sys
from collections.abc import Iterable


def line(name: str, text: str) -> None:
    """One line of progress: who, and what happened."""
    sys.stdout.write(f"  {name:<10} {text}\n")
    sys.stdout.flush()


def title(text: str) -> None:
    """A line that stands by itself."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def quote(lines: Iterable[str]) -> None:
    """The last words of a child, indented under the line that names it."""
    for text in lines:
        sys.stdout.write(f"             | {text}\n")
    sys.stdout.flush()
