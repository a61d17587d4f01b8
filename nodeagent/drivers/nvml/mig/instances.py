"""The MIG instances of devices, by the names that leases know them by, and what measuring needs to know of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.drivers.nvml.library.calls import NvmlCalls
from nodeagent.drivers.nvml.library.handles import DeviceHandles
from nodeagent.drivers.nvml.library.processes import running
from nodeagent.drivers.nvml.library.values import text
from nodeagent.drivers.nvml.mig.control import MigCompute, MigControl, MigInstance
from nodeagent.drivers.nvml.mig.profiles import MigSizes
from nodeagent.drivers.nvml.shares.partitions import SharePartitions
from nodeagent.drivers.nvml.telemetry.live import LiveSlice
from nodeagent.drivers.shares import ALL, WHOLE, HeldShare, ShareBook
from nodeagent.protocol.messages import DeviceFact, PartitionFact

# Names of instances that were made on one device in one boot; a place has one name on the devices seen so far.
MOST_NAMES: Final = 256


@dataclass(frozen=True, slots=True)
class MigSlice:
    """One MIG instance under one name; ``inside`` None is half made: nobody can use it."""

    device: str
    instance: MigInstance
    inside: MigCompute | None

    @property
    def name(self) -> str:
        """Return its MIG UUID, or ``<gpu>/gi<n>`` where it has none yet."""
        return half_name(self.device, self.instance.gi_id) if self.inside is None else self.inside.uuid

    @property
    def ci_id(self) -> int | None:
        """Return its compute instance, None without one."""
        return None if self.inside is None else self.inside.ci_id

    @property
    def handle(self) -> Any:
        """Return the handle of its MIG device, None without one."""
        return None if self.inside is None else self.inside.handle

    def fact(self) -> PartitionFact:
        """Return it as the agent reports it. A part of an instance has a name that no profile has."""
        size = self.instance.size
        is_part = self.inside is not None and not self.inside.is_all
        profile = f"part-of-{size.name}" if is_part else size.name
        return PartitionFact(self.name, self.device, profile, self.instance.start, self.instance.span)

    def live(self, device: DeviceFact) -> LiveSlice | None:
        """Return it as measuring needs it, None where there is nothing to measure."""
        profile = self.instance.size.fact
        if self.inside is None or profile is None:
            return None
        share = 0
        if profile.sm_count and device.sm_count:
            share = min(1000, 1000 * profile.sm_count // device.sm_count)
        return LiveSlice(
            partition=self.name,
            device=self.device,
            start=self.instance.start,
            mode="mig",
            memory_mib=profile.memory_mib,
            share_milli=share,
            gi_id=self.instance.gi_id,
            ci_id=self.inside.ci_id,
            handle=self.inside.handle,
        )


def slices_of(device: str, instances: list[MigInstance]) -> list[MigSlice]:
    """Return the names that a device's instances go by: one each, or one for each part of it."""
    found = []
    for instance in instances:
        found += [MigSlice(device, instance, one) for one in instance.inside or (None,)]
    return found


def half_name(device: str, gi_id: int) -> str:
    """Return the stand-in for the UUID that an instance without compute instance does not have."""
    return f"{device}/gi{gi_id}"


def half_device(partition: str) -> str:
    """Return the device that a half-made instance's name begins with, "" for other names."""
    device, slash, _ = partition.partition("/gi")
    return device if slash else ""


