"""A card to hold the contract against: of this host where there is one, and a simulated one everywhere."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from nodeagent.drivers.errors import DriverUnavailableError
from nodeagent.drivers.nvml.driver import NvmlDriver, read_text
from nodeagent.drivers.nvml.mps import Mps
from nodeagent.drivers.simulated.host import SimulatedHost
from nodeagent.drivers.simulated.library import SimulatedNvml
from nodeagent.drivers.simulated.mps import SimulatedMps
from nodeagent.drivers.simulated.world import SimulatedShell
from nodeagent.protocol.messages import DeviceFact
from nodeagent.shell import HostShell, Shell

USER = "contract"
OFFER = frozenset({"exclusive", "mig", "mps", "memlimit"})


class NoCardError(Exception):
    """There is no real card here; the sentence says what was looked for."""


@dataclass(frozen=True)
class Me:
    """Whoever runs the tests, as the account of a lease."""

    uid: int
    gid: int


@dataclass
class Card:
    """One card, its driver, and the host around it. ``agent`` is a fresh agent on the same host."""

    library: Any
    uuid: str
    agent: Callable[[], NvmlDriver]
    read: Callable[[str], str]
    wait: Callable[[float], None]
    cgroup: Callable[[], str]
    drop_cgroup: Callable[[str], None]
    host: SimulatedHost | None = None

    def __post_init__(self) -> None:
        self.driver = self.agent()

    @property
    def handle(self) -> Any:
        return self.library.nvmlDeviceGetHandleByUUID(self.uuid)

    @property
    def fact(self) -> DeviceFact:
        return next(fact for fact in self.driver.inventory() if fact.uuid == self.uuid)

    @property
    def mig_modes(self) -> tuple[int, ...]:
        try:
            return tuple(self.library.nvmlDeviceGetMigMode(self.handle))
        except self.library.NVMLError:
            return ()

    def code(self, call: str, *args: Any) -> int:
        """Return how a call ends, in NVML's numbers."""
        try:
            getattr(self.library, call)(*args)
        except self.library.NVMLError as no:
            return int(no.value)
        return 0

    def placements(self, profile_id: int) -> list[tuple[int, int]] | int:
        """Return the legal places of a profile, or the code of the refusal."""
        number = ctypes.c_uint(0)
        call = self.library.nvmlDeviceGetGpuInstancePossiblePlacements
        try:
            call(self.handle, profile_id, None, ctypes.byref(number))
            rows = (pynvml.c_nvmlGpuInstancePlacement_t * number.value)()
            call(self.handle, profile_id, rows, ctypes.byref(number))
        except self.library.NVMLError as no:
            return int(no.value)
        return [(int(row.start), int(row.size)) for row in rows]

    def profiles(self) -> list[tuple[int, Any]]:
        """Return (constant, answer) of every MIG size that the card has."""
        found = []
        for enum in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            with suppress(self.library.NVMLError):
                found.append((enum, self.library.nvmlDeviceGetGpuInstanceProfileInfo(self.handle, enum)))
        return found

    def state(self) -> dict[str, Any]:
        """Return everything that writing must put back."""
        return {
            "mig": self.mig_modes,
            "partitions": self.driver.observe(self.uuid),
            "compute mode": self.library.nvmlDeviceGetComputeMode(self.handle),
            "daemons": self.driver.mps.daemons(),
        }


def simulated(folder: Path, board: str = "h100-80gb", **host_options: Any) -> Card:
    """Return a card of a simulated host."""
    now = [1_000_000_000]
    host = SimulatedHost([board], clock=lambda: now[0], **host_options)
    uuid = host.cards[0].uuid
    host.world.uids[USER] = os.getuid()
    program = SimulatedMps(
        host.world, where=lambda name: (name, None) if name == uuid else None, names={os.getuid(): USER}
    )
    library = SimulatedNvml(host)
    library.nvmlInit()

    def wait(seconds: float) -> None:
        now[0] += int(seconds * 1e9)

    def cgroup() -> str:
        host.cgroups.add("/sys/fs/cgroup/berth-contract")
        return "/sys/fs/cgroup/berth-contract"

    shell = SimulatedShell({"nvidia-cuda-mps-control": program})

    def agent() -> NvmlDriver:
        return _agent(host.boot_id, SimulatedNvml(host), shell, folder, host.read, clock_ns=lambda: now[0])

    return Card(library, uuid, agent, host.read, wait, cgroup, host.cgroups.discard, host)


def real(folder: Path) -> Card:
    """Return the first card of this host; raises NoCardError where there is none."""
    try:
        driver = _agent("contract", pynvml, HostShell(), folder, read_text)
    except DriverUnavailableError as no:
        raise NoCardError(str(no)) from no
    uuid = driver.inventory()[0].uuid

    def cgroup() -> str:
        path = Path("/sys/fs/cgroup") / f"berth-contract-{os.getpid()}"
        path.mkdir()
        return str(path)

    def agent() -> NvmlDriver:
        return _agent("contract", pynvml, HostShell(), folder, read_text)

    return Card(pynvml, uuid, agent, read_text, time.sleep, cgroup, lambda path: Path(path).rmdir())


def _agent(
    boot: str, library: Any, shell: Shell, folder: Path, read: Callable[[str], str], **options: Any
) -> NvmlDriver:
    mps = Mps(library, shell, folder / "mps", account=lambda user: Me(os.getuid(), os.getgid()))
    return NvmlDriver(boot, library, shell=shell, run_dir=folder, read=read, offer=OFFER, mps=mps, **options)
