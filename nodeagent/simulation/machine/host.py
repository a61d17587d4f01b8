"""A whole simulated GPU host: devices, processes, files of /proc, and everything that can happen to it.

It outlives the agent: library sessions (``SimulatedNvml``) come and go on it. Times come from an injected clock.
"""

from __future__ import annotations

import errno
import logging
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol
from uuid import UUID

import pynvml

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.protocol.boards import BoardModel, BoardProfile, board
from nodeagent.protocol.uuids import simulated_uuid
from nodeagent.simulation.faults import Faults
from nodeagent.simulation.hardware import GpuInstance, SimulatedGpu
from nodeagent.simulation.machine import proc
from nodeagent.simulation.machine.device import NvmlDevice
from nodeagent.simulation.machine.world import SimulatedProcess, World

log = logging.getLogger(__name__)

WHOLE_GPU = 0xFFFFFFFF
LOST_XID = 79


class Listener(Protocol):
    """Who hears of events: an event set of a library session."""

    def hears(self, device: NvmlDevice, kind: int) -> bool:
        """Say whether events of this kind from this device are wanted."""
        ...

    def tell(self, device: NvmlDevice, kind: int, data: int, gi: int, ci: int) -> None:
        """Hand over one event."""
        ...


@dataclass(frozen=True, slots=True)
class HostEvent:
    """Something that befalls a host: before the ``at_call``-th call from now, or ``at_s`` seconds from now."""

    name: str
    act: Callable[[], object]
    at_call: int | None = None
    at_s: float | None = None


