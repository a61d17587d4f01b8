"""AMD Instinct boards: whole, or as the partitions of the layout that the operator fixed for them.

A board changes its layout as a whole and only while nothing runs on it; memory modes are never changed here,
because that reloads the kernel's driver and with it stops all boards of the host.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from nodeagent.drivers import errors
from nodeagent.drivers.amd import smi
from nodeagent.drivers.base import (
    Access,
    DriverReading,
    PartitionSample,
    PartitionShape,
    ProcessFact,
    ShapeOffer,
)
from nodeagent.drivers.errors import NotOfferedError, NvmlLikeError
from nodeagent.drivers.kfd import kfd_nodes, slot_of
from nodeagent.drivers.shares import ALL, WHOLE, HeldShare
from nodeagent.drivers.vendor import (
    MIB,
    Read,
    VendorDriver,
    VendorTool,
    clean,
    lost,
    model_of,
    opened,
    whole,
)
from nodeagent.host.shell import Shell
from nodeagent.protocol.messages import DeviceFact, DeviceSample, HealthFact, PartitionFact, ProfileFact

log = logging.getLogger(__name__)

PARTS = {"spx": 1, "dpx": 2, "tpx": 3, "qpx": 4, "cpx": 8}


class AmdDriver(VendorDriver):
    """Boards over `amd-smi … --json`. A partition counts as standing once it was handed out."""

    name = "amd"

    def __init__(
        self,
        boot_id: str,
        shell: Shell,
        run_dir: Path,
        read: Read,
        *,
        layouts: Mapping[str, str] | None = None,
        offer: frozenset[str] | None = None,
        looks_only: bool = False,
    ) -> None:
        """Find the boards; raises DriverUnavailableError when amd-smi is missing or lists none.

        ``layouts``: compute layout by board uuid or model, "*" for all others ("spx", "dpx", "tpx", "qpx",
        "cpx", with a memory mode after a point where it must be that one: "cpx.nps4"). A board that is not
        named keeps the layout in which it stands. ``offer`` are the modes that the operator allows, None all;
        ``looks_only``: nothing is written below ``run_dir``.
        """
        self._tool = VendorTool(shell, "amd-smi")
        opened(self._tool, lambda: self._tool.run("version"))
        self.version = self._tool.version
        super().__init__(boot_id, run_dir, read, looks_only=looks_only)
        self._layouts = {key.lower(): value.lower() for key, value in (layouts or {}).items()}
        self._slots: dict[str, str] = {}
        self._take_stock(offer, "amd-smi lists no board that tells its memory")

    def catalogue(self, device: str) -> list[ShapeOffer]:
        """Return the whole board, or the partitions of its layout."""
        fact = self._fact(device)
        if "exclusive" in fact.modes:
            return [ShapeOffer(PartitionShape(WHOLE, "", fact.grid, ALL, fact.memory_mib), (0,), 1)]
        return [
            ShapeOffer(PartitionShape("mig", p.name, p.slices, 0, p.memory_mib), p.starts, p.max_instances)
            for p in fact.profiles
            if "mig" in fact.modes
        ]

    def observe(self, device: str) -> list[PartitionFact]:
        """Return what is handed out of a board."""
        self._fact(device)
        return [share.fact() for share in self._book.on(device)]

    def create(self, device: str, shape: PartitionShape, position: int, owner: str = "") -> PartitionFact:
        """Hand out a board or one partition; the board is brought into its layout first, while it is empty."""
        fact = self._fact(device)
        self._require_offered(fact, shape)
        is_whole = shape.mode == "exclusive"
        profile = None if is_whole else next((p for p in fact.profiles if p.name == shape.profile), None)
        if not is_whole and profile is None:
            known = ", ".join(p.name for p in fact.profiles)
            raise NvmlLikeError(errors.INVALID_ARGUMENT, f"this board has {known}, not {shape.profile!r}")
        if position not in ((0,) if profile is None else profile.starts):
            raise NvmlLikeError(errors.INVALID_ARGUMENT, f"nothing starts at {position} on this board")
        name = device if is_whole else f"XCP-{device.removeprefix('AMD-')}-{position}"
        held = self._book.get(name)
        if held is not None and held.owner == owner:
            return held.fact()
        if held is not None:
            raise NvmlLikeError(errors.INSUFFICIENT_RESOURCES, f"{name} is handed out already")
        self._bring_into_layout(fact, profile)
        if profile is None:
            share = HeldShare(name, device, owner, WHOLE, ALL, fact.memory_mib, size=fact.grid)
        else:
            share = HeldShare(name, device, owner, "mig", 0, profile.memory_mib, profile.name, position, 1)
        self._book.put(share)
        return share.fact()

    def destroy(self, partition: str) -> None:
        """Take a board or partition back; its layout stays, others may be at work. Gone already is success."""
        if self._book.get(partition) is None:
            return
        if running := self.processes(partition):
            pids = ", ".join(str(process.pid) for process in running[:5])
            raise NvmlLikeError(errors.IN_USE, f"still running on {partition}: {pids}")
        self._book.drop(partition)

    def access(self, partition: str) -> Access:
        """Return /dev/kfd and the render node of exactly this board or partition, as the kernel names it."""
        held = self._share(partition)
        board = self._board(held.device)
        entry = next((e for e in board.entries if e.partition == held.start), None)
        nodes = kfd_nodes(self._read)
        node = nodes.get(entry.node) if entry is not None and entry.node is not None else None
        if node is None:
            raise NvmlLikeError(
                errors.NOT_FOUND,
                f"the kernel's list of devices (/sys/class/kfd) does not name the render node of {partition}; "
                f"load the amdgpu driver and try again",
            )
        # By name, never by number: where only its own node is visible, numbers begin at 0 again.
        env = {"ROCR_VISIBLE_DEVICES": node.visible_as} if node.visible_as else {}
        return Access(env, ("/dev/kfd", f"/dev/dri/renderD{node.render_minor}"))

    def processes(self, partition: str) -> list[ProcessFact]:
        """Return the processes on a board or partition."""
        held = self._book.get(partition)
        if held is None:
            return []
        listed = smi.processes(self._tool)
        entries = self._board(held.device).entries
        mine = [e for e in entries if held.mode == "exclusive" or e.partition == held.start]
        if not mine or any(entry.gpu not in listed for entry in mine):
            raise self._tool.unreadable(smi.PROCESS, f"nothing about {partition}")
        found = {process.pid: process for entry in mine for process in listed[entry.gpu]}
        return list(found.values())

    def metrics(self) -> DriverReading:
        """Measure every board with two calls; partitions have a use and a memory of their own, no power."""
        try:
            listed = {board.slot: board for board in smi.boards(self._tool)}
            measured = smi.figures(self._tool)
        except NvmlLikeError as no:
            log.debug("no figures: %s", no)
            listed, measured = {}, {}
        samples, parts = [], []
        for uuid in self._facts:
            board = listed.get(self._slots[uuid])
            entries = board.entries if board else ()
            figures = [measured.get(entry.gpu, smi.AmdFigures()) for entry in entries] or [smi.AmdFigures()]
            samples.append(_sample(uuid, board, figures, self._used(board)))
            by_part = {entry.partition: f for entry, f in zip(entries, figures, strict=False)}
            parts += [_part_sample(held, samples[-1], by_part) for held in self._book.on(uuid)]
        return DriverReading(tuple(samples), tuple(parts))

    def complaints(self) -> list[HealthFact]:
        """Return boards that are gone and memory errors that could not be corrected."""
        listed = {board.slot: board for board in smi.boards(self._tool)}
        measured, found = smi.figures(self._tool), []
        for uuid, slot in self._slots.items():
            board = listed.get(slot)
            if board is None:
                found.append(lost(uuid, f"amd-smi no longer lists the board at {slot}"))
                continue
            bad = max((measured.get(e.gpu, smi.AmdFigures()).uncorrectable or 0) for e in board.entries)
            if bad:
                said = f"{bad} memory errors since the driver was loaded could not be corrected"
                found.append(HealthFact(uuid, "ecc_uncorrectable", "warning", said, "watch"))
        return found

    def _find(self) -> None:
        listed = smi.boards(self._tool)
        self.version = next((board.driver for board in listed if board.driver), "") or self.version
        for index, board in enumerate(listed):
            self._learn(index, board)

    def _recall(self, fact: DeviceFact) -> bool:
        """Bring back where a board is, where it was known."""
        self._slots[fact.uuid] = slot_of(fact.pci_bus_id)
        return bool(self._slots[fact.uuid])

    def _board(self, device: str) -> smi.AmdBoard:
        self._fact(device)
        for board in smi.boards(self._tool):
            if board.slot == self._slots[device]:
                return board
        raise NvmlLikeError(errors.GPU_IS_LOST, f"amd-smi no longer lists the board at {self._slots[device]}")

    def _bring_into_layout(self, fact: DeviceFact, profile: ProfileFact | None) -> None:
        """Switch the board to the layout it is offered in; IN_USE while anything is on it."""
        wanted, _, memory = (profile.name if profile else "spx").partition(".")
        board = self._board(fact.uuid)
        if memory and board.memory_layout and board.memory_layout != memory:
            raise NotOfferedError(
                f"the board's memory stands in {board.memory_layout}, not {memory}; changing it reloads the driver, "
                f"so the agent never does: stop all GPU work of the host and run "
                f"amd-smi set --memory-partition {memory.upper()}"
            )
        if board.layout in ("", wanted):
            return
        if self._book.on(fact.uuid):
            raise NvmlLikeError(
                errors.IN_USE, f"the board stands in {board.layout} and is in use; it changes only when empty"
            )
        listed = smi.processes(self._tool)
        pids = [p.pid for entry in board.entries for p in listed.get(entry.gpu, [])]
        if pids:
            raise NvmlLikeError(errors.IN_USE, f"still running on the board: {', '.join(map(str, pids[:5]))}")
        self._tool.run("set", "--gpu", str(board.entries[0].gpu), "--compute-partition", wanted.upper())
        now = self._board(fact.uuid)
        if now.layout != wanted or len(now.entries) != (fact.grid if profile else 1):
            raise NvmlLikeError(
                errors.UNKNOWN,
                f"the board was asked for {wanted} and stands in {now.layout or 'no layout'} with "
                f"{len(now.entries)} partitions",
            )

    def _learn(self, index: int, board: smi.AmdBoard) -> None:
        number = (board.serial or board.entries[0].uuid).removeprefix("0x").lower()
        uuid = clean(f"AMD-{number or board.slot}", 100)
        memory_mib = self._memory(board)
        if not memory_mib:
            self.unanswered[index] = f"amd-smi does not tell the memory of the board at {board.slot}"
            return
        if uuid in self._facts:
            log.warning("the board at %s is left out: another has its number", board.slot)
            return
        named = (
            self._layouts.get(uuid.lower())
            or self._layouts.get(board.model.lower())
            or self._layouts.get(model_of(board.model, "").lower())
            or self._layouts.get("*")
        )
        layout, _, memory = (named or board.layout or "spx").partition(".")
        refusal = _why_not(layout, memory, board)
        count = len(board.entries) if board.layout == layout else PARTS.get(layout, 1)
        is_cut = layout != "spx"
        profile = f"{layout}.{board.memory_layout}" if board.memory_layout else layout
        one = ProfileFact(
            name=profile,
            profile_id=smi.LAYOUTS.index(layout) if layout in smi.LAYOUTS else 0,
            slices=1,
            starts=tuple(range(count)),
            memory_mib=memory_mib // count,
            sm_count=board.units // count if board.units else None,
            max_instances=count,
        )
        self._slots[uuid] = board.slot
        self._facts[uuid] = DeviceFact(
            uuid=uuid,
            index=index,
            vendor="amd",
            model=model_of(board.model, "AMD"),
            memory_mib=memory_mib,
            grid=count if is_cut else 1,
            modes=() if refusal else ("mig",) if is_cut else ("exclusive",),
            sm_count=board.units,
            pci_bus_id=board.entries[0].bdf,
            serial=board.serial,
            numa_node=board.numa if board.numa is not None and board.numa < 1024 else None,
            profiles=(one,) if is_cut and not refusal else (),
            refusals=_refusals(layout, refusal),
        )

    def _used(self, board: smi.AmdBoard | None) -> int | None:
        """Return the memory in use on a whole board as the kernel counts it, whatever its layout."""
        try:
            path = f"/sys/bus/pci/devices/{board.entries[0].bdf.lower()}/mem_info_vram_used" if board else ""
            used = whole(self._read(path)) if path else None
        except OSError:
            return None
        return None if used is None else used // MIB

    def _memory(self, board: smi.AmdBoard) -> int | None:
        """Return a board's memory: the kernel's figure is of the whole board in every layout, the tool's may not be."""
        for entry in board.entries:
            try:
                size = whole(self._read(f"/sys/bus/pci/devices/{entry.bdf.lower()}/mem_info_vram_total"))
            except OSError:
                continue
            if size:
                return size // MIB
        return board.vram_mib


