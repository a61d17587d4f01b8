"""Shares that somebody or something took from a ready lease: put back at the next look, and told."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import pytest

from nodeagent.drivers import errors
from nodeagent.drivers.nvml.shares.memory import SET, MemoryLimits
from nodeagent.protocol.messages import HealthFact
from nodeagent.runtimes.names import unit_of
from tests.agent.test_lost_device import LosingNode


@pytest.fixture
def node(tmp_path: Path) -> LosingNode:
    return LosingNode(tmp_path)


@pytest.mark.parametrize("protocol", [2, 3])
def test_shares_of_one_user_end_after_their_device_was_reset_under_them(node, protocol):
    node.home.mps.newest = protocol
    node.start()
    node.desire(node.lease_of("mps"), node.lease_of("mps", "b"))
    node.home.host.reset(0)

    node.desire()
    node.pass_time(60)

    assert node.phases() == {"a": "gone", "b": "gone"}
    assert node.driver.mps.daemons() == []


# What becomes of shares whose leases are ready


def look(node: LosingNode, after_s: float = 10) -> dict[str, HealthFact]:
    """Look around as the agent does every ten seconds; returns the health facts by code."""
    node.pass_time(after_s)
    node.look()
    node.pass_time(0)
    node.examine()
    return {fact.code: fact for fact in node.reconciler.health_facts()}


def limits(node: LosingNode, lease: str = "a") -> tuple[int, int] | None:
    path = node.home.systemd.units[unit_of((lease, 1))].cgroup
    kept = node.home.host.devices[0].limits.get(path)
    return None if kept is None else (kept[0] >> 20, kept[1] >> 20)


def end(node: LosingNode, name: str) -> None:
    for process in list(node.home.world.processes.values()):
        if process.name.startswith(name):
            node.home.world.signal(process.pid, kill=True)


@pytest.mark.parametrize("mode", ["mps", "memlimit", "timeslice"])
def test_shares_that_have_all_they_need_are_looked_at_without_a_change_or_news(node, mode):
    node.desire(node.lease_of(mode), node.lease_of(mode, "b"))
    look(node)
    node.reports()
    changes: list[str] = []
    node.home.hook = changes.append
    written = (node.state / "journal.jsonl").read_bytes()

    facts = look(node)

    assert (facts, changes, node.reconciler.changed) == ({}, [], False)
    assert (node.state / "journal.jsonl").read_bytes() == written
    assert node.reconciler.is_settled


@pytest.mark.parametrize("how", ["cleared", "loosened", "widened", "device reset"])
def test_memory_limit_that_is_gone_is_set_again_and_told_for_a_while(node, how):
    node.desire(node.lease_of("memlimit"))
    device = node.home.host.devices[0]
    (path, (soft, hard)) = next(iter(device.limits.items()))
    if how == "device reset":
        node.home.host.reset(0)
    elif how == "cleared":
        device.limits.clear()
    else:
        device.limits[path] = (0, hard) if how == "loosened" else (soft, 2 * hard)

    found = look(node)
    later = look(node, 590)
    at_last = look(node, 11)

    assert limits(node) == (8192, 8192)
    assert "8192 MiB for a.1.0, set again at " in found["limit_gone"].detail
    assert (found["limit_gone"].severity, found["limit_gone"].device) == ("warning", node.device())
    assert later == found
    assert (at_last, node.phases()) == ({}, {"a": "ready"})


def test_memory_limit_that_went_while_no_agent_was_there_is_set_again_by_the_next(node):
    node.desire(node.lease_of("memlimit"))
    node.home.host.devices[0].limits.clear()

    node.start()
    node.pass_time(1)

    assert limits(node) == (8192, 8192)
    assert "limit_gone" in look(node)


def test_memory_limit_that_cannot_be_set_again_is_told_until_it_can_and_the_lease_goes_on(node):
    node.desire(node.lease_of("memlimit"))
    node.home.host.devices[0].limits.clear()
    node.home.host.faults.refusals[SET] = deque([errors.UNKNOWN] * 1000)

    first = look(node)
    much_later = look(node, 1200)
    node.home.host.faults.refusals.clear()
    put_back = look(node)

    assert "cannot be set again" in first["limit_gone"].detail
    assert much_later == first
    assert "set again at" in put_back["limit_gone"].detail
    assert (limits(node), node.phases()) == ((8192, 8192), {"a": "ready"})


def test_what_several_shares_lacked_is_one_fact_and_ends_with_them(node):
    node.desire(node.lease_of("memlimit"), node.lease_of("memlimit", "b"))
    node.home.host.reset(0)
    found = look(node)

    node.desire(node.lease_of("memlimit", "b"))
    one_left = look(node)
    node.desire()

    assert "for a.1.0" in found["limit_gone"].detail
    assert "for b.1.0" in found["limit_gone"].detail
    assert "for a.1.0" not in one_left["limit_gone"].detail
    assert look(node) == {}


def test_limit_of_a_lease_that_ends_is_not_put_back(node):
    node.desire(node.lease_of("memlimit"))
    unit = node.home.systemd.units[unit_of(("a", 1))]
    node.home.world.spawn(unit.cgroup, user="alice", is_stubborn=True, gpu=node.device())
    node.desire()
    loosened = limits(node)

    look(node, 0)

    assert node.phases() == {"a": "draining"}
    assert (loosened, limits(node)) == ((0, 8192), (0, 8192))


@pytest.mark.parametrize("protocol", [2, 3])
def test_mps_daemon_that_died_serves_its_leases_again_and_their_holders_can_be_told(node, protocol):
    node.home.mps.newest = protocol
    node.start()
    node.desire(node.lease_of("mps"), node.lease_of("mps", "b"))
    doors = {name: report.access for name, report in node.reports().items()}
    end(node, "nvidia-cuda-mps-control")

    found = look(node)
    later = look(node, 601)

    assert node.driver.mps.daemons() == [(node.device(), "alice")]
    assert {name: report.access for name, report in node.reports().items()} == doors
    assert set(found) == {"mps_restarted"}
    assert found["mps_restarted"].action == "restart_workload"
    assert later == {}


@pytest.mark.parametrize("protocol", [2, 3])
def test_after_a_reset_mps_serves_with_the_mode_it_needs(node, protocol):
    node.home.mps.newest = protocol
    node.start()
    node.desire(node.lease_of("mps"))
    node.home.host.reset(0)

    found = look(node)

    assert set(found) == {"mps_restarted", "compute_mode"}
    assert node.home.host.devices[0].compute_mode == 3
    assert node.driver.mps.state(node.device(), "alice") == "active"
    assert node.phases() == {"a": "ready"}


def test_compute_mode_is_not_taken_from_a_program_that_runs_past_mps(node):
    node.desire(node.lease_of("mps"))
    device, world = node.home.host.devices[0], node.home.world
    client = world.spawn("/berth/a", user="alice", gpu=device.uuid)
    client.is_mps = True
    world.spawn("/system.slice/x.service", user="root", name="Xorg", gpu=device.uuid)
    device.compute_mode = 0
    stranger = world.spawn("/user.slice", user="bob", name="python3", gpu=device.uuid)

    found = look(node)
    mode = device.compute_mode
    world.signal(stranger.pid, kill=True)
    put_back = look(node)

    assert mode == 0
    assert f"when these have ended: {stranger.pid})" in found["compute_mode"].detail
    assert device.compute_mode == 3
    assert "it was put back at" in put_back["compute_mode"].detail
    assert client.pid in world.processes


def test_server_that_outlives_its_daemon_is_left_to_its_programs(node):
    node.desire(node.lease_of("mps"))
    world = node.home.world
    end(node, "nvidia-cuda-mps-control")
    node.driver.mps.daemons()
    left = world.spawn("/x", user="alice", name="nvidia-cuda-mps-server", gpu=node.device())

    found = look(node)
    meanwhile = node.driver.mps.daemons()
    world.signal(left.pid, kill=True)
    later = look(node)

    assert f"the server of before has ended: {left.pid})" in found["mps_gone"].detail
    assert meanwhile == []
    assert left.pid not in world.processes
    assert set(later) == {"mps_restarted"}
    assert node.driver.mps.daemons() == [(node.device(), "alice")]


def test_time_slice_that_somebody_changed_is_set_again_within_a_minute(node):
    node.desire(node.lease_of("timeslice"), node.lease_of("timeslice", "b"))
    look(node)
    chosen = node.home.smi.policy(node.device())
    node.home.shell.run(["nvidia-smi", "compute-policy", "-i", node.device(), "--set-timeslice", "0"])

    runs: list[str] = []
    program = node.home.shell.programs["nvidia-smi"]

    def smi(argv, stdin, env):
        runs.append(argv[4])
        return program(argv, stdin, env)

    node.home.shell.programs["nvidia-smi"] = smi
    found = [look(node) for _ in range(6)]

    assert node.home.smi.policy(node.device()) == chosen == 2
    assert "the device's time slice, set again at" in found[-1]["limit_gone"].detail
    assert runs.count("--set-timeslice") == 1
    assert len(runs) < 6
    node.desire()
    assert look(node) == {}


def test_time_slice_that_cannot_be_set_again_is_told_and_its_leases_go_on(node):
    node.desire(node.lease_of("timeslice"))
    node.home.shell.run(["nvidia-smi", "compute-policy", "-i", node.device(), "--set-timeslice", "0"])
    node.home.host.is_root = False

    found = look(node)
    much_later = look(node, 700)
    node.home.host.is_root = True
    node.home.shell.run(["nvidia-smi", "compute-policy", "-i", node.device(), "--set-timeslice", "2"])
    by_somebody = look(node, 60)

    assert "Insufficient Permissions" in found["limit_gone"].detail
    assert much_later == found
    assert by_somebody == {}
    assert node.phases() == {"a": "ready"}


def test_a_driver_that_shows_no_reservations_is_told_nothing_after_a_restart(node, monkeypatch):
    read = MemoryLimits.read

    def hard_alone(self: MemoryLimits, handle: object, cgroup: str) -> tuple[int, int] | None:
        found = read(self, handle, cgroup)
        return None if found is None else (0, found[1])

    monkeypatch.setattr(MemoryLimits, "read", hard_alone)
    node.desire(node.lease_of("memlimit"), node.lease_of("memlimit", "b"))
    node.start()
    changes: list[str] = []
    node.home.hook = changes.append

    assert (look(node), changes) == ({}, [])
