"""What every driver can do. A driver reports facts and obeys; it never chooses a place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from nodeagent.protocol.messages import DeviceFact, DeviceSample, HealthFact, PartitionFact


@dataclass(frozen=True, slots=True)
class Shape:
    """What a partition looks like. ``size`` counts memory slices; 0 is a share of a shared device."""

    mode: str
    profile: str = ""
    size: int = 0
    share_milli: int = 0
    memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class Offer:
    """A shape that a device can have, the positions where it may start and how many fit at most."""

    shape: Shape
    starts: tuple[int, ...]
    most: int


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who works inside a partition. ``load_pattern`` matters to simulated devices only."""

    lease: str
    load_pattern: str = ""


@dataclass(frozen=True, slots=True)
class Access:
    """How a holder reaches a partition: environment (a convenience) and device nodes (the boundary)."""

    env: dict[str, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessFact:
    """A process that a device lists, by host pid; memory None is unknown."""

    pid: int
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionSample:
    """One partition at one second; None is unknown. ``source`` names where the utilisation came from."""

    partition: str
    device: str
    start: int
    util_percent: float | None
    memory_used_mib: int | None
    memory_mib: int
    source: str


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything measured in one second."""

    devices: tuple[DeviceSample, ...] = ()
    partitions: tuple[PartitionSample, ...] = ()


class Driver(Protocol):
    """Nine verbs, three that sharing needs (``set_mig_mode``, ``attach``, ``detach``), ``tell``, two for energy.

    Devices and partitions are named by UUID. Refusals are NvmlLikeError, NotOfferedError where a
    version cannot do it at all. Calls may block when ``is_blocking``; calls for different devices
    may then come from different threads, calls for one device never overlap.
    """

    name: str
    version: str

    @property
    def is_blocking(self) -> bool:
        """Say whether verbs take time."""
        ...

    def boot_id(self) -> str:
        """Return the identity of this boot: partitions never outlive it."""
        ...

    def inventory(self) -> list[DeviceFact]:
        """Return the devices and what each can do."""
        ...

    def catalogue(self, device: str) -> list[Offer]:
        """Return the shapes a device can have, with their legal positions."""
        ...

    def observe(self, device: str) -> list[PartitionFact]:
        """Return the partitions that exist now, half-made ones (uuid ending in ``/gi<n>``) included.

        ``lease`` of a fact is the owner given to ``create`` where the device remembers it.
        """
        ...

    def create(self, device: str, shape: Shape, position: int, owner: str = "") -> PartitionFact:
        """Make one partition at exactly this position. ``owner`` tells shares of one device apart."""
        ...

    def destroy(self, partition: str) -> None:
        """Remove a partition; gone already is success. Raises IN_USE while a process is on it."""
        ...

    def access(self, partition: str) -> Access:
        """Return how its holder reaches a partition."""
        ...

    def processes(self, partition: str) -> list[ProcessFact]:
        """Return the processes on a partition."""
        ...

    def metrics(self) -> Reading:
        """Measure devices and partitions once; what cannot be measured is None."""
        ...

    def health(self) -> list[HealthFact]:
        """Return what devices say about their health now; an empty list is good news."""
        ...

    def set_mig_mode(self, device: str, enabled: bool) -> int:
        """Switch an empty device; returns the activation status (0, IN_USE or RESET_REQUIRED)."""
        ...

    def attach(self, partition: str, tenant: Tenant) -> None:
        """Let a tenant in; safe to repeat."""
        ...

    def detach(self, partition: str, *, kill: bool) -> None:
        """Ask the tenant's processes to stop, or end them; safe to repeat and on what is gone."""
        ...

    def tell(self, partition: str, why: str) -> None:
        """Let the tenant's processes know, if they listen, that they must end soon; safe to repeat."""
        ...

    def power(self) -> str:
        """Return "awake" or "asleep" as read now, "unsupported" where nodes cannot sleep, "" when unknown."""
        ...

    def set_power(self, *, asleep: bool) -> None:
        """Let all devices of the node sleep, or wake them; safe to repeat.

        Raises IN_USE while a process is on a device, NotOfferedError where this cannot be done at all.
        """
        ...
