"""The driver of real devices over a simulated host, with the programs of the host beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nodeagent.drivers.base import PartitionShape, Tenant
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.drivers.nvml.driver import NvmlDriver
from nodeagent.drivers.nvml.mps.servers import Mps
from nodeagent.drivers.nvml.settings import NvmlHost, NvmlSettings
from nodeagent.protocol.messages import PartitionFact
from nodeagent.simulation.machine.host import SimulatedHost
from nodeagent.simulation.machine.world import SimulatedProcess, SimulatedShell
from nodeagent.simulation.nvml import SimulatedNvml
from nodeagent.simulation.programs.mps import SimulatedMps
from nodeagent.simulation.programs.smi import SimulatedSmi

SHARED_MODES = ("mps", "memlimit", "timeslice")
EVERY_MODE = frozenset({"exclusive", "mig", *SHARED_MODES})
ANY_LENGTH = 10_000  # the simulated program opens no sockets, and folders of tests have long names
UIDS = {"alice": 1001, "bob": 1002}
ROOT = "/sys/fs/cgroup"


class Crash(BaseException):
    """The agent died here."""


@dataclass(frozen=True)
class FakeAccount:
    uid: int
    gid: int


class Bench:
    """``agent()`` is a fresh agent process on the same host; ``changes`` are the changes it made there."""

    def __init__(
        self, folder: Path, *boards: str, offer: frozenset[str] | None = EVERY_MODE, **host: Any
    ) -> None:
        self.run_dir, self.offer = folder / "run", offer
        self.now_ns = 1_000_000_000
        self.host = SimulatedHost(boards or ("h100-80gb",), clock=lambda: self.now_ns, **host)
        self.host.world.uids.update(UIDS)
        self.read = self.host.read
        self.changes: list[str] = []
        self.crash_at = ""
        uuids = {device.uuid for device in self.host.devices}
        self.mps_program = SimulatedMps(
            self.host.world,
            where=lambda uuid: (uuid, None) if uuid in uuids else None,
            names={uid: name for name, uid in UIDS.items()},
            is_exclusive=lambda device: self.host.device(device).compute_mode == 3,
            on_change=self.point,
            socket_room=ANY_LENGTH,
        )
        self.smi = SimulatedSmi(self.host, on_change=self.point)
        self.shell = SimulatedShell({"nvidia-cuda-mps-control": self.mps_program, "nvidia-smi": self.smi})
        self.host.on_change = self.point
        self.driver = self.agent()

    def agent(self, **options: Any) -> NvmlDriver:
        library = SimulatedNvml(self.host)
        mps = Mps(
            library,
            self.shell,
            self.run_dir / "mps",
            account=self.account,
            own=lambda path, uid, gid: None,
            pause=lambda seconds: None,
            socket_room=ANY_LENGTH,
        )
        seams = {
            "shell": self.shell,
            "read": self.read,
            "write": self.host.write,
            "account": self.account,
            "clock_ns": lambda: self.now_ns,
            "wall_ns": lambda: self.now_ns,
            "on_change": self.point,
        }
        own = {name: options.pop(name) for name in ("send",) if name in options}
        settings = NvmlSettings(run_dir=self.run_dir, offer=self.offer, **options)
        host = NvmlHost(**seams, **own)
        self.driver = NvmlDriver(self.host.boot_id, library, settings=settings, host=host, mps=mps)
        return self.driver

    def account(self, user: str) -> FakeAccount:
        if user not in UIDS:
            raise LookupError(f"this host has no account {user}: create it first")
        return FakeAccount(UIDS[user], UIDS[user])

    def point(self, name: str) -> None:
        self.changes.append(name)
        if name == self.crash_at:
            self.crash_at = ""
            raise Crash(name)

    @property
    def device(self) -> str:
        return self.host.devices[0].uuid

    def switch_on(self) -> str:
        self.driver.set_mig_mode(self.device, True)
        self.changes.clear()
        return self.device

    def slice(self, name: str, start: int) -> PartitionFact:
        return self.driver.create(self.device, PartitionShape("mig", name), start, "a.1.0")

    def run(self, gpu: str = "", cgroup: str = "/berth/a", **facts: Any) -> SimulatedProcess:
        return self.host.world.spawn(cgroup, gpu=gpu or self.device, **facts)

    def places(self) -> list[tuple[str, int, int]]:
        return [(fact.profile, fact.start, fact.size) for fact in self.driver.observe(self.device)]


def refused(code: int, said: str = "") -> Any:
    return pytest.raises(NvmlLikeError, check=lambda no: no.code == code and said in no.detail)


def take(bench: Bench, mode: str, owner: str = "a.1.0", milli: int = 250, mib: int = 20_000) -> PartitionFact:
    """Make a share on the first device."""
    return bench.driver.create(bench.device, PartitionShape(mode, "", 0, milli, mib), 0, owner)


def move_in(
    bench: Bench, mode: str, owner: str = "a.1.0", user: str = "alice", **facts: int
) -> PartitionFact:
    """Bring a share as far as its tenant's unit being open and confined."""
    made = take(bench, mode, owner, **facts)
    bench.driver.attach(made.uuid, Tenant(owner, user=user))
    bench.driver.access(made.uuid)
    bench.host.cgroups.add(cgroup(owner))
    bench.driver.confine(made.uuid, cgroup(owner))
    return made


def pids(bench: Bench, partition: str) -> list[int]:
    return [fact.pid for fact in bench.driver.processes(partition)]


def cgroup(owner: str) -> str:
    return f"{ROOT}/berth.slice/{owner}.service"
