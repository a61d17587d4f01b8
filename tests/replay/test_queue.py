from __future__ import annotations

import csv
import gzip
import heapq
import json
import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from scheduler.engine.order import ORDERS
from scheduler.replay.__main__ import main
from scheduler.replay.jobs import COLUMN, Jobs, drawn, estimates_from, read
from scheduler.replay.queue import YARDSTICKS, Cluster, Turns, rules_of
from tests.deep import deep_after

SAMPLE = Path(__file__).parent.parent / "data" / "philly" / "jobs.csv"
TRACES = Path(os.environ.get("TRACES", "/nonexistent"))
WEEK = "philly_w1_20171001.csv.gz"
needs_traces = pytest.mark.skipif(
    not (TRACES / WEEK).is_file(), reason="TRACES names no folder with the full traces"
)
NODES = 6
# The first sixty jobs of the sample on four nodes: two gangs of all four, jobs that wait, forty that are preempted.
BEGIN, FEW = 60, 4


@pytest.fixture
def begin(tmp_path: Path) -> Path:
    path = tmp_path / "begin.csv"
    path.write_text("".join(SAMPLE.read_text().splitlines(keepends=True)[: BEGIN + 1]))
    return path


def replay(
    capsys: pytest.CaptureFixture[str], jobs: Path = SAMPLE, nodes: int = NODES, **options: Any
) -> Any:
    words = ["queue", "--json", "--jobs", str(jobs), "--nodes", str(nodes), "--gpus-per-node", "8"]
    for name, value in options.items():
        words += [f"--{name}", str(value)]
    assert main(words) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], jobs: Path, *words: str) -> str:
    assert main(["queue", "--json", "--jobs", str(jobs), "--nodes", str(NODES), *words]) == 1
    return capsys.readouterr().err


def head_of_line(jobs: Jobs, nodes: int, key: list[int]) -> list[int]:
    """Waits of a blocking queue, by a second simulator that shares no code with the first."""
    free, ends, waits = [8] * nodes, list[tuple[int, int]](), [-1] * len(jobs.submit)
    held: dict[int, list[tuple[int, int]]] = {}
    queue: list[tuple[int, int]] = []
    moments = sorted(set(jobs.submit))
    arrived = 0
    while moments or ends:
        now = min([*moments[:1], *(end for end, _ in ends[:1])])
        while ends and ends[0][0] == now:
            for node, count in held.pop(heapq.heappop(ends)[1]):
                free[node] += count
        if moments and moments[0] == now:
            moments.pop(0)
        while arrived < len(waits) and jobs.submit[arrived] <= now:
            heapq.heappush(queue, (key[arrived], arrived))
            arrived += 1
        while queue:
            job = queue[0][1]
            whole, rest = divmod(jobs.gpus[job], 8) if jobs.gpus[job] > 8 else (0, jobs.gpus[job])
            spots = [(node, 8) for node in range(nodes) if free[node] == 8][:whole]
            fitting = [(free[n], n) for n in range(nodes) if free[n] >= rest and (n, 8) not in spots]
            if len(spots) < whole or (rest and not fitting):
                break
            held[job] = spots + ([(min(fitting)[1], rest)] if rest else [])
            for node, count in held[job]:
                free[node] -= count
            heapq.heappop(queue)
            waits[job] = now - jobs.submit[job]
            heapq.heappush(ends, (now + jobs.duration[job], job))
    return waits


@pytest.mark.parametrize("name", deep_after(1, ["fifo", "sjf"]))
def test_blocking_queues_wait_as_a_second_simulator_says(name: str) -> None:
    jobs = read(SAMPLE, 8 * NODES)
    key = jobs.submit if name == "fifo" else jobs.duration

    options = Namespace(
        policy=name, place="binpack", backfill="none", notice=0, installed=False, keep_short=0.0,
        keep_apart=0.0,
    )  # fmt: skip
    done = Turns(jobs, rules_of(options)[0], Cluster(NODES, 8), is_told=True).play()

    assert done.waited == head_of_line(jobs, NODES, key)


@pytest.mark.parametrize("name", sorted({*YARDSTICKS, *ORDERS}))
def test_every_policy_serves_every_job(capsys: pytest.CaptureFixture[str], begin: Path, name: str) -> None:
    found = replay(capsys, begin, FEW, policy=name)

    assert found["jobs"] == BEGIN
    assert found["max_wait_s"] > 0
    assert found["mean_jct_s"] >= found["mean_wait_s"]
    assert 0 < found["utilisation"] <= 1
    assert found["max_wait_s"] >= found["p999_wait_s"] >= found["p99_wait_s"] >= found["p50_wait_s"]


