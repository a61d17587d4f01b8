"""Hygon DCU devices: whole, and as virtual devices (vDCU) with compute units and memory of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from nodeagent.drivers import errors
from nodeagent.drivers.base import Access, DriverReading, PartitionShape, ProcessFact
from nodeagent.drivers.errors import NotOfferedError, NvmlLikeError
from nodeagent.drivers.hygon import smi
from nodeagent.drivers.kfd import kfd_nodes, slot_of
from nodeagent.drivers.shares import ALL
from nodeagent.drivers.sharing import SharingDriver
from nodeagent.drivers.vendor import Read, VendorTool, clean, lost, model_of, opened, sample_of
from nodeagent.host.shell import Shell
from nodeagent.protocol.messages import DeviceFact, HealthFact

CONTROL: Final = ("/dev/kfd", "/dev/mkfd")
MOST_PARTS: Final = 4
NO_BIND: Final = (
    "a vDCU keeps its limits only for processes that see its file as /etc/vdev/docker/vdev<n>.conf, and leases of "
    "this node are no containers, which alone can be shown that; start the agent with --runtime cdi "
    "(BERTH_RUNTIME=cdi) where a container engine is installed, or lease whole devices"
)


class VirtualDevices:
    """Cuts devices into vDCUs: a size is ``<compute units>/<MiB>``, a handle the number of the virtual device.

    Only removing all vDCUs of a device is documented, so one is never removed while others stand.
    """

    kind = "vdcu"
    removes_one = False

    def __init__(self, tool: VendorTool) -> None:
        self._tool = tool

    def size(self, fact: DeviceFact, shape: PartitionShape) -> str:
        """Return compute units (rounded down, at least one) and MiB."""
        units = shape.share_milli * (fact.sm_count or 0) // ALL
        if units < 1 or not 0 < shape.memory_mib <= fact.memory_mib:
            raise NvmlLikeError(
                errors.INVALID_ARGUMENT,
                f"{shape.share_milli} ‰ and {shape.memory_mib} MiB make no vDCU: it needs at least one of the "
                f"{fact.sm_count} compute units and 1 to {fact.memory_mib} MiB",
            )
        return f"{units}/{shape.memory_mib}"

    def existing(self, fact: DeviceFact) -> dict[str, str]:
        """Return the sizes of the vDCUs on a device."""
        listed = smi.parts(self._tool, smi.PARTS)
        return {p.handle: f"{p.units}/{p.memory_mib}" for p in listed if p.device == fact.index}

    def make(self, fact: DeviceFact, size: str) -> None:
        """Create one vDCU."""
        units, _, memory_mib = size.partition("/")
        out = self._tool.run(
            "-create-vdevices",
            "1",
            "-d",
            str(fact.index),
            "-vdevice-compute-units",
            units,
            "-vdevice-memory-size",
            memory_mib,
        )
        if "success" not in out.lower():
            said = clean(out.replace("\n", " "), 200) or "nothing"
            raise NvmlLikeError(errors.UNKNOWN, f"{self._tool.name} did not create the vDCU: {said}")

    def unmake(self, fact: DeviceFact, handle: str) -> None:
        """Destroy all vDCUs of the device."""
        self._tool.run("-d", str(fact.index), "-destroy-vdevice")


class HygonDriver(SharingDriver):
    """DCU devices over hy-smi. Figures that it does not print are None."""

    name = "hygon"

    def __init__(
        self,
        boot_id: str,
        shell: Shell,
        run_dir: Path,
        read: Read,
        *,
        can_bind: bool = False,
        offer: frozenset[str] | None = None,
        looks_only: bool = False,
    ) -> None:
        """Find the devices; raises DriverUnavailableError when hy-smi is missing or lists none.

        ``can_bind``: the node's runtime keeps ``Access.binds``; without that a vDCU would limit nobody.
        ``offer`` are the modes that the operator allows, None all; ``looks_only``: nothing is written below
        ``run_dir``.
        """
        self._tool = VendorTool(shell, "hy-smi")
        opened(self._tool, self._ask_version)
        self.version = self._tool.version
        virtual, self._units, refusal = _virtual(shell, self.version)
        super().__init__(boot_id, run_dir, read, VirtualDevices(virtual), looks_only=looks_only)
        self._why_not = "" if can_bind else NO_BIND
        if refusal is not None:
            self._why_not = refusal.detail
            self._note_late("vDCU", refusal)
        self._take_stock(offer, "hy-smi lists no device that tells its memory and a number of its own")

    def access(self, partition: str) -> Access:
        """Return the nodes of a device; a vDCU's file must appear inside, or it limits nothing."""
        held = self._share(partition)
        fact = self._fact(held.device)
        nodes = [n for n in kfd_nodes(self._read).values() if n.slot == slot_of(fact.pci_bus_id)]
        if len(nodes) != 1:
            raise NvmlLikeError(
                errors.NOT_FOUND,
                f"the kernel's list of devices (/sys/class/kfd) does not name one render node for "
                f"{fact.pci_bus_id or 'a device of unknown place'}; load the DCU driver and try again",
            )
        env = {"ROCR_VISIBLE_DEVICES": nodes[0].visible_as} if nodes[0].visible_as else {}
        files = (*CONTROL, f"/dev/dri/renderD{nodes[0].render_minor}")
        if held.mode == "exclusive":
            return Access(env, files)
        file = f"vdev{held.handle}.conf"
        return Access(env, files, binds={f"/etc/vdev/{file}": f"/etc/vdev/docker/{file}"})

    def confine(self, partition: str, cgroup: str) -> None:
        """Remember whose processes belong to it; refuse a vDCU without the file that limits it."""
        held = self._share(partition)
        if held.mode != "exclusive":
            try:
                self._read(f"/etc/vdev/vdev{held.handle}.conf")
            except OSError as no:
                raise NotOfferedError(
                    f"/etc/vdev/vdev{held.handle}.conf, which limits this vDCU, cannot be read: {no}; "
                    f"create the folder /etc/vdev, where hy-smi writes it, and start the agent again: its unit may "
                    f"write only into a folder that stood there before (systemctl restart berth-agent)"
                ) from no
        super().confine(partition, cgroup)

    def device_processes(self, device: str) -> list[ProcessFact]:
        """Return the processes on a device."""
        return smi.processes(self._tool, self._fact(device).index)

    def metrics(self) -> DriverReading:
        """Measure every device with one call; a vDCU has no figures of its own."""
        try:
            listed = {device.index: device for device in smi.devices(self._tool)}
        except NvmlLikeError:
            listed = {}
        return self.reading(
            sample_of(uuid, listed.get(fact.index), "hy-smi") for uuid, fact in self._facts.items()
        )

    def complaints(self) -> list[HealthFact]:
        """Return devices that hy-smi no longer lists; it tells no errors in a form that is published."""
        listed = {device.unique_id or device.serial for device in smi.devices(self._tool)}
        return [
            lost(uuid, f"hy-smi no longer lists device {fact.index}")
            for uuid, fact in self._facts.items()
            if uuid.removeprefix("DCU-") not in listed
        ]

    def _ask_version(self) -> str:
        return next(iter(self._tool.run("--version").strip().splitlines()), "")

    def _find(self) -> None:
        listed, buses = smi.devices(self._tool), smi.buses(self._tool)
        for device in listed:
            self._learn(device, buses.get(device.index, ""))

    def _learn(self, device: smi.HygonDevice, bus: str) -> None:
        number = device.unique_id or device.serial
        if not device.memory_mib or not number:
            self.unanswered[device.index] = f"hy-smi does not tell memory and number of device {device.index}"
            return
        uuid, units = f"DCU-{number}", self._units.get(device.index)
        reason = self._why_not or ("" if units else "hy-smi does not tell the compute units of this device")
        self._facts[uuid] = DeviceFact(
            uuid=uuid,
            index=device.index,
            vendor="hygon",
            model=model_of(device.model, "DCU"),
            memory_mib=device.memory_mib,
            grid=1,
            modes=("exclusive",) if reason else ("exclusive", "memlimit"),
            sm_count=units,
            pci_bus_id=bus,
            serial=device.serial,
            max_clients=1 if reason else MOST_PARTS,
            refusals={"memlimit": reason} if reason else {},
        )


def _virtual(shell: Shell, version: str) -> tuple[VendorTool, dict[int, int], NvmlLikeError | None]:
    """Return the program that cuts devices, compute units by device, and why none can be cut (None: they can).

    Drivers from 6.2.26 on have it inside hy-smi, older ones as a program of its own.
    """
    refused: NvmlLikeError | None = None
    for argv in (("hy-smi", "virtual"), ("hy-virtual",)):
        tool = VendorTool(shell, *argv)
        tool.version = version
        try:
            listed = smi.parts(tool, smi.DEVICES)
        except NvmlLikeError as no:
            refused = refused or no
            if no.code == errors.TIMEOUT:  # it is there: no other program stands in for it
                break
            continue
        if listed:
            return tool, {part.device: part.units for part in listed}, None
    none = "neither `hy-smi virtual` nor hy-virtual lists a device that can be cut"
    return tool, {}, refused or NvmlLikeError(errors.NOT_FOUND, none)
