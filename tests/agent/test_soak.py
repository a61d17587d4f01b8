"""A hundred rounds of the soak, and proof that it sees: mistakes planted in the agent do not stay unseen.

``python -m nodeagent soak --rounds N`` plays as many as one likes.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodeagent.drivers.base import Driver
from nodeagent.reconcile import lease_records as lease_records
from nodeagent.reconcile import steps
from nodeagent.reconcile.lease_records import LeasePlace, LeaseRecord
from nodeagent.reconcile.ledger import Ledger
from nodeagent.reconcile.units import LeaseUnits
from nodeagent.runtimes.base import LeaseEntrance, LeaseGrant
from nodeagent.runtimes.systemd import SystemdRuntime
from nodeagent.simulation.soak import proof
from nodeagent.simulation.soak.proof import Proof, play_round, soak
from tests.deep import deep_after

SHARED_MEMORY = Path("/dev/shm")
MOST_ROUNDS = 60
# The rarest of the planted mistakes shows in one round of sixty; begin two rounds before one of these.
FIRST_ROUND = 1_000_003 + 56
OVER = ("draining", "gone")
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def _only_agents_die(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Spare the disk: a process that dies loses nothing it wrote. Planned refusals by the thousand are no news."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)
    if os.access(SHARED_MEMORY, os.W_OK):
        monkeypatch.setattr(tempfile, "tempdir", str(SHARED_MEMORY))
    was = logging.root.manager.disable
    logging.disable(logging.ERROR)
    yield
    logging.disable(was)


# Files with many tests begin first where tests are spread over processes, so many short tests keep no core waiting.
@pytest.mark.parametrize("seed", deep_after(2, range(101, 108)))
@pytest.mark.parametrize(("host", "rounds"), [("nvml", 6), ("simulated", 10)])
def test_agents_that_die_at_any_change_disturb_nobody_and_leave_nothing(
    host: str, rounds: int, seed: int
) -> None:
    found = soak(seed, rounds, host)

    assert found.is_clean, found.notes
    assert found.crashes >= rounds, "each round has at least one crash"
    assert found.changes > 50 * rounds


@pytest.mark.deep
def test_a_round_is_the_same_wherever_it_is_played() -> None:
    once, again = soak(7, 2, "nvml"), soak(7, 2, "nvml")

    assert once == again
    assert once != soak(8, 2, "nvml")


def ends_are_not_journalled(planted: pytest.MonkeyPatch) -> None:
    """That a lease ends is known to this life of the agent alone."""
    take, note = Ledger.take, Ledger.note

    def take_fresh(
        self: Ledger, fresh: list[LeaseRecord], changed: list[LeaseRecord], epoch: int, revision: int
    ) -> bool:
        return take(self, fresh, [], epoch, revision)

    planted.setattr(Ledger, "take", take_fresh)
    planted.setattr(Ledger, "note", lambda self, work: None if work.phase in OVER else note(self, work))
    planted.setattr(Ledger, "forget", lambda self, key: self.lease_records.pop(key, None))


def whoever_clears_clears_the_whole_card(planted: pytest.MonkeyPatch) -> None:
    """All but what other leases hold goes, what others made there too."""
    inner = steps._existing

    def existing(driver: Driver, step: steps.DeviceStep) -> list[str]:
        own = inner(driver, step)
        return [*own, *(f.uuid for f in driver.observe(step.device) if f.uuid not in {*own, *step.spared})]

    planted.setattr(steps, "_existing", existing)


def a_unit_is_opened_anew_when_it_is_open(planted: pytest.MonkeyPatch) -> None:
    inner = SystemdRuntime.open

    def reopen(self: SystemdRuntime, grant: LeaseGrant) -> LeaseEntrance:
        self.close(grant.key, kill=True)
        return inner(self, grant)

    planted.setattr(SystemdRuntime, "open", reopen)


def every_agent_arms_an_end_of_its_own(planted: pytest.MonkeyPatch) -> None:
    ends = SystemdRuntime._ends
    arm = SystemdRuntime._arm

    def arm_another(self: SystemdRuntime, grant: LeaseGrant) -> None:
        planted.setattr(SystemdRuntime, "_ends", lambda self, key: [])
        arm(self, grant)
        planted.setattr(SystemdRuntime, "_ends", ends)

    planted.setattr(SystemdRuntime, "_arm", arm_another)


def places_are_cleared_before_the_unit_is_closed(planted: pytest.MonkeyPatch) -> None:
    planted.setattr(LeaseUnits, "is_closed", lambda self, work: True)


def what_was_refused_is_forgotten_with_the_agent(planted: pytest.MonkeyPatch) -> None:
    """The journal goes on to call a place ours whose slice was refused."""
    inner = lease_records._place_record

    def record(place: LeasePlace) -> dict[str, object]:
        row = inner(place)
        return {**row, "ours": row["ours"] or place.tries > 0}

    planted.setattr(lease_records, "_place_record", record)


def what_was_seen_to_be_gone_stays_ours(planted: pytest.MonkeyPatch) -> None:
    def vanish(self: LeasePlace) -> None:
        self.is_made, self.partition, self.access = False, "", None

    planted.setattr(LeasePlace, "vanish", vanish)


PLANTS: list[Plant] = [
    ends_are_not_journalled,
    whoever_clears_clears_the_whole_card,
    a_unit_is_opened_anew_when_it_is_open,
    every_agent_arms_an_end_of_its_own,
    places_are_cleared_before_the_unit_is_closed,
    what_was_refused_is_forgotten_with_the_agent,
    what_was_seen_to_be_gone_stays_ours,
]


@pytest.mark.deep
@pytest.mark.parametrize("plant", PLANTS, ids=[plant.__name__ for plant in PLANTS])
def test_a_planted_mistake_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    monkeypatch.setattr(proof, "VISITED", 1.0)
    found = Proof(1, "nvml")

    while found.is_clean and found.rounds < MOST_ROUNDS:
        play_round(found, FIRST_ROUND + found.rounds)
        found.rounds += 1

    assert not found.is_clean
    assert found.notes


@pytest.mark.deep
@pytest.mark.parametrize("host", ["nvml", "simulated"])
def test_slices_that_others_make_between_two_wakes_stay_theirs(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "VISITED", 1.0)
    rounds = 20

    found = soak(131, rounds, host)

    assert found.is_clean, found.notes
    assert found.visits >= 5
