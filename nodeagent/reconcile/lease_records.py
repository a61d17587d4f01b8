"""What the agent knows of each lease: a record per (lease, generation), and its form in the journal."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from nodeagent.drivers.base import PartitionShape
from nodeagent.protocol.jobs import BEGINNING, image_in, keeps_files, ordinal_in
from nodeagent.protocol.messages import DesiredLease, DesiredSlot, JobReport, LeaseReport, Notice, SlotAccess

PREPARING: Final = "preparing"
READY: Final = "ready"
DRAINING: Final = "draining"
FAILED: Final = "failed"
GONE: Final = "gone"
HELD: Final = frozenset({PREPARING, READY, FAILED})

Key = tuple[str, int]
NS: Final = 1_000_000_000
RETRY_FIRST_NS: Final = NS // 20
RETRY_MOST_NS: Final = 5 * NS
RETRY_LOST_NS: Final = 60 * NS
TRIES: Final = 16  # about a minute: who else holds a device open may let go of it
COLLECTED_WITHIN_S: Final = 60
MOVED_NS: Final = 60 * NS  # an end that moved by less is told no second time: frames take time


@dataclass(slots=True, kw_only=True)
class Backoff:
    """When something refused is tried again: each time a little later."""

    tries: int = 0
    retry_at: int = 0

    def postpone(self, now: int, by: int | None = None) -> None:
        """Try again later, but not later than ``by`` where that is still to come."""
        self.retry_at = now + min(RETRY_MOST_NS, RETRY_FIRST_NS << min(self.tries, 10))
        if by is not None and now < by:
            self.retry_at = min(self.retry_at, by)
        self.tries += 1

    def rest(self, now: int) -> None:
        """Try again in a while; nothing was asked of the device, so no try is counted."""
        self.retry_at = now + RETRY_MOST_NS

    def hurry(self) -> None:
        """Try again at once, as if for the first time."""
        self.tries = self.retry_at = 0


@dataclass(slots=True)
class LeasePlace(Backoff):
    """One slot of a lease on its way.

    ``is_fresh``: the place was seen free in this life of the agent, and nothing was done there since.
    ``is_ours``: it was seen free, and that we make it is in the journal; what stands there since is ours.
    ``is_confined``: its limits bind the holder's unit; ``loosened``: 1 when they were loosened for the end, 2
    when what the driver runs for the holder was ended too.
    """

    slot: DesiredSlot
    number: int
    partition: str = ""
    access: SlotAccess | None = None
    is_made: bool = False
    is_cleared: bool = False
    is_ours: bool = False
    is_fresh: bool = False
    is_told: bool = False
    is_confined: bool = False
    loosened: int = 0
    folders: tuple[str, ...] = ()
    binds: dict[str, str] = field(default_factory=dict)

    def vanish(self) -> None:
        """What stood here was removed by somebody else: what is made here next is not ours, not even by its name."""
        self.is_made = self.is_ours = False
        self.partition, self.access = "", None

    @property
    def shape(self) -> PartitionShape:
        """The partition that must stand here."""
        s = self.slot
        size = 0 if s.mode in ("mps", "memlimit", "timeslice") else s.size
        return PartitionShape(s.mode, s.profile, size, s.share_milli, s.memory_mib)

    def overlaps(self, other: LeasePlace) -> bool:
        """Say whether two places on one device cannot both be occupied."""
        mine, theirs = self.slot, other.slot
        if mine.mode != theirs.mode or mine.mode == "exclusive":
            return True
        if mine.mode != "mig":
            return False
        return mine.start < theirs.start + theirs.size and theirs.start < mine.start + mine.size


@dataclass(slots=True)
class LeaseRecord(Backoff):
    """One generation of one lease. Times are nanoseconds of the boot clock, meaningless after a reboot.

    ``is_open``: its holder's unit was opened in this life of the agent, or found; ``is_closed``: nothing runs in
    it any more. Its patience is that of opening and closing the unit. ``job`` is how its batch job goes, None where
    it has none; ``job_order`` what to run, as the portal said last: it holds secrets and is written down nowhere.
    ``next_order`` is what may follow that at once, ``job_before`` how the job before the present one ended, and
    ``job_until`` when the present one's own time is up (0: with the lease's). ``stored_job`` is the ordinal of the
    last one that the portal is known to have stored as begun.
    ``keeps_files``: its job leaves files that are wanted, so the unit's own end comes later; ``is_collected``: that
    job has begun, so closing and clearing wait for its files, until ``files_until`` once the lease drains (0: not).
    ``image`` is what that runs in, ``has_image``: it is on this host, as far as this life of the agent knows.
    """

    lease: str
    generation: int
    places: list[LeasePlace]
    deadline: int
    taken_at: int
    grace_s: int = 0
    load_pattern: str = ""
    phase: str = PREPARING
    ready_at: int | None = None
    drain_at: int | None = None
    active_ms: int | None = None
    code: str = ""
    detail: str = ""
    reason: str = ""
    is_clock_lost: bool = False
    is_acked: bool = False
    told_why: str = ""
    told_at: int = 0
    user: str = ""
    team: str = ""
    cpu_milli: int | None = None
    host_memory_mib: int | None = None
    entrance: dict[str, str] = field(default_factory=dict)
    cgroup: str = ""
    is_open: bool = False
    is_closed: bool = False
    armed_for: int = 0
    job: JobReport | None = None
    job_order: str = ""
    next_order: str = ""
    job_before: JobReport | None = None
    job_until: int = 0
    stored_job: int = 0
    keeps_files: bool = False
    is_collected: bool = False
    files_until: int = 0
    image: str = ""
    has_image: bool = False

    @property
    def key(self) -> Key:
        """Identity: the same lease with a higher generation is another record."""
        return self.lease, self.generation

    def owner(self, place: LeasePlace) -> str:
        """Name one place of this lease, different from every other tenant's."""
        return f"{self.lease}.{self.generation}.{place.number}"

    @property
    def is_standing(self) -> bool:
        """Say whether all its places are made."""
        return bool(self.places) and all(place.is_made for place in self.places)

    @property
    def awaits_image(self) -> bool:
        """Say whether its holder is let in only once the image of its job is here: until then nobody pays."""
        return self.phase == PREPARING and bool(self.image) and not self.has_image

    @property
    def kill_at(self) -> int:
        """Return when its processes are ended rather than asked; what collects files is not ended before it is due."""
        return 0 if self.drain_at is None else max(self.drain_at + self.grace_s * NS, self.files_until)

    @property
    def ends_at(self) -> int:
        """Return when it is drained at the latest: at its end, or when the time of the job in it is up."""
        return min(self.deadline, self.job_until) if self.job_until and self.phase == READY else self.deadline

    @property
    def last_end(self) -> int:
        """Return until when a process of its holder's may be there: files are collected after its end."""
        return self.deadline + (COLLECTED_WITHIN_S * NS if self.keeps_files else 0)

    def become_ready(self, now: int) -> None:
        """All places are made: the holder's time begins, so what making them took is added to its end."""
        self.deadline += now - self.taken_at
        self.phase, self.ready_at = READY, now
        self.code = self.detail = ""

    def begin_anew(self, now: int) -> None:
        """Count its time from now: what went by since it was taken on was not its holder's."""
        self.deadline += now - self.taken_at
        self.taken_at = now

    def fail(self, code: str, detail: str, now: int) -> None:
        """Give up making or keeping it; its places are cleared when the portal drops it."""
        self.phase, self.code, self.detail = FAILED, code, detail
        self.stop_clock(now)

    def outlive_reboot(self) -> None:
        """Its boot is over: partitions are gone, and how long it was active cannot be known."""
        self.is_clock_lost = self.active_ms is None and self.ready_at is not None
        for place in self.places:
            place.vanish()
            place.is_cleared = True
        self.is_open, self.is_closed, self.entrance, self.cgroup = False, True, {}, ""
        self.is_collected, self.files_until = False, 0
        self.ready_at = None
        if self.phase == DRAINING:
            self.phase = GONE
        elif self.phase != GONE:
            self.phase, self.code = FAILED, "rebooted"
            self.detail = "the node restarted and its partitions are gone; ask again to continue"

    def drain(self, reason: str, now: int) -> None:
        """Begin to take it away."""
        self.phase, self.reason, self.drain_at = DRAINING, reason, now
        self.stop_clock(now)
        self.hasten()
        if self.is_collected:
            self.await_files(now)

    def await_files(self, now: int) -> None:
        """Close and clear it no sooner than what its job leaves is collected, but not later than in a minute.

        Safe to repeat: the minute is counted once.
        """
        self.is_collected = True
        if self.phase != DRAINING:
            return
        self.files_until = self.files_until or now + COLLECTED_WITHIN_S * NS
        for one in (self, *self.places):
            one.retry_at = self.files_until

    def has_files(self) -> None:
        """Wait for no files any more."""
        if self.is_collected:
            self.is_collected, self.files_until = False, 0
            self.hasten()

    def hasten(self) -> None:
        """Try again at once whatever is to be done for it."""
        for one in (self, *self.places):
            one.hurry()

    def hear(self, notice: Notice | None, now: int) -> bool:
        """Take over what the holder should know; says whether that is news."""
        why = "" if notice is None else notice.why
        at = 0 if notice is None else now + notice.in_s * NS
        has_moved = notice is not None and notice.in_s > 0 and abs(at - self.told_at) >= MOVED_NS
        if why == self.told_why and not has_moved:
            return False
        self.told_why, self.told_at = why, at
        for place in self.places:
            place.is_told = False
        return True

    def order_job(self, order: str) -> None:
        """Take over what to run in it, or after that; a job that has begun is never begun again."""
        ordinal = ordinal_in(order) if order else 0
        if self.job is not None and self.job.ordinal != ordinal:
            self.next_order = order if ordinal > self.job.ordinal else ""
        elif order:
            self.job_order, self.image, self.keeps_files = order, image_in(order), keeps_files(order)
            self.job = self.job or JobReport("waiting", ordinal=ordinal)

    def follow(self, ended: JobReport, ordinal: int) -> None:
        """Let the next job follow one that has ended. It may have begun from here on: nobody else may run it."""
        self.job_before, self.job = ended, JobReport("waiting", why=BEGINNING, ordinal=ordinal)
        self.job_order, self.next_order, self.job_until = self.next_order, "", 0

    def stop_clock(self, now: int) -> None:
        """Fix the time between ready and now, once."""
        if self.active_ms is None and not self.is_clock_lost:
            self.active_ms = 0 if self.ready_at is None else max(0, now - self.ready_at) // 1_000_000

    def report(self) -> LeaseReport:
        """Return what the portal is told."""
        is_ready = self.phase == READY
        return LeaseReport(
            lease=self.lease,
            generation=self.generation,
            phase=self.phase,
            access=tuple(p.access for p in self.places if p.access is not None) if is_ready else (),
            code=self.code,
            detail=self.detail[:2000],
            active_ms=None if self.phase in (PREPARING, READY) else self.active_ms,
            reason=self.reason,
            entrance=dict(self.entrance) if is_ready else {},
            job=self.job,
            job_before=self.job_before,
        )

    def as_row(self) -> dict[str, Any]:
        """Return its line for the journal."""
        row = {name: getattr(self, name) for name in (*_PLAIN, *_ADDED)}
        row["places"] = [_place_record(place) for place in self.places]
        for name in ("job", "job_before"):
            if (report := getattr(self, name)) is not None:
                row[name] = asdict(report)
        row |= {name: value for name in _SELDOM if (value := getattr(self, name))}
        return {"op": "work", **row}


