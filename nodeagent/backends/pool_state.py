"""What is known of a pool and its leases, and what the portal hears of it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from nodeagent.backends.base import ENDING, RUNNING, Backend, ClusterJob, PoolFacts
from nodeagent.protocol.messages import HealthFact, LeaseReport, PartitionFact
from nodeagent.reconcile.journal import Journal
from nodeagent.reconcile.lease_records import FAILED, GONE, NS, PREPARING, READY, Key, LeaseRecord
from nodeagent.reconcile.ledger import Ledger
from nodeagent.reconcile.reports import ReportedLeases

log = logging.getLogger(__name__)

_NAME: Final = re.compile(r"berth-(.+)-g([0-9]{1,10})")
_VALUE: Final = re.compile(r"[^A-Za-z0-9._@:/=+-]")


def job_name(key: Key) -> str:
    """Return what the job of a lease is called: the same for every try, another for every generation."""
    return f"berth-{key[0]}-g{key[1]}"


def key_of(name: str) -> Key | None:
    """Return whose job has this name, None for one that is no lease's."""
    found = _NAME.fullmatch(name)
    return None if found is None else (found[1], int(found[2]))


def in_one_word(text: str) -> str:
    """Return text of the cluster as one word, which is all that the portal keeps of it."""
    return _VALUE.sub("_", text)


class PoolState(ReportedLeases):
    """The leases of one pool and its jobs. ``patience_s`` is how long a job may wait in the cluster's queue."""

    def __init__(
        self, node: str, backend: Backend, journal: Journal, units: int, *, patience_s: int, pool_id: str
    ) -> None:
        """Read the journal. What was submitted in an earlier life is adopted by its name at the first look."""
        # The jobs outlive the host of their agent, so the pool is the boot that all of it belongs to.
        super().__init__(node, Ledger(journal, pool_id, backend.name))
        self.driver = BackendIdentity(backend.name, backend.version, pool_id)
        self._backend = backend
        self._patience_ns = patience_s * NS
        held = [place.slot.device for record in self.lease_records.values() for place in record.places]
        self.devices = {fact.uuid: fact for fact in backend.devices(max(units, _least_units(held)))}
        for record in self.lease_records.values():
            self.mark_submitted(record)  # an earlier life may have submitted it in its last instant
        self.facts: PoolFacts | None = None
        self.away = ""
        self.busy: set[str] = set()
        self._jobs: dict[Key, ClusterJob] = {}
        self._strays: dict[str, ClusterJob] = {}
        self._touched: dict[Key, int] = {}
        self._waits: dict[Key, str] = {}
        self._told: set[Key] = set()
        self._fences: dict[Key, int] = {}
        self._ending: dict[Key, int] = {}
        self._foreign = self._last_foreign = 0
        self._rewrite_at = 0

    def mark_submitted(self, record: LeaseRecord) -> None:
        """Write down that a job of this lease may be in the cluster from here on."""
        for place in record.places:
            place.is_ours = True
        self.ledger.note(record)

    def see_away(self, sentence: str) -> None:
        """Note that the cluster does not answer ("": it does); leases go on."""
        if sentence != self.away:
            (log.warning if sentence else log.info)(
                "the cluster %s", f"does not answer: {sentence}" if sentence else "answers"
            )
            self.away, self.changed = sentence, True

    def see_facts(self, facts: PoolFacts) -> None:
        """Take over what the pool consists of; what others use counts when it was seen twice in a row."""
        ours = sum(job.units or 0 for job in self._jobs.values() if job.phase in (RUNNING, ENDING))
        foreign = max(0, facts.used - ours)
        steady, self._last_foreign = min(foreign, self._last_foreign), foreign
        if facts != self.facts or steady != self._foreign:
            self.facts, self._foreign, self.changed = facts, steady, True

    def lease_reports(self, seq: int) -> tuple[LeaseReport, ...] | None:
        """Return what is known of every lease; of those that wait for the cluster its job and its reason too."""
        reports = super().lease_reports(seq)
        if reports is None:
            return None
        return tuple(self._with_wait(report) for report in reports)

    def _with_wait(self, report: LeaseReport) -> LeaseReport:
        key = report.lease, report.generation
        record = self.lease_records[key]
        if report.phase != PREPARING:
            return report
        told = dict(record.entrance) or {"runtime": self._backend.name}
        reason = "away" if self.away else self._waits.get(key, "")
        return replace(report, entrance=told | ({"reason": in_one_word(reason)[:150]} if reason else {}))

    def partition_facts(self) -> tuple[PartitionFact, ...]:
        """Return our leases' units, and as many free ones as others hold or are out of service, from the last on."""
        held = {
            place.slot.device: record
            for record in self.lease_records.values() if record.phase != GONE
            for place in record.places
        }  # fmt: skip
        facts = [
            PartitionFact(place.partition, place.slot.device, "", 0, 1, record.lease)
            for record in self.lease_records.values() if record.phase != GONE
            for place in record.places if place.is_made
        ]  # fmt: skip
        if self.facts is None:
            return tuple(facts)
        shrunk = max(0, len(self.devices) - self.facts.units)
        lacking = self._foreign + self.facts.away + shrunk
        free = [uuid for uuid in reversed(self.devices) if uuid not in held]
        return (*facts, *(PartitionFact(f"{uuid}/taken", uuid, "", 0, 1) for uuid in free[:lacking]))

    def health_facts(self) -> tuple[HealthFact, ...]:
        """Return what is wrong with the cluster or the pool, in sentences for operators."""
        own = []
        if self.away:
            said = f"the cluster does not answer, leases go on and nothing new begins: {self.away}"
            own.append(HealthFact("", "cluster_away", "warning", said[:2000]))
        if self.facts is not None:
            own += [HealthFact("", code, "warning", said) for code, said in self.facts.notes]
            held = sum(
                len(one.places) for one in self.lease_records.values() if one.phase in (PREPARING, READY)
            )
            working = self.facts.units - self.facts.away
            if held > working:
                said = f"the pool has {working} units that work, and leases hold {held}: what lies on lost hosts ends"
                own.append(HealthFact("", "pool_shrunk", "warning", said))
        return (*own, *super().health_facts())

    @property
    def runtime_name(self) -> str:
        """Return how holders get in."""
        return self._backend.name

    def power_facts(self) -> tuple[str, str]:
        """Return that a pool never sleeps by Berth."""
        return "unsupported", ""

    @property
    def carried_out(self) -> int:
        """Return the last revision on which nothing is left to be done."""
        if all(
            one.phase in (READY, GONE) or (one.phase == FAILED and one.is_closed)
            for one in self.lease_records.values()
        ):
            self.ledger.carried_out = self.ledger.revision
        return self.ledger.carried_out


@dataclass(frozen=True, slots=True)
class BackendIdentity:
    """A back end as the portal knows its agent's driver."""

    name: str
    version: str
    pool_id: str

    def boot_id(self) -> str:
        """Return the pool: its jobs outlive every boot of the agent's host."""
        return self.pool_id


def may_exist(record: LeaseRecord) -> bool:
    """Say whether a job of this lease may be in the cluster: it was submitted, or was about to be."""
    return any(place.is_ours for place in record.places)


def _least_units(devices: Iterable[str]) -> int:
    """Return how many units a pool must have for these to be among them."""
    numbers = [uuid.rpartition("/")[2] for uuid in devices]
    return max((int(number) + 1 for number in numbers if number.isdecimal()), default=0)
