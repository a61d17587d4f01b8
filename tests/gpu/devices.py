"""A device to hold the contract against: of this host where there is one, and a simulated one everywhere."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pynvml

from nodeagent.drivers.errors import DriverUnavailableError
from nodeagent.drivers.nvml.driver import NvmlDriver
from nodeagent.drivers.nvml.mps.servers import Mps
from nodeagent.drivers.nvml.settings import NvmlHost, NvmlSettings
from nodeagent.drivers.nvml.shares.memory import CONTROLLERS, DMEM, PASSED_ON, ROOT
from nodeagent.host.files import read_text, write_text
from nodeagent.host.shell import HostShell, Shell
from nodeagent.protocol.messages import DeviceFact
from nodeagent.simulation.machine.host import SimulatedHost
from nodeagent.simulation.machine.world import SimulatedShell
from nodeagent.simulation.nvml import SimulatedNvml
from nodeagent.simulation.programs.mps import SimulatedMps
from tests.gpu.holders import Holder, NoHolderError, real_holder, simulated_holder

USER = "contract"
OFFER = frozenset({"exclusive", "mig", "mps", "memlimit"})
GROUP = f"{ROOT}/berth-contract"
# A cgroup can be removed a moment after its last process has ended.
LOOKS, PAUSE_S = 50, 0.1


class NoDeviceError(Exception):
    """There is no real device here; the sentence says what was looked for."""


@dataclass(frozen=True)
class Me:
    """Whoever runs the tests, as the account of a lease."""

    uid: int
    gid: int


@dataclass
class Device:
    """One device, its driver, and the host around it. ``agent`` is a fresh agent on the same host.

    ``hold`` starts a program on the device, in a cgroup where one is named, ``hold_slice`` one on a slice of it by its
    name. ``notes`` is what tests found out, for
    the record. ``host`` is that of a simulated device.
    """

    library: Any
    uuid: str
    agent: Callable[[], NvmlDriver]
    read: Callable[[str], str]
    write: Callable[[str, str], None]
    wait: Callable[[float], None]
    cgroup: Callable[[], str]
    drop_cgroup: Callable[[str], None]
    hold: Callable[[str], AbstractContextManager[Holder]]
    hold_slice: Callable[[str], AbstractContextManager[Holder]]
    is_root: bool
    host: SimulatedHost | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.driver = self.agent()

    @property
    def handle(self) -> Any:
        return self.library.nvmlDeviceGetHandleByUUID(self.uuid)

    @property
    def fact(self) -> DeviceFact:
        """Return what the agent reports of the device, read anew."""
        return next(fact for fact in self.driver.inventory() if fact.uuid == self.uuid)

    @property
    def mig_modes(self) -> tuple[int, ...]:
        """Return (current, pending), nothing on a board without MIG."""
        try:
            return tuple(self.library.nvmlDeviceGetMigMode(self.handle))
        except self.library.NVMLError:
            return ()

    @property
    def is_sliced(self) -> bool:
        """Say whether MIG is on now."""
        return self.mig_modes[:1] == (1,)

    def code(self, call: str, *args: Any) -> int:
        """Return how a call ends, in NVML's numbers."""
        try:
            getattr(self.library, call)(*args)
        except self.library.NVMLError as no:
            return int(no.value)
        return 0

    def answer(self, call: str, *args: Any) -> Any:
        """Return the answer of a call, or ``{"refused": code}``."""
        try:
            return getattr(self.library, call)(*args)
        except self.library.NVMLError as no:
            return {"refused": int(no.value)}

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
        return [(int(row.start), int(row.size)) for row in rows[: number.value]]

    def profiles(self) -> list[tuple[int, Any]]:
        """Return (constant, answer) of every MIG size that the device has."""
        found = []
        for enum in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            with suppress(self.library.NVMLError):
                found.append((enum, self.library.nvmlDeviceGetGpuInstanceProfileInfo(self.handle, enum)))
        return found

    def instances(self) -> list[int]:
        """Return the GPU instances that can be seen by their MIG devices; that needs no rights."""
        found = set()
        count = self.answer("nvmlDeviceGetMaxMigDeviceCount", self.handle)
        for index in range(count if isinstance(count, int) else 0):
            with suppress(self.library.NVMLError):
                slot = self.library.nvmlDeviceGetMigDeviceHandleByIndex(self.handle, index)
                found.add(int(self.library.nvmlDeviceGetGpuInstanceId(slot)))
        return sorted(found)

    def memory_limit(self, cgroup: str) -> tuple[int, int] | int:
        """Return a cgroup's (soft, hard) limit in bytes, or the code of the refusal."""
        asked = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=cgroup.encode())
        code = self.code("nvmlDeviceGetMemoryLimits_v1", self.handle, asked)
        return code or (int(asked.softLimit), int(asked.hardLimit))

    def limit_memory(self, cgroup: str, soft: int, hard: int) -> int:
        """Set a cgroup's limits in bytes, past the agent; returns the code."""
        wanted = pynvml.c_nvmlSetMemoryLimits_v1_t(nameSpace=cgroup.encode(), softLimit=soft, hardLimit=hard)
        return self.code("nvmlDeviceSetMemoryLimits_v1", self.handle, wanted)

    def pass_on(self) -> None:
        """Let the root of all cgroups pass the memory controller of devices on, where the kernel has one."""
        with suppress(OSError):
            if DMEM in self.read(CONTROLLERS).split() and DMEM not in (self.passed_on() or ()):
                self.write(f"{ROOT}/{PASSED_ON}", f"+{DMEM}")

    def passed_on(self) -> tuple[str, ...] | None:
        """Return the controllers that the root of all cgroups passes on, None where that cannot be read."""
        try:
            return tuple(sorted(self.read(f"{ROOT}/{PASSED_ON}").split()))
        except OSError:
            return None

    def pass_on_as(self, before: tuple[str, ...] | None) -> None:
        """Take back that the root passes the memory controller of devices on, where it did not ``before``.

        Nothing else is touched: whatever differs beside it was changed by somebody else.
        """
        now = self.passed_on()
        if before is not None and now is not None and DMEM in now and DMEM not in before:
            self.write(f"{ROOT}/{PASSED_ON}", f"-{DMEM}")

    def state(self) -> dict[str, Any]:
        """Return everything that writing must put back."""
        return {
            "mig": self.mig_modes,
            "partitions": self.driver.observe(self.uuid),
            # With MIG on only MIG devices have a compute mode (nvml.h): then the refusal is what must stay.
            "compute mode": self.answer("nvmlDeviceGetComputeMode", self.handle),
            "daemons": self.driver.mps.daemons(),
            "controllers of the root cgroup": self.passed_on(),
        }


