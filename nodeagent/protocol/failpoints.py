"""Named points at which a drill makes this process die, wait or fail; anywhere else they do nothing.

``BERTH_FAILPOINTS`` names a folder, and counts only where ``BERTH_DRILL`` is 1 as well. A file there with the name
of a point is an order for whoever passes it first: ``kill``, ``sleep <milliseconds>`` or ``raise``. It is renamed
to ``<name>.hit.<process id>.<when>`` before it is carried out, so that the drill sees that the fault was really there.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Final

FOLDER_VARIABLE: Final = "BERTH_FAILPOINTS"
DRILL_VARIABLE: Final = "BERTH_DRILL"
_folder: Path | None = None


class FailpointReached(Exception):
    """A drill asked for a failure at this point."""


def failpoint(name: str) -> None:
    """Carry out what a drill ordered for this point, once; in any other process this is one comparison."""
    if _folder is not None:
        _obey(_folder, name)


def arm(folder: Path | None) -> None:
    """Look for orders in a folder from now on; None: never."""
    global _folder
    _folder = folder


def is_asked_for() -> bool:
    """Say whether the environment names a folder of orders."""
    return bool(os.environ.get(FOLDER_VARIABLE))


def _obey(folder: Path, name: str) -> None:
    taken = folder / f"{name}.hit.{os.getpid()}.{time.monotonic_ns()}"
    try:
        (folder / name).rename(taken)  # of two that pass at once, one finds it
        order, _, figure = taken.read_text(encoding="ascii").strip().partition(" ")
    except OSError:
        return
    if order == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif order == "sleep":
        time.sleep(int(figure) / 1000)
    elif order == "raise":
        raise FailpointReached(name)


if is_asked_for() and os.environ.get(DRILL_VARIABLE) == "1":
    arm(Path(os.environ[FOLDER_VARIABLE]))
