"""Batch jobs on a node: real processes, simulated devices, an agent that may die at any time."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.containers.boxes import LeaseContainers
from nodeagent.containers.cache import ImageCache, remover
from nodeagent.host.clock import boot_clock
from nodeagent.jobs import runner, spec
from nodeagent.jobs.folder import JobFolder, job_folders
from nodeagent.jobs.running import NodeJobs
from nodeagent.protocol.jobs import JobOrder
from nodeagent.protocol.messages import DesiredLease, JobReport, Report
from nodeagent.reconcile.journal import Journal
from nodeagent.reconcile.lease_records import LeaseRecord
from nodeagent.reconcile.reconciler import Reconciler
from nodeagent.reconcile.worker import Worker
from nodeagent.runtimes.names import stem_of
from nodeagent.simulation.devices.driver import SimulatedDriver
from nodeagent.workloads.entry import MOST_PLAYED, PlayedEntry, marked
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

    @asynccontextmanager
    async def alive(self) -> AsyncIterator[Node]:
        driver = SimulatedDriver(FACTS, self.state, "boot-1", clock=boot_clock)
        self.reconciler = Reconciler("gpu-01", driver, Journal(self.state / "journal.jsonl"), boot_clock())
        worker = Worker(self.reconciler, driver, boot_clock)
        entry = PlayedEntry(self.state, self.reconciler.notice_of, boot_clock, self.most_processes)
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


async def test_job_runs_as_the_holder_in_its_lease_and_takes_the_lease_with_it(tmp_path):
    node = Node(tmp_path)
    async with node.alive():
        node.desire(job(A, "sh", "-c", 'echo "$LR $BERTH_LEASE"; id -u; cat; exit 3', env={"LR": "1e-4"}))
        report = await node.until(A, "exited")

        assert (report.exit, report.signal) == (3, None), report
        assert node.phase(A) in ("draining", "gone")
    said, uid = node.output(A).decode().split("\n")[:2]
    assert said == f"1e-4 {A}"
    assert int(uid) != 0
    assert report.peak_mib is not None
    assert report.ran_ms is not None


async def test_word_that_is_no_program_is_named(tmp_path):
    report, shown = await ran(tmp_path, "no-such-program")

    assert (report.exit, report.why, report.word) == (127, "command", "no-such-program")
    assert b"no-such-program" in shown


async def test_folder_that_is_not_there_is_named(tmp_path):
    report, _ = await ran(tmp_path, "true", workdir="/no/such/folder")

    assert (report.exit, report.why, report.word) == (126, "workdir", "/no/such/folder")


async def test_value_of_a_secret_is_in_the_environment_and_never_in_the_output_or_on_the_disk(tmp_path):
    script = 'printf "it is %s!\\n" "$KEY"; for c in h u n; do printf $c; sleep 0.05; done; echo ter-12345'
    report, shown = await ran(tmp_path, "sh", "-c", script, secrets={"KEY": "hunter-12345"})

    assert report.exit == 0
    assert shown == b"it is ***!\n***\n"
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert b"hunter-12345" not in file.read_bytes(), file


def test_output_goes_on_once_a_full_disk_has_room_again_and_says_what_is_missing(tmp_path, monkeypatch):
    pwrite, is_full = os.pwrite, True

    def written(fd, data, at):
        if is_full and at:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(fd, data, at)

    monkeypatch.setattr(os, "pwrite", written)
    with (tmp_path / "output").open("w+b") as file:
        output = runner.Output(file.fileno(), 1000, 1000, 10**6, 10**6, [], 0.0)
        output.take(b"lost\n", 0.0)
        output.take(b"lost too\n", 0.1)
        is_full = False
        output.take(b"kept\n", 0.2)
        is_full = True
        output.take(b"the end\n", 0.3)
        is_full = False
        output.finish()
        size = int.from_bytes(os.pread(file.fileno(), 8, 0), "big")
        said = os.pread(file.fileno(), size, runner.HEADER).decode()

    assert said == (
        "\n… 14 bytes left out: the node's disk was full\nkept\n"
        "\n… 8 bytes left out: the node's disk was full\n"
    )


async def test_gigabyte_without_a_line_end_costs_little_and_its_end_is_kept(tmp_path):
    script = "head -c 300000000 /dev/zero | tr '\\0' x; echo; echo the end"
    report, shown = await ran(tmp_path, "sh", "-c", script, head=100_000, tail=200_000, rate=50_000)

    assert report.exit == 0
    assert b"left out" in shown
    assert shown.endswith(b"the end\n")
    assert len(shown) <= 300_000
    assert (tmp_path / "jobs" / f"{A}-1" / "output").stat().st_size <= 4096 + 300_000


async def test_job_that_ignores_being_asked_forks_and_deletes_its_folder_ends_with_its_lease(tmp_path):
    script = (
        "trap '' TERM; cd; rmdir \"$PWD\"; for i in 1 2 3 4 5 6 7 8; do setsid sleep 1000 & done; echo on; wait; "
        "while :; do sleep 1; done"
    )
    node = Node(tmp_path)
    async with node.alive():
        node.desire(job(A, "bash", "-c", script))
        await node.until(A, "running")
        while b"on" not in node.output(A):
            await asyncio.sleep(0.02)

        node.desire()
        async with asyncio.timeout(SOON_S):
            while JobFolder(tmp_path / "jobs", (A, 1)).is_running() or sleepers():
                await asyncio.sleep(0.05)


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


async def test_job_is_asked_before_its_lease_ends(tmp_path):
    node = Node(tmp_path)
    async with node.alive():
        wanted = job(
            A,
            "bash",
            "-c",
            "trap 'echo saved; exit 0' TERM; while :; do sleep 0.05; done",
            ask_before_s=3599,
        )
        node.desire(replace(wanted, remaining_s=3600))
        report = await node.until(A, "exited")

    assert report.exit == 0
    assert report.is_asked
    assert b"saved\n" in node.output(A)


async def test_job_outlives_its_agent_and_is_found_again(tmp_path):
    node = Node(tmp_path)
    folder = Path(tempfile.mkdtemp(prefix="berth-test-"))  # nobody can reach that of the test
    folder.chmod(0o755)
    go = folder / "go"
    script = f"echo begun; while [ ! -e {go} ]; do sleep 0.05; done; echo done; exit 7"
    async with node.alive():
        node.desire(job(A, "sh", "-c", script))
        await node.until(A, "running")

    async with node.alive():
        assert (await node.until(A, "running")).phase == "running"
        node.desire(job(A, "sh", "-c", script))  # the portal says it again
        go.touch()
        report = await node.until(A, "exited")

    shutil.rmtree(folder)
    assert report.exit == 7
    assert node.output(A) == b"begun\ndone\n"


async def test_job_that_ended_while_no_agent_was_there_is_reported(tmp_path):
    node = Node(tmp_path)
    async with node.alive():
        node.desire(job(A, "sh", "-c", "sleep 0.2; exit 75"))
        await node.until(A, "running")
    folder = JobFolder(tmp_path / "jobs", (A, 1))
    async with asyncio.timeout(SOON_S):
        while folder.is_running():
            await asyncio.sleep(0.05)

    async with node.alive():
        report = await node.until(A, "exited")

    assert report.exit == 75


async def test_job_whose_first_process_is_killed_is_called_lost_and_not_begun_again(tmp_path):
    node = Node(tmp_path)
    async with node.alive():
        node.desire(job(A, "sleep", "1000"))
        await node.until(A, "running")
        folder = JobFolder(tmp_path / "jobs", (A, 1))
        async with asyncio.timeout(SOON_S):
            while not folder.lines().get("child"):
                await asyncio.sleep(0.01)
        os.kill(folder.runner, signal.SIGKILL)
        report = await node.until(A, "lost")

        assert report.why == "vanished"
        node.desire(job(A, "sleep", "1000"))
        assert node.phase(A) != "ready"
        async with asyncio.timeout(SOON_S):
            while sleepers():
                await asyncio.sleep(0.05)


async def test_job_that_was_only_about_to_begin_is_begun_once(tmp_path):
    node = Node(tmp_path)
    async with node.alive():
        node.desire(lease(A, slice_at(0)))
        async with asyncio.timeout(SOON_S):
            while node.phase(A) != "ready":
                await asyncio.sleep(0.01)
    folder = JobFolder(tmp_path / "jobs", (A, 1))
    folder.make(100, 100).close()  # the agent died between this and the start

    async with node.alive():
        node.desire(job(A, "echo", "once"))
        report = await node.until(A, "exited")

    assert report.exit == 0
    assert node.output(A) == b"once\n"


async def test_how_a_job_goes_is_in_each_report_until_its_lease_is_forgotten(tmp_path):
    node = Node(tmp_path)
    async with node.alive():
        node.desire(job(A, "true"))
        await node.until(A, "exited")
        reports = node.reconciler.lease_reports(1)

    assert reports is not None
    assert reports[0].job is not None
    assert reports[0].job.exit == 0
    assert Report(1, "b", 1, 1, reports, ())


LEFT = (
    "mkdir -p out/deep .hidden; echo model > out/deep/m.ckpt; printf data > out/d; printf x > top.ckpt; "
    "printf no > other; ln -s /etc/passwd out/link; ln -s / out/up; mkfifo out/pipe; printf y > .hidden/h; "
    "printf z > out/.h; head -c 5000 /dev/zero > out/large; printf s > \"$(printf 'out/a\\nb')\""
)


async def test_files_that_a_job_leaves_are_collected_from_its_folder_alone(tmp_path):
    wish = {"artifacts": ("out/**", "*.ckpt", "../*", "/etc/passwd"), "most_files": 20, "most_bytes": 4000}
    report, _shown = await ran(tmp_path, "sh", "-c", LEFT, **wish)
    folder = JobFolder(tmp_path / "jobs", (A, 1))
    async with asyncio.timeout(SOON_S):
        while folder.is_running():
            await asyncio.sleep(0.01)
    found, unnamed = folder.found()

    assert (report.exit, unnamed) == (0, 0)
    assert {one.path: folder.read_file(one, 0, 99) for one in found if not one.left_out} == {
        "out/d": b"data",
        "out/deep/m.ckpt": b"model\n",
        "top.ckpt": b"x",
    }
    assert {one.path: one.left_out for one in found if one.left_out} == {
        "out/link": "no_file",
        "out/up": "no_file",
        "out/pipe": "no_file",
        "out/large": "too_big",
        "out/a\\x0ab": "bad_name",
    }
    assert next(one for one in found if one.path == "out/d").sha256 == hashlib.sha256(b"data").hexdigest()


async def test_lease_ends_with_its_job_and_is_cleared_once_its_files_are_collected(tmp_path, monkeypatch):
    slow = spec.COLLECTOR.replace(
        "def collect(self",
        "def collect(self, *given):\n        time.sleep(1)\n        return self.now(*given)\n\n    def now(self",
    )
    monkeypatch.setattr(spec, "COLLECTOR", slow)
    node = Node(tmp_path)
    async with node.alive():
        script = "setsid sleep 1000 & echo 1 > kept"
        wanted = job(A, "sh", "-c", script, artifacts=("kept",), most_files=1, most_bytes=9)
        node.desire(wanted)
        await node.until(A, "exited")
        folder = JobFolder(tmp_path / "jobs", (A, 1))
        async with asyncio.timeout(0.9):  # while files are collected, nothing else of the lease runs
            while sleepers() != [str(folder.runner)]:
                await asyncio.sleep(0.01)

        assert folder.is_running()
        assert node.phase(A) == "draining"
        assert not node.jobs.is_over((A, 1))
        async with asyncio.timeout(SOON_S):
            while node.phase(A) != "gone":
                await asyncio.sleep(0.01)
        assert [one.path for one in folder.found()[0]] == ["kept"]
        assert not sleepers()


async def test_files_of_a_job_that_had_to_be_killed_are_collected(tmp_path):
    script = "trap '' TERM; echo saved > model; echo on; while :; do sleep 0.1; done"
    node = Node(tmp_path)
    async with node.alive():
        node.desire(job(A, "sh", "-c", script, artifacts=("model",), most_files=9, most_bytes=99))
        while b"on" not in node.output(A):
            await asyncio.sleep(0.02)

        node.desire()
        async with asyncio.timeout(SOON_S):
            while JobFolder(tmp_path / "jobs", (A, 1)).is_running():
                await asyncio.sleep(0.05)

    assert [one.path for one in JobFolder(tmp_path / "jobs", (A, 1)).found()[0]] == ["model"]


@pytest.mark.parametrize("value", ['a "b"\\\n\x00', "é\U0001f600", "\udc80", None, True, -3])
def test_first_process_writes_what_json_reads(value):
    assert json.loads(runner.literal(value)) == value


async def test_job_that_deleted_its_folder_leaves_nothing_and_that_is_no_error(tmp_path):
    wish = {"artifacts": ("**",), "most_files": 9, "most_bytes": 99}
    report, _shown = await ran(tmp_path, "sh", "-c", 'echo 1 > kept; rm -r "$PWD"; exit 4', **wish)
    folder = JobFolder(tmp_path / "jobs", (A, 1))
    async with asyncio.timeout(SOON_S):
        while folder.is_running():
            await asyncio.sleep(0.01)

    assert (report.exit, folder.found()) == (4, ([], 0))


async def test_job_that_leaves_a_thousand_processes_ends_and_they_with_it(tmp_path):
    node = Node(tmp_path)
    async with node.alive():
        node.desire(
            job(A, "bash", "-c", "for i in {1..1000}; do :& done; for i in {1..40}; do sleep 999 & done")
        )
        report = await node.until(A, "exited")
        async with asyncio.timeout(SOON_S):
            while sleepers():
                await asyncio.sleep(0.05)

    assert report.exit == 0


async def test_job_that_forks_without_end_is_refused_more_and_all_of_it_ends_with_its_lease(tmp_path):
    node = Node(tmp_path)
    node.most_processes = 300
    bomb = (
        "import os, time\nfor _ in range(10000):\n try: os.fork()\n"
        " except OSError: print('refused', flush=True); time.sleep(.01)"
    )
    async with node.alive():
        node.desire(job(A, "python3", "-c", bomb))
        await node.until(A, "running")
        async with asyncio.timeout(SOON_S):
            while b"refused" not in node.output(A):
                await node.pause()
        assert len(marked({f"BERTH_LEASE={A}".encode()})) < 400
        node.desire()
        async with asyncio.timeout(SOON_S):
            while marked({f"BERTH_LEASE={A}".encode()}):
                await node.pause()
        await node.idle()


def follower(name: str, ordinal: int, *words: str, limit_s: int = 60) -> DesiredLease:
    return job(name, *words, ordinal=ordinal, limit_s=limit_s)


async def test_job_follows_another_in_its_lease_and_finds_nothing_of_it(tmp_path):
    node = Node(tmp_path)
    async with node.alive():
        node.desire(follower(A, 1, "sh", "-c", "echo 1 > left; setsid sleep 300 & echo $!; exec sleep 300"))
        await node.until(A, "running")
        while not (left := node.output(A)).endswith(b"\n"):
            await node.pause()
        node.desire(follower(A, 2, "sh", "-c", "ls; echo two; exec sleep 300"))

        await node.kill(A)
        async with asyncio.timeout(SOON_S):
            while node.record(A).job != JobReport("running", ordinal=2):
                await node.pause()
            while b"two" not in node.output(A, ordinal=2):
                await node.pause()
        report = node.record(A).report()

        assert report.phase == "ready"
        assert report.job_before is not None
        assert (report.job_before.signal, report.job_before.ordinal) == (9, 1)
        assert int(left) not in running_pids()
    async with node.alive():  # another agent: it finds the second one running, and begins nothing
        await node.until(A, "running")
        assert node.record(A).report().job_before == report.job_before
        await node.kill(A, 2)
        await node.until(A, "exited")

        assert node.phase(A) in ("draining", "gone")
        assert node.output(A, ordinal=2) == b"two\n"
        await node.idle()


async def test_lease_ends_where_the_time_of_the_next_job_does_not_fit_or_its_own_is_up(tmp_path):
    node = Node(tmp_path)
    async with node.alive():
        node.desire(follower(A, 1, "sleep", "300"))
        await node.until(A, "running")
        node.desire(follower(A, 2, "true", limit_s=10**6))
        await node.kill(A)
        await node.until(A, "exited")
        assert (node.report(A).ordinal, node.phase(A) in ("draining", "gone")) == (1, True)

        other = f"{A}-b"
        node.desire(follower(other, 1, "sleep", "300"))
        await node.until(other, "running")
        node.record(other).job_until = boot_clock()
        node.worker.poke()
        report = await node.until(other, "exited")

        assert (report.is_asked, node.record(other).reason) == (True, "expired")
        await node.idle()


async def test_process_that_stands_by_takes_the_next_job_or_goes(tmp_path):
    node = Node(tmp_path)

    async def standing_by() -> int:
        async with asyncio.timeout(SOON_S):
            while not (pid := node.jobs._standbys.pid((A, 1))):
                await node.pause()
        return pid

    async def gone(pid: int) -> None:
        async with asyncio.timeout(SOON_S):
            while pid in running_pids():
                await node.pause()

    async def end(ordinal: int) -> None:
        await node.kill(A, ordinal)

    async def follow(ordinal: int) -> int:
        """End the job before, and return the number of the next one's first process."""
        await end(ordinal - 1)
        async with asyncio.timeout(SOON_S):
            while node.record(A).job != JobReport("running", ordinal=ordinal):
                await node.pause()
        return JobFolder(tmp_path / "jobs", (A, 1), ordinal).runner

    async with node.alive():
        node.desire(follower(A, 1, "sleep", "300"))
        await node.until(A, "running")
        node.desire(follower(A, 2, "sleep", "300"))
        withdrawn = await standing_by()
        node.desire(lease(A, slice_at(0)))
        await gone(withdrawn)
        while list((tmp_path / "jobs").glob("*.standby")):
            await node.pause()

        node.desire(follower(A, 2, "sleep", "300"))
        killed = await standing_by()
        os.kill(killed, signal.SIGKILL)
        assert await follow(2) != killed  # by a process of its own, as the first one

        node.desire(follower(A, 3, "sleep", "300"))
        assert await standing_by() == await follow(3)

        long = {f"V{number}": "x" * 4000 for number in range(14)}
        node.desire(job(A, "sleep", "300", ordinal=4, limit_s=60, env=long))
        assert await standing_by() != await follow(4)  # more than it could be told at once

        node.desire(follower(A, 5, "sleep", "300"))
        last = await standing_by()
    await gone(last)
    (tmp_path / "jobs" / f"{stem_of((A, 1))}+6.standby").mkdir()  # as a killed agent leaves it
    async with node.alive():
        await node.until(A, "running")
        node.desire(follower(A, 5, "sleep", "300"))
        await standing_by()
        assert [path.name for path in (tmp_path / "jobs").glob("*.standby")] == [
            f"{stem_of((A, 1))}+5.standby"
        ]
        assert await follow(5) != last
        await end(5)
        await node.until(A, "exited")
        await node.idle()
