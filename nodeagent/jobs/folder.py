"""The folder of one job on its node: whether it runs, how it ended, and what it printed, whoever asks.

It lies in the agent's own state folder; the holder gets two open files, never a path. The lock on the status tells a
job that runs from one whose first process died with it, over restarts of the agent.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from nodeagent.protocol.forms import is_name, is_path_below
from nodeagent.protocol.jobs import JobOrder
from nodeagent.protocol.limits import TEXT
from nodeagent.protocol.messages import JobReport
from nodeagent.runtimes.base import Key
from nodeagent.runtimes.names import key_of_stem, stem_of

STATUS: Final = "status"
OUTPUT: Final = "output"
ERRORS: Final = "errors"
LIMITS: Final = "limits"
FOUND: Final = "found"
FILES: Final = "files"
IMAGE: Final = "image"
FOLLOWS: Final = "+"  # in no stem
HEADER: Final = 4096
MOST_SAID: Final = 500
MOST_FOUND: Final = 8 * 1024 * 1024
MOST_WHY: Final = 40
# Newer output may stand already where the oldest is said to be still: the size is told after it.
MARGIN: Final = 128 * 1024


@dataclass(frozen=True, slots=True)
class JobFiles:
    """What a job's first process is given, open. Whoever starts it closes these."""

    status: int
    output: int
    errors: int
    artifacts: tuple[int, ...] = ()

    def close(self) -> None:
        """Let go of the files; the lock that the process took stays its own."""
        for fd in (self.status, self.output, self.errors, *self.artifacts):
            os.close(fd)


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file that a job left, ``size`` bytes from ``at`` on among those collected; or why it was ``left_out``."""

    path: str
    size: int = 0
    at: int = 0
    sha256: str = ""
    left_out: str = ""


class JobFolder:
    """One job of one generation of a lease, by its ordinal there. Every call looks at the disk."""

    def __init__(self, root: Path, key: Key, ordinal: int = 1, *, mark: str = "") -> None:
        """``mark`` is what its name ends in while it is not that of a job yet."""
        self.key = key
        self.ordinal = ordinal
        self.path = root / ((stem_of(key) if ordinal == 1 else f"{stem_of(key)}{FOLLOWS}{ordinal}") + mark)
        self._known_limits: tuple[int, int] | None = None

    def make(self, head: int, tail: int, *, collects: bool = False, digest: str | None = None) -> JobFiles:
        """Make the files of a job that is to begin; raises OSError, FileExistsError where one was begun.

        ``collects``: also those for what it leaves. ``digest`` is that of the image whose container it runs in, None
        for one that runs in none.
        """
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        self.path.mkdir(mode=0o700)
        (self.path / LIMITS).write_text(json.dumps([head, tail]))
        if digest is not None:
            (self.path / IMAGE).write_text(digest)
        opened = [
            os.open(self.path / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | append, 0o600)
            for name, append in (
                (STATUS, os.O_APPEND),
                (OUTPUT, 0),
                (ERRORS, os.O_APPEND),
                *(((FOUND, os.O_APPEND), (FILES, 0)) if collects else ()),
            )
        ]
        status, output, errors, *artifacts = opened
        return JobFiles(status, output, errors, tuple(artifacts))

    def is_running(self) -> bool:
        """Say whether the job's first process lives."""
        with self._status() as fd:
            return fd is not None and not _is_free(fd)

    def give_up_unbegun(self) -> bool:
        """Remove a job that never began, so that it can be begun anew; False where it has begun.

        One that is only about to begin finds the line that is left for it, and does not.
        """
        with self._status() as fd:
            if fd is None:
                self.remove()
                return True
            if not _is_free(fd) or os.fstat(fd).st_size:
                return False
            os.write(fd, b"{}\n")
        self.remove()
        return True

    def lines(self) -> dict[str, Any]:
        """Return what the status says, all lines together; nothing for one that has not begun."""
        found: dict[str, Any] = {}
        try:
            text = (self.path / STATUS).read_text(errors="replace")[:8192]
        except OSError:
            return found
        for line in text.splitlines():
            with contextlib.suppress(ValueError):
                told = json.loads(line)
                if isinstance(told, dict):
                    found |= told
        return found

    @property
    def digest(self) -> str | None:
        """Return the digest of the image that it runs in ("" unknown), None for a job in no container."""
        try:
            return (self.path / IMAGE).read_text()
        except OSError:
            return None

    @property
    def runner(self) -> int:
        """Return the number of the job's first process, 0 when it is not known."""
        told = self.lines().get("runner")
        return told if type(told) is int and told > 1 else 0

    def report(self) -> JobReport:
        """Return how the job goes by its files. What its holder may have written there is believed of nobody else."""
        return replace(self._report(), ordinal=self.ordinal)

    def _report(self) -> JobReport:
        told, digest = self.lines(), self.digest or ""
        if "ran_ms" not in told:
            if self.is_running():
                return JobReport("running", digest=digest)
            if "runner" not in told:
                return JobReport("exited", exit=126, why="not_entered", word=self._said())
            return JobReport("lost", why="vanished", digest=digest)
        # What Podman itself took says nothing of a container, whose processes are not its own.
        peak = _whole(told.get("peak_kib"), 2**40) if self.digest is None else None
        return JobReport(
            "exited",
            exit=_whole(told.get("exit"), 255),
            signal=_whole(told.get("signal"), 128, least=1),
            why=told["why"] if told.get("why") in ("workdir", "command") else "",
            word=str(told.get("word") or "")[:200],
            peak_mib=None if peak is None else -(-peak // 1024),
            ran_ms=_whole(told.get("ran_ms"), 2**50),
            is_asked=told.get("asked") is True,
            digest=digest,
        )

    def _said(self) -> str:
        """Return what was said where the holder could not be entered for."""
        try:
            return (self.path / ERRORS).read_text(errors="replace")[:MOST_SAID].strip()[:200]
        except OSError:
            return ""

    # Output

    def size(self) -> int:
        """Return how many bytes were kept in all, those that newer ones replaced counted in."""
        try:
            with open(self.path / OUTPUT, "rb") as file:
                return _total(file.fileno())
        except OSError:
            return 0

    def read(self, offset: int, most: int) -> tuple[int, bytes]:
        """Return output from ``offset`` on, and where it really begins: what was replaced meanwhile is left out."""
        head, tail = self._limits()
        try:
            with open(self.path / OUTPUT, "rb") as file:
                while True:
                    offset, data = _read(file.fileno(), offset, most, head, tail)
                    total = _total(file.fileno())
                    if offset < head or offset >= total - tail:  # not replaced while it was read
                        return offset, data
        except OSError:
            return offset, b""

    def _limits(self) -> tuple[int, int]:
        if self._known_limits is not None:  # they never change
            return self._known_limits
        try:
            head, tail = json.loads((self.path / LIMITS).read_text())
            self._known_limits = max(1, int(head)), max(1, int(tail))
            return self._known_limits
        except (OSError, ValueError, TypeError):
            return 1, 1

    # What it leaves

    @property
    def collects(self) -> bool:
        """Say whether files of the job are collected, and were not handed over yet."""
        return (self.path / FOUND).exists()

    def found(self) -> tuple[list[FoundFile], int]:
        """Return what was collected or left out, and how many more were left out.

        A holder may have written it: what no gateway would take is only counted. Where the last line is missing, the
        collection was cut off, and that is said.
        """
        found: list[FoundFile] = []
        unnamed = untellable = 0
        is_whole = False
        try:
            with open(self.path / FOUND, encoding="utf-8", errors="replace") as file:
                lines = file.read(MOST_FOUND).splitlines()
        except OSError:
            return [], 0
        for line in lines:
            try:
                told = json.loads(line)
            except ValueError:
                continue
            if not isinstance(told, dict):
                continue
            unnamed = _whole(told.get("unnamed"), 2**31) or unnamed
            is_whole = is_whole or told.get("done") is True
            file_found = _found_file(told)
            if file_found is not None:
                found.append(file_found)
            elif "path" in told:
                untellable += 1
        if not is_whole and "child" in self.lines():  # nothing is collected where nothing was begun
            found.append(FoundFile(".", left_out="too_much_to_look_at"))
        return found, unnamed + untellable

    def read_file(self, file: FoundFile, offset: int, most: int) -> bytes:
        """Return some of a collected file; less than there should be where it was tampered with."""
        try:
            with open(self.path / FILES, "rb") as files:
                return os.pread(files.fileno(), min(most, file.size - offset), file.at + offset)
        except OSError:
            return b""

    def forget_found(self) -> None:
        """Remove what was collected. Safe to repeat."""
        for name in (FILES, FOUND):
            with contextlib.suppress(OSError):
                (self.path / name).unlink()

    def remove(self) -> None:
        """Forget the job. Safe to repeat."""
        shutil.rmtree(self.path, ignore_errors=True)

    @contextlib.contextmanager
    def _status(self) -> Iterator[int | None]:
        try:
            fd = os.open(self.path / STATUS, os.O_RDWR | os.O_APPEND)
        except OSError:
            yield None
            return
        try:
            yield fd
        finally:
            os.close(fd)


@dataclass(slots=True)
class RunningJob:
    """A job whose first process lives: an open handle on it, and the process itself where this agent started it.

    ``told`` is a pipe that closes once the job has ended though its files are still being collected, -1 for none.
    ``is_alone``: the job is over, and nothing else of its lease is let live beside that process. ``since`` is when
    this agent began to watch it, by the boot clock.
    """

    folder: JobFolder
    handle: int
    pid: int
    process: subprocess.Popen[bytes] | None
    order: JobOrder
    since: int
    told: int = -1
    is_asked: bool = False
    is_alone: bool = False


def _found_file(told: dict[str, Any]) -> FoundFile | None:
    """Return what a line says of one file, None for what would be refused on its way to the portal."""
    path, why, digest = told.get("path"), told.get("left_out", ""), told.get("sha256", "")
    size, at = (_whole(told.get(name, 0), 2**50) for name in ("size", "at"))
    if not (isinstance(path, str) and isinstance(why, str) and isinstance(digest, str)):
        return None
    if not (path and is_path_below(path) and is_name(why) and is_name(digest)) or size is None or at is None:
        return None
    if len(path) > TEXT["ArtifactPiece.path"] or len(digest) > TEXT["ArtifactPiece.sha256"]:
        return None
    return FoundFile(path, size, at, digest, why[:MOST_WHY])


def job_folders(root: Path) -> list[JobFolder]:
    """Return every job that has files here, those of a lease in their order."""
    try:
        names = os.listdir(root)
    except OSError:
        return []
    found = []
    for name in names:
        stem, plus, number = name.partition(FOLLOWS)
        key = key_of_stem(stem)
        ordinal = int(number) if number.isascii() and number.isdigit() else 0
        if key is not None and (ordinal > 1 or not plus):
            found.append(JobFolder(root, key, ordinal or 1))
    return sorted(found, key=lambda folder: (folder.key, folder.ordinal))


def _is_free(fd: int) -> bool:
    """Say whether nobody holds the lock; where it is free it is this file description's until that is closed."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _total(fd: int) -> int:
    return min(int(struct.unpack(">Q", os.pread(fd, 8, 0).ljust(8, b"\0"))[0]), 2**50)


def _read(fd: int, offset: int, most: int, head: int, tail: int) -> tuple[int, bytes]:
    total = _total(fd)
    if offset >= head:
        margin = min(MARGIN, tail // 2) if total > head + tail else 0
        offset = max(offset, head, total - tail + margin)
    if offset >= total:
        return offset, b""
    if offset < head:
        at, there = HEADER + offset, min(head, total) - offset
    else:
        within = (offset - head) % tail
        at, there = HEADER + head + within, min(tail - within, total - offset)
    return offset, os.pread(fd, min(most, there), at)


def _whole(value: object, most: int, least: int = 0) -> int | None:
    return value if type(value) is int and least <= value <= most else None
