"""Cambricon MLU devices: whole, and as dynamic sMLU instances with percent of compute and memory of their own."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nodeagent.drivers import errors
from nodeagent.drivers.base import Access, DriverReading, PartitionShape, ProcessFact
from nodeagent.drivers.cambricon.cndev import Cndev
from nodeagent.drivers.errors import DriverUnavailableError, NvmlLikeError
from nodeagent.drivers.sharing import SharingDriver
from nodeagent.drivers.vendor import (
    Read,
    VendorTool,
    bounded,
    clean,
    lost,
    model_of,
    number,
    opened,
    sample_of,
    whole,
)
from nodeagent.host.files import spare_folder
from nodeagent.host.shell import Shell
from nodeagent.protocol.messages import DeviceFact, HealthFact

log = logging.getLogger(__name__)

UNIT_MIB: Final = 256
MOST_PARTS: Final = 16
INFO: Final = ("info", "-j")
FILE: Final = "cnmon_info.json"


@dataclass(frozen=True, slots=True)
class CambriconDevice:
    """One device as cnmon lists it now; None and "" are unknown."""

    index: int
    uuid: str
    model: str
    serial: str
    bus: str
    memory_mib: int | None
    memory_used_mib: int | None
    util_percent: float | None
    power_w: float | None
    temperature_c: float | None


class Smlu:
    """Cuts devices into sMLU instances: a size is ``<percent>/<MiB>``, a handle the name of the instance."""

    kind = "smlu"
    removes_one = True

    def __init__(self, library: Any) -> None:
        """Start the library (None: libcndev.so); where that is refused, so is every call."""
        self._cndev: Cndev | NvmlLikeError
        try:
            self._cndev = Cndev(library)
        except NvmlLikeError as no:
            self._cndev = no

    @property
    def cndev(self) -> Cndev:
        """Return the library; refused where it was not started."""
        if isinstance(self._cndev, Cndev):
            return self._cndev
        raise NvmlLikeError(self._cndev.code, self._cndev.detail)

    @property
    def refusal(self) -> NvmlLikeError | None:
        """Return why the library was not started, None where it was."""
        return None if isinstance(self._cndev, Cndev) else self._cndev

    def size(self, fact: DeviceFact, shape: PartitionShape) -> str:
        """Return whole percent, and MiB rounded up to units of 256."""
        memory_mib = -(-shape.memory_mib // UNIT_MIB) * UNIT_MIB
        if shape.share_milli % 10 or not shape.share_milli:
            raise NvmlLikeError(
                errors.INVALID_ARGUMENT,
                f"{shape.share_milli} ‰ of a device cannot be kept: sMLU counts whole percent, from 10 ‰ on",
            )
        if not 0 < memory_mib <= fact.memory_mib:
            raise NvmlLikeError(
                errors.INVALID_ARGUMENT,
                f"{shape.memory_mib} MiB cannot be kept: sMLU gives units of {UNIT_MIB} MiB, at most "
                f"{fact.memory_mib // UNIT_MIB * UNIT_MIB} MiB on this device",
            )
        return f"{shape.share_milli // 10}/{memory_mib}"

    def existing(self, fact: DeviceFact) -> dict[str, str]:
        """Return the sizes of the instances on a device, by name."""
        listed = self.cndev.instances(fact.index)
        return {i.name: f"{i.quota}/{i.memory_mib}" for i in listed}

    def make(self, fact: DeviceFact, size: str) -> None:
        """Make one instance under a name that is free."""
        taken = {i.name for i in self.cndev.instances(fact.index)}
        name = next(n for n in (f"berth{i}" for i in range(len(taken) + 1)) if n not in taken)
        percent, _, memory_mib = size.partition("/")
        self.cndev.create(fact.index, int(percent), int(memory_mib), name)

    def unmake(self, fact: DeviceFact, handle: str) -> None:
        """Remove an instance."""
        self.cndev.destroy(fact.index, handle)


class CambriconDriver(SharingDriver):
    """MLUs: facts and figures over cnmon, shares and processes over CNDEV. Those cut by MIM are only reported."""

    name = "cambricon"

    def __init__(
        self,
        boot_id: str,
        shell: Shell,
        run_dir: Path,
        read: Read,
        *,
        library: Any = None,
        offer: frozenset[str] | None = None,
        looks_only: bool = False,
    ) -> None:
        """Find the devices; raises DriverUnavailableError when cnmon is missing or lists none.

        ``library`` stands in for libcndev.so. ``offer`` are the modes that the operator allows, None all;
        ``looks_only``: nothing is written below ``run_dir``.
        """
        plain = VendorTool(shell, "cnmon")
        opened(plain, lambda: plain.run("version").replace("\n", " "))
        self._smlu = Smlu(library)
        super().__init__(boot_id, run_dir, read, self._smlu, looks_only=looks_only)
        refusal = self._smlu.refusal
        if refusal is not None and refusal.code not in errors.LASTING:
            self.unanswered["CNDEV"] = refusal.detail
        # cnmon writes its JSON into a file of the working directory: give it one of ours.
        self._is_spare = looks_only
        self._folder = spare_folder() if looks_only else run_dir / "cambricon" / "cnmon"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as no:
            raise DriverUnavailableError(f"cnmon needs the folder {self._folder}: {no}") from no
        self._tool = VendorTool(shell, "env", "-C", str(self._folder), "cnmon")
        self._tool.name, self._tool.version = "cnmon", plain.version
        self.version = self._tool.version
        self._take_stock(offer, "cnmon lists no device that tells its UUID and memory")

    def close(self) -> None:
        """Leave no folder behind where this driver only looked; the library stays open for whoever works with it."""
        if self._is_spare:
            shutil.rmtree(self._folder, ignore_errors=True)

    def access(self, partition: str) -> Access:
        """Return the nodes of a device, and for a share the node that the library names for it."""
        held = self._share(partition)
        index = self._fact(held.device).index
        nodes = ("/dev/cambricon_ctl", f"/dev/cambricon_dev{index}", f"/dev/cambricon_ipcm{index}")
        if held.mode == "exclusive":
            return Access({}, nodes)
        listed = self._smlu.cndev.instances(index)
        node = next((i.node for i in listed if i.name == held.handle), "")
        if not node.startswith("/dev/"):
            raise NvmlLikeError(
                errors.NOT_FOUND,
                f"CNDEV names no device node for {partition}; without it its limits would not hold",
            )
        return Access({}, (*nodes, node))

    def device_processes(self, device: str) -> list[ProcessFact]:
        """Return the processes on a device; refused where the library is missing, for nobody can tell then."""
        return self._smlu.cndev.processes(self._fact(device).index)

    def metrics(self) -> DriverReading:
        """Measure every device with one call; an sMLU instance has no figures of its own here."""
        try:
            listed = {device.uuid: device for device in self._devices()}
        except NvmlLikeError as no:
            log.debug("no figures: %s", no)
            listed = {}
        return self.reading(sample_of(uuid, listed.get(uuid), "cnmon") for uuid in self._facts)

    def complaints(self) -> list[HealthFact]:
        """Return devices that cnmon no longer lists."""
        listed = {device.uuid for device in self._devices()}
        return [
            lost(uuid, f"cnmon no longer lists device {fact.index}")
            for uuid, fact in self._facts.items()
            if uuid not in listed
        ]

    def _find(self) -> None:
        for device in self._devices():
            self._learn(device)

    def _devices(self) -> list[CambriconDevice]:
        self._tool.run(*INFO)
        try:
            answer = json.loads(self._read(str(self._folder / FILE)))
        except (OSError, ValueError, RecursionError) as no:
            raise self._tool.unreadable(INFO, f"{FILE} cannot be read as JSON: {type(no).__name__}") from no
        rows = answer.get("CnmonInfo") if isinstance(answer, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise self._tool.unreadable(INFO, "no list CnmonInfo")
        return [device for row in rows if (device := _device(row)) is not None]

    def _learn(self, device: CambriconDevice) -> None:
        if device.uuid in self._facts:
            return
        if not device.memory_mib:
            self.unanswered[device.index] = f"cnmon does not tell the memory of device {device.index}"
            return
        modes: tuple[str, ...] = ("exclusive", "memlimit")
        refusals = {"memlimit": reason} if (reason := self._why_not_shared(device.index)) else {}
        if no_lease := self._why_not_at_all(device.index):
            refusals = dict.fromkeys(modes, no_lease)
        modes = tuple(mode for mode in modes if mode not in refusals)
        self._facts[device.uuid] = DeviceFact(
            uuid=device.uuid,
            index=device.index,
            vendor="cambricon",
            model=model_of(device.model, "MLU"),
            memory_mib=device.memory_mib,
            grid=1,
            modes=modes,
            pci_bus_id=device.bus,
            serial=device.serial,
            max_clients=1 if refusals else MOST_PARTS,
            refusals=refusals,
        )

    def _why_not_at_all(self, index: int) -> str:
        """Return why a device cannot be leased: without CNDEV nobody can tell whether work is still on it."""
        if self._smlu.refusal is not None:
            return self._smlu.refusal.detail
        try:
            is_cut = self._smlu.cndev.is_on(index, "Mim")
        except NvmlLikeError as no:
            log.debug("MIM mode of device %d is unknown: %s", index, no)
            return ""
        said = f"device {index} is cut by MIM, which this agent only reports: turn MIM off with cnmon to lease it"
        return said if is_cut else ""

    def _why_not_shared(self, index: int) -> str:
        try:
            if self._smlu.cndev.is_on(index, "SMLU"):
                return ""
        except NvmlLikeError as no:
            return no.detail
        return f"sMLU is off on device {index}: cnmon set -c {index} -smlu on"


def _device(row: dict[str, Any]) -> CambriconDevice | None:
    index, uuid = whole(row.get("CardNum")), clean(row.get("UUID"), 100)
    if index is None or index > 1023 or not uuid:
        return None
    memory, heat, use = (_part(row, name) for name in ("PhysicalMemUsage", "Temperature", "Utilization"))
    power, pci = _part(row, "Power"), _part(row, "PCI")
    return CambriconDevice(
        index=index,
        uuid=uuid if uuid.upper().startswith("MLU") else f"MLU-{uuid}",
        model=clean(row.get("ProductName")),
        serial=clean(row.get("SN"), 60),
        bus=_bus(pci),
        memory_mib=whole(memory.get("Total")),
        memory_used_mib=whole(memory.get("Used")),
        util_percent=bounded(number(use.get("MLUAverage")), 0, 100),
        power_w=bounded(number(power.get("Usage")), 0, 100_000),
        temperature_c=bounded(number(heat.get("Chip")), -60, 250),
    )


def _part(row: dict[str, Any], name: str) -> dict[str, Any]:
    value = row.get(name)
    return value if isinstance(value, dict) else {}


def _bus(pci: dict[str, Any]) -> str:
    parts = [clean(pci.get(name), 8) for name in ("DomainID", "Bus", "Device", "Function")]
    return f"{parts[0]}:{parts[1]}:{parts[2]}.{parts[3]}" if all(parts) else ""
