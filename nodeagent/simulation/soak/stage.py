"""What a simulated host must offer to be soaked, and the one over the plain simulated driver."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from nodeagent.drivers import errors
from nodeagent.drivers.base import Driver
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.protocol.boards import device_facts
from nodeagent.protocol.messages import DeviceFact, PartitionFact
from nodeagent.runtimes.base import Key, Runtime
from nodeagent.simulation.devices.driver import SimulatedDriver
from nodeagent.simulation.faults import Faults

NODE = "soak-01"
Hook = Callable[[str], None]
Clock = Callable[[], int]
# What stands on the host, in words that two runs can be compared by.
Trace = tuple[str, ...]


class Stage(Protocol):
    """A host that outlives the agent. ``hook`` is called before and after every change with its name."""

    hook: Hook

    @property
    def facts(self) -> tuple[DeviceFact, ...]:
        """Return the devices of a fresh host as a driver tells them."""
        ...

    def life(self) -> tuple[Driver, Runtime | None]:
        """Return driver and runtime of a new agent on this host."""
        ...

    def partitions(self) -> list[PartitionFact]:
        """Return what stands on all devices that can be read, as the hardware has it."""
        ...

    def traces(self) -> frozenset[Trace]:
        """Return everything that the agent could have left on the host."""
        ...

    def move_in(self, key: Key, *, stubborn: bool) -> None:
        """Let the holder of a ready lease start to work, where the driver does not play the holder itself."""
        ...

    def is_working(self, key: Key, places: Iterable[tuple[str, int]]) -> bool:
        """Say whether what the holder of a lease runs on these places (device, start) is still there."""
        ...

    def pass_time(self) -> None:
        """Let the host itself do what is due by now."""
        ...

    def reboot(self) -> None:
        """Restart the host."""
        ...

    def lose(self, device: str) -> None:
        """Let a device fall off the bus until the next reboot."""
        ...

    def add_foreign(self, device: str, profile: str, start: int) -> bool:
        """Make an instance behind the agent's back; False where there is no room for it."""
        ...

    def remove(self, device: str, start: int) -> bool:
        """Remove an instance behind the agent's back, and what runs on it; False where none is."""
        ...

    def refuse(self, times: int) -> None:
        """Answer IN_USE to the next changes of partitions."""
        ...

    def cling(self, times: int) -> None:
        """Let processes that are on devices now outlive being asked to stop, for a while."""
        ...

    def close(self) -> None:
        """Let go of open files."""
        ...


@dataclass(slots=True)
class HookedFaults(Faults):
    """Faults whose crash points ask a hook."""

    hook: Hook = field(default=lambda _name: None)

    def point(self, name: str) -> None:
        """Pass a change on to the hook."""
        self.hook(name)


class SimulatedStage:
    """Devices of the plain simulated driver; holders are played by the driver, so there is no runtime."""

    def __init__(self, folder: Path, board: str, count: int, clock: Clock) -> None:
        self.facts = device_facts(NODE, board, count)
        self._folder, self._clock = folder, clock
        self._faults = HookedFaults()
        self._boot = 1
        self._lost: set[str] = set()
        self._driver = self._open()

    @property
    def hook(self) -> Hook:
        """What is called before and after every change."""
        return self._faults.hook

    @hook.setter
    def hook(self, hook: Hook) -> None:
        self._faults.hook = hook

    def life(self) -> tuple[Driver, Runtime | None]:
        """Open the same hardware again."""
        self._driver.close()
        self._driver = self._open()
        for device in self._lost:
            self._driver.lose(device)
        return self._driver, None

    def partitions(self) -> list[PartitionFact]:
        """Return what stands on devices that are still there."""
        return [
            part
            for fact in self.facts
            if fact.uuid not in self._lost
            for part in self._driver.observe(fact.uuid)
        ]

    def traces(self) -> frozenset[Trace]:
        """Return partitions and tenants."""
        return frozenset(
            (part.device, part.profile, str(part.start), part.lease, part.uuid, self._tenant(part.uuid))
            for part in self.partitions()
        )

    def _tenant(self, partition: str) -> str:
        return "busy" if self._driver.processes(partition) else ""

    def move_in(self, key: Key, *, stubborn: bool) -> None:
        """Nothing: the driver plays the holder."""

    def is_working(self, key: Key, places: Iterable[tuple[str, int]]) -> bool:
        """Say whether the tenant is inside."""
        standing = {(part.device, part.start): part.uuid for part in self.partitions() if part.size}
        return all(place not in standing or bool(self._driver.processes(standing[place])) for place in places)

    def pass_time(self) -> None:
        """Nothing happens on this host by itself."""

    def reboot(self) -> None:
        """Restart the host: lost devices are back, clinging processes gone."""
        self._boot += 1
        self._lost.clear()
        self._faults.stubborn.clear()
        self._faults.refusals.clear()

    def lose(self, device: str) -> None:
        """Let a device fall off the bus."""
        self._lost.add(device)
        self._driver.lose(device)

    def add_foreign(self, device: str, profile: str, start: int) -> bool:
        """Make an instance on a free place of a device that is not given whole or in shares."""
        if device in self._lost or any(part.device == device and part.lease for part in self.partitions()):
            return False
        try:
            self._driver.add_foreign(device, profile, start)
        except NvmlLikeError:
            return False
        return True

    def remove(self, device: str, start: int) -> bool:
        """End what runs on an instance and remove it."""
        for part in self.partitions():
            if (part.device, part.start) != (device, start) or part.lease:
                continue
            self._faults.refusals.pop("destroy", None)  # what is planned is for the agent
            self._driver.detach(part.uuid, kill=True)
            self._driver.processes(part.uuid)  # a look at them finds them gone
            self._driver.destroy(part.uuid)
            return True
        return False

    def refuse(self, times: int) -> None:
        """Plan refusals of both verbs that change partitions."""
        for verb in ("create", "destroy"):
            self._faults.refusals[verb] = deque([errors.IN_USE] * times)

    def cling(self, times: int) -> None:
        """Let every process outlive some looks."""
        self._faults.stubborn.update({part.uuid: times for part in self.partitions()})

    def close(self) -> None:
        """Let go of the hardware's file."""
        self._driver.close()

    def _open(self) -> SimulatedDriver:
        return SimulatedDriver(
            self.facts, self._folder, f"boot-{self._boot}", faults=self._faults, clock=self._clock
        )
