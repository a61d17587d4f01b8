"""Leases as units of systemd, on a simulated service manager that outlives the agent."""

from __future__ import annotations

import errno
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.accounts import Account, account_of
from nodeagent.drivers.simulated.faults import SimulatedCrash
from nodeagent.drivers.simulated.systemd import SimulatedSystemd
from nodeagent.drivers.simulated.world import SimulatedShell, World
from nodeagent.runtimes import nodes
from nodeagent.runtimes import unit as units
from nodeagent.runtimes.base import Grant, RuntimeRefusedError
from nodeagent.runtimes.cgroups import Cgroups
from nodeagent.runtimes.names import end_of, harmless, key_of_end, key_of_unit, original, unit_of
from nodeagent.runtimes.systemd import SystemdRuntime
from nodeagent.shell import Done

PEOPLE = {
    "alice": Account(1001, 1001, "/home/alice", "alice"),
    "bob": Account(1002, 1002, "/home/bob", "bob"),
}
UNIT = "berth-lease-a-1.service"
CGROUP = f"/berth.slice/{UNIT}"
GRANT = Grant(
    lease="a",
    generation=1,
    user="alice",
    team="vision",
    env={"CUDA_VISIBLE_DEVICES": "MIG-1"},
    nodes=("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap12"),
    ends_in_s=600,
    grace_s=30,
    cpu_milli=1500,
    memory_mib=2048,
)


def person(name: str) -> Account:
    if name not in PEOPLE:
        raise LookupError(f"this host has no account {name!r}; add it")
    return PEOPLE[name]


@dataclass
class Host:
    systemd: SimulatedSystemd = field(default_factory=lambda: SimulatedSystemd(World()))
    shell: SimulatedShell = field(default_factory=SimulatedShell)

    def __post_init__(self) -> None:
        self.shell.programs.update(self.systemd.programs())

    def agent(self, **facts: object) -> SystemdRuntime:
        """A new agent on the same host."""
        given: dict[str, object] = {
            "read": self.systemd.read,
            "write": self.systemd.write,
            "folders": self.systemd.folders,
            "exists": self.systemd.exists,
            "account": person,
            "clock_s": self.systemd.clock_s,
            "is_root": True,
        }
        return SystemdRuntime(self.shell, **(given | facts))  # type: ignore[arg-type]

    def work(self, *, stubborn: bool = False, below: str = "") -> int:
        return self.systemd.world.spawn(f"{CGROUP}{below}", user="alice", is_stubborn=stubborn).pid

    def ends(self) -> list[float]:
        return sorted(timer.due for timer in self.systemd.timers.values())

    def state(self) -> dict[str, object]:
        unit = self.systemd.units.get(UNIT)
        inside = len(self.systemd.world.inside(CGROUP))
        return {"unit": unit and (unit.state, unit.properties), "inside": inside, "ends": self.ends()}


@pytest.fixture
def host() -> Host:
    return Host()


def test_a_lease_becomes_a_unit_that_may_open_its_devices_and_no_others(host):
    entrance = host.agent().open(GRANT)

    given = host.systemd.units[UNIT].properties
    assert entrance.words == {"runtime": "systemd", "unit": UNIT, "isolated": "yes"}
    assert entrance.cgroup == f"/sys/fs/cgroup{CGROUP}"
    assert (given["User"], given["DevicePolicy"], given["KillMode"]) == ("alice", "closed", "control-group")
    allowed = given["DeviceAllow"].split("\n")
    assert {f"{node} rw" for node in GRANT.nodes} == {rule for rule in allowed if "nvidia" in rule}
    assert given["MemoryMax"] == str(2048 * 1024 * 1024)
    assert given["CPUQuota"] == "150%"
    assert given["TimeoutStopSec"] == "30"
    assert "CUDA_VISIBLE_DEVICES=MIG-1" in given["Environment"]


def test_a_lease_without_limits_on_the_host_has_none(host):
    host.agent().open(replace(GRANT, cpu_milli=None, memory_mib=None))

    given = host.systemd.units[UNIT].properties
    assert given["MemoryMax"] == "infinity"
    assert "CPUQuota" not in given


