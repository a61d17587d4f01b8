"""The lease records of this node and the last frame numbers, kept in step with the journal."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

from nodeagent.reconcile.journal import FORMAT, Journal, Record
from nodeagent.reconcile.lease_records import HELD, Key, LeaseRecord, record_from_row

log = logging.getLogger(__name__)

MOST_ENDED: Final = 4096


class Ledger:
    """All records by key. What is announced is synced at once; what happened is saved before it is reported."""

    def __init__(self, journal: Journal, boot_id: str, driver_version: str) -> None:
        """Read the journal; a lease of an earlier boot is marked as gone or failed.

        ``reloaded`` says, for people, that another driver was loaded within this boot ("": none was): with the old
        one went every slice that the devices do not keep themselves. Until ``trust_driver`` the next life finds
        that too.
        """
        self.lease_records: dict[Key, LeaseRecord] = {}
        self.epoch = 0
        self.revision = 0
        self.carried_out = 0
        self.is_writable = True
        self._journal = journal
        self._boot_id, self._driver, self._loaded = boot_id, driver_version, driver_version
        self._is_head_old = False
        self.reloaded = ""
        self._unsaved: dict[Key, LeaseRecord | None] = {}
        self._ended: dict[str, int] = {}
        rows = journal.read()
        for row in rows:
            self._replay(row)
        if rows and rows[0].get("boot_id") != boot_id:
            self._outlive_reboot()
        elif rows:
            self._compare_driver(rows[0].get("driver", ""), driver_version)
        journal.compact(self._all())

    def _compare_driver(self, before: str, now: str) -> None:
        """Notice that another driver was loaded; a version that was not told proves nothing, so the old one stays."""
        if not _is_told(now):
            self._driver = before
        elif _is_told(before) and before != now:
            self.reloaded = f"driver {now} was loaded in place of {before}, and the slices went with that"
            log.warning("%s", self.reloaded)
            self._driver = before

    def trust_driver(self) -> None:
        """Remember the driver that is loaded now: what it did away with is no longer called ours."""
        if self.reloaded:
            self._driver, self._is_head_old = self._loaded, True
            self.save()

    def take(
        self, fresh: list[LeaseRecord], changed: Iterable[LeaseRecord], epoch: int, revision: int
    ) -> bool:
        """Make new records durable and remember the frame's numbers; False, and nothing new, on a full disk."""
        for record in changed:
            self._unsaved[record.key] = record
        lines = [{"op": "seen", "epoch": epoch, "revision": revision}, *(record.as_row() for record in fresh)]
        if not self._write(lines, sync=bool(fresh)):
            return False
        self.epoch, self.revision = epoch, revision
        self.lease_records.update((record.key, record) for record in fresh)
        return True

    def meet(self, epoch: int, *, enrolled: bool = False) -> None:
        """Remember the epoch of a welcome; a newer one, or any after enrolment, counts revisions afresh."""
        if epoch > self.epoch or enrolled:
            self.epoch, self.revision, self.carried_out = epoch, 0, 0
            self._write([{"op": "seen", "epoch": epoch, "revision": 0}], sync=True)

    def note(self, record: LeaseRecord) -> None:
        """Remember to save a record as it will be when it is written: it may change oftener than that."""
        self._unsaved[record.key] = record

    def forget(self, key: Key) -> None:
        """Drop a record that is over."""
        self.lease_records.pop(key, None)
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
        if self._journal.is_long or self._is_head_old:
            return self._compact()
        return self._write([], sync=False)

    def _write(self, lines: list[Record], *, sync: bool) -> bool:
        if self._is_head_old and not self._compact():
            return False
        try:
            noted = [_line(key, record) for key, record in self._unsaved.items()]
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
        self.is_writable, self._is_head_old = True, False
        return True

    def _refused(self, no: OSError) -> bool:
        if self.is_writable:
            log.error("the journal cannot be written: %s", no)
        self.is_writable = False
        return False

    def _all(self) -> list[Record]:
        seen = {"op": "seen", "epoch": self.epoch, "revision": self.revision}
        ended = [{"op": "ended", "leases": self._ended}] if self._ended else []
        head = {"op": "head", "format": FORMAT, "boot_id": self._boot_id, "driver": self._driver}
        return [head, seen, *ended, *(record.as_row() for record in self.lease_records.values())]

    def _replay(self, row: dict[str, Any]) -> None:
        if row["op"] == "work":
            record = record_from_row(row)
            self.lease_records[record.key] = record
        elif row["op"] == "forget":
            key = (row["lease"], row["generation"])
            self.lease_records.pop(key, None)
            self._end(key)
        elif row["op"] == "ended":
            self._ended.update(row["leases"])
        elif row["op"] == "seen":
            self.epoch, self.revision = row["epoch"], row["revision"]

    def _outlive_reboot(self) -> None:
        held = [record for record in self.lease_records.values() if record.phase in HELD]
        log.warning("the node has restarted: %d lease(s) lost their partitions", len(held))
        for record in self.lease_records.values():
            record.outlive_reboot()


def _line(key: Key, record: LeaseRecord | None) -> Record:
    """Return the line of a record, or that it is over and forgotten."""
    return {"op": "forget", "lease": key[0], "generation": key[1]} if record is None else record.as_row()


def _is_told(version: str) -> bool:
    """Say whether a driver told its version; drivers say "unknown" where theirs cannot be read."""
    return bool(version) and not version.startswith("unknown")
