"""One job after another in a lease on a node, and the process that stands by for the next."""

from __future__ import annotations

import asyncio
import os
import signal

from nodeagent.host.clock import boot_clock
from nodeagent.jobs.folder import JobFolder
from nodeagent.protocol.messages import DesiredLease, JobReport
from nodeagent.runtimes.names import stem_of
from tests.agent.builder import lease
from tests.agent.job_node import SOON_S, A, Node, job, running_pids
from tests.agent.test_agent import slice_at


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


async def standing_by(node: Node) -> int:
    """Return the process that stands by for the next job of A, once there is one."""
    async with asyncio.timeout(SOON_S):
        while not (pid := node.jobs._standbys.pid((A, 1))):
            await node.pause()
    return pid


async def gone(node: Node, pid: int) -> None:
    async with asyncio.timeout(SOON_S):
        while pid in running_pids():
            await node.pause()


async def follow(node: Node, ordinal: int) -> int:
    """End the job before, and return the number of the next one's first process."""
    await node.kill(A, ordinal - 1)
    async with asyncio.timeout(SOON_S):
        while node.record(A).job != JobReport("running", ordinal=ordinal):
            await node.pause()
    return JobFolder(node.state / "jobs", (A, 1), ordinal).runner


async def test_process_that_stands_by_takes_the_next_job_or_goes(tmp_path):
    node = Node(tmp_path)
    async with node.alive():
        node.desire(follower(A, 1, "sleep", "300"))
        await node.until(A, "running")
        node.desire(follower(A, 2, "sleep", "300"))
        withdrawn = await standing_by(node)
        node.desire(lease(A, slice_at(0)))
        await gone(node, withdrawn)
        async with asyncio.timeout(SOON_S):
            while list((tmp_path / "jobs").glob("*.standby")):
                await node.pause()

        node.desire(follower(A, 2, "sleep", "300"))
        killed = await standing_by(node)
        os.kill(killed, signal.SIGKILL)
        await gone(node, killed)  # one that dies with a job in its hand is a job that was killed
        assert await follow(node, 2) != killed  # by a process of its own, as the first one

        node.desire(follower(A, 3, "sleep", "300"))
        assert await standing_by(node) == await follow(node, 3)

        long = {f"V{number}": "x" * 4000 for number in range(14)}
        node.desire(job(A, "sleep", "300", ordinal=4, limit_s=60, env=long))
        assert await standing_by(node) != await follow(node, 4)  # more than it could be told at once

        await node.kill(A, 4)
        await node.until(A, "exited")
        await node.idle()


async def test_process_that_stands_by_goes_with_its_agent_and_the_next_agent_makes_another(tmp_path):
    node = Node(tmp_path)
    async with node.alive():
        node.desire(follower(A, 1, "sleep", "300"))
        await node.until(A, "running")
        node.desire(follower(A, 2, "sleep", "300"))
        last = await standing_by(node)
    await gone(node, last)
    (tmp_path / "jobs" / f"{stem_of((A, 1))}+3.standby").mkdir()  # as a killed agent leaves it
    async with node.alive():
        await node.until(A, "running")
        node.desire(follower(A, 2, "sleep", "300"))
        await standing_by(node)
        assert [path.name for path in (tmp_path / "jobs").glob("*.standby")] == [
            f"{stem_of((A, 1))}+2.standby"
        ]
        assert await follow(node, 2) != last
        await node.kill(A, 2)
        await node.until(A, "exited")
        await node.idle()
