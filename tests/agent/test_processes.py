from __future__ import annotations

import pytest

from nodeagent.drivers.base import ProcessFact
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.host.services import start_of
from nodeagent.processes.attribution import Holding, ProcessScanner, Scan
from nodeagent.processes.policy import ProcessAction, decide, is_same
from nodeagent.protocol.codec import decode, encode
from nodeagent.protocol.messages import DesiredLease, DesiredSlot, Samples
from nodeagent.reconcile.holdings import holdings
from nodeagent.reconcile.lease_records import new_record

GPU = "GPU-1"
CONTAINER = f"/system.slice/docker-{'0a' * 32}.scope"


class Host:
    """Processes on devices and in units, and what /proc says of them."""

    def __init__(self) -> None:
        self.on: dict[str, list[ProcessFact]] = {GPU: []}
        self.units: dict[int, tuple[str, int]] = {}
        self.files: dict[str, str] = {}
        self.holdings: list[Holding] = []
        self.scanner = ProcessScanner(self, self, self.read)

    def processes(self, partition: str) -> list[ProcessFact]:
        found = self.on[partition]
        if isinstance(found, Exception):
            raise found
        return found

    def lease_of(self, pid: int) -> tuple[str, int] | None:
        return self.units.get(pid)

    def read(self, path: str) -> str:
        if path not in self.files:
            raise OSError(path)
        return self.files[path]

    def run(
        self,
        pid: int,
        *places: str,
        name: str = "python",
        lease: str = "",
        uid: int = 1000,
        started: int = 5,
        is_mps: bool = False,
        cgroup: str = "/user.slice",
    ) -> None:
        for place in (GPU, *places):
            self.on.setdefault(place, []).append(ProcessFact(pid, 100, "", is_mps))
        self.files[f"/proc/{pid}/comm"] = f"{name[:15]}\n"
        self.files[f"/proc/{pid}/status"] = f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
        self.files[f"/proc/{pid}/stat"] = f"{pid} ({name}) S " + "0 " * 18 + f"{started} 0 0"
        self.files[f"/proc/{pid}/cgroup"] = f"0::{cgroup}\n"
        if lease:
            self.units[pid] = (lease, 1)

    def hold(
        self, lease: str, partition: str, mode: str = "mig", *, has_unit: bool = True, has_door: bool = False
    ) -> None:
        self.on.setdefault(partition, [])
        self.holdings.append(Holding(lease, 1, GPU, partition, mode, has_unit, has_door))

    def look(self, times: int = 1) -> Scan:
        for _ in range(times):
            scan = self.scanner.scan(
                [GPU], {GPU: [place for place in self.on if place != GPU]}, self.holdings
            )
        return scan

    def states(self) -> dict[int, tuple[str, str]]:
        return {one.pid: (one.state, one.lease) for one in self.look().seen}


@pytest.fixture
def host() -> Host:
    return Host()


def test_process_in_its_lease_and_on_its_slice_is_held(host):
    host.hold("a", "MIG-a")
    host.run(11, "MIG-a", lease="a")

    assert host.states() == {11: ("held", "a")}
    assert host.look(5).facts == ()


def test_process_of_a_live_lease_on_a_foreign_slice_is_an_orphan(host):
    host.hold("a", "MIG-a")
    host.hold("b", "MIG-b")
    host.run(11, "MIG-b", lease="a")

    assert host.states() == {11: ("orphan", "a")}


def test_process_of_an_earlier_generation_is_an_orphan_under_its_name(host):
    host.hold("a", GPU, "exclusive")
    host.run(11, lease="a")
    host.units[11] = ("a", 0)

    assert host.states() == {11: ("orphan", "a")}


def test_process_outside_all_units_is_an_orphan(host):
    host.hold("a", "MIG-a")
    host.run(11, "MIG-a")

    assert host.states() == {11: ("orphan", "")}


def test_process_on_a_slice_without_units_is_open(host):
    host.hold("a", "MIG-a", has_unit=False)
    host.run(11, "MIG-a")
    host.run(12)

    assert host.states() == {11: ("open", "a"), 12: ("orphan", "")}


def test_with_units_and_containers_only_what_an_engine_runs_is_open(host):
    host.hold("a", "MIG-a", has_door=True)
    host.run(11, "MIG-a", cgroup=CONTAINER)
    host.run(12, "MIG-a")
    host.run(13, "MIG-a", cgroup=f"/user.slice/user-1001.slice/docker-{'0a' * 32}.scope")

    assert host.states() == {11: ("open", "a"), 12: ("orphan", ""), 13: ("orphan", "")}


