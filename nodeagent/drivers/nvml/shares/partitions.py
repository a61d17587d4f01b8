"""Whole devices and shares of them: who has them, what their limits are, how they are reached and given back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from nodeagent.drivers import errors
from nodeagent.drivers.base import Access, PartitionShape, ProcessFact, Tenant
from nodeagent.drivers.errors import NotOfferedError, NvmlLikeError
from nodeagent.drivers.nvml.health.repairs import Repairs, ShareDefect
from nodeagent.drivers.nvml.mps.daemon import MpsShare, UserIds
from nodeagent.drivers.nvml.mps.servers import Mps
from nodeagent.drivers.nvml.shares.memory import MemoryLimits
from nodeagent.drivers.nvml.shares.timeslice import TimeSlice
from nodeagent.drivers.owners import cgroup_of, is_below, left_on, own
from nodeagent.drivers.shares import ALL, WHOLE, HeldShare, ShareBook
from nodeagent.host.services import is_service
from nodeagent.protocol.messages import DeviceFact
from nodeagent.protocol.uuids import share_uuid

PREFIXES: Final = ("MPS-", "MEM-", "TS-")
LIMIT_GONE: Final = "limit_gone"
MPS_LACKS: Final = (LIMIT_GONE, "compute_mode", "mps_gone")
TIME: Final = "time slice"
MPS_NAME: Final = "nvidia-cuda-mps"  # as much of its programs' names as the kernel keeps


@dataclass(frozen=True, slots=True)
class SharePartitions:
    """Shares by the book. Every verb is safe to repeat; handles are those of the device a share is on."""

    book: ShareBook
    mps: Mps
    limits: MemoryLimits
    timeslice: TimeSlice
    read: Callable[[str], str]
    account: Callable[[str], UserIds]
    repairs: Repairs

    def take(self, fact: DeviceFact, shape: PartitionShape, owner: str) -> HeldShare:
        """Note a whole device or a share as the owner's; raises INSUFFICIENT_RESOURCES where it does not fit."""
        others = [share for share in self.book.on(fact.uuid) if share.owner != owner]
        if shape.mode == WHOLE:
            if others:
                raise _full(f"{others[0].owner} has {_name(others[0])}")
            share = HeldShare(fact.uuid, fact.uuid, owner, WHOLE, ALL, fact.memory_mib, size=fact.grid)
        else:
            _require_room(fact, shape, others)
            uuid = share_uuid(fact.uuid, shape.mode, owner)
            share = HeldShare(
                uuid, fact.uuid, owner, shape.mode, shape.share_milli, shape.memory_mib, profile=shape.mode
            )
        known = self.book.get(share.partition)
        if known is None or known.owner != owner:
            self.book.put(share)
        return self.book.get(share.partition) or share

    def attach(self, share: HeldShare, tenant: Tenant) -> None:
        """Start what a share needs before its tenant's unit is opened: the MPS daemon, the device's time slice."""
        share = replace(share, user=tenant.user)
        self.book.put(share)
        if share.mode == "mps":
            if not share.user:
                raise NotOfferedError("MPS needs the local account of its user, and this lease names none")
            self.mps.open(_mps(share), [_mps(other) for other in self._of_user(share)])
        elif share.mode == "timeslice":
            self.timeslice.set(share.device)

    def access(self, share: HeldShare, nodes: tuple[str, ...]) -> Access:
        """Return how the holder of a share reaches it."""
        own = {"CUDA_VISIBLE_DEVICES": share.device}
        if share.mode != "mps":
            return Access(own, nodes)
        way = self.mps.access(_mps(share))
        return replace(way, env={**own, **way.env}, nodes=(*nodes, *way.nodes))

    def confine(
        self, share: HeldShare, handle: Any, cgroup: str, listed: Callable[[], list[ProcessFact]]
    ) -> None:
        """Bind a share's limits to the tenant's cgroup, which also tells its processes from its neighbours'.

        One that was bound before is looked at: what somebody took away meanwhile is put back, and told.
        ``listed`` are the processes on the device.
        """
        # The name goes first: what was limited can be loosened again, even if the agent dies in between.
        self.book.put(replace(share, cgroup=cgroup))
        if share.mode == "memlimit":
            self._limit(share, handle, cgroup)
        elif share.mode == "mps" and share.user and share.cgroup == cgroup:
            self._keep_mps(share, listed)
        elif share.mode == "timeslice" and share.cgroup == cgroup:
            self._keep_slice(share)

    def _limit(self, share: HeldShare, handle: Any, cgroup: str) -> None:
        was_bound = bool(cgroup) and share.cgroup == cgroup
        if was_bound and self.limits.is_kept(handle, cgroup, share.memory_mib):
            self.repairs.fine(share.device, share.partition, LIMIT_GONE)
            return
        what = f"{share.memory_mib} MiB for {share.owner}"
        try:
            self.limits.set(handle, cgroup, share.memory_mib)
        except (NvmlLikeError, NotOfferedError) as no:
            if was_bound:
                lack = ShareDefect(LIMIT_GONE, f"{what}, which cannot be set again: {no}", is_mended=False)
                self.repairs.note(share.device, share.partition, lack)
            raise
        if was_bound:
            self.repairs.note(share.device, share.partition, ShareDefect(LIMIT_GONE, f"{what}, set again"))

    def _keep_mps(self, share: HeldShare, listed: Callable[[], list[ProcessFact]]) -> None:
        others = [_mps(other) for other in self._of_user(share)]
        try:
            lacks = self.mps.keep(
                _mps(share),
                others,
                outside=lambda: self._outside(share.device, listed()),
                servers=lambda: self._servers(share.user, listed()),
            )
        except (NvmlLikeError, NotOfferedError) as no:
            lack = ShareDefect(
                LIMIT_GONE, f"{share.user} by MPS, and it cannot be put right: {no}", is_mended=False
            )
            self.repairs.note(share.device, share.user, lack)
            raise
        if lacks is None:
            return
        for code in MPS_LACKS:
            self.repairs.fine(share.device, share.user, code)
        for lack in lacks:
            self.repairs.note(share.device, share.user, lack)

    def _keep_slice(self, share: HeldShare) -> None:
        try:
            did_hold = self.timeslice.keep(share.device)
        except NvmlLikeError as no:
            self.repairs.note(share.device, TIME, ShareDefect(LIMIT_GONE, str(no), is_mended=False))
            raise
        if did_hold:
            self.repairs.fine(share.device, TIME, LIMIT_GONE)
        elif did_hold is False:
            self.repairs.note(
                share.device, TIME, ShareDefect(LIMIT_GONE, "the device's time slice, set again")
            )

    def _outside(self, device: str, listed: list[ProcessFact]) -> list[int]:
        """Return the programs that use a device past MPS; services of the host do not compute there."""
        mps_uids = self.mps_uids(device)
        users = {share.user for share in self.book.on(device) if share.mode == "mps" and share.user}
        clients = {pid for user in users for pid in self.mps.clients(device, user)}
        return [
            p.pid
            for p in listed
            if not (p.is_mps or p.pid in clients or is_service(self.read, p.pid, p.name, mps_uids=mps_uids))
        ]

    def _servers(self, user: str, listed: list[ProcessFact]) -> list[int]:
        """Return the MPS servers of a user among the processes of a device."""
        try:
            mps_uids = frozenset({self.account(user).uid})
        except LookupError:
            return []
        return [
            p.pid
            for p in listed
            if p.name.startswith(MPS_NAME) and is_service(self.read, p.pid, p.name, mps_uids=mps_uids)
        ]

    def loosen(self, share: HeldShare, handle: Any, pids: list[int], *, kill: bool) -> None:
        """Give back what a share reserves; with ``kill`` end its MPS clients before anything signals them."""
        if share.mode == "memlimit":
            self.limits.loosen(handle, share.cgroup)
        elif share.mode == "mps" and share.user and kill:
            self.mps.end_clients(_mps(share), pids)

    def give_back(self, share: HeldShare, handle: Any) -> None:
        """Undo everything that a share needed, then forget it."""
        if share.mode == "memlimit":
            self.limits.clear(handle, share.cgroup)
        elif share.mode == "mps":
            self._leave(share)
        elif share.mode == "timeslice" and len(self.book.on(share.device)) == 1:
            self.timeslice.reset(share.device)
            self.repairs.over(share.device, TIME)
        self._forget(share)

    def abandon(self, share: HeldShare) -> None:
        """Forget a share whose device is lost, and its limits with it; only an MPS daemon lives beside the device."""
        if share.mode == "mps":
            self._leave(share)
        self._forget(share)

    def mode_of(self, device: str) -> str:
        """Return the mode that a device is shared in now, "" without shares."""
        return next((share.mode for share in self.book.on(device) if share.mode != WHOLE), "")

    def processes(self, share: HeldShare, listed: list[ProcessFact]) -> list[ProcessFact]:
        """Return which processes of a device keep a share from being clean (see owners.left_on).

        Programs of the host keep nobody's lease from ending, unless they run in its very cgroup.
        """
        mps_uids = self.mps_uids(share.device)

        def is_excused(process: ProcessFact) -> bool:
            return is_service(self.read, process.pid, process.name, mps_uids=mps_uids)

        return left_on(share, self._others(share), listed, self.read, is_excused)

    def own(self, share: HeldShare, listed: list[ProcessFact]) -> list[ProcessFact]:
        """Return which processes of a device are a share's; services of the host are nobody's."""
        waits_for = {process.pid for process in self.processes(share, listed)}
        return [p for p in own(share, self._others(share), listed, self.read) if p.pid in waits_for]

    def mps_uids(self, device: str) -> frozenset[int]:
        """Return the accounts under which MPS servers of this agent run on a device."""
        users = {share.user for share in self.book.on(device) if share.mode == "mps" and share.user}
        found = set()
        for user in users:
            with suppress(LookupError):  # an account that was removed has no server either
                found.add(self.account(user).uid)
        return frozenset(found)

    def whose(self, device: str, listed: list[ProcessFact]) -> dict[str, set[int]]:
        """Return the pids that are surely a share's, by share; those without a cgroup are left out: not known."""
        at = self.cgroups(listed)
        return {
            share.partition: {pid for pid, path in at.items() if is_below(path, share.cgroup)}
            for share in self.book.on(device)
            if share.cgroup
        }

    def cgroups(self, listed: list[ProcessFact]) -> dict[int, str]:
        """Return the cgroup of each process, "" where it cannot be read."""
        return {process.pid: cgroup_of(self.read, process.pid) for process in listed}

    def _leave(self, share: HeldShare) -> None:
        """Take a share out of its user's MPS daemon, which ends with the last one."""
        if share.user:
            self.mps.release(_mps(share), [_mps(other) for other in self._of_user(share) if other != share])

    def _forget(self, share: HeldShare) -> None:
        """Take a share out of the book; what it lacked concerns nobody any more."""
        self.book.drop(share.partition)
        self.repairs.over(share.device, share.partition)
        if share.mode == "mps" and not self._of_user(share):
            self.repairs.over(share.device, share.user)

    def _others(self, share: HeldShare) -> list[HeldShare]:
        return [other for other in self.book.on(share.device) if other.partition != share.partition]

    def _of_user(self, share: HeldShare) -> list[HeldShare]:
        return [s for s in self.book.on(share.device) if s.mode == "mps" and s.user == share.user]


