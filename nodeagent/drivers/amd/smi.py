"""What `amd-smi … --json` prints, as boards with their partitions.

Forms after the source of the tool (github.com/ROCm/amdsmi, amdsmi_cli) and outputs in its issues; see
docs/vendors.md. Older releases print a list, newer ones an object with ``gpu_data``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from nodeagent.drivers.base import ProcessFact
from nodeagent.drivers.kfd import slot_of
from nodeagent.drivers.vendor import MIB, VendorTool, bounded, clean, number, whole

LIST: Final = ("list", "--json")
STATIC: Final = ("static", "--json")
METRIC: Final = ("metric", "--json")
PROCESS: Final = ("process", "--json")
UNITS: Final = {"B": 1, "KB": 1024, "MB": MIB, "GB": 1024 * MIB}
# Parts of each layout on a board with eight dies; smaller boards have fewer (AMD, GPU partitioning).
LAYOUTS: Final = ("spx", "dpx", "tpx", "qpx", "cpx")


@dataclass(frozen=True, slots=True)
class AmdEntry:
    """One line of `amd-smi list`: a board, or one partition of it. ``node`` is its number in the KFD topology."""

    gpu: int
    partition: int
    uuid: str
    bdf: str
    node: int | None


@dataclass(frozen=True, slots=True)
class AmdBoard:
    """One board as it stands now: the entries that it shows, in order of partitions, and what is static."""

    slot: str
    entries: tuple[AmdEntry, ...]
    layout: str
    memory_layout: str
    model: str
    serial: str
    units: int | None
    vram_mib: int | None
    numa: int | None
    power_limit_w: float | None
    driver: str


@dataclass(frozen=True, slots=True)
class AmdFigures:
    """What one entry measures; None is unknown. ``parts`` is the use of each partition, told by the first entry."""

    util_percent: float | None = None
    bandwidth_percent: float | None = None
    memory_used_mib: int | None = None
    memory_total_mib: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    energy_mj: int | None = None
    uncorrectable: int | None = None
    parts: dict[int, float] = field(default_factory=dict)


def boards(tool: VendorTool) -> list[AmdBoard]:
    """Return the boards in the order of the tool; an entry without PCI address cannot be believed."""
    static = _by_gpu(tool, STATIC)
    groups: dict[str, list[AmdEntry]] = {}
    for facts in _rows(tool, LIST):
        gpu, slot = whole(facts.get("gpu")), slot_of(clean(facts.get("bdf")))
        if gpu is None or not slot:
            raise tool.unreadable(LIST, "an entry without number or PCI address")
        entry = AmdEntry(
            gpu=gpu,
            partition=whole(facts.get("partition_id")) or 0,
            uuid=clean(facts.get("uuid"), 100),
            bdf=clean(facts.get("bdf"), 20),
            node=whole(facts.get("node_id")),
        )
        groups.setdefault(slot, []).append(entry)
    return [_board(tool, slot, entries, static) for slot, entries in groups.items()]


def figures(tool: VendorTool) -> dict[int, AmdFigures]:
    """Return what every entry measures, by its number."""
    return {gpu: _figures(facts) for gpu, facts in _by_gpu(tool, METRIC).items()}


def processes(tool: VendorTool) -> dict[int, list[ProcessFact]]:
    """Return the processes on every entry, by its number."""
    found: dict[int, list[ProcessFact]] = {}
    for facts in _rows(tool, PROCESS):
        gpu, listed = whole(facts.get("gpu")), facts.get("process_list", facts.get("process_info"))
        if gpu is None:
            raise tool.unreadable(PROCESS, "an entry without number")
        found[gpu] = []
        for item in listed if isinstance(listed, list) else []:
            info = item.get("process_info", item) if isinstance(item, dict) else None
            if not isinstance(info, dict):
                continue  # the tool writes words where there are none
            pid = whole(info.get("pid"))
            if pid is None:
                raise tool.unreadable(PROCESS, "a process without pid")
            found[gpu].append(ProcessFact(pid, _mib(info.get("mem_usage")), clean(info.get("name"))))
    return found


def _board(
    tool: VendorTool, slot: str, entries: list[AmdEntry], static: dict[int, dict[str, Any]]
) -> AmdBoard:
    ordered = tuple(sorted(entries, key=lambda entry: (entry.partition, entry.gpu)))
    facts = static.get(ordered[0].gpu, {})
    asic, partition = _part(facts, "asic"), _part(facts, "partition")
    layout = clean(partition.get("compute_partition") or partition.get("accelerator_partition")).lower()
    memory = clean(partition.get("memory_partition")).lower()
    if layout not in LAYOUTS:
        if len(ordered) > 1:
            raise tool.unreadable(STATIC, f"{len(ordered)} partitions on {slot} in an unknown layout")
        layout = ""  # a board that cannot be partitioned
    each = whole(asic.get("num_compute_units"))
    limit = _part(facts, "limit")
    return AmdBoard(
        slot=slot,
        entries=ordered,
        layout=layout,
        memory_layout=memory if memory.startswith("nps") else "",
        model=clean(asic.get("market_name")),
        serial=_known(asic.get("asic_serial")) or _known(_part(facts, "board").get("product_serial")),
        units=each * len(ordered) if each else None,
        vram_mib=_mib(_part(facts, "vram").get("size")),
        numa=whole(_part(facts, "numa").get("node")),
        power_limit_w=bounded(number(limit.get("socket_power") or limit.get("max_power")), 1, 100_000),
        driver=_known(_part(facts, "driver").get("version")),
    )


def _figures(facts: dict[str, Any]) -> AmdFigures:
    use, memory, heat = _part(facts, "usage"), _part(facts, "mem_usage"), _part(facts, "temperature")
    energy = _part(facts, "energy").get("total_energy_consumption")
    joules = bounded(number(energy), 0, 9e11)
    warm = next((n for n in (number(heat.get("hotspot")), number(heat.get("edge"))) if n is not None), None)
    return AmdFigures(
        util_percent=bounded(number(use.get("gfx_activity")), 0, 100),
        bandwidth_percent=bounded(number(use.get("umc_activity")), 0, 100),
        memory_used_mib=_mib(memory.get("used_vram")),
        memory_total_mib=_mib(memory.get("total_vram")),
        power_w=bounded(number(_part(facts, "power").get("socket_power")), 0, 100_000),
        temperature_c=bounded(warm, -60, 250),
        energy_mj=None if joules is None else round(joules * 1000),
        uncorrectable=whole(_part(facts, "ecc").get("total_uncorrectable_count")),
        parts=_busy(_part(use, "gfx_busy_inst")),
    )


def _busy(instances: dict[str, Any]) -> dict[int, float]:
    """Return the mean use of the dies of each partition ("xcp_<n>"), where all that answer can be read."""
    found = {}
    for name, values in instances.items():
        part = whole(name.removeprefix("xcp_"))
        known = [n for v in (values if isinstance(values, list) else []) if (n := number(v)) is not None]
        if part is not None and known and all(0 <= n <= 100 for n in known):
            found[part] = sum(known) / len(known)
    return found


def _rows(tool: VendorTool, words: tuple[str, ...]) -> list[dict[str, Any]]:
    answer = tool.json(*words)
    rows = answer.get("gpu_data") if isinstance(answer, dict) else answer
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise tool.unreadable(words, "no list of GPUs")
    return rows


def _by_gpu(tool: VendorTool, words: tuple[str, ...]) -> dict[int, dict[str, Any]]:
    return {gpu: row for row in _rows(tool, words) if (gpu := whole(row.get("gpu"))) is not None}


def _part(facts: dict[str, Any], name: str) -> dict[str, Any]:
    value = facts.get(name)
    return value if isinstance(value, dict) else {}


def _known(value: object) -> str:
    text = clean(value, 100)
    return "" if text.upper() == "N/A" else text


def _mib(value: object) -> int | None:
    """Return a size in MiB; the tool counts in units of 1024 whatever it calls them."""
    figure = number(value)
    unit = clean(value.get("unit")) if isinstance(value, dict) else "MB"
    if figure is None or figure < 0 or unit.upper() not in UNITS:
        return None
    return int(figure * UNITS[unit.upper()]) // MIB
