"""The unit of a lease: opened when its places stand, closed before they are cleared, never forgotten."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.drivers.errors import NotOfferedError
from nodeagent.protocol.jobs import JobOrder
from nodeagent.reconcile.lease_records import NS
from nodeagent.runtimes.base import RuntimeRefusedError
from tests.agent.builder import RecordingRuntime, SimulatedNode, lease


@pytest.fixture
def runtime() -> RecordingRuntime:
    return RecordingRuntime()


@pytest.fixture
def node(tmp_path, runtime) -> SimulatedNode:
    node = SimulatedNode(tmp_path, count=2)
    node.runtime = runtime
    return node.start()


@pytest.fixture
def verbs(node, monkeypatch) -> list[str]:
    """The driver's and runtime's verbs in the order in which they are used."""
    done: list[str] = []

    def watch(owner, name):
        inner = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, **k: (done.append(name), inner(*a, **k))[1])

    for name in ("create", "attach", "confine", "detach", "destroy"):
        watch(node.driver, name)
    for name in ("open", "close"):
        watch(node.runtime, name)
    return done


def test_holder_is_let_in_when_all_places_stand_and_out_before_any_goes(node, verbs):
    node.desire(lease("a", node.mig("1g.10gb", 0), node.mig("1g.10gb", 0, device=1)))
    made = list(verbs)
    verbs.clear()
    node.desire()

    assert made == ["create", "attach", "create", "attach", "open", "confine", "confine"]
    assert verbs[:3] == ["detach", "detach", "close"]
    assert sorted(verbs[3:]) == ["destroy", "destroy", "detach", "detach"]
    assert node.phases() == {"a": "gone"}


def test_lease_is_ready_only_when_it_is_open_and_says_how_to_get_in(node, runtime):
    runtime.refusal = RuntimeRefusedError("busy", "try again", is_passing=True)
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    before = node.reports()["a"]

    runtime.refusal = None
    node.pass_time(1)

    assert (before.phase, before.entrance) == ("preparing", {})
    assert node.reports()["a"].phase == "ready"
    assert node.reports()["a"].entrance == {"unit": "unit-a"}


def test_refusal_of_the_host_fails_the_lease_with_its_sentence(node, runtime):
    runtime.refusal = RuntimeRefusedError("no_account", "make an account for bob on this node")

    node.desire(lease("a", node.mig("1g.10gb", 0)))

    report = node.reports()["a"]
    assert (report.phase, report.code) == ("failed", "no_account")
    assert "account" in report.detail


def test_limit_that_cannot_be_kept_fails_the_lease(node, monkeypatch):
    def refuse(partition: str, cgroup: str) -> None:
        raise NotOfferedError("memory limits need driver 615")

    monkeypatch.setattr(node.driver, "confine", refuse)

    node.desire(lease("a", node.mig("1g.10gb", 0)))

    assert node.reports()["a"].code == "not_offered"


def test_unit_gets_all_places_of_its_lease_and_a_limit_behind_its_end(node, runtime):
    node.desire(
        lease("a", node.mig("1g.10gb", 0), node.mig("1g.10gb", 0, device=1), remaining_s=100, grace_s=7)
    )

    grant = runtime.open_leases["a", 1]
    partitions = [access.partition for access in node.reports()["a"].access]
    assert grant.env["CUDA_VISIBLE_DEVICES"] == ",".join(partitions)
    assert {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"} <= set(grant.nodes)
    assert len([name for name in grant.nodes if "nvidia-caps" in name]) == 4
    assert 100 < grant.ends_in_s <= 120
    assert grant.env["BERTH_NOTICE"].endswith("/notices/a/notice.json")


def test_processes_that_ignore_being_asked_are_ended_when_the_grace_is_over(node, runtime):
    runtime.stubborn.add("a")
    node.desire(lease("a", node.mig("1g.10gb", 0), grace_s=30))

    node.desire()
    node.pass_time(29.9)
    asked = node.phases()
    node.pass_time(0.2)

    assert asked == {"a": "draining"}
    assert node.phases() == {"a": "gone"}
    assert ("kill", ("a", 1)) in runtime.calls


def test_idle_holder_is_gone_at_once(node):
    node.desire(lease("a", node.mig("1g.10gb", 0), grace_s=30))
    began = node.time.now

    node.desire()

    assert node.phases() == {"a": "gone"}
    assert node.time.now - began <= 5 * NS


def test_unit_that_somebody_ended_is_opened_again_while_the_lease_lasts(node, runtime):
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    runtime.open_leases.clear()

    node.look()
    node.work()

    assert ("a", 1) in runtime.open_leases
    assert node.phases() == {"a": "ready"}


def test_unit_follows_a_lease_whose_end_was_moved(node, runtime):
    node.desire(lease("a", node.mig("1g.10gb", 0), remaining_s=100))
    first = runtime.open_leases["a", 1].ends_in_s

    node.desire(lease("a", node.mig("1g.10gb", 0), remaining_s=500))

    assert runtime.open_leases["a", 1].ends_in_s >= first + 399
    assert node.phases() == {"a": "ready"}


def test_unit_that_nobody_remembers_is_closed(node, runtime):
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    runtime.open_leases["ghost", 3] = runtime.open_leases["a", 1]

    node.look()
    node.work()

    assert list(runtime.open_leases) == [("a", 1)]
    assert node.phases() == {"a": "ready", "ghost": "gone"}


def test_restart_finds_the_unit_open_and_brings_it_up_to_date(node, runtime):
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    before = node.reports()["a"]
    runtime.calls.clear()

    node.start()
    node.work()

    assert runtime.calls == [("open", ("a", 1))]
    assert node.reports()["a"] == before


def test_lease_that_is_open_goes_on_when_its_unit_cannot_be_brought_up_to_date(node, runtime):
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    runtime.refusal = RuntimeRefusedError("no_account", "the account of bob is gone")

    node.start()
    node.pass_time(30)

    assert node.phases() == {"a": "ready"}


def test_lost_journal_does_not_turn_our_own_slice_into_a_strangers(node):
    wanted = lease("a", node.mig("1g.10gb", 0))
    node.desire(wanted)
    (node.state / "journal.jsonl").unlink()

    node.start()
    node.desire(wanted)

    assert node.phases() == {"a": "ready"}
    assert node.partitions() == {("1g.10gb", 0, "a")}


def test_reboot_leaves_no_unit_behind_in_memory_of_the_agent(node, runtime):
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    runtime.open_leases.clear()

    node.reboot()
    report = node.reports()["a"]
    node.desire()

    assert (report.phase, report.code, report.entrance) == ("failed", "rebooted", {})
    assert node.phases() == {"a": "gone"}


@pytest.mark.parametrize("grace_s", [0, 30])
def test_unit_stands_until_files_are_collected_but_not_longer_than_a_minute(node, runtime, grace_s):
    node.desire(*(lease(name, node.mig("1g.10gb", at), grace_s=grace_s) for at, name in enumerate("ab")))
    for record in node.reconciler.lease_records.values():
        record.await_files(node.time.now)
    node.desire()
    node.pass_time(50)
    standing = [set(runtime.open_leases), node.reports()["a"].active_ms]

    node.start()  # a new agent counts no minute of its own
    node.reconciler.lease_records["b", 1].has_files()
    node.work()
    collected = set(runtime.open_leases)
    node.pass_time(9.9)
    before = set(runtime.open_leases)
    node.pass_time(0.2)

    assert standing == [{("a", 1), ("b", 1)}, 0]
    assert collected == before == {("a", 1)}
    assert ("kill", ("a", 1)) in runtime.calls
    assert node.phases() == {"a": "gone", "b": "gone"}


def test_own_end_of_a_unit_leaves_time_to_collect_files_also_where_the_order_comes_late(node, runtime):
    wanted = lease("a", node.mig("1g.10gb", 0), remaining_s=100, grace_s=0)
    node.desire(wanted)
    before = runtime.open_leases["a", 1].ends_in_s

    node.desire(replace(wanted, job=JobOrder(("true",), artifacts=("out",)).text()))
    after = runtime.open_leases["a", 1].ends_in_s
    node.start()
    node.work()

    assert 58 <= after - before <= 62
    assert runtime.open_leases["a", 1].ends_in_s - before >= 58
