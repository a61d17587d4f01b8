"""Keeps an eye on the cards' processes: looks, tells, and does what the operator's policy asks for."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from nodeagent.drivers.base import Driver
from nodeagent.host import notices
from nodeagent.processes import KILL, REPORT, Deed, Holding, Look, decide, holdings, is_same
from nodeagent.protocol.messages import HealthFact, ProcessSample
from nodeagent.reconcile import Reconciler
from nodeagent.runtimes.base import Runtime

log = logging.getLogger(__name__)

# A process that SIGKILL did not end waits for its device: another signal every few seconds helps nobody.
AGAIN_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Round:
    """What is looked at: devices, what stands on each, and whose it is. Taken on the agent's own thread."""

    devices: tuple[str, ...]
    partitions: dict[str, list[str]]
    holdings: list[Holding]


@dataclass(frozen=True, slots=True)
class Found:
    """What a look brought: processes for the portal, facts about those without a lease, devices that these keep."""

    processes: tuple[ProcessSample, ...]
    facts: tuple[HealthFact, ...]
    crowded: frozenset[str] = frozenset()


class Guard:
    """One per agent, for drivers whose processes are real ones. ``go`` may run on any thread, one at a time."""

    def __init__(
        self,
        driver: Driver,
        runtime: Runtime,
        read: Callable[[str], str],
        *,
        policy: str = REPORT,
        allowed: Iterable[str] = (),
        send: Callable[[int, int], None] = os.kill,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take what to look with and what to do; ``clock`` in seconds, never goes back."""
        self._look = Look(driver, runtime, read, allowed=allowed)
        self._is_isolating = runtime.is_isolating
        self._read, self._policy, self._send, self._clock = read, policy, send, clock
        self._ended: dict[tuple[int, str], tuple[float, str]] = {}

    def prepare(self, mind: Reconciler) -> Round:
        """Take down what the reconciler knows now."""
        return Round(
            devices=tuple(mind.devices),
            partitions={device: [fact.uuid for fact in facts] for device, facts in mind.sight.facts.items()},
            holdings=holdings(mind.works.values(), is_isolating=self._is_isolating),
        )

    def go(self, round_: Round) -> Found:
        """Look once and do what the policy asks for."""
        sight = self._look.look(round_.devices, round_.partitions, round_.holdings)
        deeds = decide(self._policy, sight.seen)
        wanted = {_identity(deed) for deed in deeds}
        self._ended = {key: tried for key, tried in self._ended.items() if key in wanted}
        for deed in deeds:
            self._do(deed)
        return Found(sight.samples(), sight.facts, sight.crowded)

    def _do(self, deed: Deed) -> None:
        """Warn a process, or end it; never another one that has its number by now."""
        if not is_same(deed, self._read):
            return
        if deed.what != KILL:
            log.warning("process %d (%s) is on %s without a lease", deed.pid, deed.name, deed.device)
            notices.call([deed.pid], self._read, self._send)
        else:
            self._end(deed)

    def _end(self, deed: Deed) -> None:
        """End a process; one that outlives it (waiting for a device, in state D) is tried again once a minute."""
        now, before = self._clock(), self._ended.get(_identity(deed))
        if before is not None and now - before[0] < AGAIN_S:
            return
        said = ""
        try:
            self._send(deed.pid, signal.SIGKILL)
        except OSError as no:
            said = str(no)
        self._ended[_identity(deed)] = (now, said)
        if before is None:
            log.warning("process %d (%s) on %s has no lease and is ended", deed.pid, deed.name, deed.device)
        if said and (before is None or before[1] != said):
            log.warning("process %d cannot be ended: %s", deed.pid, said)


def _identity(deed: Deed) -> tuple[int, str]:
    return deed.pid, deed.started
