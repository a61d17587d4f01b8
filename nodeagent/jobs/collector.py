"""Collects what a job leaves: the files that its patterns name below its working folder, as its holder.

The job's first process runs this text once the job has ended (runner.py), so like that it is standard library only.
Every folder and file is opened from the one above it and never through a link: what the job did to its folders
meanwhile cannot lead outside. FILES gets the bytes one after another, FOUND a line of JSON per file, written after its
bytes, and a last line once all is through.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

PIECE = 1024 * 1024
MOST_DEPTH = 32
MOST_LOOKED_AT = 100_000
MOST_NAMED = 100
MOST_PATH = 300
Rests = frozenset[tuple[str, ...]]


class Collector:
    """One look through a folder. What does not fit is named with a word that says why."""

    def __init__(self, found: int, files: int, most_bytes: int, most_files: int, until: float) -> None:
        """``found`` and ``files`` are open files to write to, ``until`` is monotonic seconds."""
        self.found, self.files, self.until = found, files, until
        self.most_bytes, self.most_files = most_bytes, most_files
        self.bytes = self.count = self.left_out = self.looked_at = 0

    def collect(self, root: int, patterns: list[str]) -> None:
        """Collect what the patterns name below the open folder ``root``."""
        wanted = frozenset(
            tuple(part for part in pattern.split("/") if part not in ("", ".")) for pattern in patterns
        )
        for folder, name, path in self._matches(root, "", wanted, 0):
            self._take(folder, name, path)
        self._say(done=True, unnamed=max(0, self.left_out - MOST_NAMED))

    def _matches(self, folder: int, above: str, rests: Rests, depth: int) -> Iterator[tuple[int, str, str]]:
        """Yield what is named below a folder: its open folder, its name there, its path."""
        rests = frozenset(each for rest in rests for each in _begun(rest))
        try:
            with os.scandir(folder) as listed:
                entries = sorted(listed, key=lambda entry: entry.name)
        except OSError:
            self._leave_out(above or ".", "unreadable")
            return
        for entry in entries:
            self.looked_at += 1
            if self.looked_at > MOST_LOOKED_AT or time.monotonic() > self.until:
                self._leave_out(above or ".", "too_much_to_look_at")
                return
            name, path = entry.name, f"{above}/{entry.name}" if above else entry.name
            try:
                is_folder = entry.is_dir(follow_symlinks=False)
            except OSError:
                is_folder = False
            if not is_folder:
                if any(len(rest) == 1 and _fits(name, rest[0]) for rest in rests):
                    yield folder, name, path
                continue
            below = frozenset(
                rest if rest[0] == "**" else rest[1:]
                for rest in rests
                if _fits(name, rest[0]) and (rest[0] == "**" or len(rest) > 1)
            )
            if below:
                yield from self._below(folder, name, path, below, depth + 1)

    def _below(
        self, folder: int, name: str, path: str, rests: Rests, depth: int
    ) -> Iterator[tuple[int, str, str]]:
        try:
            if depth > MOST_DEPTH:
                raise OSError
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        except OSError:
            self._leave_out(path, "unreadable")
            return
        try:
            yield from self._matches(inner, path, rests, depth)
        finally:
            os.close(inner)

    def _take(self, folder: int, name: str, path: str) -> None:
        """Copy one file, or say why not. A pipe is not waited for, and a device is never read."""
        if not path.isprintable() or len(path) > MOST_PATH:
            self._leave_out(path, "bad_name")
            return
        try:
            how = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
            if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                self._leave_out(path, "no_file")  # before it is opened: opening a device may do something
                return
            fd = os.open(name, how, dir_fd=folder)
        except OSError:
            self._leave_out(path, "unreadable")
            return
        try:
            size = os.fstat(fd).st_size
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                why = "no_file"
            elif self.count >= self.most_files:
                why = "too_many"
            elif self.bytes + size > self.most_bytes:
                why = "too_big"
            else:
                why = self._copy(fd, path, size)
        except OSError:
            why = "unreadable"
        finally:
            os.close(fd)
        if why:
            self._leave_out(path, why)

    def _copy(self, fd: int, path: str, size: int) -> str:
        """Copy so many bytes; returns "" or why they are left out: what follows is written over them then."""
        digest, at, left = hashlib.sha256(), self.bytes, size
        while left:
            if time.monotonic() > self.until:
                return "too_slow"
            data = os.read(fd, min(PIECE, left))
            if not data:
                return "changed"
            digest.update(data)
            left -= len(data)
            while data:
                try:
                    done = os.pwrite(self.files, data, at)
                except OSError:
                    return "no_room"
                at, data = at + done, data[done:]
        self._say(path=path, size=size, at=self.bytes, sha256=digest.hexdigest())
        self.bytes, self.count = at, self.count + 1
        return ""

    def _leave_out(self, path: str, why: str) -> None:
        self.left_out += 1
        if self.left_out <= MOST_NAMED:
            shown = path.encode("utf-8", "backslashreplace").decode()
            shown = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in shown)
            self._say(path=shown[:MOST_PATH], left_out=why)

    def _say(self, **facts: Any) -> None:
        os.write(self.found, json.dumps(facts).encode() + b"\n")


def _begun(rest: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield what is left of a pattern, also where its ** stands for no folder at all."""
    if rest:
        yield rest
    if len(rest) > 1 and rest[0] == "**":
        yield from _begun(rest[1:])


def _fits(name: str, part: str) -> bool:
    """Say whether a name fits one part of a pattern; as in a shell, hidden ones fit only a part with a dot."""
    if name.startswith(".") and not part.startswith("."):
        return False
    return part == "**" or fnmatch.fnmatchcase(name, part)