_PLAIN = (
    "lease",
    "generation",
    "deadline",
    "taken_at",
    "grace_s",
    "load_pattern",
    "phase",
    "ready_at",
    "drain_at",
    "active_ms",
    "code",
    "detail",
    "reason",
    "is_clock_lost",
)
# Not in journals of an earlier version.
_ADDED = (
    "told_why",
    "told_at",
    "user",
    "team",
    "cpu_milli",
    "host_memory_mib",
    "entrance",
    "cgroup",
    "is_closed",
)


# Written only where there is something to write.
_SELDOM = ("image", "keeps_files", "files_until", "job_until")


def new_record(wanted: DesiredLease, now: int) -> LeaseRecord:
    """Return a fresh record for a desired lease; its end is counted from now."""
    record = LeaseRecord(
        lease=wanted.lease,
        generation=wanted.generation,
        places=[LeasePlace(slot, number) for number, slot in enumerate(wanted.slots)],
        deadline=now + wanted.remaining_s * NS,
        taken_at=now,
        grace_s=wanted.grace_s,
        load_pattern=wanted.load_pattern,
        user=wanted.user,
        team=wanted.team,
        cpu_milli=wanted.cpu_milli,
        host_memory_mib=wanted.host_memory_mib,
    )
    record.hear(wanted.notice, now)
    record.order_job(wanted.job)
    return record