def is_share(partition: str) -> bool:
    """Say whether a partition's name is that of a share."""
    return partition.startswith(PREFIXES)


def _require_room(fact: DeviceFact, shape: PartitionShape, others: list[HeldShare]) -> None:
    if shape.share_milli < 0 or shape.memory_mib < 0 or not (shape.share_milli or shape.memory_mib):
        raise NvmlLikeError(errors.INVALID_ARGUMENT, f"a share by {shape.mode} needs a part of the device")
    if shape.mode == "memlimit" and not shape.memory_mib:
        raise NvmlLikeError(errors.INVALID_ARGUMENT, "a share by memory limit needs the MiB it may use")
    strange = next((other for other in others if other.mode != shape.mode), None)
    if strange is not None:
        raise _full(f"it serves {_name(strange)}, and a device serves one mode at a time")
    if len(others) >= fact.max_clients:
        raise _full(f"{fact.max_clients} shares are the most")
    # A limit reserves nothing of the others': limits may add up to more than the device has, one alone may not.
    if shape.memory_mib > fact.memory_mib:
        raise _full(f"it has {fact.memory_mib} MiB, not {shape.memory_mib}")
    if sum(other.share_milli for other in others) + shape.share_milli > ALL:
        raise _full("the other shares leave too little of it")


def _full(why: str) -> NvmlLikeError:
    return NvmlLikeError(errors.INSUFFICIENT_RESOURCES, f"the device cannot take this share: {why}")


def _name(share: HeldShare) -> str:
    return "all of the device" if share.mode == WHOLE else share.mode


def _mps(share: HeldShare) -> MpsShare:
    return MpsShare(
        share.partition, share.owner, share.device, share.user, share.share_milli, share.memory_mib
    )
