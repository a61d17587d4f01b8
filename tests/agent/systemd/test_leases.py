"""Leases as units of systemd, on a simulated service manager that outlives the agent."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from nodeagent.host.accounts import account_of
from nodeagent.host.shell import Done
from nodeagent.runtimes.base import RuntimeRefusedError
from tests.agent.systemd_bench import CGROUP, GRANT, UNIT


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
    assert given["TasksMax"] == "8192"
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