def _why_not(layout: str, memory: str, board: smi.AmdBoard) -> str:
    if layout not in smi.LAYOUTS:
        return f"{layout!r} is no layout: use one of {', '.join(smi.LAYOUTS)}"
    if layout != "spx" and not board.layout:
        return "this board cannot be partitioned: amd-smi tells no layout of it"
    if memory and memory != board.memory_layout:
        return (
            f"the memory of this board stands in {board.memory_layout or 'no known mode'}, the fixed layout wants "
            f"{memory}; changing it reloads the driver, so do it by hand while no GPU work runs on the host"
        )
    return ""


def _refusals(layout: str, refusal: str) -> dict[str, str]:
    if refusal:
        return {"mig": refusal} if layout != "spx" else {"exclusive": refusal}
    if layout == "spx":
        return {"mig": "the operator fixed no partitioned layout for this board (spx)"}
    return {"exclusive": f"the operator fixed the layout {layout} for this board; spx leases it whole"}


def _sample(
    uuid: str, board: smi.AmdBoard | None, figures: list[smi.AmdFigures], used_mib: int | None
) -> DeviceSample:
    first = figures[0]
    if used_mib is None and len(figures) == 1:
        used_mib = first.memory_used_mib  # of several partitions it is not known whose memory they tell
    return DeviceSample(
        device=uuid,
        util_percent=first.util_percent,
        memory_used_mib=used_mib,
        power_w=first.power_w,
        temperature_c=first.temperature_c,
        energy_mj=first.energy_mj,
        source="unavailable" if first.util_percent is None else "amd-smi",
        power_limit_w=board.power_limit_w if board else None,
        bandwidth_percent=first.bandwidth_percent,
    )


def _part_sample(
    held: HeldShare, board: DeviceSample, by_part: Mapping[int, smi.AmdFigures]
) -> PartitionSample:
    if held.mode == "exclusive":
        return PartitionSample(
            partition=held.partition,
            device=held.device,
            start=0,
            util_percent=board.util_percent,
            memory_used_mib=board.memory_used_mib,
            memory_mib=held.memory_mib,
            source=board.source,
            bandwidth_percent=board.bandwidth_percent,
            power_w=board.power_w,
        )
    told_by_first = by_part.get(0, smi.AmdFigures()).parts
    use, own = told_by_first.get(held.start), by_part.get(held.start, smi.AmdFigures())
    # Partitions that share one memory all tell its figures: then what one of them uses is unknown.
    is_own = own.memory_total_mib is not None and own.memory_total_mib <= held.memory_mib * 1.05
    return PartitionSample(
        partition=held.partition,
        device=held.device,
        start=held.start,
        util_percent=use,
        memory_used_mib=own.memory_used_mib if is_own else None,
        memory_mib=held.memory_mib,
        source="unavailable" if use is None else "amd-smi gfx_busy_inst",
    )
