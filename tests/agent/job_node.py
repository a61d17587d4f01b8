"""A node's worker and its jobs without a portal, for tests: real processes, simulated devices."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from nodeagent.containers.boxes import LeaseContainers
from nodeagent.containers.cache import ImageCache, remover
from nodeagent.host.clock import boot_clock
from nodeagent.jobs.folder import JobFolder, job_folders
from nodeagent.jobs.running import NodeJobs
from nodeagent.protocol.jobs import JobOrder
from nodeagent.protocol.messages import DesiredLease, JobReport
from nodeagent.reconcile.journal import Journal
from nodeagent.reconcile.lease_records import LeaseRecord
from nodeagent.reconcile.reconciler import Reconciler
from nodeagent.reconcile.worker import Worker
from nodeagent.runtimes.host_folders import HostFolders
from nodeagent.simulation.devices.driver import SimulatedDriver
from nodeagent.workloads.entry import MOST_PLAYED, PlayedEntry
from tests.agent.builder import lease
from tests.agent.test_agent import FACTS, slice_at

SOON_S = 20
# What is left of a lease is killed by its name, and other workers run these tests as well.
A = f"a{os.getpid()}"


def job(name: str, *words: str, **more: object) -> DesiredLease:
    """Return a desired lease that carries a job."""
    wanted = lease(name, slice_at(0))
    return replace(wanted, job=JobOrder(tuple(words), **more).text())  # type: ignore[arg-type]


class Node:
    """An agent's worker and jobs without a portal, over as many lives as are begun on one state folder."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.revision = 0
        self.containers: Callable[[PlayedEntry], LeaseContainers] | None = None
        self.images: Path | None = None
        self.limit_mib = 0
        self.most_processes = MOST_PLAYED
        self.folders = HostFolders()

    @asynccontextmanager
    async def alive(self) -> AsyncIterator[Node]:
        driver = SimulatedDriver(FACTS, self.state, "boot-1", clock=boot_clock)
        self.reconciler = Reconciler("gpu-01", driver, Journal(self.state / "journal.jsonl"), boot_clock())
        worker = Worker(self.reconciler, driver, boot_clock)
        entry = PlayedEntry(
            self.state, self.reconciler.notice_of, boot_clock, self.most_processes, folders=self.folders
        )
        self.worker, self.entry = worker, entry
        containers = self.containers(entry) if self.containers else None
        cache = None
        if containers is not None:
            records, file = self.reconciler.lease_records.values, self.state / "images.json"
            cache = ImageCache(file, self.limit_mib, records, remover(containers))
        self.jobs = NodeJobs(
            self.state / "jobs", entry, self.reconciler, boot_clock, worker.poke,
            containers=containers, images=self.images, cache=cache,
        )  # fmt: skip
        worker.listeners.append(self.jobs.look)
        tasks = [asyncio.create_task(worker.run()), asyncio.create_task(self.jobs.run())]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            worker.close()

    def desire(self, *leases: DesiredLease) -> None:
        from nodeagent.protocol.messages import Desired

        self.revision = max(self.revision, self.reconciler.ledger.revision) + 1
        self.worker.accept(Desired("gpu-01", 1, self.revision, leases))

    def report(self, name: str) -> JobReport | None:
        found = [one for one in self.reconciler.lease_records.values() if one.lease == name]
        return found[0].job if found else None

    def record(self, name: str) -> LeaseRecord:
        return next(one for one in self.reconciler.lease_records.values() if one.lease == name)

    def phase(self, name: str) -> str:
        return self.record(name).phase

    async def pause(self) -> None:
        await asyncio.sleep(0.01)

    async def idle(self) -> None:
        """Wait until nothing is under way for jobs any more."""
        async with asyncio.timeout(SOON_S):
            while self.jobs._tasks:
                await self.pause()

    async def until(self, name: str, *phases: str) -> JobReport:
        async with asyncio.timeout(SOON_S):
            while (found := self.report(name)) is None or found.phase not in phases:
                await asyncio.sleep(0.01)
        return found

    def output(self, name: str, ordinal: int = 1) -> bytes:
        folder = JobFolder(self.state / "jobs", (name, 1), ordinal)
        found, offset = b"", 0
        while True:
            offset, data = folder.read(offset, 1 << 20)
            if not data:
                return found
            found, offset = found + data, offset + len(data)

    async def kill(self, name: str, ordinal: int = 1) -> None:
        """Kill a job's command, which may begin a little after the job is said to run."""
        folder = JobFolder(self.state / "jobs", (name, 1), ordinal)
        async with asyncio.timeout(SOON_S):
            while "child" not in folder.lines():
                await self.pause()
        os.killpg(folder.lines()["child"], signal.SIGKILL)

    def clean(self) -> None:
        for folder in job_folders(self.state / "jobs"):
            folder.remove()


async def ran(tmp_path: Path, *words: str, **more: object) -> tuple[JobReport, bytes]:
    """Run one job to its end and return how it ended, and what it printed."""
    node = Node(tmp_path)
    async with node.alive():
        node.desire(job(A, *words, **more))
        report = await node.until(A, "exited", "lost")
        return report, node.output(A)


def running_pids() -> list[int]:
    """Return the processes of this host that have not ended, those that nobody has waited for left out."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(int(pid))
    return found


def sleepers() -> list[str]:
    """Return what is left of the job above."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            env = Path(f"/proc/{pid}/environ").read_bytes()
            if f"BERTH_LEASE={A}\0".encode() in env and Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found
