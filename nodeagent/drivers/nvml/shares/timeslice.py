"""How long a program may compute before the next one on the device does: a policy set by nvidia-smi alone."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import Final

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.host.shell import Done, ProgramError, Shell

log = logging.getLogger(__name__)

PROGRAM: Final = "nvidia-smi"
DEFAULT: Final = 0
# The tool opens all devices of a host each time it runs.
KEEP_EVERY_S: Final = 60.0
# The tool sets numbers and lists words.
WORDS: Final = ("default", "short", "medium", "long")
_LISTED = re.compile(r"time-?slice\W+(\w+)", re.IGNORECASE)


class TimeSlice:
    """The time-slice policy of devices by UUID; ``value`` 0 (default), 1 short, 2 medium, 3 long while shared."""

    def __init__(self, shell: Shell, value: int, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Take the operator's choice and a clock that never goes back; raises ValueError for an unknown choice."""
        if not 0 <= value < len(WORDS):
            raise ValueError(f"a time slice is 0 (default) to 3 (long), not {value}")
        self._shell, self._value, self._clock_s = shell, value, clock_s
        self._looked: dict[str, float] = {}

    def why_not(self, device: str) -> str:
        """Return why time slices cannot be set on a device, "" when they can (or are left at their default)."""
        if self._value == DEFAULT:
            return ""
        try:
            done = self._run(device, "--list")
        except ProgramError as no:
            return f"{no}; time slices are set with it, and it comes with the driver's tools"
        return "" if done.is_ok else f"{PROGRAM} cannot list the device's compute policy: {done.said}"

    def set(self, device: str) -> None:
        """Let the chosen time slice hold on a device; safe to repeat."""
        if self._value != DEFAULT:
            self._bring(device, self._value)

    def keep(self, device: str) -> bool | None:
        """Look once a minute whether the chosen time slice still holds, and set it again; says whether it did.

        None: it was not looked at, or the tool does not tell. Raises NvmlLikeError where it cannot be set.
        """
        now = self._clock_s()
        if self._value == DEFAULT or now - self._looked.get(device, -KEEP_EVERY_S) < KEEP_EVERY_S:
            return None
        self._looked[device] = now
        try:
            listed = self._listed(device)
        except ProgramError:  # not to be told is no reason to set it each time
            return None
        if listed is None or listed == self._value:
            return None if listed is None else True
        self._bring(device, self._value)
        return False

    def reset(self, device: str) -> None:
        """Give a device its default back."""
        if self._value != DEFAULT:
            self._bring(device, DEFAULT)

    def _bring(self, device: str, value: int) -> None:
        try:
            if self._listed(device) == value:
                return
            done = self._run(device, "--set-timeslice", str(value))
            listed = self._listed(device) if done.is_ok else None
        except ProgramError as no:
            raise NvmlLikeError(errors.UNKNOWN, f"the time slice of {device} was not set: {no}") from no
        if not done.is_ok:
            code = errors.NO_PERMISSION if "permission" in done.said.lower() else errors.UNKNOWN
            raise NvmlLikeError(code, f"the time slice of {device} was not set: {done.said}")
        if listed is None:
            log.info("%s does not list the time slice of %s; %s was set", PROGRAM, device, WORDS[value])
        elif listed != value:
            raise NvmlLikeError(
                errors.UNKNOWN, f"the time slice of {device} was set to {WORDS[value]} and is {WORDS[listed]}"
            )

    def _listed(self, device: str) -> int | None:
        """Return the policy that the tool lists for a device, None where it does not say."""
        done = self._run(device, "--list")
        found = _LISTED.findall(done.out) if done.is_ok else []
        if len(found) != 1:
            return None
        word = found[0].lower()
        if word.isdigit():
            return int(word) if int(word) < len(WORDS) else None
        return WORDS.index(word) if word in WORDS else None

    def _run(self, device: str, *words: str) -> Done:
        return self._shell.run([PROGRAM, "compute-policy", "-i", device, *words])
