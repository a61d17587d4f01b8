"""Desired states that contradict themselves, the devices or what was taken before: refused, and nothing is changed."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.drivers import errors
from nodeagent.protocol.codec import encode
from nodeagent.protocol.messages import Desired, DesiredLease, DesiredSlot, Report
from nodeagent.reconcile.goals import FenceError
from tests.agent.builder import SimulatedNode, lease
from tests.agent.fake_portal import FakePortal, listening
from tests.agent.test_agent import build, running, slice_at
from tests.agent.test_lost_device import LosingNode


@pytest.fixture
def node(tmp_path: Path) -> SimulatedNode:
    return SimulatedNode(tmp_path)


def sized(slot: DesiredSlot, size: int) -> DesiredSlot:
    return replace(slot, size=size)


def refuse(node: SimulatedNode, *leases: DesiredLease) -> str:
    """Send a desired state that must change nothing; returns the code of its refusal."""

    def state() -> tuple:
        ledger = node.reconciler.ledger
        journal = (node.state / "journal.jsonl").read_bytes()
        return ledger.epoch, ledger.revision, node.phases(), node.standing(), journal

    before = state()
    with pytest.raises(FenceError) as refused:
        node.desire(*leases)
    node.revision -= 1
    assert state() == before
    assert [fact.code for fact in node.reconciler.health_facts()] == ["desired_refused"]
    return refused.value.code


def test_two_slices_without_a_size_at_one_place_are_refused_whole(node):
    node.desire()
    one, two = (lease(name, sized(node.mig("1g.10gb", 2), 0)) for name in ("a", "b"))

    assert refuse(node, one, two) == "overlapping_slots"


def test_slices_whose_profiles_overlap_are_refused_whole_whatever_sizes_they_say(node):
    kept = lease("kept", node.mig("1g.10gb", 5))
    node.desire(kept)
    liar = lease("liar", sized(node.mig("3g.40gb", 4), 1))

    assert refuse(node, kept, liar) == "overlapping_slots"


def test_slice_that_says_another_size_than_its_profile_has_fails_alone(node):
    node.desire(lease("liar", sized(node.mig("3g.40gb", 4), 1)), lease("a", node.mig("1g.10gb", 0)))

    report = node.reports()["liar"]
    assert (report.phase, report.code) == ("failed", "not_offered")
    assert "takes 4 memory slice(s)" in report.detail
    assert node.phases() == {"liar": "failed", "a": "ready"}


def test_lease_that_is_there_twice_with_different_places_is_refused_whole(node):
    one = lease("a", node.mig("1g.10gb", 0))
    node.desire(one)

    assert refuse(node, one, lease("a", node.mig("1g.10gb", 4))) == "lease_twice"


def test_lease_that_is_there_twice_and_the_same_is_taken(node):
    one = lease("a", node.mig("1g.10gb", 0))

    node.desire(one, one)

    assert node.phases() == {"a": "ready"}


def test_places_of_a_generation_that_is_here_never_change(node):
    node.desire(lease("a", node.mig("1g.10gb", 0)))

    assert refuse(node, lease("a", node.mig("1g.10gb", 4))) == "lease_moved"


def test_order_of_places_and_figures_that_may_change_are_no_contradiction(node):
    first, second = node.mig("1g.10gb", 0), node.mig("1g.10gb", 1)
    node.desire(lease("a", first, second))

    node.desire(lease("a", replace(second, memory_mib=1), first))

    assert node.phases() == {"a": "ready"}
    assert node.reconciler.health_facts() == ()


def test_generation_that_is_over_here_may_be_sent_with_any_places(node):
    node.desire(lease("a", node.mig("1g.10gb", 0), remaining_s=10))
    node.pass_time(60)

    node.desire(lease("a", node.mig("1g.10gb", 4)), lease("b", node.mig("1g.10gb", 1)))

    assert node.phases() == {"a": "gone", "b": "ready"}


@pytest.mark.parametrize(("profile", "start", "size"), [("9g.10gb", 0, 1), ("3g.40gb", 2, 4)])
def test_slice_that_a_device_cannot_have_is_refused_before_its_mig_mode_changes(
    tmp_path, profile, start, size
):
    devices = LosingNode(tmp_path)
    slot = replace(devices.mig("1g.10gb", start), profile=profile, size=size)

    devices.desire(replace(lease("a", slot), user="alice"))

    report = devices.reports()["a"]
    assert (report.phase, report.code) == ("failed", "refused_by_driver")
    assert devices.driver.mig_mode(devices.device()) is False


def test_mode_that_a_device_does_not_offer_is_refused_before_its_mig_mode_changes(tmp_path):
    node = SimulatedNode(tmp_path, modes=("mig",))
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    node.desire()

    node.desire(lease("b", node.share("mps", 300, 8000)))

    report = node.reports()["b"]
    assert (report.phase, report.code) == ("failed", "not_offered")
    assert node.driver.mig_mode(node.device()) is True


def test_disk_that_was_full_for_long_leaves_a_new_lease_its_patience(node, monkeypatch):
    node.desire()
    node.accept(lease("a", node.mig("1g.10gb", 0)))
    with monkeypatch.context() as full:
        full.setattr(node.reconciler.ledger, "save", lambda: False)
        node.work()
        node.pass_time(300)
    node.faults.refusals["create"] = deque([errors.IN_USE] * 3)

    node.pass_time(60)

    assert node.phases() == {"a": "ready"}


async def test_desired_state_of_another_epoch_than_the_welcomes_changes_nothing(tmp_path, caplog):
    portal = FakePortal()
    async with listening(portal) as port, running(build(tmp_path, port)):
        await portal.kind(Report)
        await portal.desire(lease("a", slice_at(0)))
        await portal.phase("a", "ready")
        for _ in range(2):
            await portal.send(encode(Desired("gpu-01", 2**31 - 1, 1, ())))
        await portal.desire(lease("a", slice_at(0)), lease("b", slice_at(1)))
        report = await portal.phase("b", "ready")

    assert {entry.phase for entry in report.leases} == {"ready"}
    assert report.epoch == 1
    assert sum("other_epoch" in line for line in caplog.messages) == 1