def test_opening_twice_changes_nothing(host):
    agent = host.agent()
    first = agent.open(GRANT)
    before, changes = host.state(), []
    host.systemd.on_change = changes.append

    second = agent.open(GRANT)

    assert (first, host.state(), changes) == (second, before, [])


def test_the_lease_ends_by_systemd_alone_when_the_agent_is_dead(host):
    host.agent().open(GRANT)
    host.work()

    host.systemd.tick(host.systemd.now + 601)

    assert host.agent().known() == []
    assert host.agent().pids(GRANT.key) == []


def test_what_ignores_being_asked_is_killed_by_systemd_after_its_grace(host):
    host.agent().open(GRANT)
    pid = host.work(stubborn=True)

    host.agent().close(GRANT.key, kill=False)
    host.systemd.tick(host.systemd.now + 29)
    held = host.agent().pids(GRANT.key)
    host.systemd.tick(host.systemd.now + 2)

    assert held == [pid]
    assert host.agent().pids(GRANT.key) == []


@pytest.mark.parametrize("ends_in_s", [60, 6000])
def test_a_changed_end_is_followed_in_both_directions(host, ends_in_s):
    agent = host.agent()
    agent.open(GRANT)

    agent.open(replace(GRANT, ends_in_s=ends_in_s))

    opened_at = host.systemd.now
    assert host.ends() == [opened_at + ends_in_s]
    host.systemd.tick(opened_at + ends_in_s - 1)
    assert agent.known() == [GRANT.key]
    host.systemd.tick(opened_at + ends_in_s + 1)
    assert agent.known() == []


def test_a_second_of_disagreement_about_the_end_moves_no_timer(host):
    agent = host.agent()
    agent.open(GRANT)
    before = host.ends()

    agent.open(replace(GRANT, ends_in_s=602))

    assert host.ends() == before


def test_limits_that_somebody_changed_are_put_right_while_work_goes_on(host):
    agent = host.agent()
    agent.open(GRANT)
    pid = host.work()
    unit = host.systemd.units[UNIT]
    unit.properties["DeviceAllow"] += "\n/dev/nvidia7 rw"
    unit.properties["MemoryMax"] = "infinity"

    agent.open(GRANT)

    assert "/dev/nvidia7" not in unit.properties["DeviceAllow"]
    assert unit.properties["MemoryMax"] == str(2048 * 1024 * 1024)
    assert pid in agent.pids(GRANT.key)


def test_a_unit_of_somebody_else_is_not_taken_over(host):
    agent = host.agent()
    agent.open(GRANT)

    with pytest.raises(RuntimeRefusedError, match="runs as alice") as no:
        agent.open(replace(GRANT, user="bob"))
    assert no.value.word == "unit_differs"


def test_a_user_without_an_account_is_refused_with_what_to_do(host):
    with pytest.raises(RuntimeRefusedError, match="no account 'charlie'; add it") as no:
        host.agent().open(replace(GRANT, user="charlie"))

    assert no.value.word == "no_account"
    assert host.state() == {"unit": None, "inside": 0, "ends": []}


def test_accounts_of_the_system_never_hold_a_lease():
    with pytest.raises(LookupError, match="account of the system"):
        account_of("root")
    with pytest.raises(LookupError, match="no account"):
        account_of("nobody-of-this-name")


def test_a_missing_device_node_is_refused_since_systemd_would_leave_it_out_in_silence(host):
    host.systemd.missing_nodes.add("/dev/nvidia-caps/nvidia-cap12")

    with pytest.raises(RuntimeRefusedError, match=r"nvidia-cap12 does not exist") as no:
        host.agent().open(GRANT)
    assert (no.value.word, no.value.is_passing) == ("no_node", True)
    assert host.systemd.units == {}


CAPABILITY = "/dev/nvidia-caps/nvidia-cap12"
MINORS = "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\n"


def with_minors(host):
    def read(path: str) -> str:
        return MINORS if path == "/proc/driver/nvidia-caps/mig-minors" else host.systemd.read(path)

    return host.agent(read=read)


