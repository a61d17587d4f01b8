"""The batch jobs of a node: begun once their lease is ready, asked to end before it does, and gone with it.

One event loop. What a job has come to is read from its files (folder.py), so an agent that starts anew finds its jobs
as they are: none is begun twice, whatever died when.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from nodeagent.containers.boxes import IMAGE_UNIT, LeaseContainers, remove_container
from nodeagent.containers.cache import ImageCache
from nodeagent.containers.pulling import ImagePulls, Pull, PulledImage
from nodeagent.jobs.folder import JobFolder, RunningJob, job_folders
from nodeagent.jobs.spec import container_spec, input_of
from nodeagent.jobs.standby import StandbyProcesses, becomes, first_process, start_first
from nodeagent.protocol.codec import ProtocolError
from nodeagent.protocol.jobs import BEGINNING, JobOrder, order_of
from nodeagent.protocol.messages import JobReport
from nodeagent.reconcile.lease_records import COLLECTED_WITHIN_S, NS, PREPARING, READY, LeaseRecord
from nodeagent.reconcile.reconciler import Reconciler
from nodeagent.runtimes.base import Key
from nodeagent.runtimes.cgroups import memory_of
from nodeagent.workloads.entry import EntryRefusedError, LeaseEntry

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.25
KILL_AFTER_S: Final = 2.0
TELL_EVERY_NS: Final = 2 * NS
BEGUN_EVERY_S: Final = 0.01
LIVE: Final = (PREPARING, READY)
WAITING, RUNNING, EXITED, LOST = "waiting", "running", "exited", "lost"
ORDER_WITHIN_S: Final = 1.0
ORDER_AFTER_S: Final = 0.3
ALONE_EVERY_S: Final = 0.5
ALONE_WITHIN_S: Final = 5


class NodeJobs:
    """All batch jobs of this node."""

    def __init__(
        self,
        root: Path,
        entry: LeaseEntry,
        reconciler: Reconciler,
        clock: Callable[[], int],
        wake: Callable[[], None],
        *,
        containers: LeaseContainers | None = None,
        images: Path | None = None,
        cache: ImageCache | None = None,
    ) -> None:
        """``root`` is the folder of jobs, ``wake`` lets the worker look after what changed here.

        ``containers`` runs jobs in images (None: it cannot be done here), ``images`` is a folder of OCI layouts,
        ``cache`` keeps what was fetched within its limit.
        """
        self._root = root
        self._entry = entry
        self._reconciler = reconciler
        self._clock = clock
        self._wake = wake
        self._running: dict[Key, RunningJob] = {}
        self._starting: set[Key] = set()
        self._ending: set[Key] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._containers = containers
        self._cache = cache
        self._pulls = ImagePulls(containers, images, self._pulled, cache)
        self._told_at: dict[Key, int] = {}
        self._standbys = StandbyProcesses(root, entry)
        # Podman may take its time; jobs begin and end on other threads.
        self._threads = ThreadPoolExecutor(2, "containers")

    async def run(self) -> None:
        """Keep time until cancelled. Jobs run on: the next agent finds them."""
        self._loop = asyncio.get_running_loop()
        if self._containers is not None:  # nobody waits for what an earlier agent fetched
            await self._loop.run_in_executor(self._threads, self._containers.stop, f"{IMAGE_UNIT}*")
        self._adopt()
        try:
            while True:
                self.look()
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            for job in self._running.values():
                self._let_go(job)
            self._running.clear()
            self._standbys.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._pulls.close()
            self._threads.shutdown(wait=False, cancel_futures=True)

    def is_over(self, key: Key, ordinal: int = 1) -> bool:
        """Say whether nothing more comes from a job, and how it ended was taken over."""
        record = self._reconciler.lease_records.get(key)
        if record is not None and record.job is not None and ordinal < record.job.ordinal:
            return True
        if key in self._running or key in self._starting:
            return False
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
            is_due = record.job.phase == WAITING and bool(record.job_order)
            image = self._image(record) if is_due and record.phase in LIVE and record.image else None
            if record.phase == READY:
                is_due = is_due and (image is not None or not record.image)
                if is_due and record.key not in self._starting:
                    self._starting.add(record.key)
                    self._later(self._begin(record, image))
                elif record.key in self._running:
                    self._ask_in_time(record)
                    self._note_end(record.key)
            elif record.key in self._running and record.key not in self._ending:
                self._ending.add(record.key)
                self._later(self._end(record.key, record.grace_s))
        for key in [key for key in self._running if key not in self._reconciler.lease_records]:
            if key not in self._ending:
                self._ending.add(key)
                self._later(self._end(key, 0))
        records = self._reconciler.lease_records
        self._standbys.look(records, self._running, self._clock())
        over = [key for key in self._pulls.keys if key not in records or records[key].phase not in LIVE]
        self._pulls.forget(over)
        for key in over:
            self._told_at.pop(key, None)
        if self._cache is not None and self._cache.is_too_full:
            self._later(self._cache.tidy())

    # Images

    def _image(self, record: LeaseRecord) -> PulledImage | None:
        """Return the image of a job once it is here; until then its lease waits, and nobody pays."""
        pull = self._pulls.of(record)
        if pull.refusal is not None:
            report = JobReport("exited", exit=126, why=pull.refusal.why, word=pull.refusal.detail, ran_ms=0)
            self._reconciler.note_job(record, report, self._clock())
            self._wake()
            return None
        self._reconciler.note_image(record, self._clock(), is_here=pull.image is not None)
        if pull.image is None:
            self._tell(record, pull)
        return pull.image

    def _tell(self, record: LeaseRecord, pull: Pull) -> None:
        """Say now and then how far an image is."""
        report, now = JobReport(WAITING, why="pulling", word=pull.words), self._clock()
        if report != record.job and now - self._told_at.get(record.key, -TELL_EVERY_NS) >= TELL_EVERY_NS:
            self._told_at[record.key] = now
            self._reconciler.note_job(record, report, now)
            self._wake()

    def _pulled(self) -> None:
        self.look()
        self._wake()

    # Beginning

    def _adopt(self) -> None:
        """Take up the jobs that an earlier agent began."""
        self._standbys.remove_left()
        # Those before a lease's newest are over; only what they printed may still have to be sent.
        newest = {folder.key: folder for folder in job_folders(self._root)}
        for folder in newest.values():
            record = self._reconciler.lease_records.get(folder.key)
            if record is not None and record.job is not None and folder.ordinal < record.job.ordinal:
                continue  # the next one has not begun
            report = folder.report()
            if record is not None and record.job is not None and folder.ordinal > record.job.ordinal:
                former = JobFolder(self._root, folder.key, record.job.ordinal).report()
                self._reconciler.follow_job(record, former, folder.ordinal)  # the disk was full when it began
            if folder.is_running():
                self._hold(folder, record)
                self._watch(folder, folder.runner, None, JobOrder(("",)))
            elif record is not None:
                record.has_files()
            if record is None or record.job is None or record.job.phase == EXITED:
                continue
            if report.why == "not_entered" and record.phase == READY and folder.give_up_unbegun():
                continue  # the order comes again
            if report.phase == RUNNING:
                self._reconciler.note_job(record, report, self._clock())
            else:
                self._finish(record, folder)
        for record in self._reconciler.lease_records.values():
            if record.job is not None and record.job.why == BEGINNING and record.key not in self._running:
                report = replace(record.job, why="")
                self._reconciler.note_job(record, report, self._clock())

    async def _begin(self, record: LeaseRecord, image: PulledImage | None) -> None:
        """Start a job off the loop: systemd is asked on the way, and may take its time."""
        ordinal = record.job.ordinal if record.job is not None else 1
        folder = JobFolder(self._root, record.key, ordinal)
        try:
            order = order_of(record.job_order)
            started, told = await self._loop.run_in_executor(None, self._start, record, folder, order, image)
        except (EntryRefusedError, ProtocolError, OSError) as no:
            detail = getattr(no, "detail", str(no))
            log.warning("the job of lease %s could not be begun: %s", record.lease, detail)
            self._fail(record, getattr(no, "code", "not_started"), detail)
        else:
            self._hold(folder, record)
            self._watch(folder, started.pid, started, order, told)
            # Before it says so itself it may still be given up: then the next agent needs the order once more.
            while record.key in self._running and not folder.runner:
                await asyncio.sleep(BEGUN_EVERY_S)
            if record.job is not None and record.job.phase == WAITING:
                now = self._clock()
                record.job_until = now + order.limit_s * NS if order.limit_s else 0
                report = JobReport(RUNNING, digest=image.digest if image else "", ordinal=ordinal)
                self._reconciler.note_job(record, report, now)
        finally:
            self._starting.discard(record.key)
        self._wake()

    def _start(
        self, record: LeaseRecord, folder: JobFolder, order: JobOrder, image: PulledImage | None
    ) -> tuple[subprocess.Popen[bytes], int]:
        """Start the job's first process; returns it and where its end is heard. EntryRefusedError or OSError."""
        if (waiting := self._standbys.begin(record.key, order)) is not None:
            return waiting, -1
        try:
            digest = image.digest if image else None
            files = folder.make(order.head, order.tail, collects=bool(order.artifacts), digest=digest)
        except FileExistsError:
            raise EntryRefusedError("begun_before", "this job was begun here before") from None
        told, teller = os.pipe() if order.artifacts else (-1, -1)
        fds = [files.status, files.output, *([teller] if order.artifacts else []), *files.artifacts]
        try:
            command = self._entry.command(record, first_process(fds))
            become = becomes(command)
            spec: dict[str, Any] = {
                "words": order.words,
                "env": {**order.env, **order.secrets},
                "workdir": order.workdir,
            }
            if image is not None and self._containers is not None:
                sockets = self._entry.run_folder(record)
                spec = container_spec(self._containers, record, order, image, sockets)
                if self._containers.podman.is_root:
                    spec["serves"], become = become, None
            given = input_of(order, spec, become)
            try:
                process = start_first(command, given, files, fds)
            finally:
                os.close(given)
        except BaseException:
            folder.remove()
            if told >= 0:
                os.close(told)
            raise
        finally:
            files.close()
            if teller >= 0:
                os.close(teller)
        return process, told

    def _fail(self, record: LeaseRecord, why: str, detail: str) -> None:
        ordinal = record.job.ordinal if record.job is not None else 1
        report = JobReport(EXITED, exit=126, why=why, word=detail[:200], ran_ms=0, ordinal=ordinal)
        self._reconciler.note_job(record, report, self._clock())

    # Ending

    def _hold(self, folder: JobFolder, record: LeaseRecord | None) -> None:
        """Let the lease's files stay until what its job leaves was collected."""
        if folder.collects:
            self._entry.held.add(folder.key)
            if record is not None:
                record.await_files(self._clock())

    def _note_end(self, key: Key) -> None:
        """Take over how a job ended though its files are still being collected: its lease ends now."""
        job, record = self._running.get(key), self._reconciler.lease_records.get(key)
        if job is None or record is None or record.job is None or not job.folder.collects:
            return
        if record.job.phase not in (EXITED, LOST) and "ran_ms" in job.folder.lines():
            self._finish(record, job.folder)
            self._leave_alone(key)
            self._wake()

    def _leave_alone(self, key: Key) -> None:
        """From now on files are collected, which nobody pays for: nothing else of the lease may run meanwhile."""
        job = self._running[key]
        if not job.is_alone:
            job.is_alone = True
            self._later(self._keep_alone(key, job))

    async def _keep_alone(self, key: Key, job: RunningJob) -> None:
        """End all else, again and again: as long as the unit stands, its holder can enter it.

        Where that cannot be done, the files are given up, and the lease is closed as any other.
        """
        until = self._loop.time() + ALONE_WITHIN_S
        while self._running.get(key) is job:
            try:
                if await self._loop.run_in_executor(None, self._entry.keep_only, key, job.pid):
                    until = self._loop.time() + ALONE_WITHIN_S
            except EntryRefusedError as no:
                log.warning("cannot tell what else runs in lease %s: %s", key[0], no.detail)
            if self._loop.time() >= until and self._running.get(key) is job:
                log.warning(
                    "lease %s is closed before its files are collected: something else runs in it", key[0]
                )
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(job.handle, signal.SIGKILL)
                return
            await asyncio.sleep(ALONE_EVERY_S)

    def _told(self, key: Key) -> None:
        self._loop.remove_reader(self._running[key].told)
        self._note_end(key)

    def _let_go(self, job: RunningJob) -> None:
        for fd in (job.handle, job.told):
            if fd >= 0:
                self._loop.remove_reader(fd)
                os.close(fd)

    def _watch(
        self,
        folder: JobFolder,
        pid: int,
        process: subprocess.Popen[bytes] | None,
        order: JobOrder,
        told: int = -1,
    ) -> None:
        """Hear when a job's first process ends. One of an earlier agent is looked at again: its number may be new."""
        key = folder.key
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            if told >= 0:
                os.close(told)
            self._loop.call_soon(self._ended, key, folder, process)
            return
        if process is None and not folder.is_running():
            os.close(handle)
            self._loop.call_soon(self._ended, key, folder, process)
            return
        self._running[key] = RunningJob(folder, handle, pid, process, order, self._clock(), told)
        self._loop.add_reader(handle, self._ended, key, folder, process)
        if told >= 0:
            self._loop.add_reader(told, self._told, key)

    def _ended(self, key: Key, folder: JobFolder, process: subprocess.Popen[bytes] | None) -> None:
        """Take over how a job ended; what it left running in the lease goes too."""
        job = self._running.pop(key, None)
        if job is not None:
            self._let_go(job)
        if process is not None:
            process.wait()
        record = self._reconciler.lease_records.get(key)
        if record is not None:
            record.has_files()
        self._entry.held.discard(key)
        if record is not None and record.job is not None and record.job.phase != EXITED:
            report = self._outcome(record, folder)
            is_followed = job is not None and job.order.is_followed and self._is_open(record, report)
            if is_followed or self._next(record, report) is not None:
                self._later(self._follow(record, report))
                return
            self._reconciler.note_job(record, report, self._clock())
        self._later(self._clear(key))
        self._wake()

    def _finish(self, record: LeaseRecord, folder: JobFolder) -> None:
        self._reconciler.note_job(record, self._outcome(record, folder), self._clock())

    def _outcome(self, record: LeaseRecord, folder: JobFolder) -> JobReport:
        """Return how a job ended, with what the lease's unit says of its memory."""
        report = folder.report()
        if record.cgroup:
            peak, is_oom = memory_of(record.cgroup)
            if folder.ordinal > 1:  # the unit's peak is that of all jobs that it has had
                peak = report.peak_mib
            report = replace(report, peak_mib=report.peak_mib if peak is None else peak, is_oom=is_oom)
        return report

    # One after another

    def _next(self, record: LeaseRecord, ended: JobReport) -> JobOrder | None:
        """Return the order of the job that may follow now, None for none: its time must fit before the lease's end.

        Nothing follows where memory ran out: the kernel counts that by unit, and the next one would be blamed for it.
        """
        if not record.next_order or not self._is_open(record, ended):
            return None
        try:
            order = order_of(record.next_order)
        except ProtocolError:
            return None
        return order if self._clock() + order.limit_s * NS <= record.deadline else None

    def _is_open(self, record: LeaseRecord, ended: JobReport) -> bool:
        is_free = record.phase == READY and not record.told_why and record.deadline > self._clock()
        return is_free and ended.phase == EXITED and not (ended.is_oom or ended.is_asked)

    async def _follow(self, record: LeaseRecord, ended: JobReport) -> None:
        """Begin the next job once nothing of the one before is left: no process, no folder. Else the lease ends.

        Its order may be on its way: a lease would take longer to be cleaned and made anew. It comes at once after the
        portal has stored that this one began, or not at all.
        """
        until = self._loop.time() + ORDER_WITHIN_S
        try:
            is_clear = await self._loop.run_in_executor(None, self._clear_for_next, record.key)
        except EntryRefusedError as no:
            log.warning("cannot tell what else runs in lease %s: %s", record.lease, no.detail)
            is_clear = False
        while (
            is_clear and not record.next_order and self._is_open(record, ended) and self._loop.time() < until
        ):
            if record.stored_job == ended.ordinal:
                until = min(until, self._loop.time() + ORDER_AFTER_S)
            await asyncio.sleep(BEGUN_EVERY_S)
        order = self._next(record, ended)
        if is_clear and order is not None and self._reconciler.lease_records.get(record.key) is record:
            self._reconciler.follow_job(record, ended, order.ordinal)
            self.look()
        else:
            self._reconciler.note_job(record, ended, self._clock())
        self._wake()

    def _clear_for_next(self, key: Key) -> bool:
        is_clear = self._entry.keep_only(key, self._standbys.pid(key))
        if is_clear:
            self._entry.remove_folders(key)
        return is_clear

    def _ask_in_time(self, record: LeaseRecord) -> None:
        job, now = self._running[record.key], self._clock()
        is_due = now >= record.deadline - job.order.ask_before_s * NS
        if record.job_until:
            is_due = is_due or now >= record.job_until - job.order.notice_s * NS
        if is_due and not job.is_asked:
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
        if key in self._running and self._running[key].folder.collects:
            with contextlib.suppress(OSError):  # the job goes, and its first process collects what it leaves
                signal.pidfd_send_signal(self._running[key].handle, signal.SIGUSR1)
            self._leave_alone(key)
            until = self._loop.time() + COLLECTED_WITHIN_S
            while key in self._running and self._loop.time() < until:
                await asyncio.sleep(0.05)
        if key in self._running:
            self._entry.held.discard(key)
            await self._clear(key)
            with contextlib.suppress(OSError, KeyError):
                signal.pidfd_send_signal(self._running[key].handle, signal.SIGKILL)
        self._ending.discard(key)

    async def _clear(self, key: Key) -> None:
        await self._loop.run_in_executor(None, self._entry.clear, key)
        record = self._reconciler.lease_records.get(key)
        has_container = JobFolder(self._root, key).digest is not None
        if record is not None and has_container and self._containers is not None:
            await self._loop.run_in_executor(self._threads, remove_container, self._containers, record)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
