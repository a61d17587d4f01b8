"""How much the agent does for a lease: counted, not timed."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.protocol.messages import Desired, DesiredLease, DesiredSlot
from nodeagent.reconcile.journal import Journal
from nodeagent.reconcile.reconciler import Reconciler
from nodeagent.reconcile.sequential import work_through
from nodeagent.simulation.full_host import FullHost
from tests.agent.builder import FakeTime, SimulatedNode, lease

SLICES = 7


class Counted:
    """A host with two devices behind the real driver; what is asked of it is counted."""

    def __init__(self, folder: Path) -> None:
        self.time = FakeTime()
        self.home = FullHost("gpu-01", ["h100-80gb"] * 2, folder, self.time)
        self.driver = self.home.driver()
        journal = Journal(folder / "journal.jsonl")
        self.reconciler = Reconciler("gpu-01", self.driver, journal, self.time.now, self.home.runtime())
        self.revision = 0

    def leases(self) -> tuple[DesiredLease, ...]:
        return tuple(
            lease(f"{device.index}-{start}", DesiredSlot(device.uuid, "mig", start, 1, 0, 9_728, "1g.10gb"))
            for device in self.home.host.devices
            for start in range(SLICES)
        )

    def take(self, *leases: DesiredLease) -> tuple[int, int]:
        """Carry out a desired state; returns steps and calls of the library."""
        self.revision += 1
        before = self.home.host.calls
        self.reconciler.accept(Desired("gpu-01", 1, self.revision, leases), self.time.now)
        steps = work_through(self.reconciler, self.driver, self.time)
        return steps, self.home.host.calls - before


@pytest.fixture
def host(tmp_path: Path) -> Counted:
    return Counted(tmp_path)


def test_a_slice_with_its_unit_takes_three_steps_and_each_device_two_more_for_a_look_and_its_mode(
    host: Counted,
) -> None:
    steps, calls = host.take(*host.leases())

    assert {work.phase for work in host.reconciler.lease_records.values()} == {"ready"}
    assert steps == 2 * 2 + 3 * 2 * SLICES
    assert calls < 250 * 2 * SLICES


def test_a_frame_on_which_nothing_is_to_be_done_asks_no_device_anything(host: Counted) -> None:
    host.take(*host.leases())

    assert host.take(*host.leases()) == (0, 0)


def test_one_more_lease_among_others_costs_what_it_would_alone(host: Counted) -> None:
    *others, last = host.leases()
    host.take(*others)

    steps, calls = host.take(*others, last)

    assert steps == 4
    assert calls < 400


def test_a_frame_without_news_adds_one_line_to_the_journal(node: SimulatedNode) -> None:
    kept = lease("a", node.mig("1g.10gb", 0))
    node.desire(kept)
    before = (node.state / "journal.jsonl").read_bytes().count(b"\n")

    node.desire(kept)

    assert (node.state / "journal.jsonl").read_bytes().count(b"\n") == before + 1