@pytest.mark.deep
@pytest.mark.parametrize("name", ["default", "drf", "two_level"])
def test_figures_are_the_same_twice(capsys: pytest.CaptureFixture[str], begin: Path, name: str) -> None:
    first, again = (replay(capsys, begin, FEW, policy=name) for _ in range(2))

    for figure in ("mean_wait_s", "mean_jct_s", "preemptions", "worst_team_slowdown", "max_wait_s"):
        assert first[figure] == again[figure]


@pytest.mark.deep
def test_preemption_by_score_cuts_the_wait_of_the_same_order_without(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The figures are exact: whoever changes on purpose what is decided measures the weeks anew (docs/queue.md)."""
    ours, alone = replay(capsys), replay(capsys, consent="none")

    assert (ours["mean_wait_s"], ours["mean_jct_s"], ours["preemptions"]) == (2942.3, 11556.15, 93)
    assert (alone["mean_wait_s"], alone["mean_jct_s"], alone["preemptions"]) == (4068.72, 12661.45, 0)
    assert ours["mean_wait_s"] < 0.75 * alone["mean_wait_s"]
    assert 0 < ours["max_preemptions_of_one_job"] <= 20
    assert alone["max_preemptions_of_one_job"] == 0


@pytest.mark.parametrize(
    ("policy", "notice", "backfill", "consents", "estimated", "waited", "ended", "preempted"),
    [
        ("default", 0, "none", True, True, 63_397, 736_818, 42),
        ("default", 120, "easy", True, False, 60_872, 734_353, 43),
        ("default", 0, "none", False, True, 339_874, 1_011_495, 0),
        ("priority_fifo", 120, "easy", True, False, 623_933, 1_295_554, 0),
    ],
)
def test_decisions_stay_what_they_were_when_only_the_turn_gets_faster(
    begin: Path,
    policy: str,
    notice: int,
    backfill: str,
    consents: bool,
    estimated: bool,
    waited: int,
    ended: int,
    preempted: int,
) -> None:
    """Whoever changes what is decided on purpose measures the weeks anew (docs/queue.md)."""
    jobs = read(begin, 8 * FEW)
    options = Namespace(
        policy=policy, place="binpack", backfill=backfill, notice=notice, installed=False, keep_short=0.0,
        keep_apart=0.0,
    )  # fmt: skip
    estimates = estimates_from(begin, jobs, COLUMN) if estimated else None

    done = Turns(
        jobs, rules_of(options)[0], Cluster(FEW, 8), estimates=estimates, is_preemptible=consents
    ).play()

    assert (sum(done.waited), sum(done.ended), done.preemptions) == (waited, ended, preempted)


@pytest.mark.deep
def test_a_notice_and_promised_starts_are_played_as_the_product_gives_them(
    capsys: pytest.CaptureFixture[str], begin: Path
) -> None:
    found = replay(capsys, begin, FEW, notice=120, backfill="easy")

    assert (found["jobs"], found["notice_s"], found["backfill"]) == (BEGIN, 120, "easy")


@pytest.mark.deep
def test_the_rules_of_a_new_installation_are_played_with_any_order(
    capsys: pytest.CaptureFixture[str], begin: Path
) -> None:
    words = ["queue", "--json", "--jobs", str(begin), "--nodes", str(FEW), "--installed"]

    assert main([*words, "--keep-short", "0.11", "--keep-apart", "2"]) == 0
    found = json.loads(capsys.readouterr().out)

    told = (found["notice_s"], found["backfill"], found["place"], found["keep_short"], found["keep_apart"])
    assert told == (120, "easy", "default", 0.11, 2.0)


def test_estimates_drawn_anew_have_the_errors_of_the_column() -> None:
    jobs = Jobs([0] * 20_000, [10_000] * 20_000, [1] * 20_000, [0] * 20_000, None, ("",))

    found = drawn(jobs, 1)

    off = sorted(abs(one / 10_000 - 1) for one in found)
    assert drawn(jobs, 1) == found != drawn(jobs, 2)
    assert [round(sum(one <= most for one in off) / 20_000, 1) for most in (0.1, 0.5)] == [0.1, 0.5]
    assert min(found) == 1


@pytest.mark.deep
def test_estimates_come_from_the_column_or_from_the_truth_or_from_nobody(
    capsys: pytest.CaptureFixture[str], begin: Path
) -> None:
    found = {source: replay(capsys, begin, FEW, estimates=source) for source in ("column", "perfect", "none")}

    assert {source: said["estimates"] for source, said in found.items()} == {one: one for one in found}
    assert len({said["mean_wait_s"] for said in found.values()}) == 3
    assert replay(capsys, begin, FEW)["estimates"] == "column"
    assert replay(capsys, begin, FEW, policy="sjf")["estimates"] == "perfect"


@pytest.mark.deep
def test_a_trace_without_estimates_and_teams_is_served_like_one_with_estimates_ignored(
    capsys: pytest.CaptureFixture[str], begin: Path, tmp_path: Path
) -> None:
    bare, teamed = tmp_path / "bare.csv", tmp_path / "teamed.csv"
    with begin.open() as file:
        lines = list(csv.DictReader(file))
    for path, columns in ((bare, ["seq", "submit_s", "duration_s", "gpus"]), (teamed, list(lines[0])[:-1])):
        with path.open("w", newline="") as out:
            writer = csv.DictWriter(out, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(lines)

    ignored = replay(capsys, begin, FEW, estimates="none")
    assert replay(capsys, bare, FEW)["estimates"] == "none"
    assert replay(capsys, teamed, FEW)["mean_wait_s"] == ignored["mean_wait_s"] > 0


def test_a_compressed_file_is_read_as_well(
    capsys: pytest.CaptureFixture[str], begin: Path, tmp_path: Path
) -> None:
    packed = tmp_path / "jobs.csv.gz"
    packed.write_bytes(gzip.compress(begin.read_bytes()))

    waited = replay(capsys, packed, FEW, policy="fifo")["mean_wait_s"]

    assert waited == replay(capsys, begin, FEW, policy="fifo")["mean_wait_s"] > 0


HEAD = "seq,submit_s,duration_s,gpus\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seq,submit_s,gpus\n0,0,1\n", "line 1: no column duration_s"),
        (HEAD, "no job"),
        (HEAD + "0,0,60,1\n1,0,soon,1\n", "line 3, column duration_s"),
        (HEAD + "0,-5,60,1\n", "line 2, column submit_s"),
        (HEAD + "0,0,60,0\n", "line 2, column gpus"),
        (HEAD + "0,0,60,49\n", "line 2, column gpus: the value is 49, and the cluster has only 48"),
        (HEAD + "0,0,60,1\n0,1,60,1\n", "line 3, column seq"),
        (HEAD + "0,0,60\n", "line 2: not as many cells"),
        ("seq,submit_s,duration_s,gpus,est_duration_s\n0,0,60,1,long\n", "line 2, column est_duration_s"),
    ],
)
def test_a_bad_file_is_refused_with_line_and_column(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)

    said = refused(capsys, path)

    assert str(path) in said
    assert message in said


def test_unknown_policies_missing_estimates_and_impossible_clusters_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(HEAD + "0,0,60,1\n")

    assert "choose one of" in refused(capsys, path, "--policy", "astrology")
    assert "no column est_duration_s" in refused(capsys, path, "--estimates", "column")
    assert "--nodes 0" in refused(capsys, path, "--nodes", "0")
    assert "knows the true durations" in refused(capsys, path, "--policy", "sjf", "--estimates", "none")


@needs_traces
@pytest.mark.parametrize(("policy", "mean"), [("fifo", 24397.49), ("sjf", 2113.65)])
def test_published_means_come_out_to_the_second(
    capsys: pytest.CaptureFixture[str], policy: str, mean: float
) -> None:
    assert replay(capsys, TRACES / WEEK, 64, policy=policy)["mean_wait_s"] == mean


@needs_traces
@pytest.mark.parametrize(("nodes", "limit"), [(64, 300), (40, 2_700)])
def test_the_shared_week_stays_below_its_limits(
    capsys: pytest.CaptureFixture[str], nodes: int, limit: int
) -> None:
    found = replay(capsys, TRACES / WEEK, nodes)

    assert found["mean_wait_s"] <= limit
    assert nodes != 64 or found["p999_wait_s"] <= 60_000
    assert found["max_preemptions_of_one_job"] <= 20