def test_a_missing_capability_node_is_made_by_the_only_option_that_makes_one(host):
    host.systemd.missing_nodes.add(CAPABILITY)
    said = []

    def modprobe(argv, stdin, env):
        said.append(list(argv[1:]))
        host.systemd.missing_nodes.discard(CAPABILITY)
        return Done(0)

    host.shell.programs["nvidia-modprobe"] = modprobe

    with_minors(host).open(GRANT)

    assert said == [["-f", "/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access"]]
    assert f"{CAPABILITY} rw" in host.systemd.units[UNIT].properties["DeviceAllow"]


def test_a_node_that_cannot_be_made_is_refused_with_the_words_that_would_make_it(host):
    host.systemd.missing_nodes.update((CAPABILITY, "/dev/nvidia0"))
    host.shell.programs["nvidia-modprobe"] = lambda argv, stdin, env: Done(1, err="not permitted")

    with pytest.raises(RuntimeRefusedError) as no:
        with_minors(host).open(GRANT)

    assert (
        "nvidia-modprobe -c 0; nvidia-modprobe -f /proc/driver/nvidia/capabilities/gpu0/mig/gi1/access"
        in str(no.value)
    )
    assert host.systemd.units == {}


def test_a_plan_makes_no_node(host):
    host.systemd.missing_nodes.add(CAPABILITY)
    host.shell.programs["nvidia-modprobe"] = lambda argv, stdin, env: pytest.fail("a plan changes nothing")

    refusal = with_minors(host).would_refuse(GRANT)

    assert refusal is not None
    assert refusal.word == "no_node"


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ("/dev/nvidia3", ["-c", "3"]),
        ("/dev/nvidiactl", ["-c", "255"]),
        ("/dev/nvidia-uvm", ["-u", "-c", "0"]),
        ("/dev/nvidia-caps/nvidia-cap13", ["-f", "/proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access"]),
        ("/dev/nvidia-caps/nvidia-cap1", []),
        ("/dev/nvidia-caps/nvidia-cap99", []),
        ("/dev/kfd", []),
    ],
)
def test_each_node_has_its_own_words_and_what_nobody_is_given_has_none(node, words):
    assert nodes.words_for(node, lambda path: MINORS)[1:] == words


def test_a_lease_that_is_over_is_not_opened_again(host):
    with pytest.raises(RuntimeRefusedError, match="is over"):
        host.agent().open(replace(GRANT, ends_in_s=0))


def test_a_lease_that_is_still_closing_is_opened_only_when_it_is_gone(host):
    agent = host.agent()
    agent.open(GRANT)
    host.work(stubborn=True)
    agent.close(GRANT.key, kill=False)

    with pytest.raises(RuntimeRefusedError) as no:
        agent.open(GRANT)
    agent.close(GRANT.key, kill=True)

    assert (no.value.word, no.value.is_passing) == ("closing", True)
    assert agent.open(GRANT).words["unit"] == UNIT


def test_killing_ends_the_whole_subtree_and_the_timer(host):
    agent = host.agent()
    agent.open(GRANT)
    host.work(stubborn=True, below="/my-own/deeper")

    agent.close(GRANT.key, kill=True)

    assert host.state() == {"unit": None, "inside": 0, "ends": []}


def test_killing_works_on_kernels_without_cgroup_kill(host):
    def no_file(path: str, text: str) -> None:
        raise FileNotFoundError(errno.ENOENT, "no such file", path)

    agent = host.agent(write=no_file)
    agent.open(GRANT)
    host.work(stubborn=True)

    agent.close(GRANT.key, kill=True)

    assert agent.pids(GRANT.key) == []


@pytest.mark.parametrize("kill", [False, True])
def test_closing_what_is_gone_is_success(host, kill):
    host.agent().close(("never", 7), kill=kill)

    assert host.agent().pids(("never", 7)) == []


def test_a_unit_that_systemd_does_not_stop_is_not_called_closed(host):
    agent = host.agent()
    agent.open(GRANT)
    real = host.shell.programs["systemctl"]
    host.shell.programs["systemctl"] = lambda argv, stdin, env: (
        Done(1, err="Access denied") if argv[1] == "stop" else real(argv, stdin, env)
    )

    with pytest.raises(RuntimeRefusedError, match="Access denied"):
        agent.close(GRANT.key, kill=False)


