"""Whose process is whose on shared devices, on a simulated host: what holds up the end of a share and what does not."""

from __future__ import annotations

import signal
from collections import deque
from pathlib import Path

import pytest

from nodeagent.drivers import errors
from nodeagent.drivers.base import PartitionShape, Tenant
from tests.agent.device_bench import SHARED_MODES, Bench, cgroup, move_in, pids, refused, take

CONTAINER = f"/system.slice/docker-{'0a' * 32}.scope"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_processes_of_shares_are_told_apart_by_their_cgroups(bench):
    first, second = move_in(bench, "timeslice"), move_in(bench, "timeslice", "b.1.0", "bob")
    mine = bench.run(cgroup=f"{cgroup('a.1.0')}/session-1", name="mine")
    theirs = bench.run(cgroup=cgroup("b.1.0"), name="theirs")

    assert pids(bench, first.uuid) == [mine.pid]
    assert pids(bench, second.uuid) == [theirs.pid]
    bench.run(cgroup="/user.slice", name="stray")
    assert len(bench.driver.processes(bench.device)) == 3


@pytest.mark.parametrize("mode", SHARED_MODES)
def test_a_share_is_not_clean_while_a_process_is_there_that_nobody_accounts_for(bench, mode):
    first, second = move_in(bench, mode), move_in(bench, mode, "b.1.0")
    theirs = bench.run(cgroup=cgroup("b.1.0"), user="alice")
    lost = bench.run(cgroup=CONTAINER, user="alice", name="python")

    assert pids(bench, first.uuid) == [lost.pid]
    with refused(errors.IN_USE, str(lost.pid)):
        bench.driver.destroy(first.uuid)
    bench.host.world.signal(lost.pid, kill=True)
    bench.driver.destroy(first.uuid)
    assert pids(bench, second.uuid) == [theirs.pid]


def test_two_shares_that_end_together_wait_for_no_process_of_each_other(bench):
    first, second = move_in(bench, "timeslice"), move_in(bench, "timeslice", "b.1.0", "bob")
    mine, theirs = bench.run(cgroup=cgroup("a.1.0")), bench.run(cgroup=cgroup("b.1.0"))
    stray = bench.run(cgroup="/user.slice")
    world = bench.host.world

    assert (pids(bench, first.uuid), pids(bench, second.uuid)) == (
        [mine.pid, stray.pid],
        [theirs.pid, stray.pid],
    )
    for gone in (stray, mine):
        world.signal(gone.pid, kill=True)
    bench.driver.destroy(first.uuid)
    assert pids(bench, second.uuid) == [theirs.pid]
    world.signal(theirs.pid, kill=True)
    bench.driver.destroy(second.uuid)


def test_a_container_that_names_its_lease_holds_up_that_lease_alone(bench):
    first, second = move_in(bench, "timeslice"), move_in(bench, "timeslice", "b.1.0", "bob")
    told = bench.run(cgroup=CONTAINER)
    environ = {f"/proc/{told.pid}/environ": "BERTH_LEASE=b\0BERTH_GENERATION=1\0"}
    bench.read = lambda path: environ[path] if path in environ else bench.host.read(path)
    bench.agent()

    assert (pids(bench, first.uuid), pids(bench, second.uuid)) == ([], [told.pid])
    environ[f"/proc/{told.pid}/environ"] = "BERTH_LEASE=b\0BERTH_GENERATION=0\0"
    assert (pids(bench, first.uuid), pids(bench, second.uuid)) == ([told.pid], [told.pid])


def test_who_might_be_a_tenant_is_waited_for_and_not_told_that_the_lease_ends(bench):
    sent: list[int] = []
    bench.agent(send=lambda pid, number: sent.append(pid))
    share = move_in(bench, "timeslice")
    listens = frozenset({signal.SIGUSR1})
    mine = bench.run(cgroup=cgroup("a.1.0"), catches=listens)
    bench.run(cgroup="/user.slice", catches=listens)

    bench.driver.tell(share.uuid, "maintenance")

    assert sent == [mine.pid]


@pytest.mark.parametrize(
    ("name", "user", "counts"),
    [
        ("Xorg", "bob", True),
        ("Xorg", "", False),
        ("nvidia-persistenced", "bob", True),
        ("nvidia-cuda-mps-server", "bob", True),
        ("nvidia-cuda-mps-server", "alice", False),
    ],
)
def test_a_name_excuses_only_accounts_of_the_host_and_those_that_have_an_mps_daemon(
    bench, name, user, counts
):
    share = move_in(bench, "mps")
    process = bench.run(cgroup="/user.slice", name=name, user=user)

    assert (process.pid in pids(bench, share.uuid)) is counts


def test_a_share_without_a_cgroup_waits_for_what_no_other_share_accounts_for(bench):
    move_in(bench, "timeslice", "b.1.0", "bob")
    open_door = take(bench, "timeslice")
    bench.run(cgroup=cgroup("b.1.0"))
    stray = bench.run(cgroup="/user.slice")

    assert [fact.pid for fact in bench.driver.processes(open_door.uuid)] == [stray.pid]


@pytest.mark.parametrize("told", ["nvidia-cuda-mps-server", "nvidia-cuda-mps"])
def test_the_server_of_a_user_keeps_no_share_from_ending_that_was_never_opened(bench, told):
    bench.read = lambda path: f"{told}\n" if path.endswith("/comm") else bench.host.read(path)
    bench.agent()
    move_in(bench, "mps")
    never_opened = take(bench, "mps", "b.1.0")
    bench.driver.attach(never_opened.uuid, Tenant("b.1.0", user="alice"))
    bench.run(cgroup="/system.slice", name="nvidia-cuda-mps-server")

    assert bench.driver.processes(never_opened.uuid) == []
    bench.driver.destroy(never_opened.uuid)


def test_programs_of_the_host_keep_nobodys_device_but_a_tenants_program_of_that_name_does(bench):
    bench.driver.create(bench.device, PartitionShape("exclusive"), 0, "a.1.0")
    bench.driver.confine(bench.device, cgroup("a.1.0"))
    bench.run(cgroup="/system.slice", name="Xorg", is_graphics=True)
    bench.run(cgroup="/system.slice", name="nvidia-persistenced")
    posing = bench.run(cgroup=cgroup("a.1.0"), name="Xorg")

    assert [fact.pid for fact in bench.driver.processes(bench.device)] == [posing.pid]
    bench.host.world.signal(posing.pid, kill=True)
    bench.driver.destroy(bench.device)
    assert len(bench.driver.processes(bench.device)) == 2


def test_memory_of_a_share_is_that_of_its_processes_and_unknown_while_they_are(bench):
    move_in(bench, "timeslice")
    take(bench, "timeslice", "b.1.0")
    bench.run(cgroup=cgroup("a.1.0"), memory_mib=700)
    bench.run(cgroup=cgroup("a.1.0"), memory_mib=300)

    used = {s.partition[:2] + str(s.memory_used_mib) for s in bench.driver.metrics().partitions}

    assert used == {"TS1000", "TSNone"}


def test_measuring_goes_on_when_processes_cannot_be_listed(bench):
    move_in(bench, "timeslice")
    bench.host.faults.refusals["nvmlDeviceGetComputeRunningProcesses"] = deque([errors.UNKNOWN] * 4)

    reading = bench.driver.metrics()

    assert [sample.memory_used_mib for sample in reading.partitions] == [None]
    assert reading.devices[0].power_w is not None
