"""Leases on devices of other vendors, from what the portal wants to what it hears: the reconciler is the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from nodeagent.drivers.amd.driver import AmdDriver
from nodeagent.drivers.ascend.driver import AscendDriver
from nodeagent.drivers.base import Driver
from nodeagent.drivers.cambricon.driver import CambriconDriver
from nodeagent.drivers.hygon.driver import HygonDriver
from nodeagent.host.shell import Done, ProgramError
from nodeagent.protocol.messages import DesiredSlot
from nodeagent.reconcile.journal import Journal
from nodeagent.reconcile.reconciler import Reconciler
from nodeagent.reconcile.steps import read_health
from nodeagent.simulation.machine.world import SimulatedShell
from tests.agent.builder import RecordingRuntime, SimulatedNode, lease
from tests.agent.test_amd import AmdSmi
from tests.agent.test_ascend import NpuSmi
from tests.agent.test_cambricon import Cnmon, Library
from tests.agent.test_hygon import HySmi

Open = Callable[[Path], Driver]


def unread(path: str) -> str:
    raise OSError(path)


def amd() -> Open:
    tool = AmdSmi()
    shell = SimulatedShell({"amd-smi": tool})
    return lambda folder: AmdDriver("boot", shell, folder, tool.read, layouts={"*": "cpx"})


def hygon() -> Open:
    tool = HySmi()
    return lambda folder: HygonDriver(
        "boot", SimulatedShell({"hy-smi": tool}), folder, tool.read, can_bind=True
    )


def cambricon() -> Open:
    tool, library = Cnmon(), Library()
    shell = SimulatedShell({"cnmon": tool, "env": tool})
    return lambda folder: CambriconDriver("boot", shell, folder, tool.read, library=library)


def ascend() -> Open:
    shell = SimulatedShell({"npu-smi": NpuSmi()})
    return lambda folder: AscendDriver("boot", shell, folder, unread)


class VendorNode(SimulatedNode):
    """A reconciler over one vendor's driver; a restart finds the same tool, journal and share book."""

    def __init__(self, state: Path, opened: Open) -> None:
        self.opened = opened
        self.units = RecordingRuntime()
        super().__init__(state)

    def start(self) -> VendorNode:
        self.driver = self.opened(self.state / "run")  # type: ignore[assignment]
        self.facts = tuple(self.driver.inventory())
        journal = Journal(self.state / "journal.jsonl")
        self.reconciler = Reconciler(self.name, self.driver, journal, self.time.now, self.units)
        return self

    def part(self, start: int = 0) -> DesiredSlot:
        """A quarter of the first device, or one partition of it."""
        offer = self.driver.catalogue(self.device())[-1].shape
        if offer.mode == "mig":
            return DesiredSlot(self.device(), "mig", start, 1, 125, offer.memory_mib, offer.profile)
        return self.share("memlimit", 250, 8_192 if self.driver.name == "ascend" else 6_144)


@pytest.fixture(params=[amd, hygon, cambricon, ascend], ids=lambda vendor: vendor.__name__)
def node(request, tmp_path) -> VendorNode:
    return VendorNode(tmp_path, request.param())


def test_two_shares_of_a_device_are_ready_and_the_end_of_one_leaves_the_other(node):
    alice, bob = lease("alice", node.part(0)), lease("bob", node.part(1))
    node.desire(alice, bob)
    assert node.phases() == {"alice": "ready", "bob": "ready"}

    node.desire(bob)
    node.pass_time(20)

    assert node.phases() == {"alice": "gone", "bob": "ready"}
    assert len(node.standing()) == 1


def test_leases_go_on_through_a_restart_of_the_agent(node):
    node.desire(lease("alice", node.part()))

    node.start()
    node.look()

    assert node.phases() == {"alice": "ready"}
    node.desire()
    node.pass_time(20)
    assert (node.phases(), node.standing()) == ({"alice": "gone"}, [])


@pytest.mark.parametrize(
    "node", [hygon, cambricon, ascend], ids=lambda vendor: vendor.__name__, indirect=True
)
def test_device_leased_whole_serves_shares_once_it_is_given_back(node):
    node.desire(lease("alice", node.whole()))
    assert node.phases() == {"alice": "ready"}

    node.desire(lease("bob", node.part()))
    node.pass_time(20)

    assert node.phases() == {"alice": "gone", "bob": "ready"}
    assert [fact.profile for fact in node.standing()] == ["memlimit"]


def test_device_that_does_not_answer_after_a_restart_is_told_lost_and_is_not_unknown_to_its_lease(tmp_path):
    tool = HySmi()
    node = VendorNode(
        tmp_path,
        lambda folder: HygonDriver(
            "boot", SimulatedShell({"hy-smi": tool}), folder, tool.read, can_bind=True
        ),
    )
    gone = node.device()
    node.desire(lease("alice", node.part()))
    listed = json.loads(tool.devices)
    del listed["card0"]
    tool.devices = json.dumps(listed)

    node.start()
    node.reconciler.observe_health(read_health(node.driver), node.time.now)
    node.pass_time(20)

    assert [fact.uuid for fact in node.driver.inventory() if fact.uuid == gone] == [gone]
    assert [work.report().code for work in node.reconciler.lease_records.values()] == ["gpu_lost"]
    assert ("device_lost", gone) in {(fact.code, fact.device) for fact in node.driver.health()}


def test_lease_outlives_one_list_of_the_tool_without_its_device(tmp_path):
    tool = HySmi()
    shell = SimulatedShell({"hy-smi": tool})
    node = VendorNode(tmp_path, lambda folder: HygonDriver("boot", shell, folder, tool.read, can_bind=True))
    node.desire(lease("alice", node.part()))
    whole, torn = tool.devices, json.loads(tool.devices)
    torn["card0"] |= {"Unique ID": "N/A", "Serial Number": "N/A"}

    told = []
    for tool.devices in (json.dumps(torn), whole, json.dumps(torn), whole):
        node.reconciler.observe_health(read_health(node.driver), node.time.now)
        node.pass_time(5)
        told.append([(fact.device, fact.code) for fact in node.reconciler.health.facts])

    assert told == [[("", "tool_unreadable")], [], [("", "tool_unreadable")], []]
    assert node.phases() == {"alice": "ready"}


def test_share_outlives_a_restart_while_the_tool_that_cuts_devices_is_silent(tmp_path):
    tool, silent = HySmi(), [False]

    def program(argv: Sequence[str], stdin: str, env: Mapping[str, str]) -> Done:
        if silent[0] and argv[1] == "virtual":
            raise ProgramError("hy-smi did not answer within 20 s")
        return tool(argv, stdin, env)

    shell = SimulatedShell({"hy-smi": program})
    node = VendorNode(tmp_path, lambda folder: HygonDriver("boot", shell, folder, tool.read, can_bind=True))
    node.desire(lease("alice", node.part()))
    stood = node.standing()

    silent[0] = True
    node.start()
    node.look()
    node.pass_time(20)
    during = node.phases()
    silent[0] = False
    node.look()
    node.pass_time(20)

    assert during == {"alice": "ready"}, "what stands is unknown meanwhile, not gone"
    assert (node.phases(), node.standing()) == ({"alice": "ready"}, stood)
