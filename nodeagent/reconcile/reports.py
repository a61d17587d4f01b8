"""What the portal hears of leases and answers to it: the same for the devices of a host and a pool of a cluster."""

from __future__ import annotations

from collections.abc import Iterable

from nodeagent.protocol.jobs import BEGINNING
from nodeagent.protocol.messages import Desired, HealthFact, LeaseReport
from nodeagent.reconcile.goals import CONTRADICTIONS, FenceError
from nodeagent.reconcile.lease_records import GONE, READY, Key, LeaseRecord
from nodeagent.reconcile.ledger import Ledger

JOURNAL_FULL = HealthFact(
    "", "journal_unwritable", "critical", "the state folder refuses writes: free some space"
)


class ReportedLeases:
    """The lease records of a node as its portal knows them. ``changed`` is set whenever it should hear news."""

    def __init__(self, node: str, ledger: Ledger) -> None:
        self.node = node
        self.ledger = ledger
        self.lease_records = ledger.lease_records
        self.changed = True
        self._refused: HealthFact | None = None
        self._unwritten: tuple[Desired, int] | None = None
        # By report, until it is answered: leases that are gone, and the jobs that run, by lease.
        self._reported: dict[int, tuple[tuple[Key, ...], dict[Key, int]]] = {}
        self._wanted: set[Key] | None = None

    def note(self, record: LeaseRecord) -> None:
        """Remember to write a record down, and that the portal should hear of it."""
        self.ledger.note(record)
        self.changed = True

    def lease_reports(self, seq: int) -> tuple[LeaseReport, ...] | None:
        """Return what is known of every lease, for the report ``seq``; None when it cannot be journalled."""
        if not self.ledger.save():
            return None
        gone = tuple(record.key for record in self.lease_records.values() if record.phase == GONE)
        jobs = {
            key: ls.job.ordinal
            for key, ls in self.lease_records.items()
            if ls.job and ls.job.phase == "running"
        }
        self._reported[seq] = gone, jobs
        self.changed = False
        return tuple(record.report() for record in self.lease_records.values())

    def health_facts(self) -> tuple[HealthFact, ...]:
        """Return that the disk is full when it is, and that a desired state was refused."""
        own = () if self.ledger.is_writable else (JOURNAL_FULL,)
        return (*own, *((self._refused,) if self._refused else ()))

    def acknowledged(self, seq: int) -> None:
        """Forget gone leases that the portal has stored and no longer wants."""
        keys: set[Key] = set()
        for stored in [s for s in self._reported if s <= seq]:
            gone, jobs = self._reported.pop(stored)
            keys.update(gone)
            for key, ordinal in jobs.items():
                if key in self.lease_records:
                    self.lease_records[key].stored_job = ordinal
        acked = [self.lease_records[key] for key in keys if key in self.lease_records]
        for record in acked:
            record.is_acked = True
        self._forget(acked)

    def disconnected(self) -> None:
        """No answer to an open report will come; everything is told again on the next connection."""
        self._reported.clear()
        self.changed = True

    def meet(self, epoch: int, *, enrolled: bool) -> None:
        """Take the epoch of a welcome as the lowest that is obeyed from now on; see Ledger.meet."""
        if epoch > self.ledger.epoch:
            self._unwritten = None
        self.ledger.meet(epoch, enrolled=enrolled)

    @property
    def is_unacknowledged(self) -> bool:
        """Say whether a report waits for its answer."""
        return bool(self._reported)

    def is_beginning_job(self, since: int) -> bool:
        """Say whether a lease that became ready after ``since`` has a job that is to begin."""
        return any(
            record.phase == READY and record.job_order and record.job is not None
            and record.job.phase == "waiting"
            and ((record.ready_at or 0) > since or record.job.why == BEGINNING)
            for record in self.lease_records.values()
        )  # fmt: skip

    def _note_refused(self, no: FenceError) -> None:
        """Tell the portal of a frame that contradicts itself; late and stray ones are nobody's fault."""
        if no.code in CONTRADICTIONS:
            fact = HealthFact("", "desired_refused", "critical", f"the last desired state was refused: {no}")
            self.changed = self.changed or fact != self._refused
            self._refused = fact

    def _forget(self, lease_records: Iterable[LeaseRecord]) -> list[LeaseRecord]:
        """Drop those of these records that are gone and not wanted any more; returns them."""
        if self._wanted is None:
            return []
        over = [one for one in lease_records if one.phase == GONE and one.key not in self._wanted]
        for record in over:
            self.ledger.forget(record.key)
        return over
