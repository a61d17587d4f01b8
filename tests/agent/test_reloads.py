"""Slices went with a driver, a boot or a card: what stands at their places afterwards is somebody else's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.reconcile.steps import carry_out
from nodeagent.runtimes.names import unit_of
from nodeagent.simulation.devices.driver import SimulatedDriver
from tests.agent.builder import SimulatedNode, lease
from tests.agent.test_lost_card import CardNode
from tests.agent.test_strangers import add_foreign, places


@pytest.fixture
def cards(tmp_path: Path) -> CardNode:
    return CardNode(tmp_path)


def load_driver(node: CardNode, version: str) -> None:
    """Load another driver while no agent runs: every card begins anew."""
    node.home.host.driver_version = version
    for card in node.home.host.cards:
        card.reset(reboot=True)


def begin(node: CardNode) -> None:
    """Go on until the journal calls the place ours; the agent dies on the way to the card."""
    while (step := node.reconciler.next_step(node.device(), node.time.now)).kind != "make":
        node.reconciler.settle(step, carry_out(node.driver, step, node.runtime), node.time.now)


@pytest.mark.parametrize("phase", ["ready", "draining", "preparing"])
def test_slice_that_stands_after_another_driver_was_loaded_is_foreign(cards, phase):
    kept = replace(cards.lease_of("mig"), grace_s=60)
    cards.accept(kept)
    if phase == "preparing":
        begin(cards)
    if phase != "preparing":
        cards.work()
    if phase == "draining":
        unit = cards.home.systemd.units[unit_of(("a", 1))]
        cards.home.world.spawn(unit.cgroup, user="alice", is_stubborn=True)
        cards.desire()
    before = cards.phases()

    load_driver(cards, "620.1")
    add_foreign(cards, "1g.10gb", 0)
    cards.start()
    told = cards.partitions()
    cards.work()
    report = cards.reports()["a"]
    cards.desire()
    cards.pass_time(100)

    assert before == {"a": phase}
    assert told == {("1g.10gb", 0, "")}
    assert (report.phase, report.code) in {
        "ready": [("failed", "partition_lost")],
        "draining": [("draining", "in_use"), ("draining", "")],
        "preparing": [("failed", "conflict")],
    }[phase]
    assert cards.phases() == {"a": "gone"}
    assert places(cards) == [("1g.10gb", 0)]


def test_what_was_made_with_the_new_driver_is_ours_in_the_next_life(cards):
    cards.desire()
    cards.reconciler.ledger.save()
    load_driver(cards, "620.1")
    cards.start()
    cards.desire(cards.lease_of("mig"))

    cards.start()
    cards.work()

    assert cards.phases() == {"a": "ready"}
    assert cards.partitions() == {("1g.10gb", 0, "a")}


def test_agent_that_dies_before_it_noted_the_new_driver_finds_it_again(cards, monkeypatch):
    cards.desire(cards.lease_of("mig"))
    load_driver(cards, "620.1")
    add_foreign(cards, "1g.10gb", 0)
    with monkeypatch.context() as dying:
        dying.setattr("nodeagent.reconcile.ledger.Ledger.trust_driver", lambda self: None)
        cards.start()

    cards.start()
    told = cards.reports()["a"]
    cards.desire()
    cards.pass_time(20)

    assert (told.phase, told.code) == ("failed", "partition_lost")
    assert "620.1" in told.detail
    assert places(cards) == [("1g.10gb", 0)]


@pytest.mark.parametrize("mode", ["exclusive", "timeslice"])
def test_lease_that_the_agents_own_books_name_outlives_another_driver(cards, mode):
    cards.desire(cards.lease_of(mode))

    cards.home.host.driver_version = "620.1"
    cards.start()
    cards.work()

    assert cards.phases() == {"a": "ready"}


def test_driver_that_does_not_tell_its_version_proves_nothing(tmp_path, monkeypatch):
    node = SimulatedNode(tmp_path)
    kept = lease("a", node.mig("1g.10gb", 0))
    node.desire(kept)
    told = []
    for version in ("unknown", SimulatedDriver.version, "unknown version", "simulated-2"):
        monkeypatch.setattr(SimulatedDriver, "version", version)
        node.start()
        told.append(node.phases()["a"])

    assert told == ["ready", "ready", "ready", "failed"]


def test_slice_that_somebody_made_after_a_reboot_is_not_called_that_of_a_lease(cards):
    cards.desire(cards.lease_of("mig"))

    cards.home.reboot()
    add_foreign(cards, "1g.10gb", 0)
    cards.start()
    told, report = cards.partitions(), cards.reports()["a"]
    cards.desire()
    cards.pass_time(20)

    assert told == {("1g.10gb", 0, "")}
    assert (report.phase, report.code) == ("failed", "rebooted")
    assert places(cards) == [("1g.10gb", 0)]


def test_slice_that_stands_on_a_card_that_came_back_is_foreign_before_the_first_look(cards):
    cards.desire(replace(cards.lease_of("mig"), grace_s=60))
    unit = cards.home.systemd.units[unit_of(("a", 1))]
    cards.home.world.spawn(unit.cgroup, user="alice", is_stubborn=True)
    cards.lose()
    cards.desire()

    cards.home.host.card(0).gpu.is_lost = False
    cards.home.host.reset(0)
    add_foreign(cards, "1g.10gb", 0)
    cards.examine()
    cards.look()
    told = cards.partitions()
    cards.pass_time(100)

    assert told == {("1g.10gb", 0, "")}
    assert cards.phases() == {"a": "gone"}
    assert places(cards) == [("1g.10gb", 0)]


def test_lease_of_which_nothing_was_ever_made_ends_on_a_card_that_does_not_answer(tmp_path, monkeypatch):
    def refuse(*words: object) -> None:
        raise NvmlLikeError(errors.NOT_FOUND, "it is not read")

    node = SimulatedNode(tmp_path)
    monkeypatch.setattr(node.driver, "observe", refuse)
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    waiting = node.phases()

    node.desire()

    assert waiting["a"] in ("preparing", "failed")
    assert node.phases() == {"a": "gone"}