def test_container_on_a_device_that_no_lease_lets_containers_reach_is_an_orphan_and_never_ended(host):
    host.hold("a", "MIG-a")
    host.run(11, "MIG-a", cgroup=CONTAINER)
    host.run(12, "MIG-a")

    seen = host.look(3).seen

    assert {one.pid: one.state for one in seen} == {11: "orphan", 12: "orphan"}
    assert [action.pid for action in decide("kill", seen)] == [12]


def test_open_shares_of_one_device_are_nobodys_in_particular(host):
    host.hold("a", "TS-a", "timeslice", has_unit=False)
    host.hold("b", "TS-b", "timeslice", has_unit=False)
    host.run(11)

    assert host.states() == {11: ("open", "")}


def test_shares_are_matched_by_their_unit_because_the_device_does_not_tell_them_apart(host):
    host.hold("a", "TS-a", "timeslice")
    host.hold("b", "TS-b", "timeslice")
    host.run(11, "TS-a", "TS-b", lease="b")

    assert host.states() == {11: ("held", "b")}


@pytest.mark.parametrize(
    ("name", "uid", "state"),
    [
        ("nvidia-persistenced", 0, "system"),
        ("nv-hostengine", 0, "system"),
        ("nvidia-persistenced", 118, "system"),
        ("nv-hostengine", 1000, "orphan"),
        ("Xorg", 0, "system"),
        ("Xorg", 1000, "orphan"),
        ("gnome-shell", 120, "system"),
        ("gnome-shell", 1000, "orphan"),
        ("nvidia-cuda-mps-server", 0, "system"),
        ("nvidia-cuda-mps-server", 1000, "orphan"),
        ("python", 0, "orphan"),
        ("miner", 1000, "orphan"),
    ],
)
def test_services_of_the_host_are_excused_by_name_and_account(host, name, uid, state):
    host.run(11, name=name, uid=uid)

    assert host.states() == {11: (state, "")}


def test_operator_may_excuse_more(host):
    host.scanner = ProcessScanner(host, host, host.read, allowed=("company-monitoring-daemon",))
    host.run(11, name="company-monitoring-daemon", uid=990)
    host.run(12, name="company-monitoring-daemon", uid=1000)

    assert host.states() == {11: ("system", ""), 12: ("orphan", "")}


def test_mps_server_is_excused_under_the_account_that_the_driver_runs_it_for(host):
    host.mps_uids = lambda device: frozenset({1001}) if device == GPU else frozenset()
    host.scanner = ProcessScanner(host, host, host.read)
    host.run(11, name="nvidia-cuda-mps-server", uid=1001)
    host.run(12, name="nvidia-cuda-mps-server", uid=1002)
    host.run(13, name="Xorg", uid=1001)

    assert host.states() == {11: ("system", ""), 12: ("orphan", ""), 13: ("orphan", "")}


def test_name_excuses_nobody_whose_account_cannot_be_read(host):
    host.run(11, name="nvidia-persistenced", uid=0)
    del host.files["/proc/11/status"]

    assert host.states() == {11: ("orphan", "")}


def test_name_of_a_service_does_not_excuse_inside_a_lease(host):
    host.hold("a", "MIG-a")
    host.run(11, name="Xorg", lease="a")

    assert host.states() == {11: ("orphan", "a")}


def test_orphan_is_a_fact_from_the_second_look_on(host):
    host.run(11, name="miner")

    first, second = host.look(), host.look()

    assert first.facts == ()
    (fact,) = second.facts
    assert (fact.device, fact.code, fact.severity) == (GPU, "orphan_process", "warning")
    assert "pid 11 miner" in fact.detail


@pytest.mark.parametrize(
    ("name", "is_crowded"),
    [("miner", True), ("gnome-shell", False), ("remote-desktop", False), ("Xorg", False)],
)
def test_an_orphan_keeps_its_device_from_the_second_look_on_and_a_desktop_does_not(host, name, is_crowded):
    host.scanner = ProcessScanner(host, host, host.read, allowed=("remote-desktop",))
    host.run(11, name=name, uid=1000)

    first, second = host.look(), host.look()

    assert [fact.code for fact in second.facts] == ["orphan_process"]
    assert (first.crowded, second.crowded) == (frozenset(), frozenset({GPU} if is_crowded else ()))


def test_orphans_of_one_device_are_one_fact_however_many(host):
    for pid in range(1000, 1030):
        host.run(pid)

    (fact,) = host.look(2).facts

    assert "and 20 more" in fact.detail


def test_another_process_of_the_same_pid_is_counted_anew(host):
    host.run(11, started=5)
    host.look(2)
    host.run(11, started=9)

    assert host.look().facts == ()


def test_orphan_that_becomes_held_is_counted_anew(host):
    host.hold("a", GPU, "exclusive")
    host.run(11)
    host.look(2)
    host.units[11] = ("a", 1)
    host.look()
    del host.units[11]

    assert host.look().facts == ()