class SimulatedHost:
    """One host. ``gpu`` arguments are a device's index or UUID.

    ``missing`` names functions that the installed driver lacks, ``hidden`` paths that ``read`` cannot find,
    ``cgroups`` groups that exist without a process inside, ``has_dmem`` a kernel that limits device memory itself,
    ``passing_dmem`` the groups (root: "") that pass that controller on. ``faults``: latency and planned codes by
    function name, a seeded chance that a change answers IN_USE. ``on_change`` is called before and after each
    change with ``"<function>.before"`` and ``"<function>.after"``; whatever it raises reaches the caller.
    """

    def __init__(
        self,
        boards: Sequence[str],
        *,
        name: str = "host",
        is_root: bool = True,
        driver_version: str = "615.71.09",
        missing: Iterable[str] = (),
        faults: Faults | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
        world: World | None = None,
        seed: int = 0,
    ) -> None:
        """Put the named boards into a host; raises UnknownBoardError, ValueError for boards that NVML does not know."""
        self.name, self.driver_version, self.seed = name, driver_version, seed
        self.world = world or World()
        self.faults = faults or Faults()
        self.missing = set(missing)
        self.hidden: set[str] = set()
        self.cgroups: set[str] = set()
        self.has_dmem = False
        self.passing_dmem: set[str] = set()
        self.on_change: Callable[[str], None] = self.faults.point
        self.lock = threading.RLock()
        self.listeners: set[Listener] = set()
        self.calls = 0
        self.refused: list[str] = []
        self.boots = 1
        self.init_code = 0
        self.clock, self.sleep = clock, sleep
        self.devices = [self._device(index, board(model)) for index, model in enumerate(boards)]
        self._by_uuid = {device.uuid: device for device in self.devices}
        self._scheduled: deque[HostEvent] = deque()
        self._dice = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._next_token = 0x10_0000
        self._sessions: weakref.WeakSet[Any] = weakref.WeakSet()
        self.is_root = is_root

    @property
    def is_root(self) -> bool:
        """Whether the agent runs as root."""
        return self._is_root

    @is_root.setter
    def is_root(self, value: bool) -> None:
        self._is_root = value
        for device in self.devices:
            device.gpu.is_root = value

    def allow_instances(self, allowed: bool = True) -> None:
        """Let an agent that is not root manage instances, as with the capability ``mig/config``."""
        for device in self.devices:
            device.gpu.has_mig_config = allowed

    @property
    def boot_id(self) -> str:
        """Identity of this boot."""
        return str(UUID(int=self.boots << 64 | (hash_of(self.name) & (1 << 64) - 1)))

    def device(self, gpu: int | str) -> NvmlDevice:
        """Return a device by index or UUID; raises KeyError with those that exist."""
        if isinstance(gpu, int) and 0 <= gpu < len(self.devices):
            return self.devices[gpu]
        if isinstance(gpu, str) and gpu in self._by_uuid:
            return self._by_uuid[gpu]
        raise KeyError(f"no device {gpu!r} on {self.name}: it has {', '.join(self._by_uuid)}")

    def new_token(self) -> int:
        """Return a number that no handle had before."""
        with self.lock:
            self._next_token += 0x10
            return self._next_token

    def enter(self, name: str, is_change: bool) -> None:
        """Begin a call of the library: play what is due, then refuse or wait as planned."""
        self.calls += 1
        if self._scheduled:
            self.tick()
        if self.missing and name in self.missing:
            raise pynvml.NVMLError(errors.FUNCTION_NOT_FOUND)
        faults = self.faults
        if faults.latency_s and (pause := faults.latency_s.get(name)):
            self.sleep(pause)
        if faults.refusals and (codes := faults.refusals.get(name)):
            raise pynvml.NVMLError(codes.popleft())
        if is_change and faults.rate and self._dice.random() < faults.rate:
            raise pynvml.NVMLError(errors.IN_USE)

    def now_s(self) -> float:
        """Return seconds by the injected clock."""
        return self.clock() / 1e9

    def join(self, session: Any) -> None:
        """Take note of a library session."""
        self._sessions.add(session)

    def end_agent(self) -> None:
        """Let the agent's process die: its sessions close, its event sets are gone, whoever waits is woken."""
        for session in list(self._sessions):
            session.close()

    def read(self, path: str) -> str:
        """Return a file of /proc or of cgroups; raises FileNotFoundError for what this host has not."""
        if path in self.hidden:
            raise FileNotFoundError(path)
        if path == proc.MIG_MINORS:
            return proc.mig_minors()
        if path == proc.DEVICES:
            return proc.devices()
        if path == proc.BOOT_ID:
            return f"{self.boot_id}\n"
        if path == proc.CONTROLLERS:
            return (
                f"{proc.PLAIN_CONTROLLERS} {proc.DMEM}\n" if self.has_dmem else f"{proc.PLAIN_CONTROLLERS}\n"
            )
        if path.endswith(proc.PASSED_ON) and self.in_cgroup(path.removesuffix(proc.PASSED_ON)) is not None:
            is_on = proc.below_root(path.removesuffix(proc.PASSED_ON)) in self.passing_dmem
            return f"cpu memory pids{' dmem' if is_on else ''}\n"
        if path == proc.MIG_CONFIG:
            return "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n"
        root, slash, name = path.removeprefix("/proc/").partition("/")
        process = self.world.processes.get(int(root)) if slash and root.isdigit() else None
        text = None if process is None else proc.of_process(process, name, self.world.uid_of(process))
        if text is None:
            raise FileNotFoundError(path)
        return text

    def write(self, path: str, text: str) -> None:
        """Let a cgroup pass the dmem controller on, or do so no longer; raises OSError where the kernel would."""
        group = path.removesuffix(proc.PASSED_ON)
        if not path.endswith(proc.PASSED_ON) or self.in_cgroup(group) is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        if not self.is_root:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        if text[1:] != proc.DMEM or text[0] not in "+-" or not self.has_dmem or not self.reaches_dmem(group):
            raise OSError(errno.EINVAL, "Invalid argument", path)
        own = proc.below_root(group)
        if text[0] == "-" and any(one.startswith(f"{own}/") for one in self.passing_dmem):
            raise OSError(errno.EBUSY, "Device or resource busy", path)
        self.on_change("cgroup.pass_on.before")
        (self.passing_dmem.add if text[0] == "+" else self.passing_dmem.discard)(own)
        self.on_change("cgroup.pass_on.after")

    def reaches_dmem(self, group: str) -> bool:
        """Say whether a cgroup has the dmem controller: all above it pass it on."""
        path = proc.below_root(group)
        above = [path[:at] for at, letter in enumerate(path) if letter == "/"]
        return all(one in self.passing_dmem for one in above)

    def reboot(self) -> None:
        """Start again: processes, instances, limits and held devices are gone, handles stale, lost devices back."""
        with self.lock:
            self.boots += 1
            self.world.reboot()
            self.cgroups.clear()
            self.passing_dmem.clear()
            for device in self.devices:
                device.reset(reboot=True)

    def reset(self, gpu: int | str) -> None:
        """Reset one device, as somebody with nvidia-smi would: its processes end, its instances are gone."""
        with self.lock:
            device = self.device(gpu)
            for process in self.world.on(device.uuid):
                self.world.signal(process.pid, kill=True)
            device.reset(reboot=False)

    def lose(self, gpu: int | str) -> None:
        """Let a device fall off the bus (XID 79); only a reboot brings it back."""
        with self.lock:
            self.xid(gpu, LOST_XID)
            self.device(gpu).gpu.is_lost = True

    def xid(
        self, gpu: int | str, xid: int, *, gi: int | None = None, ci: int | None = None, count: int = 1
    ) -> None:
        """Let the driver report an XID ``count`` times, of the whole device or of one instance."""
        for _ in range(count):
            self._tell(self.device(gpu), pynvml.nvmlEventTypeXidCriticalError, xid, gi, ci)

    def ecc(self, gpu: int | str, *, count: int = 1, is_corrected: bool = False) -> None:
        """Count memory errors; uncorrected ones come with an event and leave a row to be repaired at a reset."""
        with self.lock:
            device, kept = self.device(gpu), self.device(gpu).errors
            if is_corrected:
                kept.corrected += count
                kept.corrected_ever += count
                kind = pynvml.nvmlEventTypeSingleBitEccError
            else:
                kept.uncorrected += count
                kept.uncorrected_ever += count
                kept.rows_uncorrected += count
                kept.is_remap_pending = True
                kind = pynvml.nvmlEventTypeDoubleBitEccError
        for _ in range(count):
            self._tell(device, kind, 0, None, None)

    def ask_for(self, gpu: int | str, action: int) -> None:
        """Let the driver ask for a recovery action (numbers of ``NVML_GPU_RECOVERY_ACTION_*``)."""
        self.device(gpu).recovery_action = action

    def switch_mig(self, gpu: int | str, *, enabled: bool = True) -> int:
        """Switch a device as somebody with nvidia-smi would; returns the activation status."""
        with self.lock:
            gpu_state = self.device(gpu).gpu
            gpu_state.has_work = self.work_on(self.device(gpu))
            was, gpu_state.is_root = gpu_state.is_root, True
            try:
                return gpu_state.set_mig_mode(enabled)
            finally:
                gpu_state.is_root = was

    def add_foreign(self, gpu: int | str, profile: str, start: int, *, is_half: bool = False) -> GpuInstance:
        """Make an instance as somebody with nvidia-smi would; ``is_half`` leaves out the compute instance.

        Raises NvmlLikeError where the device refuses.
        """
        with self.lock:
            device = self.device(gpu)
            kind = self.profile_of(device, profile)
            assert kind is not None
            was = device.gpu.is_root
            device.gpu.is_root = True
            try:
                made = device.gpu.create_gpu_instance(kind.profile_id, start)
                if not is_half:
                    device.gpu.create_compute_instance(made)
            finally:
                device.gpu.is_root = was
            return made

    def remove_foreign(self, gpu: int | str, start: int) -> None:
        """Remove the instance that starts at a slice, with its compute instances and processes, by nobody's leave."""
        with self.lock:
            device = self.device(gpu)
            for instance in [i for i in device.gpu.instances.values() if i.start == start]:
                for process in self.world.on(device.uuid, instance.id):
                    self.world.signal(process.pid, kill=True)
                for compute in instance.compute.values():
                    compute.is_stale = True
                instance.compute.clear()
                instance.is_stale = True
                del device.gpu.instances[instance.id]

    def hold_open(self, gpu: int | str, *, is_profiler: bool = False) -> None:
        """Let another client open a device: a monitor, or a profiler, which also keeps instances from being made."""
        device = self.device(gpu)
        device.monitors += not is_profiler
        device.profilers += is_profiler

    def release(self, gpu: int | str, *, is_profiler: bool = False) -> None:
        """Let one such client go."""
        device = self.device(gpu)
        device.monitors = max(0, device.monitors - (not is_profiler))
        device.profilers = max(0, device.profilers - is_profiler)

    def schedule(self, happenings: Iterable[HostEvent]) -> None:
        """Let things happen at their call or second from now."""
        with self.lock:
            now = self.now_s()
            for one in happenings:
                at_s = None if one.at_s is None else now + one.at_s
                at_call = None if one.at_call is None else self.calls + one.at_call
                self._scheduled.append(replace(one, at_s=at_s, at_call=at_call))

    def tick(self) -> None:
        """Let happen what is due by now; every call of the library does this too.

        What a device refuses, such as an instance where another one is, is noted in ``refused`` and logged.
        """
        with self.lock:
            now, due = self.now_s(), []
            for one in list(self._scheduled):
                is_due_by_time = one.at_s is not None and one.at_s <= now
                if is_due_by_time or (one.at_call is not None and one.at_call <= self.calls):
                    self._scheduled.remove(one)
                    due.append(one)
            for one in sorted(due, key=lambda one: one.at_s or 0.0):
                try:
                    one.act()
                except NvmlLikeError as no:
                    self.refused.append(f"{one.name}: {no}")
                    log.warning("script: %s was refused: %s", one.name, no)

    def work_on(self, device: NvmlDevice) -> bool:
        """Say whether a process is on a device."""
        return any(p.gpu == device.uuid for p in list(self.world.processes.values()))

    def in_cgroup(self, path: str) -> list[SimulatedProcess] | None:
        """Return the processes in a cgroup and below, None when there is no such group."""
        wanted = proc.below_root(path)
        inside = [
            p
            for p in list(self.world.processes.values())
            if (own := proc.below_root(p.cgroup)) == wanted or own.startswith(f"{wanted}/")
        ]
        groups = (proc.below_root(group) for group in self.cgroups)
        is_there = bool(inside) or any(g == wanted or g.startswith(f"{wanted}/") for g in groups)
        return inside if is_there else None

    @staticmethod
    def profile_of(device: NvmlDevice, name: str | None) -> BoardProfile | None:
        """Return a profile of a device by name, None for None; raises ValueError with those that it has."""
        if name is None:
            return None
        if (kind := device.board.profile(name)) is None:
            known = ", ".join(one.name for one in device.board.profiles) or "none"
            raise ValueError(f"{device.board.id} has no profile {name!r}; it has {known}")
        return kind

    def _tell(self, device: NvmlDevice, kind: int, data: int, gi: int | None, ci: int | None) -> None:
        with self.lock:
            for listener in [one for one in self.listeners if one.hears(device, kind)]:
                listener.tell(
                    device, kind, data, WHOLE_GPU if gi is None else gi, WHOLE_GPU if ci is None else ci
                )

    def _device(self, index: int, kind: BoardModel) -> NvmlDevice:
        if kind.vendor != "nvidia":
            raise ValueError(f"{kind.id} is no NVIDIA board; NVML knows only those")
        uuid = simulated_uuid(self.name, index)
        return NvmlDevice(index, uuid, kind, SimulatedGpu(kind), minor=index)


def hash_of(name: str) -> int:
    """Return a number for a name, the same in every process."""
    return UUID(simulated_uuid(name, -1).partition("-")[2]).int
