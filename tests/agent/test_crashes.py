"""The agent dies before or after every change it makes; after a restart the end is the same."""

from __future__ import annotations

import pytest

from nodeagent.simulation.faults import SimulatedCrash
from tests.agent.builder import SimulatedNode, lease

MAKING = [
    "mig.before",
    "mig.after",
    "gi.before",
    "gi.after",
    "ci.before",
    "ci.after",
    "attach.before",
    "attach.after",
]
CLEARING = ["unci.before", "unci.after", "ungi.before", "ungi.after"]


def die_at(node: SimulatedNode, point: str, *leases) -> None:
    node.faults.crash_at = {point}
    with pytest.raises(SimulatedCrash):
        node.desire(*leases)
    node.faults.crash_at = set()
    node.time.advance(1)
    node.start()


@pytest.mark.parametrize("point", MAKING)
def test_making_a_slice_survives_a_crash(node, point):
    wanted = [lease("a", node.mig("1g.10gb", 0)), lease("b", node.mig("2g.20gb", 2))]

    die_at(node, point, *wanted)
    node.desire(*wanted)

    assert node.phases() == {"a": "ready", "b": "ready"}
    assert node.partitions() == {("1g.10gb", 0, "a"), ("2g.20gb", 2, "b")}


@pytest.mark.parametrize("point", MAKING)
def test_slice_not_wanted_any_more_after_a_crash_leaves_nothing(node, point):
    die_at(node, point, lease("a", node.mig("1g.10gb", 0)))
    node.desire()

    assert node.phases() == {"a": "gone"}
    assert node.standing() == []


@pytest.mark.parametrize("point", CLEARING)
def test_clearing_a_slice_survives_a_crash(node, point):
    node.desire(lease("a", node.mig("1g.10gb", 0)), lease("b", node.mig("1g.10gb", 1)))
    keep = lease("b", node.mig("1g.10gb", 1))

    die_at(node, point, keep)
    node.desire(keep)

    assert node.phases() == {"a": "gone", "b": "ready"}
    assert node.partitions() == {("1g.10gb", 1, "b")}


@pytest.mark.parametrize(
    "point", ["share.before", "share.after", "attach.before", "unshare.before", "unshare.after"]
)
def test_shares_survive_a_crash(make_node, point):
    node = make_node("l40s-48gb")
    one, two = lease("a", node.share("mps", 400, 9000)), lease("b", node.share("mps", 300, 8000))

    node.faults.crash_at = {point}
    try:
        node.desire(one)
        node.desire(two)
    except SimulatedCrash:
        node.faults.crash_at = set()
        node.start()
    node.desire(two)

    assert node.partitions() == {("mps", 0, "b")}


def test_restart_adopts_running_leases_and_their_time_goes_on(node):
    node.desire(lease("a", node.mig("1g.10gb", 0), remaining_s=100))
    before = node.reports()["a"]
    node.time.advance(40)

    node.start()
    node.time.advance(20)
    adopted = node.reports()["a"]
    node.desire()

    assert adopted == before
    assert node.reports()["a"].active_ms == 60_000


def test_end_is_enforced_after_a_restart_without_the_portal(node):
    node.desire(lease("a", node.mig("1g.10gb", 0), remaining_s=100))
    node.time.advance(40)

    node.start()
    node.pass_time(61)

    assert node.reports()["a"].reason == "expired"
    assert node.standing() == []


def test_restart_obeys_the_fence_of_before(node):
    node.revision = 10
    node.desire(lease("a", node.mig("1g.10gb", 0)))

    node.start()

    assert (node.reconciler.ledger.epoch, node.reconciler.ledger.revision) == (1, 11)


def test_reboot_fails_leases_and_says_that_their_time_is_unknown(node):
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    node.time.advance(30)

    node.reboot()

    report = node.reports()["a"]
    assert (report.phase, report.code, report.active_ms) == ("failed", "rebooted", None)
    assert node.standing() == []


def test_lease_lost_in_a_reboot_comes_back_with_its_next_generation(node):
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    node.reboot()

    node.desire(lease("a", node.mig("1g.10gb", 0)))
    same = node.phases()
    node.desire(lease("a", node.mig("1g.10gb", 0), generation=2))

    told = {(r.generation, r.phase) for r in node.reconciler.lease_reports(77)}
    assert same == {"a": "failed"}
    assert told == {(1, "gone"), (2, "ready")}


def test_draining_lease_is_gone_after_a_reboot(node):
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    node.faults.stubborn[node.reports()["a"].access[0].partition] = -1
    node.time.advance(5)
    node.desire()

    node.reboot()

    assert node.reports()["a"].phase == "gone"
    assert node.reports()["a"].active_ms == 5000


@pytest.mark.parametrize(("model", "remembers"), [("a100-80gb", True), ("h100-80gb", False)])
def test_ampere_remembers_mig_over_a_reboot_and_hopper_does_not(make_node, model, remembers):
    node = make_node(model)
    node.desire(lease("a", node.mig("1g.10gb", 0)))

    node.reboot()

    assert node.driver.inventory()[0].mig_enabled is remembers
