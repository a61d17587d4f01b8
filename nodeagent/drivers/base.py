"""What every driver can do. A driver reports facts and obeys; it never chooses a place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from nodeagent.protocol.messages import DeviceFact, DeviceSample, HealthFact, PartitionFact


@dataclass(frozen=True, slots=True)
class PartitionShape:
    """What a partition looks like. ``size`` counts memory slices; 0 is a share of a shared device."""

    mode: str
    profile: str = ""
    size: int = 0
    share_milli: int = 0
    memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class ShapeOffer:
    """A shape that a device can have, the positions where it may start and how many fit at most."""

    shape: PartitionShape
    starts: tuple[int, ...]
    most: int


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who works inside a partition: lease, local account, team. ``load_pattern`` is for simulated devices only."""

    lease: str
    load_pattern: str = ""
    user: str = ""
    team: str = ""


@dataclass(frozen=True, slots=True)
class Access:
    """How a holder reaches a partition: environment (a convenience), device nodes (the boundary).

    ``folders`` of the host must be visible inside a container as well (MPS keeps its pipes in one). ``binds``
    are files and nodes of the host that must appear inside under another path (host path: path inside).
    """

    env: dict[str, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    binds: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProcessFact:
    """A process that a device lists, by host pid; memory None is unknown, ``name`` "" too.

    ``is_mps``: it works through an MPS server, as the device itself says.
    """

    pid: int
    memory_mib: int | None = None
    name: str = ""
    is_mps: bool = False


@dataclass(frozen=True, slots=True)
class PartitionSample:
    """One partition at one second; None is unknown. ``source`` names where the utilisation came from.

    ``sources`` names those of other values, by field (see messages.SlotSample).
    """

    partition: str
    device: str
    start: int
    util_percent: float | None
    memory_used_mib: int | None
    memory_mib: int
    source: str
    sm_percent: float | None = None
    tensor_percent: float | None = None
    bandwidth_percent: float | None = None
    power_w: float | None = None
    sources: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DriverReading:
    """Everything measured in one second."""

    devices: tuple[DeviceSample, ...] = ()
    partitions: tuple[PartitionSample, ...] = ()


class DeviceCatalogue(Protocol):
    """What is in this host: devices, what each can be cut into, and the boot that all of it belongs to."""

    name: str
    version: str

    def boot_id(self) -> str:
        """Return the identity of this boot: partitions never outlive it."""
        ...

    def inventory(self) -> list[DeviceFact]:
        """Return the devices and what each can do."""
        ...

    def catalogue(self, device: str) -> list[ShapeOffer]:
        """Return the shapes a device can have, with their legal positions."""
        ...


class Partitioner(Protocol):
    """What stands on the devices, made and removed at exact places. Calls for one device never overlap."""

    def observe(self, device: str) -> list[PartitionFact]:
        """Return the partitions that exist now, half-made ones (uuid ending in ``/gi<n>``) included.

        ``lease`` of a fact is the owner given to ``create`` where the device remembers it.
        """
        ...

    def create(self, device: str, shape: PartitionShape, position: int, owner: str = "") -> PartitionFact:
        """Make one partition at exactly this position. ``owner`` tells shares of one device apart."""
        ...

    def destroy(self, partition: str) -> None:
        """Remove a partition; gone already is success. Raises IN_USE while a process is on it."""
        ...

    def abandon(self, device: str, owner: str) -> None:
        """Forget what an owner had on a device that is lost, and end what the driver itself runs for it.

        What brings the device back leaves nothing standing on it. Raises IN_USE while the owner's programs still
        hold what the driver runs. Safe to repeat.
        """
        ...

    def mig_mode(self, device: str) -> bool | None:
        """Return whether MIG is on now, None where the device has none or does not say; reads that device alone."""
        ...

    def set_mig_mode(self, device: str, enabled: bool) -> int:
        """Switch an empty device; returns the activation status (0, IN_USE or RESET_REQUIRED)."""
        ...


class TenantGate(Protocol):
    """A tenant on a partition: prepared, let in, held to its limits, told, and out again.

    For one lease: attach, access, (its unit is opened), confine; then detach, (its unit is closed).
    """

    def attach(self, partition: str, tenant: Tenant) -> None:
        """Prepare a partition for its tenant, before its unit is opened (an MPS daemon); safe to repeat."""
        ...

    def access(self, partition: str) -> Access:
        """Return how its holder reaches a partition."""
        ...

    def confine(self, partition: str, cgroup: str) -> None:
        """Bind what the partition limits to the tenant's cgroup, before its work starts; safe to repeat.

        Of a share in use it is asked at every look: what holds the share to its size is put back where it is gone,
        which disturbs nobody, and ``health`` tells.

        ``cgroup`` is an absolute path below /sys/fs/cgroup, "" where the runtime has none. Reads back what it
        set; raises NotOfferedError where a limit that the shape asks for cannot be kept.
        """
        ...

    def detach(self, partition: str, *, kill: bool) -> None:
        """Loosen limits and end what the driver itself started for the tenant; with ``kill`` at once.

        Processes in the tenant's unit are its runtime's business. Safe to repeat and on what is gone.
        """
        ...

    def tell(self, partition: str, why: str) -> None:
        """Let the tenant's processes know, if they listen, that they must end soon; safe to repeat."""
        ...

    def processes(self, partition: str) -> list[ProcessFact]:
        """Return the processes on a partition."""
        ...


class Sensors(Protocol):
    """What devices say of themselves: figures and health."""

    def metrics(self) -> DriverReading:
        """Measure devices and partitions once; what cannot be measured is None."""
        ...

    def health(self) -> list[HealthFact]:
        """Return what devices say about their health now; an empty list is good news."""
        ...


class PowerSwitch(Protocol):
    """The node's sleep."""

    def power(self) -> str:
        """Return "awake" or "asleep" as read now, "unsupported" where nodes cannot sleep, "" when unknown."""
        ...

    def set_power(self, *, asleep: bool) -> None:
        """Let all devices of the node sleep, or wake them; safe to repeat.

        Raises IN_USE while a process is on a device, NotOfferedError where this cannot be done at all.
        """
        ...


class Driver(DeviceCatalogue, Partitioner, TenantGate, Sensors, PowerSwitch, Protocol):
    """Everything that a vendor's driver does; whoever calls it asks for the part above that it needs.

    Devices and partitions are named by UUID. Refusals are NvmlLikeError, NotOfferedError where a
    version cannot do it at all. Calls may block when ``is_blocking``; calls for different devices
    may then come from different threads, calls for one device never overlap.
    """

    @property
    def is_blocking(self) -> bool:
        """Say whether verbs take time."""
        ...

    def close(self) -> None:
        """Let go of files and threads; what stands on the devices stays. Nothing is asked of it afterwards."""
        ...
