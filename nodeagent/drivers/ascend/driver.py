"""Huawei Ascend devices: whole chips, and vNPUs cut by the templates that the device itself lists."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from nodeagent.drivers import errors
from nodeagent.drivers.ascend import smi
from nodeagent.drivers.base import Access, DriverReading, PartitionShape, ProcessFact, ShapeOffer
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.drivers.shares import ALL
from nodeagent.drivers.sharing import SharingDriver
from nodeagent.drivers.vendor import Read, VendorTool, clean, lost, model_of, opened, sample_of, whole
from nodeagent.host.shell import Shell
from nodeagent.protocol.messages import DeviceFact, HealthFact

log = logging.getLogger(__name__)

CONTROL: Final = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")


class Templates:
    """Cuts chips by template: a part is a vNPU, its size the name of the template."""

    kind = "vnpu"
    removes_one = True

    def __init__(self, tool: VendorTool) -> None:
        self._tool = tool
        self.chips: dict[str, smi.Chip] = {}
        self.cores: dict[str, int] = {}
        self.templates: dict[str, list[smi.Template]] = {}

    def size(self, fact: DeviceFact, shape: PartitionShape) -> str:
        """Return the template with exactly these AI cores and memory; the plainest where several have them."""
        total, listed = self.cores[fact.uuid], self.templates[fact.uuid]
        fitting = [
            t
            for t in listed
            if abs(shape.share_milli * total - t.cores * ALL) < total and t.memory_mib == shape.memory_mib
        ]
        named = [t for t in fitting if t.name == shape.profile]
        if named or fitting:
            return min(named or fitting, key=lambda t: (len(t.name), t.name)).name
        known = ", ".join(f"{t.name} ({share(t, total)} ‰, {t.memory_mib} MiB)" for t in listed)
        raise NvmlLikeError(
            errors.INVALID_ARGUMENT,
            f"no template has {shape.share_milli} ‰ of the AI cores and {shape.memory_mib} MiB; "
            f"this device has {known or 'none'}",
        )

    def existing(self, fact: DeviceFact) -> dict[str, str]:
        """Return the template of each vNPU, by its id."""
        return smi.cut(self._tool, self.chips[fact.uuid]).parts

    def make(self, fact: DeviceFact, size: str) -> None:
        """Create a vNPU; the tool picks its id, which is read back."""
        self._set(fact, "create-vnpu", "-f", size)

    def unmake(self, fact: DeviceFact, handle: str) -> None:
        """Destroy a vNPU."""
        self._set(fact, "destroy-vnpu", "-v", handle)

    def _set(self, fact: DeviceFact, what: str, *more: str) -> None:
        chip = self.chips[fact.uuid]
        out = self._tool.run("set", "-t", what, "-i", str(chip.npu), "-c", str(chip.chip), *more)
        answer = smi.pairs(out)
        if answer.get("status", "").upper() != "OK":
            said = answer.get("message") or clean(out.replace("\n", " "), 200) or "nothing"
            from_words = (
                errors.IN_USE if "busy" in said.lower() or "in use" in said.lower() else errors.UNKNOWN
            )
            raise NvmlLikeError(from_words, f"npu-smi refused {what}: {said}")


class AscendDriver(SharingDriver):
    """Ascend chips over npu-smi. Figures that it does not print are None."""

    name = "ascend"

    def __init__(
        self,
        boot_id: str,
        shell: Shell,
        run_dir: Path,
        read: Read,
        *,
        offer: frozenset[str] | None = None,
        looks_only: bool = False,
    ) -> None:
        """Find the chips; raises DriverUnavailableError when npu-smi is missing or lists none.

        ``offer`` are the modes that the operator allows, None all; ``looks_only``: nothing is written below
        ``run_dir``.
        """
        self._tool = VendorTool(shell, "npu-smi")
        self._templates = Templates(self._tool)
        opened(self._tool, self._ask_version)
        super().__init__(boot_id, run_dir, read, self._templates, looks_only=looks_only)
        self.version = self._tool.version
        self._chips: list[smi.Chip] = []
        self._take_stock(offer, "npu-smi lists no chip")

    def catalogue(self, device: str) -> list[ShapeOffer]:
        """Return the whole chip and one offer per template."""
        fact = self._fact(device)
        offers = [o for o in super().catalogue(device) if o.shape.mode == "exclusive"]
        if "memlimit" not in fact.modes:
            return offers
        total = self._templates.cores[device]
        return offers + [
            ShapeOffer(
                PartitionShape("memlimit", t.name, 0, share(t, total), t.memory_mib),
                (0,),
                max(1, total // t.cores),
            )
            for t in self._templates.templates[device]
        ]

    def access(self, partition: str) -> Access:
        """Return the nodes of a chip, or of a vNPU, which inside must be called /dev/davinci<id>."""
        held = self._share(partition)
        if held.mode == "exclusive":
            number = str(self._templates.chips[held.device].physical)
            env = {"ASCEND_VISIBLE_DEVICES": number, "ASCEND_RT_VISIBLE_DEVICES": "0"}
            return Access(env, (*CONTROL, f"/dev/davinci{number}"))
        env = {"ASCEND_VISIBLE_DEVICES": held.handle, "ASCEND_RUNTIME_OPTIONS": "VIRTUAL"}
        node = f"/dev/vdavinci{held.handle}"
        return Access(env, (*CONTROL, node), binds={node: f"/dev/davinci{held.handle}"})

    def device_processes(self, device: str) -> list[ProcessFact]:
        """Return the processes on a chip."""
        self._fact(device)
        return smi.processes(self._tool, self._templates.chips[device])

    def metrics(self) -> DriverReading:
        """Measure every chip with one call; a vNPU has no figures of its own."""
        try:
            rows = smi.overview(self._tool)
        except NvmlLikeError:
            rows = {}
        at = {uuid: self._templates.chips[uuid] for uuid in self._facts}
        return self.reading(
            sample_of(uuid, rows.get((chip.npu, chip.chip)), "npu-smi") for uuid, chip in at.items()
        )

    def complaints(self) -> list[HealthFact]:
        """Return chips that are not OK or no longer listed, and a setting that outlives reboots."""
        rows, found = smi.overview(self._tool), []
        for uuid in self._facts:
            chip = self._templates.chips[uuid]
            row = rows.get((chip.npu, chip.chip))
            if row is None:
                found.append(lost(uuid, f"npu-smi no longer lists chip {chip.chip} of card {chip.npu}"))
            elif row.health.upper() != "OK":
                word = row.health.lower()
                severity = "critical" if word in ("alarm", "critical", "error", "fault") else "warning"
                said = (
                    f"npu-smi calls the chip {row.health!r}; `npu-smi info -t health -i {chip.npu}` says more"
                )
                action = "drain" if severity == "critical" else "watch"
                found.append(HealthFact(uuid, "health_status", severity, said, action))
        return found + self._recovery()

    def _recovery(self) -> list[HealthFact]:
        """Warn when the device makes the vNPUs of before a reboot again: nobody holds them then."""
        if not any("memlimit" in fact.modes for fact in self._facts.values()):
            return []
        try:
            setting = smi.pairs(self._tool.run(smi.INFO, "-t", "vnpu-cfg-recover"))
        except NvmlLikeError:
            return []
        if not any(value.lower() == "enable" for value in setting.values()):
            return []
        said = (
            "vNPUs come back after a reboot and then belong to nobody: npu-smi set -t vnpu-cfg-recover -d 0"
        )
        return [HealthFact("", "vnpu_cfg_recover", "info", said)]

    def _ask_version(self) -> str:
        return self._tool.run("-v").partition(":")[2]

    def _find(self) -> None:
        self._chips = smi.chips(self._tool)
        for index, chip in enumerate(self._chips):
            for is_last in (False, True):  # one failed call must not cost a chip
                try:
                    self._learn(index, chip)
                    break
                except NvmlLikeError as no:  # one faulty chip costs that chip, not the node
                    if is_last:
                        what = f"chip {chip.chip} of card {chip.npu}"
                        log.warning("%s does not answer: %s", what, no.detail)
                        self.unanswered[index] = f"{what}: {no.detail}"

    def _recall(self, fact: DeviceFact) -> bool:
        """Bring back chip and templates, where a chip is still listed in its place."""
        if fact.index >= len(self._chips):
            return False
        self._templates.chips[fact.uuid] = self._chips[fact.index]
        self._learn_templates(fact.uuid, self._chips[fact.index])
        return True

    def _learn(self, index: int, chip: smi.Chip) -> None:
        at = ("-i", str(chip.npu), "-c", str(chip.chip))
        board = smi.pairs(self._tool.run(smi.INFO, "-t", "board", *at))
        memory = smi.pairs(self._tool.run(smi.INFO, "-t", "memory", *at))
        memory_mib = whole(memory.get("hbmcapacity(mb)")) or whole(memory.get("ddrcapacity(mb)"))
        if not memory_mib:
            raise self._tool.unreadable((smi.INFO, "-t", "memory", *at), "no capacity")
        die = "".join(board.get("vdieid", "").split()) or board.get("serialnumber", "")
        uuid = f"NPU-{die}-{chip.chip}" if die else f"NPU-{board.get('pciebusinfo') or index}"
        uuid = clean(uuid, 100)
        if uuid in self._facts:
            raise NvmlLikeError(
                errors.UNKNOWN, f"two chips call themselves {uuid}; report this to the vendor"
            )
        self._templates.chips[uuid] = chip
        cores, why_not = self._learn_templates(uuid, chip)
        listed = self._templates.templates[uuid]
        self._facts[uuid] = DeviceFact(
            uuid=uuid,
            index=index,
            vendor="huawei",
            model=model_of(chip.name, "Ascend"),
            memory_mib=memory_mib,
            grid=1,
            modes=("exclusive",) if why_not else ("exclusive", "memlimit"),
            sm_count=cores,
            pci_bus_id=board.get("pciebusinfo", ""),
            serial=board.get("serialnumber", ""),
            max_clients=1 if why_not or not cores else max(1, cores // min(t.cores for t in listed)),
            refusals={"memlimit": why_not} if why_not else {},
        )

    def _learn_templates(self, uuid: str, chip: smi.Chip) -> tuple[int | None, str]:
        """Return the AI cores of a chip and why it cannot be cut, "" when it can."""
        self._templates.templates[uuid], self._templates.cores[uuid] = [], 0
        try:
            listed, cores = smi.templates(self._tool, chip.npu), smi.cut(self._tool, chip).cores
            mode = smi.pairs(self._tool.run(smi.INFO, "-t", "vnpu-mode")).get("vnpu-mode", "")
        except NvmlLikeError as no:
            self._note_late(f"vNPUs of {uuid}", no)
            return None, no.detail
        if not listed or not cores:
            return (
                None,
                f"{chip.name or 'this chip'} cannot be cut into vNPUs: npu-smi lists no template for it",
            )
        self._templates.templates[uuid], self._templates.cores[uuid] = listed, cores
        if mode.lower() not in ("docker", "container"):
            return cores, "vNPUs for containers are off on this host: npu-smi set -t vnpu-mode -d 0"
        return cores, ""


def share(template: smi.Template, total: int) -> int:
    """Return a template's part of a chip in thousandths, rounded down."""
    return template.cores * ALL // total
