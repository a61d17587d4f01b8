"""Keeps an eye on the devices' processes: looks, tells, and does what the operator's policy asks for."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from nodeagent.drivers.base import TenantGate
from nodeagent.host import notices
from nodeagent.processes.attribution import Holding, ProcessScanner
from nodeagent.processes.policy import KILL, REPORT, ProcessAction, decide, is_same
from nodeagent.protocol.messages import HealthFact, ProcessSample
from nodeagent.runtimes.base import Runtime

log = logging.getLogger(__name__)

# A process that SIGKILL did not end waits for its device: another signal every few seconds helps nobody.
AGAIN_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class ScanScope:
    """What is looked at: devices, what stands on each, and whose it is. Taken on the agent's own thread."""

    devices: tuple[str, ...]
    partitions: dict[str, list[str]]
    holdings: list[Holding]


@dataclass(frozen=True, slots=True)
class GuardReport:
    """What a look brought: processes for the portal, facts about those without a lease, devices that these keep."""

    processes: tuple[ProcessSample, ...]
    facts: tuple[HealthFact, ...]
    crowded: frozenset[str] = frozenset()


class Guard:
    """One per agent, for drivers whose processes are real ones. ``run_once`` may run on any thread, one at a time."""

    def __init__(
        self,
        driver: TenantGate,
        runtime: Runtime,
        read: Callable[[str], str],
        *,
        policy: str = REPORT,
        allowed: Iterable[str] = (),
        send: Callable[[int, int], None] = os.kill,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take what to look with and what to do; ``clock`` in seconds, never goes back."""
        self._scanner = ProcessScanner(driver, runtime, read, allowed=allowed)
        self.is_isolating = runtime.is_isolating
        self._read, self._policy, self._send, self._clock = read, policy, send, clock
        self._ended: dict[tuple[int, str], tuple[float, str]] = {}

    def run_once(self, scope: ScanScope) -> GuardReport:
        """Look once and do what the policy asks for."""
        scan = self._scanner.scan(scope.devices, scope.partitions, scope.holdings)
        actions = decide(self._policy, scan.seen)
        wanted = {_identity(action) for action in actions}
        self._ended = {key: tried for key, tried in self._ended.items() if key in wanted}
        for action in actions:
            self._carry_out(action)
        return GuardReport(scan.samples(), scan.facts, scan.crowded)

    def _carry_out(self, action: ProcessAction) -> None:
        """Warn a process, or end it; never another one that has its number by now."""
        if not is_same(action, self._read):
            return
        if action.what != KILL:
            log.warning("process %d (%s) is on %s without a lease", action.pid, action.name, action.device)
            notices.call([action.pid], self._read, self._send)
        else:
            self._end(action)

    def _end(self, action: ProcessAction) -> None:
        """End a process; one that outlives it (waiting for a device, in state D) is tried again once a minute."""
        now, before = self._clock(), self._ended.get(_identity(action))
        if before is not None and now - before[0] < AGAIN_S:
            return
        said = ""
        try:
            self._send(action.pid, signal.SIGKILL)
        except OSError as no:
            said = str(no)
        self._ended[_identity(action)] = (now, said)
        if before is None:
            log.warning(
                "process %d (%s) on %s has no lease and is ended", action.pid, action.name, action.device
            )
        if said and (before is None or before[1] != said):
            log.warning("process %d cannot be ended: %s", action.pid, said)


def _identity(action: ProcessAction) -> tuple[int, str]:
    return action.pid, action.started
