"""The guard over a simulated host: the driver of real devices, real runtimes, real files of /proc."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from nodeagent.processes.guard import Guard, GuardReport
from nodeagent.protocol.messages import Desired, DesiredLease, DesiredSlot
from nodeagent.reconcile.holdings import scan_scope
from nodeagent.reconcile.journal import Journal
from nodeagent.reconcile.reconciler import Reconciler
from nodeagent.reconcile.sequential import work_through
from nodeagent.reconcile.worker import Worker
from nodeagent.runtimes.names import unit_of
from nodeagent.simulation.full_host import FullHost
from nodeagent.simulation.machine.world import SimulatedProcess
from tests.agent.builder import FakeTime

NODE = "gpu-01"
ELSEWHERE = "/user.slice/user-1003.slice"
BOARDS = ["h100-80gb", "h100-80gb"]


class Host:
    """One agent with its guard; alice holds a slice of the first device, nobody the second one."""

    def __init__(self, folder: Path) -> None:
        self.time = FakeTime()
        self.home = FullHost(NODE, BOARDS, folder, self.time)
        self.world = self.home.world
        self.driver, self.runtime = self.home.driver(), self.home.runtime()
        journal = Journal(folder / "journal.jsonl")
        self.reconciler = Reconciler(NODE, self.driver, journal, self.time.now, self.runtime)
        self.first, self.second = (device.uuid for device in self.home.host.devices)
        self.revision = 0
        self.under("report")

    def under(self, policy: str, *allowed: str) -> Host:
        self.guard = Guard(
            self.driver, self.runtime, self.home.read, policy=policy, allowed=allowed, send=self.world.send
        )
        return self

    def desire(self, *leases: DesiredLease) -> None:
        self.revision += 1
        self.reconciler.accept(Desired(NODE, 1, self.revision, leases), self.time.now)
        work_through(self.reconciler, self.driver, self.time)

    def let_alice_in(self) -> DesiredLease:
        slot = DesiredSlot(self.first, "mig", 0, 1, 142, 9_728, "1g.10gb")
        held = DesiredLease("a", 1, "vision", "alice", 3600, 30, (slot,))
        self.desire(held)
        assert self.reconciler.lease_records["a", 1].phase == "ready"
        return held

    def alices(self, **facts: object) -> SimulatedProcess:
        (instance,) = self.home.host.device(self.first).gpu.instances.values()
        unit = self.home.systemd.units[unit_of(("a", 1))]
        return self.world.spawn(unit.cgroup, user="alice", gpu=self.first, gi=instance.id, **facts)

    def stray(self, **facts: object) -> SimulatedProcess:
        return self.world.spawn(ELSEWHERE, **{"user": "charlie", "gpu": self.second, **facts})

    def look(self, times: int = 1) -> GuardReport:
        for _ in range(times):
            found = self.guard.run_once(scan_scope(self.reconciler, is_isolating=self.guard.is_isolating))
        return found

    def lives(self, *processes: SimulatedProcess) -> bool:
        return all(self.world.processes.get(one.pid) is one for one in processes)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_every_process_of_every_device_is_told_with_what_it_is(host):
    host.let_alice_in()
    mine, stray = host.alices(), host.stray(name="miner")

    found = host.look(2)

    assert {one.pid: (one.state, one.lease) for one in found.processes} == {
        mine.pid: ("held", "a"),
        stray.pid: ("orphan", ""),
    }
    assert [(fact.device, fact.code) for fact in found.facts] == [(host.second, "orphan_process")]
    assert f"pid {stray.pid} miner" in found.facts[0].detail


async def test_worker_gives_no_whole_device_away_on_which_a_stray_runs_and_does_once_it_has_ended(host):
    worker = Worker(host.reconciler, host.driver, host.time, host.guard)
    stray = host.stray(name="miner")
    for _look in range(2):
        await worker.watch()
    fact = next(one for one in host.driver.inventory() if one.uuid == host.second)
    slot = DesiredSlot(host.second, "exclusive", 0, fact.grid, 1000, fact.memory_mib)

    host.desire(DesiredLease("b", 1, "vision", "bob", 3600, 30, (slot,)))
    phase = host.reconciler.lease_records["b", 1].phase
    host.world.signal(stray.pid, kill=True)
    await worker.watch()
    host.time.advance(10)
    work_through(host.reconciler, host.driver, host.time)
    worker.close()

    assert (phase, host.reconciler.lease_records["b", 1].phase) == ("preparing", "ready")


def test_report_touches_nobody_however_long_it_looks(host):
    stray = host.stray(catches=frozenset({signal.SIGUSR1}))

    host.look(10)

    assert host.lives(stray)
    assert stray.heard == []


def test_warn_tells_a_program_that_listens_once_and_leaves_the_others_alone(host):
    listening, deaf = host.stray(catches=frozenset({signal.SIGUSR1})), host.stray()

    host.under("warn").look(10)

    assert host.lives(listening, deaf)
    assert listening.heard == [signal.SIGUSR1]


def test_kill_looks_warns_and_ends_in_that_order(host):
    stray = host.stray(catches=frozenset({signal.SIGUSR1}))
    host.under("kill").look()
    after_one = (host.lives(stray), list(stray.heard))
    host.look()
    after_two = (host.lives(stray), list(stray.heard))
    host.look()

    assert (after_one, after_two) == ((True, []), (True, [signal.SIGUSR1]))
    assert not host.lives(stray)


def test_process_that_ignores_being_asked_is_ended_all_the_same(host):
    stray = host.stray(is_stubborn=True, catches=frozenset({signal.SIGUSR1, signal.SIGTERM}))

    host.under("kill").look(3)

    assert not host.lives(stray)


@pytest.mark.parametrize(
    ("name", "user", "lives"),
    [
        ("nvidia-persistenced", "root", True),
        ("nv-hostengine", "root", True),
        ("nv-hostengine", "charlie", False),
        ("dcgm-exporter", "nobody-we-know", False),
        ("Xorg", "root", True),
        ("Xorg", "charlie", False),
        ("gnome-shell", "gdm", True),
        ("nvidia-cuda-mps-server", "root", True),
        ("nvidia-cuda-mps-server", "bob", False),
        ("python", "root", False),
    ],
)
def test_services_of_the_host_live_by_their_name_and_account(host, name, user, lives):
    host.world.uids["gdm"] = 120
    process = host.stray(name=name, user=user)

    host.under("kill").look(10)

    assert host.lives(process) is lives


def test_program_that_the_operator_allows_lives(host):
    host.world.uids["monitor"] = 990
    process = host.stray(name="our-monitor", user="monitor")

    host.under("kill", "our-monitor").look(10)

    assert host.lives(process)


def test_process_of_a_live_lease_lives_on_whatever_device_it_is(host):
    host.let_alice_in()
    at_home, strayed = host.alices(), host.alices()
    strayed.gpu, strayed.gi = host.second, None

    found = host.under("kill").look(10)

    assert host.lives(at_home, strayed)
    assert {one.pid: one.state for one in found.processes} == {at_home.pid: "held", strayed.pid: "orphan"}


def test_process_of_a_lease_that_ends_has_its_grace_and_no_end_by_the_guard(host):
    host.let_alice_in()
    process = host.alices(is_stubborn=True)
    host.under("kill")
    host.desire()

    host.look(10)

    assert host.reconciler.lease_records["a", 1].phase == "draining"
    assert host.lives(process)


def test_process_that_left_its_unit_before_the_lease_ended_is_ended(host):
    host.let_alice_in()
    process = host.alices()
    process.cgroup, process.gpu, process.gi = ELSEWHERE, host.second, None
    host.desire()

    host.under("kill").look(3)

    assert not host.lives(process)


def test_pid_that_another_process_got_since_the_last_look_begins_anew(host):
    stray = host.stray()
    host.under("kill").look(2)
    other = host.world.respawn(stray.pid, ELSEWHERE, user="bob", gpu=host.second)

    host.look(2)

    assert host.lives(other)


def test_pid_that_another_process_gets_between_look_and_signal_is_spared(host):
    stray = host.stray(catches=frozenset({signal.SIGUSR1}))
    others: list[SimulatedProcess] = []

    def read(path: str) -> str:
        text = host.home.read(path)
        if path == f"/proc/{stray.pid}/stat" and host.lives(stray):
            # The next to read it finds somebody else.
            others.append(
                host.world.respawn(
                    stray.pid, "/system.slice/db.service", user="bob", catches=frozenset({signal.SIGUSR1})
                )
            )
        return text

    for looks in (2, 3):
        host.world.processes[stray.pid] = stray
        host.under("kill").look(looks - 1)
        host.guard._read = host.guard._scanner._read = read
        host.look()

    assert len(others) == 2
    assert host.lives(others[-1])
    assert [one.heard for one in others] == [[], []]


def test_process_that_is_gone_when_it_is_to_be_ended_is_no_error(host, caplog):
    stray = host.stray()

    def send(pid: int, number: int) -> None:
        del host.world.processes[pid]
        host.world.send(pid, number)

    host.guard = Guard(host.driver, host.runtime, host.home.read, policy="kill", send=send)
    host.look(3)

    assert f"process {stray.pid} cannot be ended" in caplog.text


def test_process_whose_start_cannot_be_read_is_told_and_never_touched(host):
    stray = host.stray(catches=frozenset({signal.SIGUSR1}))
    host.home.host.hidden.add(f"/proc/{stray.pid}/stat")

    found = host.under("kill").look(10)

    assert host.lives(stray)
    assert stray.heard == []
    assert [fact.code for fact in found.facts] == ["orphan_process"]


def test_lost_device_accuses_nobody(host):
    stray = host.stray()
    host.under("kill").look(2)
    host.home.host.lose(host.second)

    host.look(10)

    assert host.lives(stray)


def test_process_that_outlives_its_end_is_tried_once_a_minute_and_told_once(host, caplog):
    stray, sent, now = host.stray(), [], [0.0]
    host.guard = Guard(
        host.driver,
        host.runtime,
        host.home.read,
        policy="kill",
        send=lambda pid, number: sent.append((now[0], pid)),
        clock=lambda: now[0],
    )

    for second in range(0, 140, 5):
        now[0] = float(second)
        host.look()

    assert sent == [(10.0, stray.pid), (70.0, stray.pid), (130.0, stray.pid)]
    assert caplog.text.count("has no lease and is ended") == 1


def test_change_in_why_a_process_cannot_be_ended_is_told(host, caplog):
    whys, now = ["not permitted", "not permitted", "gone"], [0.0]
    host.stray()

    def send(pid: int, number: int) -> None:
        raise OSError(whys.pop(0))

    host.guard = Guard(
        host.driver, host.runtime, host.home.read, policy="kill", send=send, clock=lambda: now[0]
    )
    host.look(2)
    for _ in range(3):
        host.look()
        now[0] += 60.0

    assert caplog.text.count("cannot be ended: not permitted") == 1
    assert caplog.text.count("cannot be ended: gone") == 1
