"""Whose process is whose, by the cgroups of the leases' units."""

from __future__ import annotations

import errno

import pytest

from nodeagent.runtimes.base import RuntimeRefusedError
from nodeagent.runtimes.cgroups import Cgroups
from tests.agent.systemd_bench import CGROUP, GRANT


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


def test_a_host_with_version_1_of_cgroups_has_units_but_no_cgroup_for_device_memory(host):
    agent = host.agent(exists=lambda path: path.startswith("/dev/"))

    assert agent.open(GRANT).cgroup == ""
    assert (
        Cgroups(host.systemd.read, lambda path: [], lambda path: False).folder("/x")
        == "/sys/fs/cgroup/systemd/x"
    )