def test_a_holder_who_ends_the_first_process_ends_only_the_own_lease(host):
    agent = host.agent()
    agent.open(GRANT)
    agent.open(replace(GRANT, lease="b", user="bob"))

    host.systemd.world.signal(host.systemd.units[UNIT].main_pid, kill=True)
    host.systemd.tick(host.systemd.now)

    assert agent.known() == [("b", 1)]


def test_leases_whose_names_begin_alike_keep_their_own_ends(host):
    agent = host.agent()
    agent.open(GRANT)
    agent.open(replace(GRANT, lease="a-1", generation=2, ends_in_s=900))

    agent.open(replace(GRANT, ends_in_s=300))
    agent.close(GRANT.key, kill=True)

    assert host.ends() == [host.systemd.now + 900]
    assert agent.known() == [("a-1", 2)]


def test_a_unit_that_failed_is_started_anew(host):
    agent = host.agent()
    agent.open(GRANT)
    host.systemd.units[UNIT].state = "failed"

    agent.open(GRANT)

    assert host.systemd.units[UNIT].state == "active"


def test_processes_of_the_whole_subtree_are_the_leases(host):
    host.agent().open(GRANT)
    below = host.work(below="/containers/x")
    outside = host.systemd.world.spawn("/user.slice/user-1001.slice").pid

    agent = host.agent()

    assert below in agent.pids(GRANT.key)
    assert agent.lease_of(below) == GRANT.key
    assert agent.lease_of(outside) is None
    assert agent.lease_of(1) is None


def test_a_cgroup_named_like_somebody_elses_unit_deceives_nobody(host):
    agent = host.agent()
    agent.open(GRANT)
    inside = host.work(below="/berth-lease-b-1.service")
    outside = host.systemd.world.spawn("/user.slice/berth.slice/berth-lease-b-1.service").pid

    assert agent.lease_of(inside) == GRANT.key
    assert agent.lease_of(outside) is None
    assert agent.pids(("b", 1)) == []


def test_unreadable_processes_are_not_taken_for_none(host):
    def denied(path: str) -> str:
        if path.endswith("cgroup.procs"):
            raise PermissionError(errno.EACCES, "permission denied", path)
        return host.systemd.read(path)

    agent = host.agent(read=denied)
    agent.open(GRANT)

    with pytest.raises(RuntimeRefusedError) as no:
        agent.pids(GRANT.key)
    assert no.value.word == "unreadable"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (f"0::{CGROUP}/x\n", f"{CGROUP}/x"),
        (f"12:devices:/other\n1:name=systemd:{CGROUP}\n0::/\n", CGROUP),
        ("3:cpu,cpuacct:/x\n", None),
        ("", None),
    ],
)
def test_cgroups_are_read_in_both_versions(lines, expected):
    def read(path: str) -> str:
        return lines

    assert Cgroups(read, lambda path: [], lambda path: False).path_of(5) == expected


def test_a_host_with_version_1_of_cgroups_has_units_but_no_cgroup_for_card_memory(host):
    agent = host.agent(exists=lambda path: path.startswith("/dev/"))

    assert agent.open(GRANT).cgroup == ""
    assert (
        Cgroups(host.systemd.read, lambda path: [], lambda path: False).folder("/x")
        == "/sys/fs/cgroup/systemd/x"
    )


@pytest.mark.parametrize(
    ("facts", "version", "sentence"),
    [
        ({"is_root": False}, 252, "only root"),
        ({"read": lambda path: "bash\n"}, 252, "first process is bash"),
        ({}, 239, "systemd 240 or later is needed, this host has 239"),
        ({}, 240, ""),
    ],
)
def test_a_host_says_what_it_lacks(host, facts, version, sentence):
    host.systemd.version = version

    agent = host.agent(**facts)

    assert sentence in agent.why_not()
    assert bool(agent.why_not()) == bool(sentence)
    if sentence:
        with pytest.raises(RuntimeRefusedError, match=sentence):
            agent.open(GRANT)


