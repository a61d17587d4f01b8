"""What the connection to the portal asks of whoever keeps a node's leases: of a host's devices, or a cluster's pool."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from nodeagent.drivers.base import DriverReading
from nodeagent.protocol.messages import (
    Desired,
    DeviceFact,
    HealthFact,
    LeaseReport,
    PartitionFact,
    ProcessSample,
)
from nodeagent.reconcile.lease_records import Key, LeaseRecord
from nodeagent.reconcile.ledger import Ledger


class NodeLeases(Protocol):
    """The leases of a node as its portal hears of them."""

    node: str
    ledger: Ledger
    lease_records: dict[Key, LeaseRecord]

    @property
    def driver(self) -> DriverIdentity:
        """Return what makes the leases real."""
        ...

    @property
    def devices(self) -> Mapping[str, DeviceFact]:
        """Return the devices by uuid."""
        ...

    @property
    def runtime_name(self) -> str:
        """Return how holders get in, "" for unknown."""
        ...

    @property
    def carried_out(self) -> int:
        """Return the last revision on which nothing is left to be done."""
        ...

    @property
    def is_unacknowledged(self) -> bool:
        """Say whether a report waits for its answer."""
        ...

    def meet(self, epoch: int, *, enrolled: bool) -> None:
        """Take the epoch of a welcome as the lowest that is obeyed from now on."""
        ...

    def lease_reports(self, seq: int) -> tuple[LeaseReport, ...] | None:
        """Return what is known of every lease, None when it cannot be journalled."""
        ...

    def acknowledged(self, seq: int) -> None:
        """Forget gone leases that the portal has stored and no longer wants."""
        ...

    def disconnected(self) -> None:
        """Tell everything again on the next connection."""
        ...

    def is_beginning_job(self, since: int) -> bool:
        """Say whether a lease that became ready after ``since`` has a job that is to begin."""
        ...

    def health_facts(self) -> tuple[HealthFact, ...]:
        """Return what is wrong now."""
        ...

    def partition_facts(self) -> tuple[PartitionFact, ...]:
        """Return what stands on the devices."""
        ...

    def power_facts(self) -> tuple[str, str]:
        """Return the node's power, and why it is not what was wanted."""
        ...


class DriverIdentity(Protocol):
    """Who makes leases real, by name and version."""

    @property
    def name(self) -> str:
        """Return what it is called."""
        ...

    @property
    def version(self) -> str:
        """Return its version, or that of what it speaks to."""
        ...

    def boot_id(self) -> str:
        """Return the life of the machine that numbers of frames belong to."""
        ...


class NodeWork(Protocol):
    """Who works on a node's leases while the connection talks. ``changed`` is set when there is news to report."""

    changed: asyncio.Event
    processes: tuple[ProcessSample, ...] | None

    @property
    def reconciler(self) -> NodeLeases:
        """Return the leases."""
        ...

    def accept(self, desired: Desired) -> None:
        """Take a desired state and begin to work on it; raises FenceError."""
        ...

    async def run(self) -> None:
        """Work until cancelled."""
        ...

    async def inventory(self) -> tuple[DeviceFact, ...]:
        """Return the devices as they are now."""
        ...

    async def measure(self) -> DriverReading:
        """Return one reading of all devices."""
        ...

    async def recent_reading(self, within_ns: int) -> DriverReading:
        """Return the last reading where it is so young, else a new one."""
        ...
