"""The host under soak with the driver of real devices, units, containers and MPS, all over simulated hardware."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path

from nodeagent.drivers import errors
from nodeagent.drivers.base import Driver
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.protocol.limits import MODES
from nodeagent.protocol.messages import DeviceFact, PartitionFact
from nodeagent.runtimes.base import Key, Runtime
from nodeagent.runtimes.names import key_of_end, unit_of
from nodeagent.simulation.full_host import FullHost
from nodeagent.simulation.soak.stage import NODE, Clock, Hook, Trace

REFUSED = (
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
)


class HardwareStage:
    """Devices behind a simulated libnvidia-ml; holders are processes in units."""

    def __init__(self, folder: Path, model: str, count: int, clock: Clock) -> None:
        self._home = FullHost(NODE, [model] * count, folder, clock)
        self._offer = frozenset(MODES)

    @property
    def facts(self) -> tuple[DeviceFact, ...]:
        """Return what the driver itself finds, so that stories ask for what can be had; ends the agent's session."""
        driver = self._home.driver(self._offer)
        found = tuple(driver.inventory())
        driver.close()
        assert len(found) == len(self._home.host.devices)
        return found

    @property
    def hook(self) -> Hook:
        """What is called before and after every change."""
        return self._home.hook

    @hook.setter
    def hook(self, hook: Hook) -> None:
        self._home.hook = hook

    def life(self) -> tuple[Driver, Runtime | None]:
        """Open library and units anew, as the next agent does."""
        self._home.pass_time()
        return self._home.driver(self._offer), self._home.runtime()

    def partitions(self) -> list[PartitionFact]:
        """Return the instances of all devices that are still there."""
        return [
            PartitionFact(
                uuid=f"{device.uuid}/{i.profile.name}@{i.start}",
                device=device.uuid,
                profile=i.profile.name,
                start=i.start,
                size=i.profile.memory_slices,
            )
            for device in self._home.host.devices
            if not device.gpu.is_lost
            for i in device.gpu.instances.values()
        ]

    def traces(self) -> frozenset[Trace]:
        """Return instances, units and their rules, share files, specs, MPS daemons, limits and policies."""
        home = self._home
        found: set[Trace] = set()
        devices = [device for device in home.host.devices if not device.gpu.is_lost]
        there = {device.uuid for device in devices}
        for device in devices:
            found |= {
                (device.uuid, i.profile.name, str(i.start), "usable" if i.compute else "half-made")
                for i in device.gpu.instances.values()
            }
            # A hard limit goes with its group; what a group had reserved stays with those above it.
            found |= {("reserved", device.uuid, group) for group, (soft, _) in device.limits.items() if soft}
            found |= (
                {("compute mode", device.uuid, str(device.compute_mode))} if device.compute_mode else set()
            )
        for unit in home.systemd.units.values():
            rules = tuple(sorted(f"{k}={v}" for k, v in unit.properties.items() if "Device" in k))
            found.add(("unit", unit.name, unit.state, *rules))
        # When a lease became ready moves its end by seconds; that it has one, and one only, must not move.
        ends = Counter(end[0] for name in home.systemd.timers if (end := key_of_end(name)))
        found |= {("end", key[0], str(key[1]), str(number)) for key, number in ends.items()}
        found |= {("daemon", daemon.device, str(daemon.uid)) for daemon in home.mps.daemons.values()}
        slices = [(uuid, home.smi.policy(uuid)) for uuid in there]
        found |= {("timeslice", uuid, str(value)) for uuid, value in slices if value}
        found |= {("file", str(path.relative_to(home.folder)), _owner_in(path)) for path in self._files()}
        return frozenset(found)

    def _files(self) -> Iterable[Path]:
        """Return the files that belong to leases."""
        home = self._home
        for folder in (home.run_dir / "shares", home.specs, home.folder / "notices"):
            for path in folder.rglob("*") if folder.exists() else ():
                if path.is_file():
                    yield path

    def move_in(self, key: Key, *, stubborn: bool) -> None:
        """Start one process in the unit of a lease on each of its devices."""
        home = self._home
        unit = home.systemd.units.get(unit_of(key))
        if unit is None:
            return
        home.world.spawn(unit.cgroup, user="alice", is_stubborn=stubborn)

    def is_working(self, key: Key, places: Iterable[tuple[str, int]]) -> bool:
        """Say whether the unit and what runs in it are there, and the instances that it was given."""
        unit = self._home.systemd.units.get(unit_of(key))
        if unit is None or unit.state != "active":
            return False
        inside = self._home.world.inside(unit.cgroup)
        return len(inside) >= 2 and all(self._stands(device, start) for device, start in places)

    def _stands(self, device: str, start: int) -> bool:
        """Say whether a device that has MIG on has a usable instance at a place."""
        found = self._home.host.device(device)
        if found.gpu.is_lost or not found.gpu.mig_enabled:
            return True
        return any(i.start == start and i.compute for i in found.gpu.instances.values())

    def pass_time(self) -> None:
        """Let units end that are due."""
        self._home.pass_time()

    def reboot(self) -> None:
        """Restart the host."""
        self._home.host.faults.refusals.clear()
        self._home.reboot()

    def lose(self, device: str) -> None:
        """Let a device fall off the bus."""
        self._home.host.lose(device)

    def add_foreign(self, device: str, profile: str, start: int) -> bool:
        """Make an instance on a free place of a device that has MIG on or holds nothing."""
        host = self._home.host
        try:
            if host.device(device).gpu.is_lost or self._is_shared(device):
                return False
            host.switch_mig(device)
            host.add_foreign(device, profile, start)
        except NvmlLikeError:
            return False
        return True

    def remove(self, device: str, start: int) -> bool:
        """Remove an instance and what runs on it."""
        instances = self._home.host.device(device).gpu.instances
        before = len(instances)
        if not self._home.host.device(device).gpu.is_lost:
            self._home.host.remove_foreign(device, start)
        return len(instances) < before

    def _is_shared(self, device: str) -> bool:
        """Say whether a lease holds the whole device or a share of it."""
        return any(device in path.read_text(encoding="utf-8") for path in self._share_files())

    def _share_files(self) -> list[Path]:
        folder = self._home.run_dir / "shares"
        return list(folder.rglob("*.json")) if folder.exists() else []

    def close(self) -> None:
        """End the last agent."""
        self._home.host.end_agent()

    def refuse(self, times: int) -> None:
        """Plan IN_USE for the next changes of instances."""
        for call in REFUSED:
            self._home.host.faults.refusals[call] = deque([errors.IN_USE] * times)

    def cling(self, times: int) -> None:
        """Let what runs now ignore being asked to stop."""
        for process in self._home.world.processes.values():
            if process.cgroup.startswith("/berth.slice/") and process.name != "sleep":
                process.is_stubborn = True


def _owner_in(path: Path) -> str:
    """Return whose share a file notes, "" for other files."""
    if path.suffix != ".json":
        return ""
    return str(json.loads(path.read_text(encoding="utf-8")).get("owner", ""))
