"""Random walks: leases of shares come and go while somebody takes away what they need and the agent dies at changes."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.protocol.messages import DesiredLease
from nodeagent.runtimes.names import unit_of
from nodeagent.simulation.programs.mps_state import Limits
from tests.agent.builder import lease
from tests.agent.test_lost_device import LosingNode
from tests.deep import deep_after

USERS = ("alice", "bob")
ACTS = 12
LOOKS = 4
DEFAULT, EXCLUSIVE = 0, 3


class Death(BaseException):
    """The agent died here."""


class Walk:
    """Device 0 is shared by MPS, device 1 by memory limits; one agent after another looks after them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.node = LosingNode(folder)
        self.home = self.node.home
        self.home.mps.newest = self.dice.choice((2, 3))
        self.node.start()
        self.wanted: dict[str, DesiredLease] = {}
        self.left = self.came = 0
        self.home.hook = self.changed
        self.programs: dict[int, str] = {}

    def changed(self, name: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise Death(name)

    def come_or_go(self) -> None:
        if len(self.wanted) < self.dice.randint(1, 6):
            self.come()
        else:
            name = self.dice.choice(sorted(self.wanted))
            del self.wanted[name]
            self.programs = {pid: whose for pid, whose in self.programs.items() if whose != name}

    def come(self) -> None:
        self.came += 1
        mode, device = self.dice.choice((("mps", 0), ("mps", 0), ("memlimit", 1)))
        share = self.node.share(mode, 10 * self.dice.randint(5, 15), 1024 * self.dice.randint(2, 9), device)
        user, name = self.dice.choice(USERS), f"lease-{self.came}"
        self.wanted[name] = replace(lease(name, share, grace_s=1), user=user, team="vision")

    def take_away(self) -> None:
        host, programs = self.home.host, self.home.world.processes
        what = self.dice.randrange(6)
        if what < 2:
            word = "nvidia-cuda-mps-server" if what else "nvidia-cuda-mps-control"
            found = sorted(pid for pid, process in programs.items() if process.name == word)
            for pid in self.dice.sample(found, min(1, len(found))):
                self.end(pid)
            self.drop_unserved()
        elif what == 2:
            host.devices[1].limits.clear()
        elif what == 3:
            host.devices[0].compute_mode = self.dice.choice((0, 2, 3))
        elif what == 4:
            host.reset(self.dice.randrange(2))
            self.drop_unserved()
        else:
            self.widen()

    def widen(self) -> None:
        for daemon in self.home.mps.daemons.values():
            daemon.percent, daemon.spaces = 100.0, dict.fromkeys(daemon.spaces, Limits())

    def end(self, pid: int) -> None:
        self.home.world.signal(pid, kill=True)
        self.programs.pop(pid, None)

    def drop_unserved(self) -> None:
        """Let programs end whose server has: that was not the agent."""
        served = {pid for server in self.home.mps.servers() for pid in server.clients}
        for pid in [pid for pid in self.programs if pid not in served]:
            self.end(pid)

    def alive(self) -> None:
        """Let the agent take the desired state and look around until it should be right, dying at most once."""
        self.left = self.dice.choice((0, self.dice.randint(1, 12)))
        for again in (True, False):
            try:
                self.node.desire(*self.wanted.values())
                for _ in range(LOOKS):
                    self.node.pass_time(10)
                    self.node.look()
                    self.node.pass_time(0)
                    self.node.examine()
                return
            except Death:
                assert again
                self.left = 0
                self.node.start()
        raise AssertionError("it died twice")

    def use(self) -> None:
        """Let a program of each MPS lease start, which must find its limits."""
        for name, wish in self.wanted.items():
            (slot,) = wish.slots
            if slot.mode == "mps":
                (access,) = self.node.reports()[name].access
                cgroup = self.home.systemd.units[unit_of((name, 1))].cgroup
                program = self.home.world.spawn(cgroup, user=wish.user)
                assert self.home.mps.connect(program, access.env, slot.device) == "mps", name
                limits = self.home.mps.limits(program.pid)
                assert (limits.percent, limits.memory_mib) == (slot.share_milli // 10, slot.memory_mib), name
                self.programs[program.pid] = name

    def check(self) -> None:
        phases = {name: phase for name, phase in self.node.phases().items() if phase != "gone"}
        users = {wish.user for wish in self.wanted.values() if wish.slots[0].mode == "mps"}
        assert phases == dict.fromkeys(self.wanted, "ready")
        assert self.programs.keys() <= self.home.world.processes.keys()
        assert {user for _, user in self.node.driver.mps.daemons()} == users
        if users:
            assert self.home.host.devices[0].compute_mode == (EXCLUSIVE if len(users) == 1 else DEFAULT)
        kept = sorted(hard >> 20 for _, hard in self.home.host.devices[1].limits.values())
        sizes = [
            wish.slots[0].memory_mib for wish in self.wanted.values() if wish.slots[0].mode == "memlimit"
        ]
        assert kept == sorted(sizes)
        assert self.node.reconciler.is_settled


@pytest.mark.parametrize("seed", deep_after(2, range(8)))
def test_whatever_is_taken_away_is_back_and_no_program_that_is_served_is_disturbed(tmp_path, seed):
    walk = Walk(tmp_path, seed)
    for _ in range(ACTS):
        for act in walk.dice.choices((walk.come_or_go, walk.take_away), k=2):
            act()
        walk.alive()
        walk.check()
        walk.use()
