"""What a simulated node consists of: from options, from a JSON file, or as one node of the demo fleet."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nodeagent.protocol.boards import UnknownBoardError, device_facts
from nodeagent.protocol.limits import MODES, SEVERITIES
from nodeagent.protocol.messages import DeviceFact, HealthFact
from nodeagent.simulation.faults import Faults

MOST_DEVICES: Final = 64
VERBS: Final = ("observe", "create", "destroy", "mig", "sleep", "wake")
DEMO: Final[dict[str, dict[str, Any]]] = {
    "gpu-01": {"boards": [{"board": "h100-80gb", "count": 8, "modes": ["mig", "exclusive"]}]},
    "gpu-02": {"boards": [{"board": "a100-80gb", "count": 8, "modes": ["mig", "exclusive"]}]},
    "gpu-03": {"boards": [{"board": "l40s-48gb", "count": 8, "modes": ["memlimit", "mps", "exclusive"]}]},
    "gpu-04": {"boards": [{"board": "hygon-dcu-64gb", "count": 8, "modes": ["memlimit", "exclusive"]}]},
}


class SpecError(ValueError):
    """A simulated node that cannot be built; the sentence names the field and what it may be."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A simulated node: its devices and what goes wrong on it."""

    devices: tuple[DeviceFact, ...]
    faults: Faults = field(default_factory=Faults)
    reboots: int = 0


@dataclass(frozen=True, slots=True)
class PlayedSpec:
    """A simulated host behind a played NVML; ``modes`` are those that its description offers, None the usual ones."""

    boards: list[str]
    modes: frozenset[str] | None = None
    faults: Faults = field(default_factory=Faults)


def demo_spec(node: str) -> dict[str, Any]:
    """Return the demo fleet's description of a node; raises SpecError naming the choices."""
    if node not in DEMO:
        raise SpecError(f"the demo fleet has no node {node!r}; it has {', '.join(DEMO)}")
    return DEMO[node]


def read_spec(path: Path) -> dict[str, Any]:
    """Return the description in a JSON file; raises SpecError."""
    try:
        spec = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as no:
        raise SpecError(f"cannot read the node's description {path}: {no}") from no
    if not isinstance(spec, dict):
        raise SpecError(f"{path} must hold one JSON object with a list 'boards'")
    return spec


def build(node: str, spec: dict[str, Any], *, seed: int = 0, reboots: int = 0) -> NodeSpec:
    """Return the node of a description; raises SpecError.

    Fields: ``boards`` (board, count, modes), ``latency_s`` per verb, ``fault_rate`` and ``health``
    (index, code, severity, detail).
    """
    _require_fields(spec)
    devices = _devices(node, spec.get("boards"))
    faults = Faults(
        latency_s=_latency(spec.get("latency_s", {})),
        rate=_rate(spec),
        seed=seed,
        health=[_health(entry, devices) for entry in spec.get("health", [])],
    )
    return NodeSpec(devices, faults, reboots)


def played(spec: dict[str, Any], call_named: Callable[[str], str]) -> PlayedSpec:
    """Return the host of a description as its played NVML needs it; raises SpecError.

    ``call_named`` returns the call of NVML for a verb or name, and raises ValueError for one that it has not.
    """
    _require_fields(spec)
    devices = _devices("any", spec.get("boards"))
    if others := sorted({fact.model for fact in devices if fact.vendor != "nvidia"}):
        raise SpecError(f"{others[0]} is no NVIDIA board, and NVML knows only those; use --driver simulated")
    if spec.get("health"):
        raise SpecError(
            "'health' is for --driver simulated; let it happen by a script (xid, ecc, recovery, lose)"
        )
    modes = {frozenset(entry.get("modes", ())) for entry in spec["boards"]}
    if len(modes) > 1:
        raise SpecError(
            "a node offers the same modes on all its NVIDIA devices; give all boards the same 'modes'"
        )
    try:
        pauses = {call_named(name): pause for name, pause in _seconds(spec.get("latency_s", {})).items()}
    except ValueError as no:
        raise SpecError(f"'latency_s': {no}") from no
    faults = Faults(latency_s=pauses, rate=_rate(spec))
    return PlayedSpec([fact.model for fact in devices], modes.pop() or None, faults)


def _devices(node: str, boards: Any) -> tuple[DeviceFact, ...]:
    if not isinstance(boards, list) or not boards:
        raise SpecError('\'boards\' must be a list such as [{"board": "h100-80gb", "count": 8}]')
    devices: list[DeviceFact] = []
    for entry in boards:
        devices += _board(node, entry, len(devices))
    return tuple(devices)


def _board(node: str, entry: Any, first: int) -> tuple[DeviceFact, ...]:
    if not isinstance(entry, dict) or not isinstance(entry.get("board"), str):
        raise SpecError('each board needs its name, such as {"board": "h100-80gb", "count": 8}')
    number, modes = entry.get("count", 1), entry.get("modes", [])
    if type(number) is not int or not 1 <= number <= MOST_DEVICES - first:
        raise SpecError(f"'count' must be a number from 1; a node has at most {MOST_DEVICES} devices")
    if not isinstance(modes, list) or not set(map(str, modes)) <= set(MODES):
        raise SpecError(f"'modes' must be a list of {', '.join(MODES)}")
    try:
        return device_facts(node, entry["board"], number, tuple(modes), first)
    except (UnknownBoardError, ValueError) as no:
        raise SpecError(str(no)) from no


def _require_fields(spec: dict[str, Any]) -> None:
    if unknown := spec.keys() - {"boards", "latency_s", "fault_rate", "health"}:
        raise SpecError(f"unknown field {min(unknown)!r}; known: boards, latency_s, fault_rate, health")
    if not isinstance(spec.get("health", []), list):
        raise SpecError("'health' must be a list of entries with index, code and severity")


def _latency(entry: Any) -> dict[str, float]:
    if not isinstance(entry, dict) or not entry.keys() <= set(VERBS):
        raise SpecError(f"'latency_s' gives seconds for {', '.join(VERBS)}")
    return _seconds(entry)


def _seconds(entry: Any) -> dict[str, float]:
    if not isinstance(entry, dict):
        raise SpecError(f"'latency_s' gives seconds for {', '.join(VERBS)}")
    return {verb: _number(f"latency_s.{verb}", value, most=600.0) for verb, value in entry.items()}


def _rate(spec: dict[str, Any]) -> float:
    return _number("fault_rate", spec.get("fault_rate", 0.0), most=1.0)


def _number(name: str, value: Any, *, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise SpecError(f"{name!r} must be a number from 0 to {most:g}")
    return float(value)


def _health(entry: Any, devices: tuple[DeviceFact, ...]) -> HealthFact:
    try:
        device = devices[int(entry["index"])].uuid
        fact = HealthFact(device, str(entry["code"]), str(entry["severity"]), str(entry.get("detail", "")))
    except (LookupError, TypeError, ValueError) as no:
        raise SpecError("each health entry needs index (of a device), code and severity") from no
    if fact.severity not in SEVERITIES:
        raise SpecError(f"a health entry's severity is one of {', '.join(SEVERITIES)}")
    return fact
