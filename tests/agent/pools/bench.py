"""A pool's agent without its threads: one turn at a time, on a cluster in memory or on a real one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nodeagent.backends.base import BackendAwayError, PoolFacts
from nodeagent.backends.leases import PoolLeases, lane_of
from nodeagent.backends.worker import make_call
from nodeagent.protocol.messages import Desired, DesiredLease, DesiredSlot, LeaseReport, Notice
from nodeagent.reconcile.journal import Journal
from nodeagent.reconcile.lease_records import NS


class PoolBench:
    """``cluster`` is what tests do things to, ``backend`` what the agent speaks to: often the same."""

    def __init__(
        self, cluster: Any, backend: Any, state: Path, clock: Callable[[], int] | None = None
    ) -> None:
        self.cluster, self.backend, self.state = cluster, backend, state
        self._clock, self.now_ns = clock, 1_000 * NS
        self.revision = self.seq = 0
        self.wanted: dict[str, DesiredLease] = {}
        self.leases = self.born()

    @property
    def now(self) -> int:
        return self._clock() if self._clock is not None else self.now_ns

    def born(self, units: int = 0) -> PoolLeases:
        """Begin a life of the agent on what the one before left behind."""
        state = self.state / "journal.jsonl"
        facts = self.backend.facts() if not units else PoolFacts(units)
        self.leases = PoolLeases(
            "pool-1", self.backend, Journal(state), facts.units, patience_s=240, pool_id="p00l"
        )
        if self.revision:
            self.leases.meet(1, enrolled=False)
        return self.leases

    def want(
        self, lease: str, units: int = 1, *, remaining_s: int = 3600, first: int = 0, generation: int = 1,
        grace_s: int = 0, notice: Notice | None = None, user: str = "games",
    ) -> None:  # fmt: skip
        """Let the portal want a lease on the pool's units from ``first`` on."""
        uuids = list(self.leases.devices)[first : first + units]
        slots = tuple(DesiredSlot(uuid, "exclusive", 0, 1, 1000, 81920) for uuid in uuids)
        self.wanted[lease] = DesiredLease(
            lease, generation, "vision", user, remaining_s, grace_s, slots, notice=notice
        )
        self.send()

    def drop(self, lease: str) -> None:
        """Let the portal want a lease no more."""
        del self.wanted[lease]
        self.send()

    def send(self) -> None:
        self.revision += 1
        self.leases.accept(Desired("pool-1", 1, self.revision, tuple(self.wanted.values())), self.now)

    def turn(self, *, looks: bool = True) -> None:
        """Let the agent do once what it does all the time; a second goes by where the time is ours."""
        self.leases.tick(self.now)
        for call in self.leases.next_calls(self.now):
            outcome = make_call(self.backend, call)
            assert lane_of(call) in self.leases.busy
            if outcome.is_away:
                self.leases.see_away(outcome.detail)
            self.leases.settle(call, outcome, self.now)
        self.now_ns += NS
        if looks:
            self.look()

    def look(self) -> None:
        """Look at the cluster's jobs, and count the pool."""
        names, began = self.leases.names(), self.now
        try:
            found = self.backend.observe(names, strays=True)
        except BackendAwayError as no:
            self.leases.see_away(str(no))
            return
        self.leases.see_away("")
        self.now_ns += 1
        self.leases.observe(found, names, began, self.now)
        self.leases.see_facts(self.backend.facts())

    def until(self, phase: str, lease: str = "a", *, within: int = 400) -> LeaseReport:
        """Go on until a lease is in a phase; returns what is reported of it."""
        for _turn in range(within):
            report = self.report(lease)
            if report is not None and report.phase == phase:
                return report
            self.turn()
            self.cluster.start()
        raise AssertionError(f"{lease} is {self.report(lease)} instead of {phase}; {self.leases.away}")

    def report(self, lease: str = "a") -> LeaseReport | None:
        """Return what the portal hears of a lease; it answers, and what is gone is forgotten."""
        self.seq += 1
        reports = self.leases.lease_reports(self.seq)
        assert reports is not None
        return next((one for one in reports if one.lease == lease), None)

    def acknowledge(self) -> None:
        self.leases.acknowledged(self.seq)

    def codes(self) -> list[str]:
        """Return what operators are told, by its codes."""
        return [fact.code for fact in self.leases.health_facts()]

    def taken(self) -> int:
        """Return how many units the portal hears are not to be had."""
        return sum(not fact.lease for fact in self.leases.partition_facts())
