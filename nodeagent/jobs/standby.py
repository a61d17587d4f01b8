"""First processes of jobs that stand by: started while the job before still runs, they wait for what to run.

Python takes longer to start than all else between two short jobs. One that stands by has run nothing: it ends by itself
when its agent does, and its files lie apart until it has its place, so that no later agent takes it for a job.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from nodeagent.jobs.folder import JobFiles, JobFolder, RunningJob
from nodeagent.jobs.spec import LOAD, PROGRAM, spec_text
from nodeagent.protocol.codec import ProtocolError
from nodeagent.protocol.jobs import JobOrder, order_of
from nodeagent.reconcile.lease_records import NS, READY, LeaseRecord
from nodeagent.runtimes.base import Key
from nodeagent.workloads.entry import EntryRefusedError, HolderCommand, LeaseEntry, start

log = logging.getLogger(__name__)

# A longer job does not notice what the start of a process takes, and one that waits takes memory of the lease.
STANDBY_NS: Final = 60 * NS
MARK: Final = ".standby"
# What a pipe surely takes at once: whoever is stopped there must not hold up a thread of the agent.
MOST_SPEC: Final = 48 * 1024


class StandbyProcesses:
    """Those of a node, at most one per lease."""

    def __init__(self, root: Path, entry: LeaseEntry) -> None:
        """Keep their files in ``root``, the folder of jobs."""
        self._root = root
        self._entry = entry
        self._known: dict[Key, StandbyProcess] = {}
        self._starting: set[asyncio.Future[None]] = set()

    def look(self, records: Mapping[Key, LeaseRecord], running: Mapping[Key, RunningJob], now: int) -> None:
        """Start those that may soon have a job, and dismiss those that may not any more. In the loop; never waits."""
        for key, job in running.items():
            record = records.get(key)
            is_wanted = record is not None and _is_wanted(record, job, now)
            if is_wanted and key not in self._known:
                with contextlib.suppress(ProtocolError):
                    self._start(StandbyProcess(self._root, records[key], order_of(records[key].next_order)))
            elif not is_wanted:
                self._dismiss(key)
        for key in [key for key in list(self._known) if key not in running]:
            if key not in records or records[key].phase != READY:
                self._dismiss(key)

    def pid(self, key: Key) -> int:
        """Return the one of a lease, 0 for none."""
        found = self._known.get(key)
        return 0 if found is None else found.pid

    def begin(self, key: Key, order: JobOrder) -> subprocess.Popen[bytes] | None:
        """Hand a job to the one of its lease; None where there is none that can take it. By any thread.

        Raises EntryRefusedError.
        """
        found = self._known.pop(key, None)
        if found is None:
            return None
        try:
            return found.begin(self._entry, order)
        finally:
            found.dismiss()

    def remove_left(self) -> None:
        """Remove the files of those that ended with an earlier agent."""
        for path in self._root.glob(f"*{MARK}"):
            shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Dismiss all."""
        for found in list(self._known.values()):
            found.dismiss()
        self._known.clear()

    def _start(self, made: StandbyProcess) -> None:
        async def start() -> None:
            try:
                await asyncio.get_running_loop().run_in_executor(None, made.start, self._entry)
            except (EntryRefusedError, OSError) as no:  # then the job is begun as any other
                log.info("no process stands by for the next job: %s", no)
                await asyncio.get_running_loop().run_in_executor(None, made.dismiss)
                if self._known.get(made.key) is made:
                    del self._known[made.key]

        self._known[made.key] = made
        task = asyncio.get_running_loop().create_task(start())
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    def _dismiss(self, key: Key) -> None:
        found = self._known.pop(key, None)
        if found is not None:
            asyncio.get_running_loop().run_in_executor(None, found.dismiss)


def _is_wanted(record: LeaseRecord, job: RunningJob, now: int) -> bool:
    is_free = record.phase == READY and not record.told_why and not record.image
    return is_free and bool(record.next_order) and now - job.since <= STANDBY_NS


class StandbyProcess:
    """One process that stands by for one job of a lease. Its calls may take some milliseconds, by any thread."""

    def __init__(self, root: Path, record: LeaseRecord, order: JobOrder) -> None:
        self.key = record.key
        self._record = record
        self._place = JobFolder(root, record.key, order.ordinal)
        self._folder = JobFolder(root, record.key, order.ordinal, mark=MARK)
        self._limits = order.head, order.tail
        self._given = -1
        self._become: list[int] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_dismissed = False
        self._has_folder = False  # its own: one of the same name may still be another's
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        """Its number, 0 while there is none."""
        return 0 if self._process is None else self._process.pid

    def start(self, entry: LeaseEntry) -> None:
        """Start it; raises EntryRefusedError or OSError."""
        with self._lock:
            if self._is_dismissed:
                return
            files = self._folder.make(*self._limits)
            self._has_folder = True
            reader, self._given = os.pipe()
            try:
                fds = [files.status, files.output]
                command = entry.command(self._record, first_process(fds))
                self._become = becomes(command)
                self._process = start_first(command, reader, files, fds)
                os.set_blocking(self._given, False)
                if not self._is_told(PROGRAM):
                    self._end()
            finally:
                files.close()
                os.close(reader)

    def begin(self, entry: LeaseEntry, order: JobOrder) -> subprocess.Popen[bytes] | None:
        """Hand it the job; None where it cannot take it, and another has to be started. May raise EntryRefusedError."""
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None or self._limits != (order.head, order.tail):
                return None
            entry.command(
                self._record
            )  # which makes the home folder anew where that went with the job before
            spec = {"words": order.words, "env": {**order.env, **order.secrets}, "workdir": order.workdir}
            text = spec_text(order, spec, self._become)
            if len(text) > MOST_SPEC:
                return None
            try:
                self._folder.path.rename(self._place.path)
            except OSError:
                raise EntryRefusedError("begun_before", "this job was begun here before") from None
            if not self._is_told(text):
                self._place.path.rename(self._folder.path)
                return None
            self._process, self._has_folder = None, False
            return process

    def dismiss(self) -> None:
        """Let go of it, whether or not it has a job by now. Safe to repeat."""
        with self._lock:
            self._is_dismissed = True
            if self._given >= 0:
                os.close(self._given)
                self._given = -1
            self._end()
            if self._has_folder:
                self._folder.remove()
                self._has_folder = False

    def _is_told(self, text: bytes) -> bool:
        """Say whether the process was told all of it: a pipe may take less where its account has many."""
        try:
            return os.write(self._given, text) == len(text)
        except OSError:
            return False

    def _end(self) -> None:
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.kill()
            self._process.wait()
            self._process = None


def first_process(fds: Sequence[int]) -> list[str]:
    """Return the command of a job's first process, which is given these open files."""
    return [sys.executable, "-I", "-S", "-c", LOAD, *map(str, fds)]


def becomes(command: HolderCommand) -> list[int] | None:
    """Return whom the first process has to become by itself where the way in does not: Python may be out of reach."""
    return None if command.account is None else [command.account.uid, command.account.gid]


def start_first(
    command: HolderCommand, given: int, files: JobFiles, fds: Sequence[int]
) -> subprocess.Popen[bytes]:
    """Start a job's first process; raises EntryRefusedError."""
    return start(
        replace(command, account=None),
        stdin=given,
        stdout=subprocess.DEVNULL,
        stderr=files.errors,
        pass_fds=fds,
    )
