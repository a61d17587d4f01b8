"""A plan refuses what the host would refuse, in the same words, and changes nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.commands.dry_run import DryRunDriver, DryRunRuntime, PlannedStep, rehearse
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.host.accounts import Account
from nodeagent.protocol.messages import Desired, DesiredLease, DesiredSlot
from nodeagent.reconcile.journal import Journal
from nodeagent.reconcile.reconciler import Reconciler
from nodeagent.runtimes.base import LeaseGrant, RuntimeRefusedError
from nodeagent.runtimes.cdi import CdiSpecs
from nodeagent.runtimes.choice import CombinedRuntime
from nodeagent.runtimes.plain import PlainRuntime
from nodeagent.simulation.full_host import FullHost
from tests.agent.builder import FakeTime, RecordingRuntime

NODE = "gpu-01"
GRANT = LeaseGrant("a", 1, "alice", "vision", {}, ("/dev/nvidia0",), 600, 30)


class Desk:
    """Where an operator tries a desired state on a simulated host."""

    def __init__(self, folder: Path, boards: tuple[str, ...] = ("h100-80gb",)) -> None:
        self.folder, self.time = folder, FakeTime()
        self.home = FullHost(NODE, boards, folder / "home", self.time)
        self.driver, self.runtime = self.home.driver(), self.home.runtime()
        self.device = self.home.host.devices[0].uuid
        self.changes: list[str] = []
        self.home.hook = self.changes.append

    def whole(self, user: str) -> DesiredLease:
        (fact,) = self.driver.inventory()
        slot = DesiredSlot(self.device, "exclusive", 0, fact.grid, 1000, fact.memory_mib)
        return DesiredLease("a", 1, "vision", user, 3600, 30, (slot,))

    def slice(self, user: str) -> DesiredLease:
        slot = DesiredSlot(self.device, "mig", 0, 1, 142, 9_728, "1g.10gb")
        return DesiredLease("a", 1, "vision", user, 3600, 30, (slot,))

    def files(self) -> list[Path]:
        return sorted(self.home.folder.rglob("*"))

    def plan(self, *leases: DesiredLease) -> tuple[list[PlannedStep], str, str]:
        shadow = DryRunDriver(self.driver)
        journal = Journal(self.folder / "journal.jsonl")
        reconciler = Reconciler(NODE, shadow, journal, self.time.now, DryRunRuntime(self.runtime))
        reconciler.accept(Desired(NODE, 1, 1, leases), self.time.now)
        steps = rehearse(reconciler, shadow, self.time.now)
        (work,) = reconciler.lease_records.values()
        return steps, work.phase, work.report().code


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_plan_for_somebody_this_host_knows_is_ready_and_changes_nothing(desk):
    before = desk.files()

    steps, phase, code = desk.plan(desk.slice("alice"))

    assert (phase, code) == ("ready", "")
    assert [step.refusal for step in steps if step.refusal] == []
    assert (desk.changes, desk.home.systemd.units, desk.files()) == ([], {}, before)


@pytest.mark.parametrize("mode", ["whole", "slice"])
def test_plan_for_somebody_without_an_account_fails_with_the_hosts_sentence(desk, mode):
    steps, phase, code = desk.plan(getattr(desk, mode)("mallory"))

    (refused,) = [step for step in steps if step.refusal]
    assert refused.action == "open the lease to mallory"
    assert refused.refusal.startswith("no_account: this host has no account 'mallory'")
    assert (phase, code) == ("failed", "no_account")


def test_plan_says_which_device_node_is_missing(desk):
    desk.home.systemd.missing_nodes.add("/dev/nvidia0")

    steps, phase, _ = desk.plan(desk.whole("alice"))

    assert phase == "preparing"
    assert any("no_node: /dev/nvidia0 does not exist" in step.refusal for step in steps)


def test_plan_on_a_host_without_the_runtime_says_what_is_missing(desk):
    desk.runtime = CdiSpecs(desk.folder / "cdi", boot_id="b", which=lambda engine: None, is_root=True)

    steps, phase, code = desk.plan(desk.slice("alice"))

    assert (phase, code) == ("failed", "no_runtime")
    assert "no container engine is installed" in steps[-1].refusal


@pytest.mark.parametrize("mode", ["whole", "slice"])
def test_plan_for_a_device_that_is_lost_says_that_it_cannot_be_seen(desk, mode):
    wanted = getattr(desk, mode)("alice")
    desk.home.host.lose(desk.device)

    steps, phase, _ = desk.plan(wanted)

    assert phase != "ready"
    assert [f"what stands on {desk.device} cannot be seen" in step.refusal for step in steps] == [True] * len(
        steps
    )
    assert steps
    assert desk.changes == []


def test_lost_device_keeps_no_plan_from_the_device_beside_it(tmp_path):
    desk = Desk(tmp_path, boards=("h100-80gb", "h100-80gb"))
    lost = desk.home.host.devices[1].uuid
    desk.home.host.lose(lost)
    shadow = DryRunDriver(desk.driver)

    steps, phase, code = desk.plan(desk.slice("alice"))

    assert (phase, code) == ("ready", "")
    assert [step.refusal for step in steps if step.refusal] == []
    with pytest.raises(NvmlLikeError, match=f"what stands on {lost} cannot be seen"):
        shadow.set_mig_mode(lost, True)


def refusal_of(found: RuntimeRefusedError | None) -> str:
    return "" if found is None else found.word


def test_units_say_beforehand_what_they_would_refuse(desk):
    units = desk.home.runtime()
    desk.home.systemd.missing_nodes.add("/dev/nvidia7")

    assert refusal_of(units.would_refuse(GRANT)) == ""
    assert refusal_of(units.would_refuse(replace(GRANT, user="mallory"))) == "no_account"
    assert refusal_of(units.would_refuse(replace(GRANT, nodes=("/dev/nvidia7",)))) == "no_node"
    assert desk.changes == []


def test_containers_say_beforehand_that_a_name_is_none_for_a_device(tmp_path):
    specs = CdiSpecs(tmp_path, boot_id="b", which=lambda engine: "/usr/bin/docker", is_root=True)

    assert refusal_of(specs.would_refuse(GRANT)) == ""
    assert refusal_of(specs.would_refuse(replace(GRANT, lease="-a-"))) == "bad_name"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("is_root", "word"), [(True, "no_account"), (False, "")])
def test_files_of_variables_need_an_account_only_where_they_are_given_to_it(tmp_path, is_root, word):
    def nobody(name: str) -> Account:
        raise LookupError(f"this host has no account {name!r}")

    plain = PlainRuntime(tmp_path, account=nobody, is_root=is_root)

    assert refusal_of(plain.would_refuse(GRANT)) == word
    assert list(tmp_path.iterdir()) == []


def test_several_doors_refuse_where_the_first_of_them_would():
    first, second = RecordingRuntime(), RecordingRuntime()
    second.refusal = RuntimeRefusedError("cdi", "no engine")

    assert refusal_of(CombinedRuntime([second, first]).would_refuse(GRANT)) == "cdi"
    assert refusal_of(CombinedRuntime([first, second]).would_refuse(GRANT)) == ""