class MigSlices:
    """Looks at devices, and remembers the last look of each: enough to measure by, never to act on."""

    def __init__(
        self,
        calls: NvmlCalls,
        devices: DeviceHandles,
        mig: MigControl,
        parts: SharePartitions,
        names: ShareBook,
        read: Callable[[str], str],
    ) -> None:
        """Take the devices, and a book in which to note on which device a name was made: a lost device cannot say."""
        self._calls, self._devices, self._mig = calls, devices, mig
        self._shares, self._names, self._read = parts, names, read
        self.sizes: dict[str, MigSizes] = {}
        self._seen: dict[str, list[MigSlice]] = {}
        self._whose: dict[str, set[int]] = {}

    def look(self, device: str) -> list[MigSlice]:
        """List the MIG instances of a device anew; raises NvmlLikeError."""
        found = slices_of(device, self._mig.instances(self._devices.fresh(device), self.sizes[device]))
        self._seen[device] = found
        return found

    def seen(self, partition: str) -> MigSlice | None:
        """Return a MIG instance as last seen, if its handle still means it; it need not stand where it did."""
        found = self._last(partition)
        if found is None or found.handle is None:
            return None
        return found if text(self._calls.ask("nvmlDeviceGetUUID", found.handle)) == partition else None

    def note(self, made: MigSlice, owner: str) -> None:
        """Write down on which device an instance was made, also for when it is gone: to be asked again is usual."""
        self._names.put(HeldShare(made.name, made.device, owner, "mig"))
        noted = self._names.on(made.device)
        if len(noted) > MOST_NAMES:
            existing = {one.name for one in self._seen.get(made.device, ())} | {made.name}
            for name in noted:
                if name.partition not in existing:
                    self._names.drop(name.partition)

    def adopt(self, partition: str, owner: str) -> None:
        """Note an instance that stands already: whoever made it may have died before it was noted."""
        if self._names.get(partition) is None and (found := self.find(partition)) is not None:
            self.note(found, owner)

    def find(self, partition: str) -> MigSlice | None:
        """Find a MIG instance by a new look at the device it was made on, else at all of them.

        A device that cannot be read may have what was made by others there, so that it is not found is no answer.
        """
        refused: NvmlLikeError | None = None
        device = self._device_of(partition)
        for each in [device] if device else list(self.sizes):
            try:
                found = next((one for one in self.look(each) if one.name == partition), None)
            except NvmlLikeError as no:
                refused = refused or no
                continue
            if found is not None:
                return found
        if refused is None and self._devices.silent and not device:
            refused = NvmlLikeError(
                errors.GPU_IS_LOST, f"{partition} may be on a device of this node that does not tell its UUID"
            )
        if refused is not None:
            raise refused
        return None

    def live(self, facts: Mapping[str, DeviceFact]) -> list[LiveSlice]:
        """Return everything that can be measured, as last seen; whose processes are whose is read anew."""
        self._whose = {}
        return [one for device, fact in list(facts.items()) for one in self._live(device, fact)]

    def pids_of(self, partition: str) -> Collection[int] | None:
        """Return the processes of a share as of the last ``live``, None where they cannot be told apart."""
        return self._whose.get(partition)

    def _last(self, partition: str) -> MigSlice | None:
        return next((one for its in list(self._seen.values()) for one in its if one.name == partition), None)

    def _device_of(self, partition: str) -> str:
        """Return the device that a name belongs to, "" where it was made by somebody else and never seen here."""
        noted, last = self._names.get(partition), self._last(partition)
        known = half_device(partition) or (noted.device if noted else "") or (last.device if last else "")
        return known if known in self.sizes else ""

    def _live(self, device: str, fact: DeviceFact) -> list[LiveSlice]:
        slices = self._seen.get(device)
        if slices is None:
            with suppress(NvmlLikeError):  # then there is nothing to measure by until somebody looks
                slices = self.look(device)
        if slices or fact.mig_enabled:
            return [live for one in slices or () if (live := one.live(fact)) is not None]
        noted = self._shares.book.on(device)
        shares = [share for share in noted if share.mode != WHOLE]
        if not shares:
            owner = next((share.owner for share in noted), "")
            return [LiveSlice(device, device, 0, WHOLE, fact.memory_mib, ALL, owner=owner)]
        with suppress(NvmlLikeError):  # not listed: then nobody's part is known
            listed = running(self._calls, self._devices[device], self._read)
            self._whose.update(self._shares.whose(device, listed))
        return [
            LiveSlice(s.partition, device, 0, s.mode, s.memory_mib, s.share_milli, owner=s.owner)
            for s in shares
        ]
