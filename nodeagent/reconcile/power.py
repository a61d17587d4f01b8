"""Whether the node is awake, as its driver says, and what to do about what the portal wants.

Pure like the reconciler that owns it: time is passed in, the caller carries steps out and settles them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from nodeagent.drivers.base import PowerSwitch
from nodeagent.drivers.errors import NotOfferedError, NvmlLikeError
from nodeagent.reconcile.lease_records import NS

log = logging.getLogger(__name__)

AWAKE: Final = "awake"
ASLEEP: Final = "asleep"
UNSUPPORTED: Final = "unsupported"
UNKNOWN: Final = ""
RETRY_AFTER_NS: Final = 10 * NS
MOST_NOTE: Final = 200


@dataclass(frozen=True, slots=True)
class PowerOutcome:
    """What became of one attempt: the state read afterwards, and the refusal in words, if any."""

    state: str
    note: str = ""


class PowerControl:
    """Wanted against observed power. Work goes before sleep: what the node holds keeps it awake, or wakes it."""

    def __init__(self, driver: PowerSwitch) -> None:
        """Read the present state; until the portal speaks the node is left as it is."""
        self.state = read_power(driver)
        self.note = ""
        self.is_busy = False
        self._wanted = UNKNOWN
        self._retry_at = 0

    @property
    def is_ready(self) -> bool:
        """Say whether partitions may be made: not while the node sleeps or is on its way there or back."""
        return self.state != ASLEEP and not self.is_busy

    def want(self, power: str) -> None:
        """Take what the portal wants; a change is tried at once, whatever failed before."""
        if power != self._wanted:
            self._wanted, self._retry_at, self.note = power, 0, ""

    def next(self, *, is_free: bool, now: int) -> str:
        """Return the state to bring about now, "" when there is nothing to do.

        ``is_free`` says that no lease, running or being cleaned up, and nothing foreign is on the node.
        """
        goal = self._goal(is_free)
        return goal if goal and not self.is_busy and now >= self._retry_at else UNKNOWN

    def next_wake(self, *, is_free: bool) -> int | None:
        """Return when a refused change is tried again, None when none is due."""
        return self._retry_at if self._retry_at and self._goal(is_free) and not self.is_busy else None

    def _goal(self, is_free: bool) -> str:
        """Return the state to change to, "" where it is as it should be or cannot be changed."""
        goal = self._wanted if is_free else AWAKE
        return goal if self.state in (AWAKE, ASLEEP) and goal != self.state else UNKNOWN

    def observe(self, state: str) -> bool:
        """Take a look at the driver into account and say whether the portal should hear of it."""
        if self.is_busy or state == self.state:
            return False
        self.state = state
        return True

    def settle(self, goal: str, outcome: PowerOutcome, now: int) -> bool:
        """Take the result of an attempt into account and say whether the portal should hear of it.

        What was refused is tried again after a while.
        """
        has_failed = outcome.state != goal
        is_new = (outcome.state, outcome.note) != (self.state, self.note)
        if has_failed and is_new:
            log.warning("the node did not get %s: %s", goal, outcome.note)
        self.is_busy, self._retry_at = False, now + RETRY_AFTER_NS if has_failed else 0
        self.state, self.note = outcome.state, outcome.note
        return is_new


def read_power(driver: PowerSwitch) -> str:
    """Return what the driver says of the node's power; "" where it cannot tell now."""
    try:
        return driver.power()
    except (NvmlLikeError, NotOfferedError):
        return UNKNOWN


def change_power(driver: PowerSwitch, goal: str) -> PowerOutcome:
    """Carry out one change and read what came of it; refusals are part of the outcome."""
    try:
        driver.set_power(asleep=goal == ASLEEP)
    except (NvmlLikeError, NotOfferedError) as no:
        return PowerOutcome(read_power(driver), str(no)[:MOST_NOTE])
    state = read_power(driver)
    return PowerOutcome(state, "" if state == goal else f"asked to get {goal}, it is {state or 'unknown'}")
