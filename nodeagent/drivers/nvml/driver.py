"""NVIDIA devices through NVML: whole, in MIG instances, or in shares by MPS, memory limit and time slice."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pynvml

from nodeagent.drivers import errors
from nodeagent.drivers.base import Access, DriverReading, PartitionShape, ProcessFact, ShapeOffer, Tenant
from nodeagent.drivers.boot_devices import BootDevices
from nodeagent.drivers.errors import NotOfferedError, NvmlLikeError
from nodeagent.drivers.nvml.health.events import EventWatch
from nodeagent.drivers.nvml.health.faults import DeviceFaults
from nodeagent.drivers.nvml.health.repairs import Repairs
from nodeagent.drivers.nvml.inventory import device_nodes as caps
from nodeagent.drivers.nvml.inventory.devices import KnownDevices
from nodeagent.drivers.nvml.inventory.identity import instance_facts
from nodeagent.drivers.nvml.inventory.modes import ModeOffers
from nodeagent.drivers.nvml.library.calls import NvmlCalls, start
from nodeagent.drivers.nvml.library.handles import DeviceHandles
from nodeagent.drivers.nvml.library.processes import running
from nodeagent.drivers.nvml.library.values import text
from nodeagent.drivers.nvml.mig.control import MIG_ON, MigControl
from nodeagent.drivers.nvml.mig.instances import MigSlice, MigSlices
from nodeagent.drivers.nvml.mps.servers import Mps
from nodeagent.drivers.nvml.power import PowerLimits
from nodeagent.drivers.nvml.settings import NvmlHost, NvmlSettings
from nodeagent.drivers.nvml.shares.memory import MemoryLimits
from nodeagent.drivers.nvml.shares.partitions import SharePartitions, is_share
from nodeagent.drivers.nvml.shares.timeslice import TimeSlice
from nodeagent.drivers.nvml.telemetry.dcgm import Dcgm
from nodeagent.drivers.nvml.telemetry.measure import Telemetry
from nodeagent.drivers.shares import ALL, WHOLE, HeldShare, ShareBook
from nodeagent.host import notices
from nodeagent.protocol.fault_rules import standard
from nodeagent.protocol.messages import DeviceFact, HealthFact, PartitionFact

log = logging.getLogger(__name__)

RUN_DIR: Final = Path("/run/berth-agent")


class NvmlDriver:
    """Real devices. A figure that a device or the installed driver does not tell is None.

    Instances are found by place, never remembered; whole devices and shares, which leave no trace on a device,
    lie in small files below ``run_dir``. A device that is lost refuses by itself, the others go on.
    """

    name = "nvml"
    is_blocking = True

    def __init__(
        self,
        boot_id: str,
        library: Any = pynvml,
        *,
        settings: NvmlSettings | None = None,
        host: NvmlHost | None = None,
        mps: Mps | None = None,
        dcgm: Dcgm | None = None,
    ) -> None:
        """Open NVML; raises DriverUnavailableError when there is no driver or no device.

        ``dcgm`` is an exporter to ask for what NVML does not tell; ``mps`` None stands for MPS of this host.
        """
        settings, host = settings or NvmlSettings(), host or NvmlHost()
        clock_ns, wall_ns, looks_only = host.clock_ns, host.wall_ns, settings.looks_only
        self._boot_id, self._read, self._send = boot_id, host.read, host.send
        self._calls = NvmlCalls(library)
        run_dir = settings.run_dir or RUN_DIR
        boot_devices = BootDevices(run_dir / "cards.json", boot_id, looks_only=looks_only)
        known = {index: fact.uuid for index, fact in boot_devices.known.items()}
        self._devices = DeviceHandles(self._calls, start(library), known)
        self.version = text(self._calls.ask("nvmlSystemGetDriverVersion")) or "unknown"
        self._mig, self._gate = MigControl(self._calls), threading.Lock()
        self.mps = mps or Mps(library, host.shell, run_dir, account=host.account)
        book = ShareBook(run_dir / "shares", boot_id, on_change=host.on_change, looks_only=looks_only)
        limits = MemoryLimits(
            self._calls, host.read, host.write, is_root=settings.is_root, has_units=settings.has_units
        )
        slice_policy = TimeSlice(host.shell, settings.timeslice, lambda: clock_ns() / 1e9)
        self._repairs = Repairs(standard(), clock_ns, wall_ns)
        self._shares = SharePartitions(
            book, self.mps, limits, slice_policy, host.read, host.account, self._repairs
        )
        offers = ModeOffers(
            self._calls, self._mig, self.mps, limits, slice_policy, host.read, self.version, settings.offer
        )
        names = ShareBook(run_dir / "slices", boot_id, on_change=host.on_change, looks_only=looks_only)
        self._slices = MigSlices(self._calls, self._devices, self._mig, self._shares, names, host.read)
        sizes, mode_of = self._slices.sizes, self._shares.mode_of
        self._facts = KnownDevices(
            self._calls, self._devices, self._mig, offers, boot_devices, sizes=sizes, mode_of=mode_of
        )
        self._switching: set[str] = set()
        self._power = PowerLimits(library, self._devices, is_allowed=settings.may_limit_power)
        self._telemetry = Telemetry(library, clock_ns=clock_ns, dcgm=dcgm, pids_of=self._slices.pids_of)
        self._watch = EventWatch(library, self._devices, clock_ns=wall_ns)
        self._faults = DeviceFaults(
            library, self._devices, self._watch if settings.listens else None, standard(), wall_ns
        )
        if settings.listens:
            self._watch.start()

    def boot_id(self) -> str:
        """Return the boot of the host."""
        return self._boot_id

    # What there is

    def inventory(self) -> list[DeviceFact]:
        """Return the devices with what each can do now; a lost device is told as it was."""
        for uuid in self._facts:
            self._facts.read_again(uuid)
            self._facts.refresh(uuid)
        return list(self._facts.values())

    def catalogue(self, device: str) -> list[ShapeOffer]:
        """Return the shapes a device can have: itself, its MIG sizes at their places, shares up to all of it."""
        fact = self._fact(device)
        whole = PartitionShape(WHOLE, "", fact.grid, ALL, fact.memory_mib)
        offers = [ShapeOffer(whole, (0,), 1)] if WHOLE in fact.modes else []
        if "mig" in fact.modes:
            offers += [
                ShapeOffer(
                    PartitionShape("mig", p.name, p.slices, 0, p.memory_mib), p.starts, p.max_instances
                )
                for p in fact.profiles
            ]
        return offers + [
            ShapeOffer(PartitionShape(mode, "", 0, ALL, fact.memory_mib), (0,), fact.max_clients)
            for mode in fact.modes
            if mode not in (WHOLE, "mig")
        ]

    def observe(self, device: str) -> list[PartitionFact]:
        """Return what stands on a device: every MIG instance whoever made it, and the shares that are noted."""
        fact = self._fact(device)
        shares = [share.fact() for share in self._shares.book.on(device)]
        try:
            return [*(one.fact() for one in self._slices.look(device)), *shares]
        except NvmlLikeError as no:
            if no.code != errors.NO_PERMISSION:
                raise
        return [*instance_facts(self._calls.library, self._devices[device], fact), *shares]

    def processes(self, partition: str) -> list[ProcessFact]:
        """Return the processes on a partition; of a device that nobody leases whole, all that it lists."""
        share = self._share(partition)
        if share is not None:
            listed = running(self._calls, self._devices.fresh(share.device), self._read)
            return self._shares.processes(share, listed) if share.owner else listed
        if is_share(partition):
            return []
        known = self._slices.seen(partition)
        if known is not None:
            with suppress(NvmlLikeError):  # it may be gone by now: then it is looked up below
                return running(self._calls, known.handle, self._read)
        found = self._slices.find(partition)
        if found is None or found.handle is None:
            return []
        return running(self._calls, found.handle, self._read)

    def _own(self, partition: str) -> list[ProcessFact]:
        """Return those that may be signalled as the tenant's: what only might be its is left alone."""
        share = self._share(partition)
        if share is None or not share.owner:
            return self.processes(partition)
        return self._shares.own(share, self.listed(share.device))

    def mps_uids(self, device: str) -> frozenset[int]:
        """Return the accounts of MPS servers on a device."""
        return self._shares.mps_uids(device)

    def listed(self, device: str) -> list[ProcessFact]:
        """Return every process that a device lists, also services of the host and those beside its lease."""
        return running(self._calls, self._devices.fresh(device), self._read)

    # Partitions

    def create(self, device: str, shape: PartitionShape, position: int, owner: str = "") -> PartitionFact:
        """Make a MIG instance at exactly this place, or note a whole device or a share as the owner's."""
        fact, handle = self._fact(device), self._devices.fresh(device)
        if shape.mode not in fact.modes:
            raise NotOfferedError(self._refusal(fact, shape.mode))
        is_on = self._mig.is_on(handle)
        if is_on != (shape.mode == "mig"):
            word = "on" if is_on else "off"
            raise NvmlLikeError(
                errors.NOT_SUPPORTED, f"MIG is {word} on {device}: {shape.mode} cannot be made"
            )
        if shape.mode != "mig":
            return self._shares.take(fact, shape, owner).fact()
        sizes = self._slices.sizes[device]
        size = sizes.named(shape.profile)
        if size is None:
            known = ", ".join(profile.name for profile in sizes.facts)
            raise NvmlLikeError(
                errors.INVALID_ARGUMENT, f"{device} has no size {shape.profile!r}; it has {known}"
            )
        made = self._mig.create(handle, sizes, size, position)
        found = MigSlice(device, made, made.inside[0])
        self._slices.note(found, owner)
        self._slices.look(device)
        return found.fact()

    def destroy(self, partition: str) -> None:
        """Remove an instance, or give a device or share back; gone already is success, IN_USE while it is used."""
        share = self._share(partition)
        if share is not None:
            self._require_idle(partition)
            if share.owner:
                self._shares.give_back(share, self._devices.fresh(share.device))
            return
        found = None if is_share(partition) else self._slices.find(partition)
        if found is None:
            return
        device, gi_id = found.device, found.instance.gi_id
        self._require_idle(partition)
        self._mig.destroy(self._devices.fresh(device), self._slices.sizes[device], gi_id, found.ci_id)
        self._slices.look(device)
        with self._gate:
            self._telemetry.forget(device, gi_id)

    def abandon(self, device: str, owner: str) -> None:
        """Forget an owner's shares of a lost device; its instances, found by place only, are gone with it."""
        for share in self._shares.book.on(device):
            if share.owner == owner:
                self._shares.abandon(share)

    def mig_mode(self, device: str) -> bool | None:
        """Ask one device alone; None where it has no MIG or does not answer."""
        try:
            modes = self._mig.modes(self._devices.fresh(device))
        except NvmlLikeError:
            return None
        return None if modes is None else modes[0] == MIG_ON

    def set_mig_mode(self, device: str, enabled: bool) -> int:
        """Switch an empty device; returns 0, or raises NvmlLikeError with the activation status and a sentence."""
        fact, handle = self._fact(device), self._devices.fresh(device)
        if enabled and "mig" not in fact.modes:
            raise NotOfferedError(self._refusal(fact, "mig"))
        if self._mig.modes(handle) == (int(enabled), int(enabled)):
            return 0
        self._require_empty(device)
        # An open event set and sample buffers keep an Ampere device busy: this agent must not be the one in the way.
        with self._watch.paused(), self._unmeasured(device):
            self._mig.switch(handle, enabled)
        self._facts.refresh(device)
        self._slices.look(device)
        return 0

    # Their tenants

    def attach(self, partition: str, tenant: Tenant) -> None:
        """Start what a share needs before its tenant comes; a MIG instance is noted, a whole device needs nothing."""
        share = self._share(partition)
        if share is not None and share.owner:
            self._shares.attach(share, tenant)
        elif is_share(partition):
            raise NvmlLikeError(errors.NOT_FOUND, f"{partition} does not exist")
        elif share is None:
            self._slices.adopt(partition, tenant.lease)

    def access(self, partition: str) -> Access:
        """Return variables and exact device nodes; raises rather than guess the number of a node."""
        share = self._share(partition)
        if share is not None:
            return self._shares.access(share, caps.gpu_nodes(self._minor(share.device)))
        found = None if is_share(partition) else self._slices.find(partition)
        if found is None or found.ci_id is None:
            raise NvmlLikeError(
                errors.NOT_FOUND, f"{partition} does not exist, or not so that it can be used"
            )
        minor = self._minor(found.device)
        own = caps.slice_nodes(self._read, minor, found.instance.gi_id, found.ci_id)
        return Access({"CUDA_VISIBLE_DEVICES": partition}, (*caps.gpu_nodes(minor), *own))

    def confine(self, partition: str, cgroup: str) -> None:
        """Bind a share to its tenant's cgroup, or look whether it still is; MIG instances keep their limits."""
        share = self._share(partition)
        if share is not None and share.owner:
            handle = self._devices.fresh(share.device)
            self._shares.confine(share, handle, cgroup, lambda: running(self._calls, handle, self._read))
        elif is_share(partition):
            raise NvmlLikeError(errors.NOT_FOUND, f"{partition} does not exist")

    def detach(self, partition: str, *, kill: bool) -> None:
        """Give back what a share reserves; with ``kill`` end its MPS clients, before any signal reaches them."""
        share = self._share(partition)
        if share is None or share.mode not in ("memlimit", "mps"):
            return
        handle = self._devices.fresh(share.device)
        pids = [process.pid for process in self._own(partition)] if kill and share.mode == "mps" else []
        self._shares.loosen(share, handle, pids, kill=kill)

    def tell(self, partition: str, why: str) -> None:
        """Signal the processes on a partition that listen for it."""
        called = notices.call((p.pid for p in self._own(partition)), self._read, self._send)
        log.info("told %d process(es) on %s that their lease ends (%s)", len(called), partition, why)

    # Measuring, health, energy

    def metrics(self) -> DriverReading:
        """Measure every device and what stands on it."""
        with self._gate:
            facts = {uuid: fact for uuid, fact in self._facts.items() if uuid not in self._switching}
            return self._telemetry.read(self._devices, facts, self._slices.live(facts))

    def health(self) -> list[HealthFact]:
        """Return what devices complain about, faults of MPS daemons, what shares lacked, notes that cannot be read."""
        for uuid in self._devices:
            with suppress(NvmlLikeError):  # a handle is exchanged after a reset; that it fails is told below
                self._devices.fresh(uuid)
        noted = [*self._devices.health(), *self._shares.book.health()]
        lacks = self._repairs.facts()
        known = {(fact.device, fact.code) for fact in lacks}
        faults = [fact for fact in self.mps.faults() if (fact.device, fact.code) not in known]
        return [*self._faults.facts(), *faults, *lacks, *noted]

    def power(self) -> str:
        """Return whether the devices stand at their lowest power limit."""
        return self._power.state()

    def set_power(self, *, asleep: bool) -> None:
        """Lower the power limits of all devices, or put them back."""
        if asleep:
            self._power.lower()
        else:
            self._power.restore()

    def close(self) -> None:
        """Give the library back; what stands on devices stays."""
        self._watch.close()
        self._telemetry.close()
        self._calls.ask("nvmlShutdown")

    # Inside

    @contextmanager
    def _unmeasured(self, device: str) -> Iterator[None]:
        """Leave one device out of what is measured; the others are measured on."""
        with self._gate:
            self._switching.add(device)
            self._telemetry.forget(device)
        try:
            yield
        finally:
            with self._gate:
                self._switching.discard(device)

    def _fact(self, device: str) -> DeviceFact:
        if device not in self._facts:
            raise NvmlLikeError(errors.NOT_FOUND, f"{device} is not on this node")
        self._facts.read_again(device)
        return self._facts[device]

    def _refusal(self, fact: DeviceFact, mode: str) -> str:
        return fact.refusals.get(mode) or f"NVIDIA devices have no sharing mode {mode!r}"

    def _share(self, partition: str) -> HeldShare | None:
        """Return a noted share; a device that nobody noted stands for itself, without an owner."""
        share = self._shares.book.get(partition)
        if share is None and partition in self._facts:
            return HeldShare(partition, partition, "", WHOLE, ALL)
        return share

    def _minor(self, device: str) -> int:
        handle = self._devices.fresh(device)
        return int(self._calls.do("nvmlDeviceGetMinorNumber", handle, doing=f"finding the node of {device}"))

    def _require_idle(self, partition: str) -> None:
        if found := self.processes(partition):
            raise _used(f"{partition} cannot go", found)

    def _require_empty(self, device: str) -> None:
        what = f"the MIG mode of {device} cannot change"
        if shares := self._shares.book.on(device):
            raise NvmlLikeError(errors.IN_USE, f"{what}: {shares[0].owner} holds {shares[0].mode} on it")
        if slices := self._slices.look(device):
            raise NvmlLikeError(errors.IN_USE, f"{what}: {slices[0].name} stands on it")
        if found := running(self._calls, self._devices[device], self._read):
            raise _used(what, found)


def _used(what: str, found: list[ProcessFact]) -> NvmlLikeError:
    pids = ", ".join(str(process.pid) for process in found[:5])
    return NvmlLikeError(errors.IN_USE, f"{what}: processes run on it ({pids})")
