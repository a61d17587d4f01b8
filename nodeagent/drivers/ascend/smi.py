"""What npu-smi prints, as facts. Strict about what a lease depends on, lenient about the rest.

Forms after Huawei's npu-smi and AVI pages (hiascend.com) and outputs published with them; see docs/vendors.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nodeagent.drivers.base import ProcessFact
from nodeagent.drivers.vendor import VendorTool, bounded, clean, number, whole

INFO = "info"
_PROCESS = re.compile(
    r"Process id\s*:\s*(\d{1,9})\s+Process name\s*:\s*(.*?)\s+Process memory\(MB\)\s*:\s*(\d{1,9})"
)
_VNPU = re.compile(
    r"^\s*\|?\s*(\d{1,6})\s*\|\s*\S+\s*\|\s*\S+\s*\|\s*\S+\s*\|\s*([A-Za-z0-9_]{1,60})\s*\|?\s*$"
)
_FREE = re.compile(r"^[\s|]*(?:NA|\d{1,6})/(\d{1,6})\s+(?:NA|\d{1,6})/(\d{1,6})\s", re.MULTILINE)
_TEMPLATE = re.compile(
    r"^\s*\|?\s*([A-Za-z][A-Za-z0-9_]{0,60})\s+(\d{1,4})\s+(\d{1,4}(?:\.\d{1,3})?)\s", re.MULTILINE
)
_USED = re.compile(r"(\d{1,9})\s*/\s*(\d{1,9})")


@dataclass(frozen=True, slots=True)
class Chip:
    """One chip as `npu-smi info -m` lists it; ``physical`` is the number in /dev/davinci<n>."""

    npu: int
    chip: int
    physical: int
    name: str


@dataclass(frozen=True, slots=True)
class Template:
    """One way to cut a chip."""

    name: str
    cores: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Cut:
    """How a chip is cut now: all its AI cores, and template by vNPU id."""

    cores: int
    parts: dict[str, str]


@dataclass(frozen=True, slots=True)
class AscendRow:
    """One chip in the overview; None is unknown."""

    health: str
    power_w: float | None
    temperature_c: float | None
    util_percent: float | None
    memory_used_mib: int | None


def pairs(out: str) -> dict[str, str]:
    """Return ``key : value`` lines; keys in lower case without blanks, the first of a kind wins."""
    found: dict[str, str] = {}
    for line in out.splitlines():
        key, colon, value = line.partition(" : ")
        if colon:
            found.setdefault("".join(key.lower().split()), clean(value))
    return found


def chips(tool: VendorTool) -> list[Chip]:
    """Return the accelerator chips; controllers, which have no logic id, are left out."""
    words = (INFO, "-m")
    lines = [re.split(r"\s{2,}", line.strip()) for line in tool.run(*words).splitlines() if line.strip()]
    head = next((at for at, cells in enumerate(lines) if "NPU ID" in cells and "Chip ID" in cells), None)
    if head is None:
        raise tool.unreadable(words, "no line with NPU ID and Chip ID")
    names = lines[head]
    found = []
    for cells in lines[head + 1 :]:
        row = dict(zip(names, cells, strict=False))
        npu, chip = whole(row.get("NPU ID")), whole(row.get("Chip ID"))
        logic = whole(row.get("Chip Logic ID"))
        if npu is None or chip is None or logic is None:
            continue
        physical = next((whole(v) for k, v in row.items() if k.startswith("Chip Phy")), None)
        name = clean(row.get("Chip Name") or row.get("Name"))
        found.append(Chip(npu, chip, logic if physical is None else physical, name))
    return found


def templates(tool: VendorTool, npu: int) -> list[Template]:
    """Return the templates of a device; none where the device cannot be cut."""
    words = (INFO, "-t", "template-info", "-i", str(npu))
    out = tool.run(*words)
    if "does not support" in out:
        return []
    found = [
        Template(name, int(cores), round(float(memory) * 1024))
        for name, cores, memory in _TEMPLATE.findall(out)
        if int(cores) and name.lower() not in ("name", "gb")
    ]
    if not found:
        raise tool.unreadable(words, "no template with AI cores and memory")
    return found


def cut(tool: VendorTool, chip: Chip) -> Cut:
    """Return how a chip is cut now; every part that the tool counts must be read, or nothing is believed."""
    words = (INFO, "-t", "info-vnpu", "-i", str(chip.npu), "-c", str(chip.chip))
    out = tool.run(*words)
    total, count = _FREE.search(out), re.search(r"Total number of vnpu\s*:\s*(\d{1,3})", out, re.I)
    if total is None or count is None:
        raise tool.unreadable(words, "no AICORE figures or no number of vNPUs")
    rows = [_VNPU.match(line) for line in out.splitlines()]
    parts = {row[1]: row[2] for row in rows if row is not None}
    if len(parts) != int(count[1]):
        raise tool.unreadable(words, f"{count[1]} vNPUs announced, {len(parts)} listed")
    return Cut(int(total[1]), parts)


def processes(tool: VendorTool, chip: Chip) -> list[ProcessFact]:
    """Return the processes on a chip."""
    words = (INFO, "-t", "proc-mem", "-i", str(chip.npu), "-c", str(chip.chip))
    out = tool.run(*words)
    found = [ProcessFact(int(pid), int(mib), clean(name)) for pid, name, mib in _PROCESS.findall(out)]
    if not found and "no process" not in out.lower():
        raise tool.unreadable(words, "neither processes nor the words that there are none")
    return found


def overview(tool: VendorTool) -> dict[tuple[int, int], AscendRow]:
    """Return what `npu-smi info` shows of every chip, by device and chip number: one call for a whole node."""
    found: dict[tuple[int, int], AscendRow] = {}
    first: tuple[int, str, str] | None = None
    for line in tool.run(INFO).splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        lead = whole((cells[0].split() or [""])[0])
        if len(cells) != 3 or lead is None:
            continue
        if first is None:
            first = (lead, cells[1], cells[2])
        else:
            found[(first[0], lead)] = _row(first[1], first[2], cells[2])
            first = None
    if not found:
        raise tool.unreadable((INFO,), "no row of a chip")
    return found


def _row(health: str, upper: str, lower: str) -> AscendRow:
    figures = upper.split()
    used = [(int(a), int(b)) for a, b in _USED.findall(lower) if int(b)]
    return AscendRow(
        health=clean(health, 40),
        power_w=bounded(number(figures[0]) if figures else None, 0, 100_000),
        temperature_c=bounded(number(figures[1]) if len(figures) > 1 else None, -60, 250),
        util_percent=bounded(number((lower.split() or [""])[0]), 0, 100),
        memory_used_mib=used[-1][0] if used else None,
    )
