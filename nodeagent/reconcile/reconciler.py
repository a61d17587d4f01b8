"""Desired against observed: what to do next on each device, and what is known of each lease.

Nothing here waits, reads a clock or talks to the portal: time is passed in (nanoseconds of the boot
clock), steps are carried out by the caller and settled here. One thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from nodeagent.drivers.base import Driver
from nodeagent.host.notices import take_down
from nodeagent.protocol.messages import (
    Desired,
    DesiredLease,
    HealthFact,
    JobReport,
    PartitionFact,
)
from nodeagent.reconcile.agenda import DueItem, agenda
from nodeagent.reconcile.draining import close_without_device, ending_step, leader
from nodeagent.reconcile.goals import (
    FenceError,
    aged,
    newest,
    require_apart,
    require_current,
    require_unmoved,
    unfit,
    unknown,
    why_ended,
)
from nodeagent.reconcile.journal import Journal
from nodeagent.reconcile.lease_records import (
    DRAINING,
    HELD,
    NS,
    PREPARING,
    READY,
    LeaseRecord,
    new_record,
)
from nodeagent.reconcile.power import ASLEEP, PowerOutcome
from nodeagent.reconcile.preparing import beginning_step, let_in
from nodeagent.reconcile.settling import disown, miss, settle
from nodeagent.reconcile.state import NO_DEVICE, NodeState
from nodeagent.reconcile.steps import DeviceStep, StepOutcome, StepRefusal, read_health, read_partitions
from nodeagent.reconcile.units import unclaimed_record
from nodeagent.runtimes.base import Key, Runtime

log = logging.getLogger(__name__)

LIVE = (PREPARING, READY)
JOB_ENDED = "job_ended"
SCRATCH_FULL = "scratch_full"
DEADLINE_SLACK_NS = 2 * NS
REWRITE_AFTER_NS = 5 * NS


class Reconciler(NodeState):
    """Takes in what the portal wants and what was seen, gives out steps, settles them and tells what is known."""

    def __init__(
        self,
        node: str,
        driver: Driver,
        journal: Journal,
        now: int,
        runtime: Runtime | None = None,
        notices: Path | None = None,
    ) -> None:
        """Read the journal, look at every device and unit, adopt what still runs.

        ``notices`` is the folder of notices, which holders must be able to pass (beside the journal).
        """
        super().__init__(node, driver, journal, runtime, notices)
        self._rewrite_at = 0
        self.observed.index(self.lease_records.values())
        for record in self.lease_records.values():
            self._refuse(record, unknown(record, self.devices), now)
            if record.phase == DRAINING:
                self.drop_missing(record)
        for device in self.devices:
            facts = read_partitions(driver, device)
            if self.ledger.reloaded:
                disown(self, device, facts or (), self.ledger.reloaded, now)
            self.observe_partitions(device, facts, now)
        self.ledger.trust_driver()
        self.observe_health(read_health(driver), now)
        self._close_again()

    # What the portal wants

    def accept(self, desired: Desired, now: int) -> None:
        """Take a newer desired state as the goal; raises FenceError and changes nothing otherwise.

        New work is durable in the journal before this returns. When the disk refuses, ends are
        still carried out and new work waits until it can be written.
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
        ended = [
            record for key, record in self.lease_records.items() if key not in wanted and record.phase in HELD
        ]
        for record in ended:
            self.drain(record, why_ended(record, wanted), now)
        known = [key for key in wanted if key in self.lease_records]
        moved = [self.lease_records[key] for key in known if self._moved(key, wanted[key], now)]
        moved += [self.lease_records[key] for key in known if self._heard(key, wanted[key], now)]
        for key in known:
            self.lease_records[key].order_job(wanted[key].job)
        fresh = [new_record(lease, now) for key, lease in wanted.items() if key not in self.lease_records]
        for record in fresh:
            self._adopt_open(record)
        self._wanted, self.changed = set(wanted), True
        fresh += self._unclaimed(now)
        self.power.want(desired.power)
        if not self.ledger.take(fresh, [*ended, *moved], desired.epoch, desired.revision):
            self._unwritten, self._rewrite_at = (desired, now), now + REWRITE_AFTER_NS
            return
        self._unwritten = None
        for record in fresh:
            self._refuse(record, unknown(record, self.devices) or unfit(record, self.devices), now)
            self._refuse_ended(record, now)
        self._fail_lost(now)
        self._forget([record for record in self.lease_records.values() if record.is_acked])
        self.observed.index(self.lease_records.values())

    def _moved(self, key: Key, wanted: DesiredLease, now: int) -> bool:
        """Take over a changed end; frames in flight may shift it by a second or two, which is no change."""
        record, deadline = self.lease_records[key], now + wanted.remaining_s * NS
        if record.phase not in HELD or abs(record.deadline - deadline) <= DEADLINE_SLACK_NS:
            return False
        record.deadline, record.taken_at = deadline, now
        return True

    def _heard(self, key: Key, wanted: DesiredLease, now: int) -> bool:
        """Take over what the holder should know; a notice that is withdrawn is taken down at once."""
        record = self.lease_records[key]
        if record.phase not in HELD or not record.hear(wanted.notice, now):
            return False
        if not record.told_why:
            take_down(self.notice_of(record))
        return True

    def _unclaimed(self, now: int) -> list[LeaseRecord]:
        """Return the records that close units which neither the portal nor the journal knows."""
        return [unclaimed_record(key, now) for key in self.units.unclaimed(self.lease_records, self._wanted)]

    def _adopt_open(self, record: LeaseRecord) -> None:
        """Take what stands for ours where this lease is open on this host, though the journal was lost."""
        if record.key in self.units.known:
            for place in record.places:
                place.is_ours = True

    def _refuse(self, record: LeaseRecord, refusal: StepRefusal | None, now: int) -> None:
        if refusal is not None:
            self.fail(record, refusal, now)

    def _refuse_ended(self, record: LeaseRecord, now: int) -> None:
        if not self.ledger.has_ended(record.key):
            return
        for place in record.places:
            place.is_cleared = True
        self.fail(record, StepRefusal("lease_ended", "this lease has ended here; ask for a new one"), now)

    @property
    def lanes(self) -> tuple[str, ...]:
        """Return what steps are asked for: each device, and what belongs to none."""
        return (*self.devices, NO_DEVICE)

    def ready(self, key: Key) -> LeaseRecord | None:
        """Return the record of a lease that is its holder's to use now, None for any other."""
        record = self.lease_records.get(key)
        return record if record is not None and record.phase == READY else None

    def note_job(self, record: LeaseRecord, job: JobReport, now: int) -> None:
        """Take over how a lease's batch job goes; the lease goes with the job, at once."""
        record.job = job
        self.note(record)
        if job.phase in ("exited", "lost") and record.phase in LIVE:
            self.drain(record, JOB_ENDED, now)
        self.ledger.save()

    def end_overfull(self, record: LeaseRecord, held_gib: int, limit_gib: int, now: int) -> None:
        """End a lease that has more in its scratch folder than the node gives: its programs are asked to end first."""
        record.detail = f"its scratch folder holds {held_gib} GiB; this node gives {limit_gib} GiB"
        log.warning("lease %s ends: %s", record.lease, record.detail)
        self.drain(record, SCRATCH_FULL, now)
        self.ledger.save()

    def follow_job(self, record: LeaseRecord, ended: JobReport, ordinal: int) -> None:
        """Let the next job follow one that has ended. It is written down before anything begins."""
        record.follow(ended, ordinal)
        self.note(record)
        self.ledger.save()

    def note_image(self, record: LeaseRecord, now: int, *, is_here: bool) -> None:
        """Let a lease wait for the image of its job, its time untouched, or go on once that is here."""
        if record.phase == PREPARING:
            record.begin_anew(now)
        if is_here and not record.has_image:
            record.has_image = True
            let_in(self, record, now)
            self.note(record)

    # Time

    def tick(self, now: int) -> None:
        """Enforce ends, and try again what the disk refused."""
        for record in self.lease_records.values():
            if record.phase in HELD and record.ends_at <= now:
                self.drain(record, "expired", now)
        if self._unwritten is not None and self._rewrite_at <= now:
            self._rewrite(*self._unwritten, now)
        self.ledger.save()  # an end is on its way to the disk before anything is cleared for it

    def _rewrite(self, desired: Desired, came_at: int, now: int) -> None:
        """Try to take a desired state again that the disk refused; its times count from when it came."""
        try:
            self.accept(aged(desired, (now - came_at) // NS), now)
        except FenceError:  # a newer one, or a new enrolment, was taken meanwhile
            self._unwritten = None
            return
        if self._unwritten is not None:
            self._unwritten = (desired, came_at)

    def next_wake(self) -> int | None:
        """Return when ``tick`` or a postponed step is due next, None when nothing is."""
        times = [record.ends_at for record in self.lease_records.values() if record.phase in HELD]
        times += [
            item.at
            for item in self._agenda()
            if item.lane not in self.busy and (self.power.is_ready or not item.is_new)
        ]
        if self._unwritten is not None:
            times.append(self._rewrite_at)
        retry_at = self.power.next_wake(is_free=self.holds_nothing())
        if retry_at is not None and not self.busy:
            times.append(retry_at)
        return min(times, default=None)

    def _agenda(self) -> list[DueItem]:
        """Return what is still to be done."""
        lease_records = self.lease_records.values()
        leaders = {record.key: leader(self, record) for record in lease_records if record.phase == DRAINING}
        return agenda(lease_records, self.units, leaders, self.health.lost)

    # Steps

    def next_step(self, device: str, now: int) -> DeviceStep | None:
        """Return the next safe step on a device, clearing before making; None when there is none.

        The caller carries it out and settles it before asking for this device again.
        """
        if device == NO_DEVICE:
            return close_without_device(self, now)
        places = self.observed.on(device)
        for record, place in places:
            step = ending_step(self, device, record, place, now) if record.phase == DRAINING else None
            if step is not None:
                return step
        for record, place in places:
            if record.phase == READY and record.told_why and place.is_made and not place.is_told:
                in_s = (record.told_at - now) / NS
                return DeviceStep("tell", device, record, place, notice=self.notice_of(record), in_s=in_s)
        if not self.power.is_ready:
            return None
        for record, place in places:
            step = beginning_step(self, device, record, place, now) if record.phase in LIVE else None
            if step is not None:
                return step
        return None

    def next_power(self, now: int) -> str:
        """Return the power state to bring about now, "" for none; carried out like a step, then settled."""
        goal = self.power.next(is_free=self.holds_nothing(), now=now)
        return "" if goal == ASLEEP and self.busy else goal

    def settle_power(self, goal: str, outcome: PowerOutcome, now: int) -> None:
        """Take the result of a change of power into account."""
        if self.power.settle(goal, outcome, now):
            self.changed = True

    def observe_power(self, state: str) -> None:
        """Take the power that the driver shows now into account: somebody else may have changed it."""
        if self.power.observe(state):
            self.changed = True

    def settle(self, step: DeviceStep, outcome: StepOutcome, now: int) -> None:
        """Take the result of a step into account."""
        settle(self, step, outcome, now)

    # What was seen

    def observe_partitions(self, device: str, facts: tuple[PartitionFact, ...] | None, now: int) -> None:
        """Take a look at an idle device into account; a ready lease without its partition has failed."""
        is_news = self.observed.see(device, facts)
        if facts is None:
            return
        self.changed = self.changed or is_news
        miss(self, device, facts, now)

    def observe_units(self, known: Iterable[Key], whole: Iterable[Key], now: int) -> None:
        """Take a look at what is open on this host, in any way and in every way, into account."""
        self.units.observe(frozenset(known), frozenset(whole), self.lease_records)
        self._close_again()
        unclaimed = self._unclaimed(now)
        self.lease_records.update((record.key, record) for record in unclaimed)
        if unclaimed:
            self.observed.index(self.lease_records.values())

    def _close_again(self) -> None:
        """Close what is still open of leases that are over by their record."""
        for record in self.units.reopened(self.lease_records):
            log.warning("something of lease %s is still open; it is closed", record.lease)
            record.phase, record.is_closed, record.is_acked = DRAINING, False, False
            record.hurry()

    def observe_health(self, health: tuple[HealthFact, ...] | None, now: int) -> None:
        """Take health facts into account (None: they could not be read); leases on a lost GPU have failed."""
        before = self.health.lost
        if not self.health.take(health):
            return
        self.changed = True
        for device in self.health.lost - before:
            for record, place in self.observed.on(device):
                if record.phase == DRAINING:
                    place.hurry()  # what was to be cleared there is soon done
        for device in before - self.health.lost:
            facts = self.observed.facts.get(device, ())
            disown(self, device, facts, "the device was lost, and its slices with it", now)
        self._fail_lost(now)

    def _fail_lost(self, now: int) -> None:
        """Fail leases, new ones too, that lie on a device which is gone."""
        lost = self.health.lost
        for record in list(self.lease_records.values()) if lost else ():
            if record.phase in LIVE and any(place.slot.device in lost for place in record.places):
                self.fail(
                    record,
                    StepRefusal("gpu_lost", "the device has fallen off the bus; the node must be restarted"),
                    now,
                )

    # What the portal hears

    def health_facts(self) -> tuple[HealthFact, ...]:
        """Return what devices said, and what is wrong with the journal or the last desired state."""
        return (*self.health.facts, *super().health_facts())

    def acknowledged(self, seq: int) -> None:
        """Forget gone leases that the portal has stored and no longer wants."""
        super().acknowledged(seq)
        self.observed.index(self.lease_records.values())

    @property
    def is_settled(self) -> bool:
        """Say whether nothing is left to be done for the present goal."""
        return not self._agenda()

    @property
    def carried_out(self) -> int:
        """Return the last revision on which nothing is left to be done."""
        if self.is_settled:
            self.ledger.carried_out = self.ledger.revision
        return self.ledger.carried_out

    def _forget(self, lease_records: Iterable[LeaseRecord]) -> list[LeaseRecord]:
        over = super()._forget(list(lease_records))
        for record in over:
            others = [other for other in self.lease_records.values() if other.lease == record.lease]
            if not any(other.told_why for other in others):
                take_down(self.notice_of(record), is_over=not others)
        return over