def test_a_reboot_leaves_nothing_open(host):
    host.agent().open(GRANT)

    host.systemd.reboot()

    assert host.agent().known() == []


POINTS = [f"{what}.{side}" for what in ("timer.start", "unit.start") for side in ("before", "after")]
CHANGES = [
    f"{what}.{side}" for what in ("timer.start", "timer.stop", "unit.set") for side in ("before", "after")
]
ENDS = [
    f"{what}.{side}" for what in ("cgroup.kill", "unit.stop", "timer.stop") for side in ("before", "after")
]


def die_at(host: Host, point: str) -> None:
    def crash(name: str) -> None:
        if name == point:
            host.systemd.on_change = lambda _: None
            raise SimulatedCrash(point)

    host.systemd.on_change = crash


@pytest.mark.parametrize("point", POINTS)
def test_an_agent_that_dies_while_opening_ends_in_the_same_state(host, point):
    whole = Host()
    whole.agent().open(GRANT)
    die_at(host, point)

    with pytest.raises(SimulatedCrash):
        host.agent().open(GRANT)
    assert host.ends() or not host.systemd.units, "a unit without an end would outlive its lease"
    host.agent().open(GRANT)

    assert host.state() == whole.state()


@pytest.mark.parametrize("point", CHANGES)
def test_an_agent_that_dies_while_changing_ends_in_the_same_state(host, point):
    changed = replace(GRANT, ends_in_s=3600, memory_mib=4096)
    whole = Host()
    for one in (host, whole):
        one.agent().open(GRANT)
    whole.agent().open(changed)
    die_at(host, point)

    with pytest.raises(SimulatedCrash):
        host.agent().open(changed)
    assert host.ends(), "the lease must keep an end at every moment"
    host.agent().open(changed)

    assert host.state() == whole.state()


@pytest.mark.parametrize("point", ENDS)
def test_an_agent_that_dies_while_closing_ends_in_the_same_state(host, point):
    host.agent().open(GRANT)
    host.work(stubborn=True)
    kill = point.startswith("cgroup")
    die_at(host, point)

    with pytest.raises(SimulatedCrash):
        host.agent().close(GRANT.key, kill=kill)
    host.agent().close(GRANT.key, kill=True)

    assert host.state() == {"unit": None, "inside": 0, "ends": []}


@given(lease=st.text(min_size=1, max_size=16), generation=st.integers(0, 2**31 - 1))
def test_every_lease_has_a_harmless_name_that_reads_back(lease, generation):
    try:
        lease.encode()
    except UnicodeEncodeError:
        return
    unit = unit_of((lease, generation))

    assert key_of_unit(unit) == (lease, generation)
    assert key_of_end(f"{end_of((lease, generation), 77)}.timer") == ((lease, generation), 77)
    assert not set(unit) & set("/*?[]\\ \n\0%@")
    assert original(harmless(lease)) == lease


@pytest.mark.parametrize(
    "name",
    ["berth-lease-a.service", "berth-lease-a-01.service", "berth-lease-_zz-1.service", "ssh.service", ""],
)
def test_names_that_are_not_ours_belong_to_nobody(name):
    assert key_of_unit(name) is None


@pytest.mark.parametrize("lease", ["", "x" * 201])
def test_names_that_would_not_fit_are_refused(lease):
    with pytest.raises(RuntimeRefusedError):
        unit_of((lease, 1))


@pytest.mark.parametrize(
    ("text", "us"),
    [("1.500000s", 1_500_000), ("150ms", 150_000), ("1min 30s", 90_000_000), ("infinity", None), ("", None)],
)
def test_time_spans_of_systemd_are_understood(text, us):
    assert units.span_us(text) == us


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here")
def test_systemd_itself_knows_every_property_of_a_lease(tmp_path: Path):
    lines = units.properties(GRANT, PEOPLE["alice"])
    lines[0] = "User=root"  # verify looks the account up
    unit = tmp_path / UNIT
    unit.write_text("[Service]\nType=exec\nExecStart=/bin/sleep infinity\n" + "\n".join(lines) + "\n")

    said = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )

    assert (said.returncode, said.stderr) == (0, "")