def test_process_that_bypasses_mps_is_told(host):
    host.hold("a", "MPS-a", "mps")
    host.run(11, lease="a", is_mps=True)
    host.run(12, lease="a")

    (fact,) = host.look(2).facts

    assert (fact.code, fact.severity, fact.action) == ("outside_mps", "warning", "restart_workload")
    assert "pid 12" in fact.detail
    assert "pid 11" not in fact.detail


def test_device_that_cannot_be_read_hides_nothing_and_forgets_nothing(host):
    host.run(11)
    host.look()
    listed, host.on[GPU] = host.on[GPU], NvmlLikeError(15, "lost")

    blind = host.look()
    host.on[GPU] = listed

    assert (blind.seen, list(blind.unread)) == ((), [GPU])
    assert len(host.look().facts) == 1


def test_process_whose_slice_cannot_be_read_has_the_benefit_of_the_doubt(host):
    host.hold("a", "MIG-a")
    host.run(11, lease="a")
    host.run(12)
    host.on["MIG-a"] = NvmlLikeError(4, "not root")

    assert host.states() == {11: ("held", "a"), 12: ("orphan", "")}


def test_process_of_a_live_lease_is_not_killed_on_whatever_device_it_is(host):
    host.hold("a", "MIG-a")
    host.hold("b", "MIG-b")
    host.run(11, "MIG-b", lease="a")
    host.run(12, "MIG-b", lease="ended")

    seen = host.look(3).seen

    assert [one.state for one in seen] == ["orphan", "orphan"]
    assert [action.pid for action in decide("kill", seen)] == [12]


def test_process_that_just_ended_has_no_name_and_does_no_harm(host):
    host.on[GPU] = [ProcessFact(11, None, "/usr/bin/train")]

    (one,) = host.look().seen

    assert (one.name, one.started, one.memory_mib) == ("train", "", None)


def test_samples_fit_their_frame_and_name_orphans_first(host):
    host.hold("a", GPU, "exclusive")
    for pid in range(1, 1500):
        host.run(pid, lease="a")
    host.run(5000)

    samples = host.look().samples()
    frame = Samples(1, "b", 1, (), (), samples)

    assert (len(samples), samples[0].pid, samples[0].state) == (1024, 5000, "orphan")
    assert decode(encode(frame)) == frame


@pytest.mark.parametrize(
    ("policy", "actions"),
    [("report", [[], [], []]), ("warn", [[], ["warn"], []]), ("kill", [[], ["warn"], ["kill"]])],
)
def test_policy_reports_then_warns_then_kills(host, policy, actions):
    host.run(11)

    assert [[action.what for action in decide(policy, host.look().seen)] for _ in range(3)] == actions


def test_system_and_held_processes_are_never_killed(host):
    host.hold("a", "MIG-a")
    host.hold("b", "MIG-b", has_unit=False)
    host.run(11, "MIG-a", lease="a")
    host.run(12, name="Xorg", uid=0)
    host.run(13, "MIG-b")

    assert decide("kill", host.look(10).seen) == []


def test_process_whose_start_is_unknown_is_never_killed(host):
    host.on[GPU] = [ProcessFact(11)]

    assert decide("kill", host.look(10).seen) == []


def test_unknown_policy_is_refused(host):
    with pytest.raises(ValueError, match="report, warn, kill"):
        decide("shoot", [])


def test_pid_that_was_given_to_another_is_not_the_same(host):
    host.run(11, started=5)
    host.look(2)
    (action,) = decide("kill", host.look().seen)

    assert is_same(action, host.read)
    host.run(11, started=6)
    assert not is_same(action, host.read)
    assert not is_same(ProcessAction("kill", 99, GPU, "", ""), host.read)


def test_names_with_brackets_do_not_shift_the_start():
    line = "7 (a) b) c) S " + "0 " * 18 + "4242 1"

    assert start_of(lambda path: line, 7) == "4242"


def test_places_of_leases_that_are_not_gone_are_held_and_containers_are_a_door():
    def work(name: str, phase: str, **entrance: str):  # type: ignore[no-untyped-def]
        slot = DesiredSlot(GPU, "mig", 0, 1, 125, 10_000, "1g.10gb")
        made = new_record(DesiredLease(name, 2, "t", "u", 60, 10, (slot, slot)), 0)
        made.phase, made.entrance, made.places[0].partition = phase, entrance, f"MIG-{name}"
        return made

    lease_records = [work("a", "ready"), work("b", "draining", cdi="berth.local/lease=b"), work("c", "gone")]

    assert holdings(lease_records, is_isolating=True) == [
        Holding("a", 2, GPU, "MIG-a", "mig", has_unit=True),
        Holding("b", 2, GPU, "MIG-b", "mig", has_door=True),
    ]
    assert [one.has_unit for one in holdings(lease_records, is_isolating=False)] == [False, False]