def record_from_row(row: dict[str, Any]) -> LeaseRecord:
    """Return the record of a journal line."""
    added = {name: row[name] for name in (*_ADDED, *_SELDOM) if name in row}
    for name in ("job", "job_before"):
        if name in row:
            added[name] = JobReport(**row[name])
    record = LeaseRecord(**{name: row[name] for name in _PLAIN}, **added, places=_places(row["places"]))
    if record.files_until:
        record.await_files(record.files_until)
    return record


def _place_record(place: LeasePlace) -> dict[str, Any]:
    return {
        "slot": _fields_of(place.slot),
        "partition": place.partition,
        "access": None if place.access is None else _fields_of(place.access),
        "made": place.is_made,
        "cleared": place.is_cleared,
        "ours": place.is_ours,
        "folders": list(place.folders),
        "binds": place.binds,
    }


def _fields_of(message: DesiredSlot | SlotAccess) -> dict[str, Any]:
    """Return a flat message by field; ``asdict`` would copy each value as well, for every line that is written."""
    return {name: getattr(message, name) for name in message.__slots__}


def _places(rows: list[dict[str, Any]]) -> list[LeasePlace]:
    return [
        LeasePlace(
            slot=DesiredSlot(**row["slot"]),
            number=number,
            partition=row["partition"],
            access=_access(row["access"]),
            is_made=row["made"],
            is_cleared=row["cleared"],
            # An earlier version called places ours that it had not begun, and wrote that down beside it.
            is_ours=row["ours"] and row.get("begun", True),
            folders=tuple(row.get("folders", ())),
            binds=row.get("binds", {}),
        )
        for number, row in enumerate(rows)
    ]


def _access(row: dict[str, Any] | None) -> SlotAccess | None:
    return None if row is None else SlotAccess(**{**row, "nodes": tuple(row["nodes"])})
