"""What hy-smi prints, as facts. Strict about what a lease depends on, lenient about the rest.

Forms after published outputs of hy-smi and its vDCU commands; see docs/vendors.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from nodeagent.drivers.base import ProcessFact
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.drivers.vendor import MIB, VendorTool, bounded, clean, number, whole

FACTS: Final = (
    *("-i", "--showproductname", "--showserial", "--showuniqueid"),
    *("--showmeminfo", "vram", "--showuse", "--showpower", "--showtemp", "--json"),
)
BUS: Final = ("--showbus", "--json")
PROCESSES: Final = ("--showpids",)
DEVICES: Final = ("-show-device-info",)
PARTS: Final = ("-show-vdevice-info",)
_CARD = re.compile(r"card(\d{1,4})")
_HEAD = re.compile(r"^(Virtual )?Device\s+(\d{1,4}):$")
_PID = re.compile(r"^PID:\s*(\d{1,9})$")
_USE = re.compile(r"^(HCU|DCU|GPU) use \(%\)$", re.I)


@dataclass(frozen=True, slots=True)
class HygonDevice:
    """One device as hy-smi lists it now; None and "" are unknown."""

    index: int
    model: str
    serial: str
    unique_id: str
    memory_mib: int | None
    memory_used_mib: int | None
    util_percent: float | None
    power_w: float | None
    temperature_c: float | None


@dataclass(frozen=True, slots=True)
class HygonPart:
    """A device, or a virtual device on it, with its compute units."""

    handle: str
    device: int
    units: int
    memory_mib: int


def devices(tool: VendorTool) -> list[HygonDevice]:
    """Return the devices with everything that one call tells."""
    found = []
    for index, facts in _by_device(tool, FACTS).items():
        low = {key.lower(): value for key, value in facts.items()}
        found.append(
            HygonDevice(
                index=index,
                model=clean(facts.get("Card Series") or facts.get("Card series")),
                serial=clean(facts.get("Serial Number")),
                unique_id=clean(facts.get("Unique ID")).lower().removeprefix("0x"),
                memory_mib=_mib(low, "vram total memory"),
                memory_used_mib=_mib(low, "vram total used memory"),
                util_percent=bounded(_first(facts, _USE), 0, 100),
                power_w=bounded(_first(facts, re.compile(r"Package Power \(W\)$")), 0, 100_000),
                temperature_c=bounded(_first(facts, re.compile(r"Sensor (junction|core|edge)\)")), -60, 250),
            )
        )
    if not found:
        raise tool.unreadable(FACTS, "no device")
    return sorted(found, key=lambda device: device.index)


def buses(tool: VendorTool) -> dict[int, str]:
    """Return PCI addresses by device; none where this version does not tell them."""
    try:
        listed = _by_device(tool, BUS)
    except NvmlLikeError:
        return {}
    return {index: clean(facts.get("PCI Bus")) for index, facts in listed.items()}


def parts(tool: VendorTool, words: tuple[str, ...]) -> list[HygonPart]:
    """Return the devices (``DEVICES``) or the virtual devices (``PARTS``) that the tool lists."""
    out = tool.run(*words)
    blocks: list[tuple[str, dict[str, str]]] = []
    for line in (raw.strip() for raw in out.splitlines()):
        head, (key, colon, value) = _HEAD.match(line), line.partition(":")
        if head is not None:
            blocks.append((head[2], {}))
        elif blocks and colon:
            blocks[-1][1].setdefault(key.lower(), value.strip())
    if not blocks and "compute unit" in out.lower():
        raise tool.unreadable(words, "compute units of no device")
    return [_part(tool, words, handle, facts) for handle, facts in blocks]


def processes(tool: VendorTool, device: int) -> list[ProcessFact]:
    """Return the processes on a device; one whose devices the tool does not name counts on every device."""
    out = tool.run(*PROCESSES)
    blocks: list[list[str]] = []
    for line in (raw.strip() for raw in out.splitlines()):
        if _PID.match(line):
            blocks.append([line])
        elif blocks:
            blocks[-1].append(line)
    if not blocks and "no kfd pids" not in out.lower():
        raise tool.unreadable(PROCESSES, "neither PIDs nor the words that there are none")
    return [fact for block in blocks if (fact := _process(block, device)) is not None]


def _process(block: list[str], device: int) -> ProcessFact | None:
    pid = int(block[0].partition(":")[2])
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in block)}
    on = {int(n) for n in re.findall(r"\d{1,4}", facts.get("HCU Index", facts.get("DCU Index", "")))}
    if on and device not in on:
        return None
    used = whole(facts.get("VRAM USED(MiB)")) if len(on) == 1 else None
    return ProcessFact(pid, used, clean(facts.get("PROCESS NAME")))


def _part(tool: VendorTool, words: tuple[str, ...], handle: str, facts: dict[str, str]) -> HygonPart:
    device, units = whole(facts.get("actual device")), whole(facts.get("compute units"))
    size = whole(facts.get("global memory", "").removesuffix("bytes"))
    if device is None or not units or not size:
        raise tool.unreadable(words, f"virtual device {handle} without device, compute units or memory")
    return HygonPart(handle, device, units, size // MIB)


def _by_device(tool: VendorTool, words: tuple[str, ...]) -> dict[int, dict[str, Any]]:
    answer = tool.json(*words)
    if not isinstance(answer, dict):
        raise tool.unreadable(words, "no object of devices")
    found = {}
    for name, facts in answer.items():
        device = _CARD.fullmatch(name)
        if device is not None and isinstance(facts, dict):
            found[int(device[1])] = facts
    return found


def _mib(facts: dict[str, Any], name: str) -> int | None:
    in_mib = whole(facts.get(f"{name} (mib)"))
    in_bytes = whole(facts.get(f"{name} (b)"))
    return in_mib if in_mib is not None or in_bytes is None else in_bytes // MIB


def _first(facts: dict[str, Any], name: re.Pattern[str]) -> float | None:
    found = (number(value) for key, value in facts.items() if name.search(key))
    return next((figure for figure in found if figure is not None), None)
