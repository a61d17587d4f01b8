"""A host with one device, its MPS program and an agent's hand on it, for the tests of MPS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.drivers.nvml.mps.daemon import MpsShare
from nodeagent.drivers.nvml.mps.servers import Mps
from nodeagent.simulation.machine.world import SimulatedProcess, SimulatedShell, World
from nodeagent.simulation.programs.mps import SimulatedMps

CARD = "GPU-11111111-2222-3333-4444-555555555555"
OTHER = "GPU-99999999-2222-3333-4444-555555555555"
SLICE = "MIG-11111111-2222-5333-8444-555555555555"
PLACES: dict[str, tuple[str, int | None]] = {CARD: (CARD, None), OTHER: (OTHER, None), SLICE: (CARD, 7)}
EXCLUSIVE, DEFAULT = 3, 0  # compute modes
ANY_LENGTH = 10_000  # the simulated program opens no sockets, and folders of tests have long names
UIDS = {"alice": 1001, "bob": 1002}


@dataclass(frozen=True)
class FakeAccount:
    uid: int
    gid: int
    home: str


class DeviceError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


@dataclass
class Devices:
    """The few NVML calls that MPS needs; ``on_change`` as on the simulated host."""

    NVMLError: type[DeviceError] = DeviceError
    modes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PLACES, 0))
    capability: tuple[int, int] = (9, 0)
    stale: set[str] = field(default_factory=set)
    refusal: int = 0
    on_change: Callable[[str], None] = lambda name: None

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> list[str]:  # noqa: N802 - NVML's name
        return [uuid]

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: list[str]) -> list[str]:  # noqa: N802
        return [PLACES[handle[0]][0]]

    def nvmlDeviceGetUUID(self, handle: list[str]) -> str:  # noqa: N802
        return handle[0]

    def nvmlDeviceGetCudaComputeCapability(self, handle: list[str]) -> tuple[int, int]:  # noqa: N802
        return self.capability

    def nvmlDeviceGetComputeMode(self, handle: list[str]) -> int:  # noqa: N802
        return self.modes[handle[0]]

    def nvmlDeviceSetComputeMode(self, handle: list[str], mode: int) -> None:  # noqa: N802
        if self.refusal:
            raise DeviceError(self.refusal)
        self.on_change("mode.before")
        self.modes[handle[0]] = mode
        self.on_change("mode.after")


class Bench:
    """``agent()`` is a fresh agent process on the same host."""

    def __init__(self, run_dir: Path, newest: int, *, socket_room: int = ANY_LENGTH) -> None:
        self.run_dir, self.socket_room = run_dir, socket_room
        self.world = World()
        self.devices = Devices()
        self.program = SimulatedMps(
            self.world,
            PLACES.get,
            newest,
            names={uid: name for name, uid in UIDS.items()},
            is_exclusive=lambda device: self.devices.modes[device] == 3,
            socket_room=socket_room,
        )
        self.shell = SimulatedShell({"nvidia-cuda-mps-control": self.program})
        self.owned: dict[str, tuple[int, int]] = {}
        self.pauses: list[float] = []
        self.now = 0.0
        self.mps = self.agent()

    def agent(self) -> Mps:
        self.mps = Mps(
            self.devices,
            self.shell,
            self.run_dir,
            account=self.account,
            own=self.own,
            pause=self.pauses.append,
            clock=lambda: self.now,
            socket_room=self.socket_room,
        )
        return self.mps

    def account(self, user: str) -> FakeAccount:
        if user not in UIDS:
            raise LookupError(f"this host has no account {user}: create it first")
        return FakeAccount(UIDS[user], UIDS[user], f"/home/{user}")

    def own(self, path: Path, uid: int, gid: int) -> None:
        self.owned[str(path)] = (uid, gid)

    def open(self, *shares: MpsShare) -> None:
        for at, each in enumerate(shares):
            self.mps.open(each, shares[: at + 1])

    def run(self, share: MpsShare, **facts: Any) -> SimulatedProcess:
        """Start a program of the lease; it must become an MPS client."""
        process = self.world.spawn(f"/berth/{share.partition}", user=share.user)
        found = self.program.connect(process, self.mps.access(share).env, share.device, **facts)
        assert found == "mps", found
        return process

    def picture(self) -> dict[str, Any]:
        """What stands on the host, without what differs from one run to the next (pids)."""
        return {
            "modes": dict(self.devices.modes),
            "daemons": self.mps.daemons(),
            "programs": sorted((p.name, p.user, p.gpu) for p in self.world.processes.values()),
            "limits": [
                (
                    daemon.percent,
                    daemon.limits,
                    daemon.spaces,
                    [server.limits for server in daemon.servers.values()],
                )
                for _, daemon in sorted(self.program.daemons.items())
            ],
            "folders": sorted(str(p.relative_to(self.run_dir)) for p in self.run_dir.rglob("*")),
        }

    def watch(self, on_change: Callable[[str], None]) -> None:
        self.program.on_change = on_change
        self.devices.on_change = on_change


def share(
    name: str = "a", milli: int = 250, memory_mib: int = 8192, user: str = "alice", device: str = CARD
) -> MpsShare:
    return MpsShare(f"MPS-{name}", f"lease-{name}.1", device, user, milli, memory_mib)


def refused(code: int) -> Any:
    return pytest.raises(NvmlLikeError, match=errors.NAMES[code])
