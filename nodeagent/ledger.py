"""The works of this node and the last frame numbers, kept in step with the journal."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

from nodeagent.journal import FORMAT, Journal, Record
from nodeagent.works import HELD, Key, Work, work_from_record

log = logging.getLogger(__name__)

MOST_ENDED: Final = 4096


class Ledger:
    """All works by key. What is announced is synced at once; what happened is saved before it is reported."""

    def __init__(self, journal: Journal, boot_id: str, driver_version: str) -> None:
        """Read the journal; work of an earlier boot is marked as gone or failed."""
        self.works: dict[Key, Work] = {}
        self.epoch = 0
        self.revision = 0
        self.carried_out = 0
        self.is_writable = True
        self._journal = journal
        self._head: Record = {"op": "head", "format": FORMAT, "boot_id": boot_id, "driver": driver_version}
        self._unsaved: dict[Key, Work | None] = {}
        self._ended: dict[str, int] = {}
        records = journal.read()
        for record in records:
            self._replay(record)
        if records and records[0].get("boot_id") != boot_id:
            self._outlive_reboot()
        elif records and records[0].get("driver") != driver_version:
            log.warning("the driver changed from %s to %s", records[0].get("driver"), driver_version)
        journal.compact(self._all())

    def take(self, fresh: list[Work], changed: Iterable[Work], epoch: int, revision: int) -> bool:
        """Make new work durable and remember the frame's numbers; False, and nothing new, on a full disk."""
        for work in changed:
            self._unsaved[work.key] = work
        lines = [{"op": "seen", "epoch": epoch, "revision": revision}, *(work.record() for work in fresh)]
        if not self._write(lines, sync=bool(fresh)):
            return False
        self.epoch, self.revision = epoch, revision
        self.works.update((work.key, work) for work in fresh)
        return True

    def meet(self, epoch: int, *, enrolled: bool = False) -> None:
        """Remember the epoch of a welcome; a newer one, or any after enrolment, counts revisions afresh."""
        if epoch > self.epoch or (enrolled and epoch != self.epoch):
            self.epoch, self.revision, self.carried_out = epoch, 0, 0
            self._write([{"op": "seen", "epoch": epoch, "revision": 0}], sync=True)

    def note(self, work: Work) -> None:
        """Remember to save a work as it will be when it is written: it may change oftener than that."""
        self._unsaved[work.key] = work

    def forget(self, key: Key) -> None:
        """Drop a work that is over."""
        self.works.pop(key, None)
        self._end(key)
        self._unsaved[key] = None

    def has_ended(self, key: Key) -> bool:
        """Say whether this or a later generation of a lease is over and done with here."""
        return self._ended.get(key[0], -1) >= key[1]

    def _end(self, key: Key) -> None:
        newest = max(key[1], self._ended.pop(key[0], -1))
        self._ended[key[0]] = newest
        while len(self._ended) > MOST_ENDED:
            self._ended.pop(next(iter(self._ended)))

    def save(self) -> bool:
        """Write what was noted; False when the disk refuses, and it stays noted."""
        if self._journal.is_long:
            return self._compact()
        return self._write([], sync=False)

    def _write(self, lines: list[Record], *, sync: bool) -> bool:
        try:
            noted = [_line(key, work) for key, work in self._unsaved.items()]
            self._journal.append([*noted, *lines], sync=sync)
        except OSError as no:
            return self._refused(no)
        self._unsaved.clear()
        self.is_writable = True
        return True

    def _compact(self) -> bool:
        try:
            self._journal.compact(self._all())
        except OSError as no:
            return self._refused(no)
        self._unsaved.clear()
        self.is_writable = True
        return True

    def _refused(self, no: OSError) -> bool:
        if self.is_writable:
            log.error("the journal cannot be written: %s", no)
        self.is_writable = False
        return False

    def _all(self) -> list[Record]:
        seen = {"op": "seen", "epoch": self.epoch, "revision": self.revision}
        ended = [{"op": "ended", "leases": self._ended}] if self._ended else []
        return [self._head, seen, *ended, *(work.record() for work in self.works.values())]

    def _replay(self, record: dict[str, Any]) -> None:
        if record["op"] == "work":
            work = work_from_record(record)
            self.works[work.key] = work
        elif record["op"] == "forget":
            key = (record["lease"], record["generation"])
            self.works.pop(key, None)
            self._end(key)
        elif record["op"] == "ended":
            self._ended.update(record["leases"])
        elif record["op"] == "seen":
            self.epoch, self.revision = record["epoch"], record["revision"]

    def _outlive_reboot(self) -> None:
        held = [work for work in self.works.values() if work.phase in HELD]
        log.warning("the node has restarted: %d lease(s) lost their partitions", len(held))
        for work in self.works.values():
            work.outlive_reboot()


def _line(key: Key, work: Work | None) -> Record:
    """Return the line of a work, or that it is over and forgotten."""
    return {"op": "forget", "lease": key[0], "generation": key[1]} if work is None else work.record()
