"""Slurm's own commands: run one at a time or side by side, and what their refusals mean."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from nodeagent.backends.base import BackendAwayError, BackendRefusedError
from nodeagent.host.shell import ProgramError, Shell

# A controller that is away answers after 9 to 10 seconds.
ANSWER_WITHIN_S: Final = 15.0
# What would change the meaning of our words: options that Slurm takes from the environment.
_KEPT: Final = ("PATH", "HOME", "LANG", "SLURM_CONF")
_AWAY: Final = re.compile(
    r"unable to contact|connection (?:refused|timed out|reset)|connect failure|communication|timed? ?out"
    r"|authentication|munge|could not establish|try again|socket|backup controller|not responding"
    r"|no address to contact|unable to process configuration|cannot open configuration|temporar",
    re.IGNORECASE,
)
# What Slurm says, by words in it; codes are those of docs/slurm.md. The last is whether it may pass.
_REFUSALS: Final[tuple[tuple[str, str, bool], ...]] = (
    ("invalid account", "no_association", False),
    ("invalid user", "no_account", False),
    ("invalid --uid", "no_account", False),
    ("invalid partition", "no_partition", True),
    ("node configuration is not available", "not_offered", False),
    ("invalid generic resource", "not_offered", False),
    ("invalid trackable resource", "not_offered", False),
    ("policy limit", "over_limit", True),
    ("accounting/qos", "over_limit", True),
    ("association or qos", "over_limit", True),
    ("partition-specific limit", "over_limit", False),
    ("time limit", "over_limit", False),
    ("partition", "no_partition", True),
    ("permission denied", "not_allowed", False),
    ("access/permission", "not_allowed", False),
)


def quiet_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what Slurm's commands are told of the agent's own environment: where to look, and nothing else."""
    return {name: environ[name] for name in _KEPT if name in environ}


class SlurmCommands:
    """Runs Slurm's commands from ``folder`` ("": the PATH) and tells away from refused."""

    def __init__(self, shell: Shell, folder: str = "") -> None:
        self._shell, self._folder = shell, folder

    def run(self, program: str, *words: str, stdin: str = "") -> str:
        """Return what a command printed. Raises BackendAwayError or BackendRefusedError."""
        argv = [str(Path(self._folder, program)) if self._folder else program, *words]
        try:
            done = self._shell.run(
                argv, stdin=stdin, env={"SLURM_TIME_FORMAT": "%s"}, timeout_s=ANSWER_WITHIN_S
            )
        except ProgramError as no:
            raise BackendAwayError(str(no)) from no
        if done.is_ok:
            return done.out
        said = " ".join(done.said.split())
        raise refusal(program, said)


def refusal(program: str, said: str) -> BackendAwayError | BackendRefusedError:
    """Return what a failed command means."""
    if _AWAY.search(said):  # first: it may name a partition, too
        return BackendAwayError(f"{program} says: {said}")
    words = said.lower()
    for part, code, is_passing in _REFUSALS:
        if part in words:
            return BackendRefusedError(code, said, is_passing=is_passing)
    return BackendRefusedError("cluster_refused", said)


def rows(text: str, columns: int, separator: str = "|") -> list[list[str]]:
    """Return the lines of a table that have exactly so many columns; others were broken by somebody's text."""
    found = (line.split(separator) for line in text.splitlines())
    # Each column ends in the separator, so the last piece is empty.
    return [one[:columns] for one in found if len(one) == columns + 1 and not one[-1].strip()]


def is_garbage(text: str, found: Sequence[object]) -> bool:
    """Say whether a command printed something, and nothing of it could be read."""
    return bool(text.strip()) and not found