def simulated(
    folder: Path,
    board: str = "h100-80gb",
    *,
    has_cuda: bool = True,
    leaves_memory: bool = False,
    **host_options: Any,
) -> Device:
    """Return a device of a simulated host, without the CUDA driver library where ``has_cuda`` says so.

    ``leaves_memory``: its driver does not clear what a program had.
    """
    left: dict[int, int] | None = {} if leaves_memory else None
    now = [1_000_000_000]
    host = SimulatedHost([board], clock=lambda: now[0], **host_options)
    host.cgroups.add(f"{ROOT}/user.slice")
    uuid = host.devices[0].uuid
    host.world.uids[USER] = os.getuid()
    program = SimulatedMps(
        host.world, where=lambda name: (name, None) if name == uuid else None, names={os.getuid(): USER}
    )
    library = SimulatedNvml(host)
    library.nvmlInit()

    def wait(seconds: float) -> None:
        now[0] += int(seconds * 1e9)

    def cgroup() -> str:
        host.cgroups.add(GROUP)
        return GROUP

    def hold(cgroup: str = "") -> AbstractContextManager[Holder]:
        if not has_cuda:
            raise NoHolderError("no program can be started on the device: libcuda.so.1 was not found")
        return simulated_holder(host, uuid, cgroup, left)

    shell = SimulatedShell({"nvidia-cuda-mps-control": program})

    def agent() -> NvmlDriver:
        return _agent(
            host.boot_id,
            SimulatedNvml(host),
            shell,
            folder,
            read=host.read,
            write=host.write,
            is_root=host.is_root,
            clock_ns=lambda: now[0],
        )

    return Device(
        library,
        uuid,
        agent,
        host.read,
        host.write,
        wait,
        cgroup,
        host.cgroups.discard,
        hold,
        lambda _slice: hold(),
        host.is_root,
        host,
    )


def real(folder: Path, which: str = "") -> Device:
    """Return a device of this host, by UUID or index (default: the first); raises NoCardError where there is none."""

    is_root = os.geteuid() == 0

    def agent() -> NvmlDriver:
        files = {"read": read_text, "write": write_text}
        return _agent("contract", pynvml, HostShell(), folder, is_root=is_root, **files)

    try:
        driver = agent()
    except DriverUnavailableError as no:
        raise NoDeviceError(str(no)) from no
    try:
        uuid = chosen(driver.inventory(), which)
    finally:
        driver.close()

    def cgroup() -> str:
        path = Path(f"{GROUP}-{os.getpid()}")
        path.mkdir()
        return str(path)

    hold = partial(real_holder, uuid)
    return Device(
        pynvml,
        uuid,
        agent,
        read_text,
        write_text,
        time.sleep,
        cgroup,
        _remove_cgroup,
        hold,
        real_holder,
        is_root,
    )


def chosen(facts: list[DeviceFact], which: str) -> str:
    """Return the UUID of the device that was asked for."""
    if not facts:
        raise NoDeviceError(
            "the driver lists devices, and none tells this account its memory; with MIG on that needs root,"
            " and a GPU that shares the host's memory has none of its own"
        )
    for fact in facts:
        if which in (fact.uuid, str(fact.index)) or not which:
            return fact.uuid
    known = ", ".join(f"{fact.index} ({fact.uuid})" for fact in facts)
    raise NoDeviceError(f"there is no device {which}; this host has {known}")


def _remove_cgroup(path: str) -> None:
    for look in range(LOOKS):
        try:
            return Path(path).rmdir()
        except OSError:
            if look == LOOKS - 1:
                raise
            time.sleep(PAUSE_S)


def _agent(boot: str, library: Any, shell: Shell, folder: Path, *, is_root: bool, **seams: Any) -> NvmlDriver:
    mps = Mps(library, shell, folder / "mps", account=lambda user: Me(os.getuid(), os.getgid()))
    settings = NvmlSettings(run_dir=folder, offer=OFFER, is_root=is_root)
    return NvmlDriver(boot, library, settings=settings, host=NvmlHost(shell=shell, **seams), mps=mps)
