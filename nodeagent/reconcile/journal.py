"""The agent's memory on disk: append-only JSON lines, written before acting, read once at start.

A record that announces an action is synced before the action. A record of something done is
written but not synced: it survives the death of the agent, and a power cut is a reboot, after
which every partition is gone anyway.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

log = logging.getLogger(__name__)

FORMAT: Final = 1
COMPACT_AFTER_LINES: Final = 4000
ENCODE: Final = json.JSONEncoder(
    separators=(",", ":")
).encode  # one for all lines: making it costs more than a line
Record = dict[str, Any]


class JournalError(Exception):
    """The journal belongs to a newer agent or cannot be read; the sentence says what to do."""


class Journal:
    """One file of records. Not shared between threads; the state folder's lock keeps other agents out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = 0
        self._fd: int | None = None
        self._good = 0
        self._is_torn = False

    def read(self) -> list[Record]:
        """Return all whole records and cut off what a crash tore; raises JournalError."""
        raw = self.path.read_bytes() if self.path.exists() else b""
        records, good = [], 0
        for line in raw.splitlines(keepends=True):
            record = _parse(line)
            if record is None:
                break
            records.append(record)
            good += len(line)
        if good < len(raw):
            self._keep_rest(raw[good:])
            os.truncate(self.path, good)
        self.lines, self._good = len(records), good
        _require_known_format(records)
        return records

    def append(self, records: Iterable[Record], *, sync: bool) -> None:
        """Write records in one go, and make them durable when ``sync``.

        Raises OSError when they could not be written; the file is then as before.
        """
        lines = [_line(record) for record in records]
        if not lines:
            return
        fd = self._open()
        if self._is_torn:
            self._cut(fd)
        try:
            _write_all(fd, b"".join(lines))
            if sync:
                os.fdatasync(fd)
        except OSError:
            self._is_torn = True
            self._cut(fd)
            raise
        self._good += sum(map(len, lines))
        self.lines += len(lines)

    def compact(self, records: Iterable[Record]) -> None:
        """Replace the file by these records, all or nothing."""
        draft = self.path.with_suffix(".tmp")
        lines = [_line(record) for record in records]
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "wb") as out:
            out.writelines(lines)
            out.flush()
            os.fsync(out.fileno())
        self.close()
        draft.replace(self.path)
        self.lines, self._good, self._is_torn = len(lines), sum(map(len, lines)), False
        _sync_folder(self.path.parent)

    @property
    def is_long(self) -> bool:
        """Say whether compacting is worth it."""
        return self.lines > COMPACT_AFTER_LINES

    def close(self) -> None:
        """Let go of the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> int:
        if self._fd is None:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        return self._fd

    def _cut(self, fd: int) -> None:
        """Take back what a refused write left; raises OSError, and then nothing is appended before it succeeds.

        Behind a torn line nothing would be read.
        """
        os.ftruncate(fd, self._good)
        self._is_torn = False

    def _keep_rest(self, rest: bytes) -> None:
        """Put an unreadable end aside when it is more than one torn line."""
        log.warning("the journal ends in %d unreadable bytes; they are left out", len(rest))
        if b"\n" in rest.rstrip(b"\n"):
            self.path.with_suffix(".damaged").write_bytes(rest)


def peek(path: Path) -> list[Record]:
    """Return the whole records of a journal that another process may be writing; the file is left as it is."""
    raw = path.read_bytes() if path.exists() else b""
    records = []
    for line in raw.splitlines(keepends=True):
        record = _parse(line)
        if record is None:
            break
        records.append(record)
    _require_known_format(records)
    return records


def _line(record: Record) -> bytes:
    return ENCODE(record).encode() + b"\n"


def _parse(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and line.endswith(b"\n") and "op" in record else None


def _require_known_format(records: list[Record]) -> None:
    if records and (records[0]["op"] != "head" or records[0].get("format") != FORMAT):
        raise JournalError(
            "the journal was written by another version; use that version or an empty state folder"
        )


def _write_all(fd: int, data: bytes, write: Callable[[int, bytes], int] = os.write) -> None:
    while data:
        data = data[write(fd, data) :]


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
