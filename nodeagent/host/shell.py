"""Programs of the host, run by the agent: one narrow door, so that tests and the simulation can stand behind it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

TIMEOUT_S: Final = 20.0
MOST_OUTPUT: Final = 1_000_000


class ProgramError(Exception):
    """A program could not be run: it is missing, not allowed or did not end in time. The sentence says which."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a program said: exit code, standard output and error as text."""

    code: int
    out: str = ""
    err: str = ""

    @property
    def is_ok(self) -> bool:
        """Say whether it ended well."""
        return self.code == 0

    @property
    def said(self) -> str:
        """Return its last words, for a sentence to people."""
        return (self.err.strip() or self.out.strip())[-300:] or f"exit code {self.code}"


class Shell(Protocol):
    """Runs programs of the host; never a shell line, always a list of words."""

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Done:
        """Run a program to its end. ``env`` is added to the agent's own environment. Raises ProgramError."""
        ...


class HostShell:
    """Runs them for real. No line is ever given to a shell, and locale never changes what they print.

    ``environ`` stands in for the agent's own environment, where that is not to be trusted.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = environ

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Done:
        """Run a program to its end; raises ProgramError."""
        try:
            done = subprocess.run(  # noqa: S603 - words, not a shell line
                list(argv),
                input=stdin,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                env={
                    **(os.environ if self._environ is None else self._environ),
                    "LC_ALL": "C",
                    **(env or {}),
                },
                check=False,
            )
        except FileNotFoundError as no:
            raise ProgramError(f"{argv[0]} is not installed on this host") from no
        except subprocess.TimeoutExpired as no:
            raise ProgramError(f"{argv[0]} did not answer within {timeout_s:g} s") from no
        except OSError as no:
            raise ProgramError(f"{argv[0]} cannot be run: {no}") from no
        return Done(done.returncode, done.stdout[:MOST_OUTPUT], done.stderr[:MOST_OUTPUT])
