"""What Slurm's accounting says of leases: read as it prints it, and from a real cluster with faults (make deep)."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable

import pytest

from nodeagent.backends.slurm.commands import SlurmCommands
from nodeagent.backends.slurm.settings import SlurmSettings
from nodeagent.backends.slurm.usage import SlurmUsage
from nodeagent.backends.usage import FIRST_BACK_S, NEXT_BACK_S, PoolUsage, UsageReading
from nodeagent.host.shell import MOST_OUTPUT, Done, ProgramError
from nodeagent.protocol.cluster_usage import ClusterUsageRow
from nodeagent.protocol.limits import MOST_USAGE_ROWS
from tests.agent.pools.slurm_cluster import FaultyShell, SlurmCluster
from tests.agent.pools.test_slurm_words import SETTINGS, Script

SACCT = """\
7|berth-l1-g2|CANCELLED by 0|1700000000|1700000060|60|billing=1,cpu=1,gres/gpu=2,gres/gpu:a100=2,node=1|p00l
8|berth-l2-g1|COMPLETED|1700000000|1700000009|7|cpu=1|
9|berth-l3-g1|RUNNING|1700000000|Unknown|7|cpu=1|p00l
10|berth-l4-g1|COMPLETED|1700000000|1700000009|9|cpu=1|another pool
11|train|COMPLETED|1700000000|1700000009|9|cpu=1|p00l
12|berth-l5-g1|CANCELLED by 0|None|1700000009|0||p00l
13|berth-l6-g1|what|1700000000|1700000009|9|cpu=1|p00l
14|broken
"""


def test_jobs_of_this_pool_that_began_and_are_over_are_rows() -> None:
    script = Script(sacct=SACCT)

    reading = SlurmUsage(SlurmCommands(script), SETTINGS).read(3600)

    assert reading == UsageReading(
        "on",
        (
            ClusterUsageRow("l1", 2, "7", 2, 1_700_000_000, 1_700_000_060, 60, "CANCELLED", 0),
            ClusterUsageRow("l2", 1, "8", None, 1_700_000_000, 1_700_000_009, 7, "COMPLETED"),
        ),
    )
    (asked,) = script.asked
    assert asked[-4:] == ["-S", "now-3600seconds", "-E", "now"]


@pytest.mark.parametrize(
    ("answer", "books"),
    [
        (Done(1, "", "Slurm accounting storage is disabled"), "off"),
        (Done(1, "", "sacct: error: slurm_persist_conn_open: failed to connect: Connection refused"), "away"),
        (ProgramError("sacct did not answer within 15 s"), "away"),
    ],
)
def test_accounting_that_is_off_is_told_from_one_that_is_away(
    answer: Done | ProgramError, books: str
) -> None:
    reading = SlurmUsage(SlurmCommands(Script(sacct=answer)), SETTINGS).read(60)

    assert (reading.books, reading.rows, bool(reading.why)) == (books, (), True)


def test_an_answer_longer_than_what_is_read_is_asked_for_in_halves() -> None:
    class Long(Script):
        def run(self, argv, **more):  # type: ignore[no-untyped-def,override]
            self.answers["sacct"] = (
                "x" * MOST_OUTPUT if argv[-3] == "now-240seconds" and not self.asked else SACCT
            )
            return super().run(argv, **more)

    script = Long()

    reading = SlurmUsage(SlurmCommands(script), SETTINGS).read(240)

    assert [(one[-3], one[-1]) for one in script.asked] == [
        ("now-240seconds", "now"),
        ("now-240seconds", "now-120seconds"),
        ("now-120seconds", "now"),
    ]
    assert len(reading.rows) == 2


def row(n: int) -> ClusterUsageRow:
    return ClusterUsageRow(f"l{n}", 1, str(n), 1, 100, 200, 100, "COMPLETED")


class Books:
    """Accounting that answers what it is told to."""

    def __init__(self, *readings: UsageReading) -> None:
        self.readings, self.asked = list(readings), []  # type: ignore[var-annotated]

    def read(self, back_s: int) -> UsageReading:
        self.asked.append(back_s)
        return self.readings.pop(0)


def test_a_connection_hears_each_row_once_in_bounded_frames_and_the_next_one_all_again() -> None:
    many = tuple(row(n) for n in range(MOST_USAGE_ROWS + 1))
    books = Books(
        UsageReading("away", (), "no"),
        UsageReading("on", many),
        UsageReading("on", (*many, row(-1))),
        UsageReading("on", (*many, row(-1))),
        UsageReading("on", many),
    )
    usage = PoolUsage(books, lambda: 7)

    frames = [asyncio.run(usage.news(3)) for _turn in range(4)]
    usage.begin()
    again = asyncio.run(usage.news(4))

    assert [(one.books, one.why, one.rows) for one in frames[0]] == [("away", "no", ())]
    assert [len(one.rows) for one in frames[1]] == [MOST_USAGE_ROWS, 1]
    assert [one.rows for one in frames[2]] == [(row(-1),)]
    assert frames[3] == []
    assert [len(one.rows) for one in again] == [MOST_USAGE_ROWS, 1]
    assert {(one.epoch, one.told_at) for one in frames[1]} == {(3, 7)}
    assert books.asked == [FIRST_BACK_S, FIRST_BACK_S, NEXT_BACK_S, NEXT_BACK_S, FIRST_BACK_S]


def until(ready: Callable[[], bool], within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.mark.slurm
@pytest.mark.deep
def test_real_accounting_counts_faults_as_the_page_explains_them(slurm: SlurmCluster) -> None:
    """Ended by us, by somebody, put back into the queue, and one whose program ends while the controller is away."""
    slurm.clear()
    slurm.backend()
    settings = SlurmSettings("gpu", "gpu:a100", "a100-80gb", 81920, account="{team}", pool_id=slurm.pool_id)
    usage = SlurmUsage(SlurmCommands(FaultyShell(slurm)), settings)
    tag = slurm.pool_id[:6]
    jobs = {
        name: slurm._submit(f"berth-{tag}{name}-g1", 1, slurm.pool_id)
        for name in ("ended", "requeued", "alone")
    }
    until(
        lambda: (
            {one.phase for one in slurm.live()} == {"RUNNING"} and all(map(slurm.programs_of, jobs.values()))
        )
    )

    slurm.do("scancel", jobs["ended"])
    slurm.do("scontrol", "requeue", jobs["requeued"])
    with slurm.silent():
        for process in slurm.programs_of(jobs["alone"]):
            os.kill(process, signal.SIGKILL)
        until(lambda: not slurm.programs_of(jobs["alone"]))
        died = time.time()
        time.sleep(12)
    slurm.do("scancel", jobs["requeued"])

    def read() -> dict[str, ClusterUsageRow]:
        return {
            one.lease.removeprefix(tag): one for one in usage.read(3600).rows if one.lease.startswith(tag)
        }

    until(lambda: set(read()) == set(jobs))
    rows = read()
    said = slurm.do(
        "sacct", "-n", "-X", "-D", "-P", "-j", ",".join(jobs.values()), "-o", "JobIDRaw,ElapsedRaw,State"
    )
    counted = {tuple(line.split("|")[:2]) for line in said.splitlines()}
    assert {(one.job, str(one.elapsed_s)) for one in rows.values()} <= counted
    assert (rows["ended"].state, rows["ended"].units) == ("CANCELLED", 1)
    assert rows["requeued"].state == "REQUEUED"
    # The cluster's word for its end is when the controller heard of it: nobody there knows the true one.
    assert rows["alone"].ended_at >= died + 10
