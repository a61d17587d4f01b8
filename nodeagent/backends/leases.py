"""Desired against observed for a pool: which call each lease needs next, and what its job means for it.

Nothing here waits, reads a clock or talks to anybody: time is passed in (nanoseconds of the pool's clock), calls are
carried out by the caller and settled here. One thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from nodeagent.backends.base import (
    ENDING,
    OVER,
    RUNNING,
    UNKNOWN,
    WAITING,
    ClusterJob,
    LeaseOrder,
)
from nodeagent.backends.pool_state import PoolState, in_one_word, job_name, key_of, may_exist
from nodeagent.protocol.messages import (
    Desired,
    DesiredLease,
    SlotAccess,
)
from nodeagent.reconcile.goals import (
    FenceError,
    aged,
    newest,
    require_apart,
    require_current,
    require_unmoved,
    unknown,
    why_ended,
)
from nodeagent.reconcile.lease_records import (
    DRAINING,
    FAILED,
    GONE,
    HELD,
    NS,
    PREPARING,
    READY,
    Key,
    LeaseRecord,
    new_record,
)

log = logging.getLogger(__name__)

REWRITE_AFTER_NS: Final = 5 * NS
DEADLINE_SLACK_NS: Final = 2 * NS
# Only an end that moved by more is worth a call; what the cluster keeps is a fence, and later than ours anyway.
FENCE_SLACK_NS: Final = 30 * NS
# A job that was submitted and whose answer was lost is in the controller's books after that, or never.
HEARD_WITHIN_NS: Final = 30 * NS
ASK_AGAIN_NS: Final = 5 * NS
TOLD_WITHIN_NS: Final = 3 * NS
SOON_NS: Final = 10 * NS


@dataclass(frozen=True, slots=True)
class Call:
    """One call to the back end for a lease: ensure, extend, tell, end; or end for a job of no lease (record None)."""

    kind: str
    record: LeaseRecord | None
    job: str = ""
    order: LeaseOrder | None = None
    ends_in_s: int = 0
    asks: bool = False


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """How a call went: with the job it returned, refused (``code``, ``detail``), or the cluster was away."""

    job: ClusterJob | None = None
    code: str = ""
    detail: str = ""
    is_passing: bool = False
    is_away: bool = False


class PoolLeases(PoolState):
    """Takes in what the portal wants and what was seen, gives out calls and settles them."""

    # What the portal wants

    def accept(self, desired: Desired, now: int) -> None:
        """Take a newer desired state as the goal; raises FenceError and changes nothing otherwise.

        New work is durable in the journal before this returns. When the disk refuses, ends are still carried out and
        new work waits until it can be written.
        """
        try:
            require_current(desired, node=self.node, epoch=self.ledger.epoch, revision=self.ledger.revision)
            wanted = newest(desired.leases)
            require_apart(wanted, self.devices)
            require_unmoved(wanted, self.lease_records)
        except FenceError as no:
            self._note_refused(no)
            raise
        self._refused = None
        ended = [one for key, one in self.lease_records.items() if key not in wanted and one.phase in HELD]
        for record in ended:
            self._drain(record, why_ended(record, wanted), now)
        moved = [
            one
            for key, one in self.lease_records.items()
            if key in wanted and self._moved(one, wanted[key], now)
        ]
        fresh = [new_record(lease, now) for key, lease in wanted.items() if key not in self.lease_records]
        self._wanted, self.changed = set(wanted), True
        if not self.ledger.take(fresh, [*ended, *moved], desired.epoch, desired.revision):
            self._unwritten, self._rewrite_at = (desired, now), now + REWRITE_AFTER_NS
            return
        self._unwritten = None
        for record in fresh:
            refusal = unknown(record, self.devices)
            if refusal is not None:
                self._fail(record, refusal.word, refusal.detail, now)
            elif self.ledger.has_ended(record.key):
                self._fail(record, "lease_ended", "this lease has ended here; ask for a new one", now)
        self._forget([one for one in self.lease_records.values() if one.is_acked])

    def _moved(self, record: LeaseRecord, wanted: DesiredLease, now: int) -> bool:
        """Take over a changed end and what its holder should know; says whether that is news."""
        if record.phase not in HELD:
            return False
        # Before it is ready its time has not begun, however long the cluster lets it wait.
        since = record.taken_at if record.phase == PREPARING else now
        deadline = since + wanted.remaining_s * NS
        has_moved = abs(record.deadline - deadline) > DEADLINE_SLACK_NS
        if has_moved:
            record.deadline = deadline
        if record.hear(wanted.notice, now):
            self._told.discard(record.key)
            return True
        return has_moved

    # Time

    def tick(self, now: int) -> None:
        """Enforce ends, give up what waits too long, and try again what the disk refused."""
        for record in self.lease_records.values():
            if record.phase in (READY, FAILED) and record.deadline <= now:
                self._drain(record, "expired", now)
            elif record.phase == PREPARING and record.taken_at + self._patience_ns <= now:
                said = self._waits.get(record.key) or "the cluster did not start it in time"
                self._fail(
                    record,
                    "cluster_busy",
                    f"it did not start within {self._patience_ns // NS} s: {said}",
                    now,
                )
        if self._unwritten is not None and self._rewrite_at <= now:
            desired, came_at = self._unwritten
            try:
                self.accept(aged(desired, (now - came_at) // NS), now)
            except FenceError:  # a newer one, or a new enrolment, was taken meanwhile
                self._unwritten = None
            else:
                if self._unwritten is not None:
                    self._unwritten = (desired, came_at)
        self.ledger.save()

    def next_wake(self, now: int) -> int | None:
        """Return when ``tick`` or a postponed call is due next, None when nothing is."""
        times = [one.deadline for one in self.lease_records.values() if one.phase in (READY, FAILED)]
        times += [
            one.taken_at + self._patience_ns for one in self.lease_records.values() if one.phase == PREPARING
        ]
        times += [
            one.retry_at for one in self.lease_records.values() if one.retry_at > now and one.phase != GONE
        ]
        times += [self._rewrite_at] if self._unwritten is not None else []
        return min(times, default=None)

    def is_moving(self, now: int) -> bool:
        """Say whether something is expected of the cluster within moments: a job that begins, or one that ends."""
        return any(
            (one.phase == PREPARING and now - one.taken_at < SOON_NS)
            or (one.phase == DRAINING and not one.is_closed and now - (one.drain_at or 0) < SOON_NS)
            for one in self.lease_records.values()
        )

    def names(self) -> list[str]:
        """Return the names of the jobs that are looked for."""
        return [
            job_name(key) for key, one in self.lease_records.items() if one.phase != GONE and may_exist(one)
        ]

    # Calls

    def next_calls(self, now: int) -> list[Call]:
        """Return the calls that can be made now, each in a lane of its own; what they announce is in the journal.

        The caller makes each and settles it before that lane is asked for again.
        """
        if self.away:
            return []
        calls = [Call("end", None, job.job) for job in self._strays.values() if job.job not in self.busy]
        for record in self.lease_records.values():
            if job_name(record.key) in self.busy or record.retry_at > now or record.phase == GONE:
                continue
            call = self._call_for(record, now)
            if call is not None:
                calls.append(call)
        if any(call.kind == "ensure" for call in calls) and not self.ledger.save():
            # What cannot be noted is not submitted; ends go on.
            calls = [call for call in calls if call.kind != "ensure"]
        for call in calls:
            self.busy.add(lane_of(call))
        return calls

    def _call_for(self, record: LeaseRecord, now: int) -> Call | None:
        job = self._jobs.get(record.key)
        if record.phase == PREPARING and job is None:
            order = self._order(record)
            self._fences[record.key] = record.deadline - record.taken_at
            self.mark_submitted(record)
            return Call("ensure", record, order=order)
        if record.phase in (DRAINING, FAILED):
            if record.is_closed or job is None or job.phase in (ENDING, OVER, UNKNOWN):
                return None
            asks = record.phase == DRAINING and now < record.kill_at and job.phase == RUNNING
            return Call("end", record, job.job, asks=asks)
        if job is None or job.phase != RUNNING or record.phase != READY:
            return None
        if abs(record.deadline - record.armed_for) > FENCE_SLACK_NS:
            return Call(
                "extend", record, job.job, ends_in_s=max(0, (record.deadline - now) // NS) + record.grace_s
            )
        if record.told_why and record.key not in self._told:
            return Call("tell", record, job.job)
        return None

    def _order(self, record: LeaseRecord) -> LeaseOrder:
        left_s = max(0, (record.deadline - record.taken_at) // NS)
        return LeaseOrder(
            name=job_name(record.key),
            lease=record.lease,
            generation=record.generation,
            user=record.user,
            team=record.team,
            units=len(record.places),
            ends_in_s=left_s + record.grace_s,
            cpu_milli=record.cpu_milli,
            memory_mib=record.host_memory_mib,
            may_exist=may_exist(record),
        )

    def settle(self, call: Call, outcome: CallOutcome, now: int) -> None:
        """Take the result of a call into account."""
        self.busy.discard(lane_of(call))
        record = call.record
        if record is None:
            self._strays.pop(call.job, None)
            return
        self._touched[record.key] = now
        if outcome.is_away:
            record.postpone(now)
            return
        if outcome.code:
            self._settle_refused(call, record, outcome, now)
            return
        record.tries = 0
        if call.kind == "ensure" and outcome.job is not None:
            self._learn(record, outcome.job, now)
        elif call.kind == "extend":
            record.armed_for = record.deadline
        elif call.kind == "tell":
            self._told.add(record.key)
        elif call.kind == "end":
            record.retry_at = min(now + ASK_AGAIN_NS, record.kill_at) if call.asks else now + ASK_AGAIN_NS

    def _settle_refused(self, call: Call, record: LeaseRecord, outcome: CallOutcome, now: int) -> None:
        if call.kind == "ensure" and not outcome.is_passing:
            self._fail(record, outcome.code, outcome.detail, now)
            return
        if call.kind == "ensure":
            self._say_wait(record, f"{outcome.code}: {outcome.detail}")
        log.warning(
            "lease %s: %s was refused (%s): %s", record.lease, call.kind, outcome.code, outcome.detail
        )
        record.postpone(now)
        if call.kind == "extend":
            record.retry_at = (
                now + REWRITE_AFTER_NS * 6
            )  # the agent ends it all the same, and the fence is early

    # What was seen

    def observe(self, jobs: Iterable[ClusterJob], asked: Sequence[str], began: int, now: int) -> None:
        """Take a look at the cluster's jobs into account. ``asked`` are the names it was for, ``began`` when it began.

        A lease with a call under way or settled since then is left for the next look.
        """
        by_key: dict[Key, list[ClusterJob]] = {}
        for job in jobs:
            key = key_of(job.name)
            if key is not None and job.is_ours:
                by_key.setdefault(key, []).append(job)
        names = set(asked)
        for record in list(self.lease_records.values()):
            name, key = job_name(record.key), record.key
            found = sorted(by_key.pop(key, []), key=_age)
            if record.phase == GONE or name in self.busy or self._touched.get(key, -1) >= began:
                continue
            if found:
                own = self._own_of(record, found)
                self._note_strays(job for job in found if job is not own)
                self._learn(record, own, now)
            elif name in names:
                self._learn_absent(record, now)
        if self._wanted is not None:
            for others in by_key.values():
                self._note_strays(others)

    def _own_of(self, record: LeaseRecord, found: list[ClusterJob]) -> ClusterJob:
        """Return the job that is the lease's where several have its name: the known one, else the oldest alive."""
        known = self._jobs.get(record.key)
        same = next((job for job in found if known is not None and job.job == known.job), None)
        return same or next((job for job in found if job.phase not in (OVER, UNKNOWN)), found[-1])

    def _note_strays(self, jobs: Iterable[ClusterJob]) -> None:
        for job in jobs:
            if job.phase in (WAITING, RUNNING) and job.job not in self._strays:
                log.warning("job %s (%s) belongs to no lease that is here; it is ended", job.job, job.name)
                self._strays[job.job] = job

    def _learn(self, record: LeaseRecord, job: ClusterJob, now: int) -> None:
        """Take over what a lease's job does, and what that means for the lease."""
        if job.phase == UNKNOWN:
            return
        before = self._jobs.get(record.key)
        if before is not None and before.job == job.job and job.units is None:
            job = replace(job, units=before.units, places=before.places)
        self._jobs[record.key] = job
        if before is None or before.job != job.job:
            record.entrance = {"runtime": self._backend.name, "job": job.job}
            self.note(record)
        if job.phase == OVER:
            record.is_closed = True
            if record.phase in (PREPARING, READY):
                self._fail(record, job.code or "cluster_ended", job.detail or f"job {job.job} is over", now)
            self._finish(record)
            return
        if record.phase == READY and job.phase == ENDING:
            # How it ended is told when it is over; where that takes long, nobody pays for the time until then.
            if now - self._ending.setdefault(record.key, now) >= TOLD_WITHIN_NS:
                self._fail(record, job.code or "cluster_ended", f"job {job.job} ends: {job.reason}", now)
        elif record.phase == READY and job.phase == WAITING:
            self._fail(
                record, "cluster_preempted", f"job {job.job} was put back into the queue: {job.reason}", now
            )
        elif record.phase == PREPARING and job.phase == RUNNING:
            self._verify(record, job, now)
        elif (
            record.phase == PREPARING and job.phase == WAITING and job.code
        ):  # the cluster can never start it
            self._fail(record, job.code, job.detail, now)
        elif record.phase == PREPARING:
            self._say_wait(record, job.reason)
        elif record.phase == READY and job.phase == RUNNING and not record.is_standing:
            self._stand(record, job)

    def _verify(self, record: LeaseRecord, job: ClusterJob, now: int) -> None:
        """Let the holder in where the cluster gave what was asked; nobody pays for anything else."""
        if job.units is None:
            return
        if job.units != len(record.places):
            given = ", ".join(job.places) or "none"
            said = f"job {job.job} was given {job.units} of {len(record.places)} units ({given})"
            self._fail(record, "not_as_asked", said, now)
            return
        self._stand(record, job)
        record.become_ready(now)
        record.armed_for = now + self._fences.pop(record.key, -now)
        self._waits.pop(record.key, None)
        self.note(record)

    def _stand(self, record: LeaseRecord, job: ClusterJob) -> None:
        for place, name in zip(record.places, job.places, strict=False):
            place.is_made, place.partition = True, f"{self._backend.name}:{name}"[:80]
            place.access = SlotAccess(
                place.slot.device, place.slot.start, place.partition, {"BERTH_LEASE": record.lease}
            )
        record.entrance = {"runtime": self._backend.name, "job": job.job, "host": in_one_word(job.host)}
        self.note(record)

    def _learn_absent(self, record: LeaseRecord, now: int) -> None:
        """The cluster has no job of this name, alive or remembered."""
        had = self._jobs.pop(record.key, None)
        known = had is not None or bool(record.entrance.get("job"))
        if record.phase in (DRAINING, FAILED):
            # The answer to a submission may have been lost while it was on its way.
            if known or now - max(self._touched.get(record.key, 0), record.taken_at) >= HEARD_WITHIN_NS:
                record.is_closed = True
                self._finish(record)
        elif known:
            record.is_closed = True
            self._fail(
                record, "removed_by_other", "its job is gone from the cluster, and nobody remembers how", now
            )

    def _say_wait(self, record: LeaseRecord, reason: str) -> None:
        if self._waits.get(record.key) != reason:
            self._waits[record.key], self.changed = reason, True

    def _drain(self, record: LeaseRecord, reason: str, now: int) -> None:
        record.drain(reason, now)
        if not may_exist(record):
            record.is_closed = True
        self._finish(record)
        self.note(record)

    def _fail(self, record: LeaseRecord, code: str, detail: str, now: int) -> None:
        if record.phase in (PREPARING, READY):
            log.warning("lease %s failed: %s: %s", record.lease, code, detail)
            record.fail(code, detail, now)
            record.hasten()
            self.note(record)

    def _finish(self, record: LeaseRecord) -> None:
        if record.phase == DRAINING and record.is_closed:
            record.phase = GONE
        self.note(record)

    def _forget(self, lease_records: Iterable[LeaseRecord]) -> list[LeaseRecord]:
        over = super()._forget(lease_records)
        for record in over:
            self._told.discard(record.key)
            self._jobs.pop(record.key, None)
            self._waits.pop(record.key, None)
            self._fences.pop(record.key, None)
            self._ending.pop(record.key, None)
            self._touched.pop(record.key, None)
        return over


def lane_of(call: Call) -> str:
    """Return what calls must not overlap: those for one lease, or for one job of nobody."""
    return call.job if call.record is None else job_name(call.record.key)


def _age(job: ClusterJob) -> tuple[int, str]:
    return (int(job.job) if job.job.isdecimal() else 0), job.job
