"""Batch jobs on a node: real processes, simulated devices, an agent that may die at any time."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import shutil
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.jobs import runner, spec
from nodeagent.jobs.folder import JobFolder
from nodeagent.protocol.messages import Report
from nodeagent.workloads.entry import marked
from tests.agent.builder import lease
from tests.agent.job_node import SOON_S, A, Node, job, ran, sleepers
from tests.agent.test_agent import slice_at


async def test_job_runs_as_the_holder_in_its_lease_and_takes_the_lease_with_it(tmp_path):
    node = Node(tmp_path)
    script = 'echo "$LR $BERTH_LEASE"; id -u; grep SigIgn /proc/self/status; cat; exit 3'
    async with node.alive():
        node.desire(job(A, "sh", "-c", script, env={"LR": "1e-4"}))
        report = await node.until(A, "exited")

        assert (report.exit, report.signal) == (3, None), report
        assert node.phase(A) in ("draining", "gone")
    said, uid, ignored = node.output(A).decode().split("\n")[:3]
    assert said == f"1e-4 {A}"
    assert int(uid) != 0
    assert int(ignored.split()[1], 16) & 0xFFFF == 0
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
