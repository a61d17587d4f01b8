"""Devices that are leased whole or in shares which a vendor's tool makes: one set of rules for several vendors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from nodeagent.drivers import errors
from nodeagent.drivers.base import DriverReading, PartitionSample, PartitionShape, ProcessFact, ShapeOffer
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.drivers.owners import left_on, own
from nodeagent.drivers.shares import ALL, WHOLE, HeldShare
from nodeagent.drivers.vendor import Read, VendorDriver, share_name
from nodeagent.protocol.messages import DeviceFact, DeviceSample, PartitionFact

Choice = Callable[[HeldShare, list[HeldShare], list[ProcessFact], Read], list[ProcessFact]]


class Cutter(Protocol):
    """How one vendor's tool cuts a device: sizes in its own terms, parts by its own names ("handles").

    ``removes_one``: a single part can be removed; else only all parts of a device at once.
    """

    kind: str
    removes_one: bool

    def size(self, fact: DeviceFact, shape: PartitionShape) -> str:
        """Return what a shape means to the tool; INVALID_ARGUMENT with a sentence when it means nothing."""
        ...

    def existing(self, fact: DeviceFact) -> dict[str, str]:
        """Return the sizes of the parts that a device has now, by handle."""
        ...

    def make(self, fact: DeviceFact, size: str) -> None:
        """Ask the tool for one more part."""
        ...

    def unmake(self, fact: DeviceFact, handle: str) -> None:
        """Ask the tool to remove a part (all parts of the device where it cannot remove one)."""
        ...


class SharingDriver(VendorDriver):
    """Devices that are leased whole or in shares which the vendor's tool makes and lists."""

    def __init__(
        self, boot_id: str, run_dir: Path, read: Read, cutter: Cutter, *, looks_only: bool = False
    ) -> None:
        super().__init__(boot_id, run_dir, read, looks_only=looks_only)
        self._cutter = cutter

    def catalogue(self, device: str) -> list[ShapeOffer]:
        """Return the whole device and, where its tool can cut it, shares up to the whole device."""
        fact = self._fact(device)
        whole_device = PartitionShape(WHOLE, "", fact.grid, ALL, fact.memory_mib)
        offers = [ShapeOffer(whole_device, (0,), 1)] if WHOLE in fact.modes else []
        shared = PartitionShape("memlimit", "", 0, ALL, fact.memory_mib)
        return [*offers, ShapeOffer(shared, (0,), fact.max_clients)] if "memlimit" in fact.modes else offers

    def observe(self, device: str) -> list[PartitionFact]:
        """Return what stands on a device; parts that the tool lists and nobody here made are foreign."""
        fact = self._fact(device)
        existing = self._existing(fact)
        self._settle(device, existing)
        ours = self._book.on(device)
        known = {share.handle for share in ours}
        facts = [share.fact() for share in ours if not share.is_idle]
        return facts + [
            PartitionFact(f"{device}/{self._cutter.kind}{handle}", device, "memlimit", 0, 0)
            for handle in sorted(existing)
            if handle not in known
        ]

    def create(self, device: str, shape: PartitionShape, position: int, owner: str = "") -> PartitionFact:
        """Hand out the whole device or have its tool make one share; an owner who has it already gets the same."""
        fact = self._fact(device)
        self._require_offered(fact, shape)
        if position != 0:
            raise NvmlLikeError(errors.INVALID_ARGUMENT, f"{shape.mode} has no places: start at 0")
        present = self.observe(device)
        if (mine := next((p for p in present if p.lease and p.lease == owner), None)) is not None:
            return mine
        if shape.mode == WHOLE:
            if present or self._existing(fact):
                raise NvmlLikeError(errors.INSUFFICIENT_RESOURCES, "the device is not empty")
            share = HeldShare(device, device, owner, WHOLE, ALL, fact.memory_mib, size=fact.grid)
            self._book.put(share)
            return share.fact()
        if any(part.size for part in present):
            raise NvmlLikeError(errors.INSUFFICIENT_RESOURCES, "the whole device is leased")
        return self._cut(fact, shape, owner)

    def destroy(self, partition: str) -> None:
        """Give back a whole device or have a share removed; gone already is success."""
        share = self._book.get(partition)
        if share is None or share.is_idle:
            return
        if running := self.processes(partition):
            pids = ", ".join(str(process.pid) for process in running[:5])
            raise NvmlLikeError(errors.IN_USE, f"still running on {partition}: {pids}")
        if share.mode == WHOLE:
            self._book.drop(partition)
        else:
            self._remove(share)

    @abstractmethod
    def device_processes(self, device: str) -> list[ProcessFact]:
        """Return the processes that the tool lists on a whole device."""

    def processes(self, partition: str) -> list[ProcessFact]:
        """Return the processes that keep a partition from being clean; tools list them by device (owners.left_on)."""
        return self._of(partition, left_on)

    def tenants(self, partition: str) -> list[ProcessFact]:
        """Return those that are its tenant's for sure."""
        return self._of(partition, own)

    def _of(self, partition: str, chosen: Choice) -> list[ProcessFact]:
        share = self._book.get(partition)
        if share is None:
            return []
        others = [s for s in self._book.on(share.device) if s.partition != partition and not s.is_idle]
        return chosen(share, others, self.device_processes(share.device), self._read)

    def reading(self, samples: Iterable[DeviceSample]) -> DriverReading:
        """Return a reading of devices together with what is handed out of them."""
        devices = tuple(samples)
        return DriverReading(devices, tuple(part for device in devices for part in self.part_samples(device)))

    def part_samples(self, device: DeviceSample) -> list[PartitionSample]:
        """Return the samples of what is handed out of a device: tools measure devices, so a share's are unknown."""
        found = []
        for held in self._book.on(device.device):
            is_whole = held.mode == WHOLE
            if not held.is_idle:
                found.append(
                    PartitionSample(
                        partition=held.partition,
                        device=held.device,
                        start=0,
                        util_percent=device.util_percent if is_whole else None,
                        memory_used_mib=device.memory_used_mib if is_whole else None,
                        memory_mib=held.memory_mib,
                        source=device.source if is_whole else "unavailable",
                        power_w=device.power_w if is_whole else None,
                    )
                )
        return found

    def _existing(self, fact: DeviceFact) -> dict[str, str]:
        """Return the parts of a device; one that cannot be cut has none, unless somebody holds a share of it.

        A tool that does not answer must not make such a share look gone: what stands is unknown then.
        """
        try:
            return self._cutter.existing(fact)
        except NvmlLikeError:
            is_cut = any(share.mode != WHOLE for share in self._book.on(fact.uuid))
            if is_cut or "memlimit" not in fact.refusals:
                raise
            return {}

    def _settle(self, device: str, existing: dict[str, str]) -> None:
        """Bring the book in line with the device: what is gone is forgotten, what a crash left is taken up."""
        known = {share.handle for share in self._book.on(device) if share.handle}
        for share in self._book.on(device):
            if share.mode == WHOLE or share.handle in existing:
                continue
            new = [
                h for h in sorted(existing) if h not in (*known, *share.before) and existing[h] == share.made
            ]
            if share.handle or not new:
                self._book.drop(share.partition)
            else:
                known.add(new[0])
                self._book.put(replace(share, handle=new[0], before=()))

    def _cut(self, fact: DeviceFact, shape: PartitionShape, owner: str) -> PartitionFact:
        size, existing = self._cutter.size(fact, shape), self._existing(fact)
        ours = self._book.on(fact.uuid)
        share = HeldShare(
            partition=share_name(fact.uuid, self._cutter.kind, owner),
            device=fact.uuid,
            mode="memlimit",
            owner=owner,
            share_milli=shape.share_milli,
            memory_mib=shape.memory_mib,
            profile="memlimit",
            made=size,
            before=tuple(sorted(existing)),
        )
        idle = next((s for s in ours if s.is_idle and s.made == size), None)
        if idle is not None:
            self._book.put(replace(share, handle=idle.handle, before=()))
            if idle.partition != share.partition:
                self._book.drop(idle.partition)
            return self._share(share.partition).fact()
        self._require_room(fact, shape, ours)
        self._book.put(share)
        try:
            self._cutter.make(fact, size)
        finally:
            self._settle(fact.uuid, self._existing(fact))
        made = self._book.get(share.partition)
        if made is None:
            raise NvmlLikeError(
                errors.UNKNOWN, f"the tool took the request for {size}, yet lists no such part"
            )
        return made.fact()

    def _require_room(self, fact: DeviceFact, shape: PartitionShape, ours: list[HeldShare]) -> None:
        if len(ours) >= fact.max_clients:
            raise NvmlLikeError(errors.INSUFFICIENT_RESOURCES, f"{fact.max_clients} shares are the most")
        idle = any(share.is_idle for share in ours)
        why = (
            " (shares that were given back keep theirs until the last one on this device ends)"
            if idle
            else ""
        )
        if sum(share.share_milli for share in ours) + shape.share_milli > ALL:
            raise NvmlLikeError(errors.INSUFFICIENT_RESOURCES, f"not enough compute for another share{why}")
        if sum(share.memory_mib for share in ours) + shape.memory_mib > fact.memory_mib:
            raise NvmlLikeError(errors.INSUFFICIENT_RESOURCES, f"not enough memory for another share{why}")

    def _remove(self, share: HeldShare) -> None:
        """Have the tool remove a share, or set it aside where that would take others along."""
        fact = self._fact(share.device)
        existing, ours = self._existing(fact), self._book.on(share.device)
        gone_with_it = [share]
        if not self._cutter.removes_one:
            others = [s for s in ours if s.partition != share.partition]
            mine = {s.handle for s in ours}
            if any(not s.is_idle for s in others) or any(handle not in mine for handle in existing):
                self._book.put(replace(share, owner="", cgroup="", is_idle=True))
                return
            gone_with_it = ours
        if share.handle in existing:
            self._cutter.unmake(fact, share.handle)
            left = self._existing(fact)
            if any(s.handle in left for s in gone_with_it):
                raise NvmlLikeError(errors.IN_USE, f"{share.partition} is still listed by the tool")
        for gone in gone_with_it:
            self._book.drop(gone.partition)
