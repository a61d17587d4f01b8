"""The batch jobs of a node: begun once their lease is ready, asked to end before it does, and gone with it.

One event loop. What a job has come to is read from its files (folder.py), so an agent that starts anew finds its jobs
as they are: none is begun twice, whatever died when.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from nodeagent.host.files import read_text
from nodeagent.jobs.folder import JobFolder, job_folders
from nodeagent.protocol.codec import ProtocolError
from nodeagent.protocol.jobs import JobOrder, order_of
from nodeagent.protocol.messages import JobReport
from nodeagent.reconcile.lease_records import NS, READY, LeaseRecord
from nodeagent.reconcile.reconciler import Reconciler
from nodeagent.runtimes.base import Key
from nodeagent.workloads.entry import EntryRefusedError, LeaseEntry, start

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.25
KILL_AFTER_S: Final = 2.0
BEGUN_EVERY_S: Final = 0.01
WAITING, RUNNING, EXITED, LOST = "waiting", "running", "exited", "lost"
RUNNER: Final = (Path(__file__).with_name("runner.py")).read_text()
# The program comes with its input: the holder may not be able to read ours, and nobody wants it in a list of processes.
_LOAD: Final = "import json,sys;exec(json.loads(sys.stdin.readline()))"


@dataclass(slots=True)
class RunningJob:
    """A job whose first process lives: an open handle on it, and the process itself where this agent started it."""

    folder: JobFolder
    handle: int
    process: subprocess.Popen[bytes] | None
    order: JobOrder
    is_asked: bool = False


class NodeJobs:
    """All batch jobs of this node."""

    def __init__(
        self,
        root: Path,
        entry: LeaseEntry,
        reconciler: Reconciler,
        clock: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        """``root`` is the folder of jobs, ``wake`` lets the worker look after what changed here."""
        self._root = root
        self._entry = entry
        self._reconciler = reconciler
        self._clock = clock
        self._wake = wake
        self._running: dict[Key, RunningJob] = {}
        self._starting: set[Key] = set()
        self._ending: set[Key] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Keep time until cancelled. Jobs run on: the next agent finds them."""
        self._loop = asyncio.get_running_loop()
        self._adopt()
        try:
            while True:
                self.look()
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            for job in self._running.values():
                self._loop.remove_reader(job.handle)
                os.close(job.handle)
            self._running.clear()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def is_over(self, key: Key) -> bool:
        """Say whether nothing more comes from a job, and how it ended was taken over."""
        if key in self._running or key in self._starting:
            return False
        record = self._reconciler.lease_records.get(key)
        return record is None or record.job is None or record.job.phase in (EXITED, LOST)

    def look(self) -> None:
        """Begin what is due, ask and end what must go. Never waits."""
        if not hasattr(self, "_loop"):
            return
        for record in list(self._reconciler.lease_records.values()):
            if record.job is None:
                continue
            if record.job.phase != WAITING:
                record.job_order = ""  # it holds secrets, and is used once
            if record.phase == READY:
                if record.job.phase == WAITING and record.job_order and record.key not in self._starting:
                    self._starting.add(record.key)
                    self._later(self._begin(record))
                elif record.key in self._running:
                    self._ask_in_time(record)
            elif record.key in self._running and record.key not in self._ending:
                self._ending.add(record.key)
                self._later(self._end(record.key, record.grace_s))
        for key in [key for key in self._running if key not in self._reconciler.lease_records]:
            if key not in self._ending:
                self._ending.add(key)
                self._later(self._end(key, 0))

    # Beginning

    def _adopt(self) -> None:
        """Take up the jobs that an earlier agent began."""
        for folder in job_folders(self._root):
            record = self._reconciler.lease_records.get(folder.key)
            report = folder.report()
            if report.phase == RUNNING:
                self._watch(folder, folder.runner, None, JobOrder(("",)))
            if record is None or record.job is None or record.job.phase == EXITED:
                continue
            if report.why == "not_entered" and record.phase == READY and folder.give_up_unbegun():
                continue  # the order comes again
            if report.phase == RUNNING:
                self._reconciler.note_job(record, report, self._clock())
            else:
                self._finish(record, folder)

    async def _begin(self, record: LeaseRecord) -> None:
        """Start a job off the loop: systemd is asked on the way, and may take its time."""
        folder = JobFolder(self._root, record.key)
        try:
            order = order_of(record.job_order)
            started = await self._loop.run_in_executor(None, self._start, record, folder, order)
        except (EntryRefusedError, ProtocolError, OSError) as no:
            detail = getattr(no, "detail", str(no))
            log.warning("the job of lease %s could not be begun: %s", record.lease, detail)
            self._fail(record, getattr(no, "code", "not_started"), detail)
        else:
            self._watch(folder, started.pid, started, order)
            # Before it says so itself it may still be given up: then the next agent needs the order once more.
            while record.key in self._running and not folder.runner:
                await asyncio.sleep(BEGUN_EVERY_S)
            if record.job is not None and record.job.phase == WAITING:
                self._reconciler.note_job(record, JobReport(RUNNING), self._clock())
        finally:
            self._starting.discard(record.key)
        self._wake()

    def _start(self, record: LeaseRecord, folder: JobFolder, order: JobOrder) -> subprocess.Popen[bytes]:
        """Start the job's first process; raises EntryRefusedError or OSError."""
        words = [sys.executable, "-I", "-S", "-c", _LOAD]
        try:
            files = folder.make(order.head, order.tail)
        except FileExistsError:
            raise EntryRefusedError("begun_before", "this job was begun here before") from None
        try:
            command = self._entry.command(record, [*words, str(files.status), str(files.output)])
            # It becomes the holder by itself where the way in does not: Python may be out of their reach.
            become = None if command.account is None else [command.account.uid, command.account.gid]
            given = _input(order, become)
            try:
                return start(
                    replace(command, account=None),
                    stdin=given,
                    stdout=subprocess.DEVNULL,
                    stderr=files.errors,
                    pass_fds=(files.status, files.output),
                )
            finally:
                os.close(given)
        except BaseException:
            folder.remove()
            raise
        finally:
            files.close()

    def _fail(self, record: LeaseRecord, why: str, detail: str) -> None:
        report = JobReport("exited", exit=126, why=why, word=detail[:200], ran_ms=0)
        self._reconciler.note_job(record, report, self._clock())

    # Ending

    def _watch(
        self, folder: JobFolder, pid: int, process: subprocess.Popen[bytes] | None, order: JobOrder
    ) -> None:
        """Hear when a job's first process ends. One of an earlier agent is looked at again: its number may be new."""
        key = folder.key
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            self._loop.call_soon(self._ended, key, folder, process)
            return
        if process is None and not folder.is_running():
            os.close(handle)
            self._loop.call_soon(self._ended, key, folder, process)
            return
        self._running[key] = RunningJob(folder, handle, process, order)
        self._loop.add_reader(handle, self._ended, key, folder, process)

    def _ended(self, key: Key, folder: JobFolder, process: subprocess.Popen[bytes] | None) -> None:
        """Take over how a job ended; what it left running in the lease goes too."""
        job = self._running.pop(key, None)
        if job is not None:
            self._loop.remove_reader(job.handle)
            os.close(job.handle)
        if process is not None:
            process.wait()
        record = self._reconciler.lease_records.get(key)
        if record is not None and record.job is not None and record.job.phase != EXITED:
            self._finish(record, folder)
        self._later(self._clear(key))
        self._wake()

    def _finish(self, record: LeaseRecord, folder: JobFolder) -> None:
        report = folder.report()
        if record.cgroup:
            peak, is_oom = memory_of(record.cgroup)
            report = replace(report, peak_mib=report.peak_mib if peak is None else peak, is_oom=is_oom)
        self._reconciler.note_job(record, report, self._clock())

    def _ask_in_time(self, record: LeaseRecord) -> None:
        job = self._running[record.key]
        if not job.is_asked and self._clock() >= record.deadline - job.order.ask_before_s * NS:
            self._ask(job)

    def _ask(self, job: RunningJob) -> None:
        """Ask a job to end: its first process hands SIGTERM on."""
        job.is_asked = True
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(job.handle, signal.SIGTERM)

    async def _end(self, key: Key, grace_s: int) -> None:
        """Ask the job of a lease that is over, and end it a little later. In a unit the unit's end does that too."""
        job = self._running.get(key)
        if job is not None:
            self._ask(job)
            until = self._loop.time() + min(grace_s, KILL_AFTER_S)
            while key in self._running and self._loop.time() < until:
                await asyncio.sleep(0.05)
        if key in self._running:
            await self._clear(key)
            with contextlib.suppress(OSError, KeyError):
                signal.pidfd_send_signal(self._running[key].handle, signal.SIGKILL)
        self._ending.discard(key)

    async def _clear(self, key: Key) -> None:
        await self._loop.run_in_executor(None, self._entry.clear, key)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _input(order: JobOrder, become: list[int] | None) -> int:
    """Return an open file with what the job's first process reads: its program, then what to run."""
    spec = {
        "words": order.words,
        "env": {**order.env, **order.secrets},
        "masks": [value for value in order.secrets.values() if len(value) >= 4],
        "workdir": order.workdir,
        "head": max(1, order.head),
        "tail": max(1, order.tail),
        "rate": max(1, order.rate),
        "burst": 4 * max(1, order.rate),
        "become": become,
    }
    fd = os.memfd_create("berth-job")
    with open(os.dup(fd), "wb") as file:
        file.write(json.dumps(RUNNER).encode() + b"\n" + json.dumps(spec).encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def memory_of(cgroup: str, read: Callable[[str], str] = read_text) -> tuple[int | None, bool]:
    """Return the most MiB that a lease's unit had (None: unknown), and whether the kernel ended a process for it."""
    peak: int | None = None
    with contextlib.suppress(OSError, ValueError):
        peak = -(-int(read(f"{cgroup}/memory.peak")) // 2**20)
    try:
        events = dict(line.split() for line in read(f"{cgroup}/memory.events").splitlines())
        return peak, int(events.get("oom_kill", 0)) > 0
    except (OSError, ValueError):
        return peak, False
