"""What every back end does alike: on a cluster in memory and a double of a Kubernetes API each time, on a real Slurm
where there is one (make deep)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.backends.base import BackendRefusedError
from nodeagent.backends.kubernetes.settings import KINDS
from nodeagent.host.clock import boot_clock
from nodeagent.protocol.messages import Notice
from nodeagent.reconcile.lease_records import NS
from tests.agent.pools.bench import PoolBench
from tests.agent.pools.fake_cluster import FakeCluster
from tests.agent.pools.kubernetes_double import KubernetesDouble
from tests.agent.pools.slurm_cluster import SlurmCluster
from tests.deep import deep_after

REAL = [pytest.mark.slurm, pytest.mark.deep]


@pytest.fixture(
    params=[
        "fake",
        *deep_after(1, (f"kubernetes-{kind}" for kind in KINDS)),
        pytest.param("slurm", marks=REAL),
    ]
)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PoolBench]:
    if request.param.startswith("kubernetes"):
        double = KubernetesDouble(request.param.partition("-")[2])
        yield PoolBench(double, double.backend(), tmp_path)
        double.close()
        return
    if request.param == "fake":
        cluster = FakeCluster()
        yield PoolBench(cluster, cluster, tmp_path)
        return
    real: SlurmCluster = request.getfixturevalue("slurm")
    real.clear()
    yield PoolBench(real, real.backend(), tmp_path, boot_clock)
    real.clear()


def test_lease_is_a_job_that_is_checked_before_it_is_ready_and_gone_when_it_is_over(bench: PoolBench) -> None:
    bench.want("a", 3)
    bench.want("b", bench.cluster.wide, first=4)

    ready, wide = bench.until("ready"), bench.until("ready", "b")

    job = ready.entrance["job"]
    names = [access.partition for access in ready.access]
    assert names == ["slurm:n1/gpu0", "slurm:n1/gpu1", "slurm:n1/gpu2"] or len(set(names)) == 3
    assert ready.entrance["host"] in ("n1", "n2")
    assert len({access.partition for access in (*ready.access, *wide.access)}) == 3 + bench.cluster.wide
    assert [bench.taken(), bench.codes()] == [0, []]
    bench.drop("a")
    gone = bench.until("gone")
    assert (gone.reason, gone.active_ms is None) == ("withdrawn", False)
    bench.acknowledge()
    assert bench.report() is None
    assert job not in [one.job for one in bench.cluster.live()]
    assert bench.leases.ledger.has_ended(("a", 1))


def test_job_whose_answer_was_lost_is_found_by_its_name_and_never_submitted_twice(bench: PoolBench) -> None:
    bench.cluster.loses_answer = True
    bench.want("a")

    bench.turn(looks=False)
    before = bench.report()
    bench.until("ready")

    assert before is not None
    assert before.phase == "preparing"
    assert before.entrance == {"runtime": bench.backend.name, "reason": "away"}
    assert len(bench.cluster.live()) == 1


def test_twin_of_a_lease_is_ended_and_the_lease_goes_on(bench: PoolBench) -> None:
    bench.want("a", 2)
    job = bench.until("ready").entrance["job"]

    twin = bench.cluster.twin_of(job)
    for _turn in range(200):
        bench.turn()
        if twin not in [one.job for one in bench.cluster.live()]:
            break

    assert [one.job for one in bench.cluster.live()] == [job]
    assert bench.until("ready").entrance["job"] == job


def test_agent_that_dies_anywhere_adopts_its_jobs_and_ends_those_that_are_nobodys(bench: PoolBench) -> None:
    bench.cluster.loses_answer = True
    bench.want("a")
    bench.want("b", first=1)
    bench.turn(looks=False)  # one answer is lost, and the agent dies in the same breath

    bench.born()
    bench.send()
    first = bench.until("ready").entrance["job"]
    bench.until("ready", "b")
    bench.born()
    del bench.wanted["b"]
    bench.send()

    assert bench.until("ready").entrance["job"] == first
    bench.until("gone", "b")
    assert [one.job for one in bench.cluster.live()] == [first]


def test_silent_cluster_ends_nothing_and_says_so_and_news_waits_for_it(bench: PoolBench) -> None:
    bench.want("a")
    job = bench.until("ready").entrance["job"]

    with bench.cluster.silent():
        bench.look()
        bench.want("b", first=1)
        bench.turn()
        away, kept, waits = bench.codes(), bench.report(), bench.report("b")

    assert away == ["cluster_away"]
    assert kept is not None
    assert kept.phase == "ready"
    assert waits is not None
    assert (waits.phase, waits.entrance["reason"]) == ("preparing", "away")
    bench.until("ready", "b")
    assert bench.codes() == []
    assert job in [one.job for one in bench.cluster.live()]


def test_lease_that_was_given_other_than_it_asked_is_never_ready_and_its_job_is_ended(
    bench: PoolBench,
) -> None:
    bench.cluster.gives_nothing = True
    bench.want("a", 2)

    failed = bench.until("failed")

    assert (failed.code, failed.active_ms) == ("not_as_asked", 0)
    assert "0 of 2 units" in failed.detail
    for _turn in range(100):
        if not bench.cluster.live():
            break
        bench.turn()
    assert bench.cluster.live() == []
    bench.drop("a")
    bench.until("gone")


def test_lease_whose_job_others_ended_or_whose_host_was_lost_has_failed_and_stays_so(
    bench: PoolBench,
) -> None:
    bench.want("a")
    bench.want("b", 8, first=8)
    bench.cluster.remove(bench.until("ready").entrance["job"])
    removed = bench.until("failed")
    host = bench.until("ready", "b").entrance["host"]

    with bench.cluster.without(host):
        lost = bench.until("failed", "b")
        bench.look()
        bench.look()
        assert (bench.taken(), bench.codes()) == (7, ["hosts_away"])

    # Both failed leases hold their nine units until the portal drops them, so all seven others are out.
    assert (removed.code, removed.active_ms is None) == ("removed_by_other", False)
    assert lost.code == "host_lost"
    assert bench.cluster.live() == []


def test_foreign_jobs_are_seen_avoided_and_never_touched(bench: PoolBench) -> None:
    foreign = bench.cluster.foreign(5)
    bench.want("a", 2)
    bench.until("ready")

    bench.look()
    bench.look()

    assert bench.taken() == 5
    held = {fact.device for fact in bench.leases.partition_facts() if fact.lease}
    assert held == set(list(bench.leases.devices)[:2])
    bench.drop("a")
    bench.until("gone")
    assert [one.job for one in bench.cluster.live()] == [foreign]


def test_name_that_is_taken_waits_and_touches_nobody(bench: PoolBench) -> None:
    foreign = bench.cluster.foreign(1, name="berth-a-g1")
    bench.want("a")
    bench.leases.mark_submitted(
        bench.leases.lease_records["a", 1]
    )  # an earlier life of the agent may have asked

    for _turn in range(5):
        bench.turn()

    report = bench.report()
    assert report is not None
    assert report.entrance["reason"].startswith("name_taken")
    assert [one.job for one in bench.cluster.live()] == [foreign]


def test_end_moves_with_the_lease_and_the_cluster_keeps_a_later_one(bench: PoolBench) -> None:
    bench.want("a", remaining_s=600)
    job = bench.until("ready").entrance["job"]
    short = bench.cluster.limit_of(job)

    bench.want("a", remaining_s=7200)
    for _turn in range(3):
        bench.turn()

    assert 600 <= short <= 600 + 120
    assert 7200 <= bench.cluster.limit_of(job) <= 7200 + 180


def test_lease_ends_by_the_clock_of_its_agent_whoever_is_silent(bench: PoolBench) -> None:
    bench.want("a", remaining_s=1)
    bench.until("ready")

    gone = bench.until("gone")

    assert gone.reason == "expired"
    assert 900 <= (gone.active_ms or 0) <= 3000
    assert bench.cluster.live() == []


# What only a cluster in memory can be made to do in no time


@pytest.fixture
def played(tmp_path: Path) -> PoolBench:
    cluster = FakeCluster()
    return PoolBench(cluster, cluster, tmp_path)


def test_job_that_waits_too_long_goes_back_with_the_cluster_s_reason(played: PoolBench) -> None:
    played.cluster.foreign(16)
    played.want("a", remaining_s=60)
    played.turn()
    played.cluster.start()
    played.turn()
    waiting = played.report()

    failed = played.until("failed")

    assert waiting is not None
    assert waiting.entrance == {"runtime": "slurm", "job": "2", "reason": "Resources"}
    assert (failed.code, failed.active_ms) == ("cluster_busy", 0)
    assert "Resources" in failed.detail


@pytest.mark.parametrize("code", ["no_account", "no_association", "not_offered"])
def test_what_the_cluster_refuses_for_good_fails_at_once(code: str, played: PoolBench) -> None:
    played.cluster.refuses = BackendRefusedError(code, "Invalid account or partition")
    played.want("a")

    failed = played.until("failed", within=3)

    assert (failed.code, played.cluster.submitted) == (code, 0)
    played.drop("a")
    played.until("gone")


def test_notice_is_told_once_and_grace_is_given_before_the_end(played: PoolBench) -> None:
    played.want("a", grace_s=30)
    job = played.cluster.jobs[played.until("ready").entrance["job"]]
    job.has_programs = True

    played.want("a", grace_s=30, remaining_s=100, notice=Notice("reclaim", 100))
    for _turn in range(5):
        played.turn()
    told = job.told
    played.drop("a")
    for _turn in range(10):
        played.turn()
    in_grace = job.fact.phase, job.asked > 0
    played.until("gone")

    assert told == 1
    assert in_grace == ("running", True)
    assert played.now_ns < 1_100 * NS


def test_clock_of_the_cluster_moves_no_end(played: PoolBench) -> None:
    played.cluster.skew_s = -86_400
    played.want("a", remaining_s=60)
    played.until("ready")

    gone = played.until("gone")

    assert 59_000 <= (gone.active_ms or 0) <= 62_000


def test_absence_is_concluded_from_what_remembers_and_not_from_silence(played: PoolBench) -> None:
    played.want("a")
    job = played.until("ready").entrance["job"]
    played.cluster.forgets.add(job)
    played.cluster.is_accounting_away = True

    for _turn in range(3):
        played.turn()
    unknown = played.report()
    played.cluster.is_accounting_away = False

    assert unknown is not None
    assert unknown.phase == "ready"
    assert played.until("failed").code == "removed_by_other"


def test_pool_that_shrinks_below_what_is_leased_says_so_and_keeps_its_units(played: PoolBench) -> None:
    played.want("a", 16)
    played.until("ready")
    played.cluster.hosts["n2"] = 4

    played.look()
    shrunk = played.codes()
    born = played.born()

    assert shrunk == ["pool_shrunk"]
    assert len(born.devices) == 16
    played.send()
    assert played.until("ready").phase == "ready"


def test_desired_state_that_contradicts_itself_changes_nothing(played: PoolBench) -> None:
    played.want("a", 2)
    played.until("ready")
    with pytest.raises(Exception, match="overlapping_slots"):
        played.want("b", 2, first=1)

    assert played.codes() == ["desired_refused"]
    assert played.report("b") is None
    assert len(played.cluster.live()) == 1
