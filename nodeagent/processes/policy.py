"""What is done about processes without a lease, by the operator's policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from nodeagent.host.services import start_of
from nodeagent.processes.attribution import LOOKS_TO_TELL, ORPHAN, SeenProcess

REPORT: Final = "report"
WARN: Final = "warn"
KILL: Final = "kill"
POLICIES: Final = (REPORT, WARN, KILL)
LOOKS_TO_KILL: Final = 3


@dataclass(frozen=True, slots=True)
class ProcessAction:
    """What is to be done about a process: ``warn`` or ``kill``."""

    what: str
    pid: int
    device: str
    name: str
    started: str


def decide(policy: str, seen: Iterable[SeenProcess]) -> list[ProcessAction]:
    """Return what is to be done about orphans by this policy; pure, changes nothing.

    ``report``: nothing. ``warn``: those seen twice are warned, once. ``kill``: warned at the second look, ended from
    the third on, and only where their start is known, so that no later process of the same pid is hit. What belongs
    to a live lease or to the system is never touched, and nothing in a container is ended: whose that is, its engine
    knows, which would start it anew. Raises ValueError for another policy.
    """
    if policy not in POLICIES:
        raise ValueError(f"{policy!r} is no policy for processes without a lease; use {', '.join(POLICIES)}")
    actions = []
    for one in seen:
        if policy == REPORT or one.state != ORPHAN or one.is_of_live_lease:
            continue
        if one.looks == LOOKS_TO_TELL:
            actions.append(ProcessAction(WARN, one.pid, one.device, one.name, one.started))
        elif policy == KILL and one.looks >= LOOKS_TO_KILL and one.started and not one.in_container:
            actions.append(ProcessAction(KILL, one.pid, one.device, one.name, one.started))
    return actions


def is_same(action: ProcessAction, read: Callable[[str], str]) -> bool:
    """Say whether the pid of an action is still that very process; ask right before a signal is sent."""
    return bool(action.started) and start_of(read, action.pid) == action.started
