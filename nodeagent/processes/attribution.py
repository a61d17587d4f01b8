"""Who uses the devices: every process that a device lists, whose lease it belongs to, and what to do about the rest.

A process belongs to a lease when it runs inside the lease's unit and on the lease's slice. What the unit says comes
from the process's cgroup, which it cannot leave; names are a convenience and only ever excuse, never accuse.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from nodeagent.drivers.base import ProcessFact
from nodeagent.drivers.errors import NotOfferedError, NvmlLikeError
from nodeagent.host.files import subfolders
from nodeagent.host.services import DISPLAYS, is_service, short_name, short_names, start_of
from nodeagent.protocol.fault_rules import FaultRules, standard, told
from nodeagent.protocol.messages import HealthFact, ProcessSample
from nodeagent.runtimes.cdi import is_engines
from nodeagent.runtimes.cgroups import Cgroups

log = logging.getLogger(__name__)

Key = tuple[str, int]

HELD: Final = "held"
OPEN: Final = "open"
ORPHAN: Final = "orphan"
SYSTEM: Final = "system"

LOOKS_TO_TELL: Final = 2
MOST_SAMPLES: Final = 1024
MOST_NAMED: Final = 10


class ProcessLister(Protocol):
    """The verb of a driver that this needs."""

    def processes(self, partition: str) -> list[ProcessFact]:
        """Return the processes on a partition, or on a whole device by its uuid."""
        ...


class LeaseFinder(Protocol):
    """The verb of a runtime that this needs."""

    def lease_of(self, pid: int) -> Key | None:
        """Return the lease in whose unit a process runs."""
        ...


@dataclass(frozen=True, slots=True)
class Holding:
    """One place of a live lease. ``has_unit``: the runtime keeps its holder's processes in a unit or containers.

    ``has_door``: containers can be given it.
    """

    lease: str
    generation: int
    device: str
    partition: str
    mode: str
    has_unit: bool = True
    has_door: bool = False

    @property
    def key(self) -> Key:
        """Identity of its lease."""
        return self.lease, self.generation


@dataclass(frozen=True, slots=True)
class SeenProcess:
    """A process on a device. ``started`` (clock ticks since boot, "" unknown) tells it from a later one of its pid.

    ``looks``: how many looks in a row found it so. ``in_container``: an engine of the host runs it.
    """

    pid: int
    device: str
    state: str
    lease: str = ""
    name: str = ""
    memory_mib: int | None = None
    started: str = ""
    bypasses_mps: bool = False
    is_of_live_lease: bool = False
    looks: int = 1
    in_container: bool = False


@dataclass(frozen=True, slots=True)
class Scan:
    """What one scan found. ``unread``: devices whose processes could not be listed, with the reason.

    ``crowded``: devices with a lasting orphan, displays and programs that the operator allows left out whoever runs
    them: a desktop takes little of a device, and nobody else is accused by that.
    """

    seen: tuple[SeenProcess, ...] = ()
    facts: tuple[HealthFact, ...] = ()
    unread: dict[str, str] = field(default_factory=dict)
    crowded: frozenset[str] = frozenset()

    def samples(self) -> tuple[ProcessSample, ...]:
        """Return what the portal is told; orphans first, so that a bound never hides them."""
        order = sorted(self.seen, key=lambda one: (one.state != ORPHAN, one.device, one.pid))
        return tuple(
            ProcessSample(one.pid, one.device, one.state, one.lease[:200], one.name[:200], one.memory_mib)
            for one in order[:MOST_SAMPLES]
        )


class ProcessScanner:
    """Scans the processes on all devices and remembers how often it saw each orphan."""

    def __init__(
        self,
        driver: ProcessLister,
        runtime: LeaseFinder,
        read: Callable[[str], str],
        *,
        allowed: Iterable[str] = (),
        rules: FaultRules | None = None,
    ) -> None:
        """Take the driver, the runtime, how to read /proc, and names that the operator excuses as well."""
        self._driver = driver
        # A driver may have a wider verb: of a device that is leased whole, the plain one tells the lease's alone.
        self._listed: Callable[[str], list[ProcessFact]] = getattr(driver, "listed", driver.processes)
        self._runtime = runtime
        self._read = read
        self._allowed = short_names(allowed)
        self._mps_uids: Callable[[str], frozenset[int]] = getattr(driver, "mps_uids", _no_mps_uids)
        self._cgroups = Cgroups(read, subfolders, os.path.exists)
        self._rules = rules or standard()
        self._before: dict[tuple[str, int, str], SeenProcess] = {}
        self._live: Sequence[Holding] = ()

    def scan(
        self, devices: Sequence[str], partitions: Mapping[str, Sequence[str]], holdings: Sequence[Holding]
    ) -> Scan:
        """Look once at these devices. ``partitions``: what stands on each, also what is not ours."""
        self._live = holdings
        seen: list[SeenProcess] = []
        unread: dict[str, str] = {}
        for device in devices:
            mine = [holding for holding in holdings if holding.device == device]
            try:
                seen += self._device(device, partitions.get(device, ()), mine)
            except (NvmlLikeError, NotOfferedError) as no:
                unread[device] = str(no)
        counted = tuple(self._counted(one) for one in seen)
        # A device that could not be read keeps its counts: not seen is not gone.
        kept = {key: one for key, one in self._before.items() if key[0] in unread}
        self._before = kept | {_identity(one): one for one in counted}
        return Scan(counted, tuple(self._facts(counted)), unread, frozenset(self._crowded(counted)))

    def _device(
        self, device: str, partitions: Sequence[str], holdings: Sequence[Holding]
    ) -> Iterable[SeenProcess]:
        """Return the processes on one device; raises NvmlLikeError where they cannot be listed."""
        listed = {fact.pid: fact for fact in self._listed(device)}
        places: dict[int, set[str]] = {}
        dark: set[str] = set()
        for partition in partitions:
            if partition == device or partition.endswith("/unknown"):
                continue
            try:
                facts = self._driver.processes(partition)
            except (NvmlLikeError, NotOfferedError) as no:
                log.debug("the processes on %s cannot be listed: %s", partition, no)
                dark.add(partition)
                continue
            for fact in facts:
                places.setdefault(fact.pid, set()).add(partition)
                listed.setdefault(fact.pid, fact)
        # A process may be on a slice that could not be read: its lease has the benefit of the doubt.
        return [self._judge(fact, device, places.get(pid, dark), holdings) for pid, fact in listed.items()]

    def _judge(
        self, fact: ProcessFact, device: str, places: set[str], holdings: Sequence[Holding]
    ) -> SeenProcess:
        name = self._name(fact)
        started = self._started(fact.pid)

        in_container = is_engines(self._cgroups.path_of(fact.pid))

        def seen(state: str, lease: str = "", bypasses_mps: bool = False) -> SeenProcess:
            own = (fact.pid, device, state, lease, name, fact.memory_mib, started, bypasses_mps)
            return SeenProcess(*own, in_container=in_container)

        key = self._runtime.lease_of(fact.pid)
        if key is not None:
            here = [h for h in holdings if h.key == key and _is_on(h, places)]
            if not here:
                is_live = any(h.key == key for h in self._live)
                return replace(seen(ORPHAN, key[0]), is_of_live_lease=is_live)
            return seen(HELD, key[0], any(h.mode == "mps" for h in here) and not fact.is_mps)
        mps_uids = self._mps_uids(device)
        if is_service(self._read, fact.pid, name, allowed=self._allowed, mps_uids=mps_uids):
            return seen(SYSTEM)
        reached = [h for h in holdings if _is_on(h, places)]
        doors = {h.lease for h in reached if not h.has_unit or (h.has_door and in_container)}
        if doors:
            # Shares of one device cannot be told apart so: then it is nobody's in particular.
            return seen(OPEN, doors.pop() if len(doors) == 1 else "")
        return seen(ORPHAN)

    def _name(self, fact: ProcessFact) -> str:
        return self._proc(fact.pid, "comm").strip() or fact.name.rpartition("/")[2]

    def _started(self, pid: int) -> str:
        return start_of(self._read, pid)

    def _proc(self, pid: int, what: str) -> str:
        try:
            return self._read(f"/proc/{pid}/{what}")
        except OSError:
            return ""

    def _counted(self, one: SeenProcess) -> SeenProcess:
        before = self._before.get(_identity(one))
        if before is None or (before.state, before.bypasses_mps) != (one.state, one.bypasses_mps):
            return one
        return replace(one, looks=before.looks + 1)

    def _crowded(self, seen: Sequence[SeenProcess]) -> Iterable[str]:
        small = short_names(DISPLAYS) | self._allowed
        for one in seen:
            if one.state == ORPHAN and one.looks >= LOOKS_TO_TELL and short_name(one.name) not in small:
                yield one.device

    def _facts(self, seen: Sequence[SeenProcess]) -> Iterable[HealthFact]:
        """Return one fact per device for orphans and one for those that go past MPS, from the second look on."""
        lasting = [one for one in seen if one.looks >= LOOKS_TO_TELL]
        for device in dict.fromkeys(one.device for one in lasting):
            here = [one for one in lasting if one.device == device]
            for code, chosen in (
                ("orphan_process", [one for one in here if one.state == ORPHAN]),
                ("outside_mps", [one for one in here if one.bypasses_mps]),
            ):
                if chosen:
                    yield told(self._rules.of(code), device, _named(chosen))


def _is_on(holding: Holding, places: set[str]) -> bool:
    """Say whether a process is where the lease is. Devices tell apart MIG slices only: shares and whole devices are
    matched by the device.
    """
    return holding.mode != "mig" or holding.partition in places


def _identity(one: SeenProcess) -> tuple[str, int, str]:
    return one.device, one.pid, one.started


def _named(chosen: Sequence[SeenProcess]) -> str:
    first = ", ".join(
        f"pid {one.pid} {one.name or 'of unknown name'}" + (f", lease {one.lease}" if one.lease else "")
        for one in chosen[:MOST_NAMED]
    )
    more = len(chosen) - MOST_NAMED
    return f"{first} and {more} more" if more > 0 else first


def _no_mps_uids(device: str) -> frozenset[int]:
    return frozenset()
