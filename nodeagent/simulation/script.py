"""What happens to a simulated host while somebody works with it: a list of steps by call or by second."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.simulation.machine.host import HostEvent, SimulatedHost
from nodeagent.simulation.nvml.calls import call_named

Fields = dict[str, Any]


class ScriptError(ValueError):
    """A script cannot be played; the sentence names the step and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class ScriptStep:
    """One thing that happens: before the ``at_call``-th call from now, or ``at_s`` seconds from now."""

    do: str
    fields: Fields
    at_call: int | None = None
    at_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a step does; fields it needs and may have, with their types."""

    needs: dict[str, type]
    may: dict[str, type]
    run: Callable[[SimulatedHost, Fields], object]


def _process(host: SimulatedHost, given: Fields) -> object:
    facts = {**given, "gpu": host.device(given["gpu"]).uuid}
    return host.world.spawn(facts.pop("cgroup", "/user.slice"), **facts)


def _end(host: SimulatedHost, given: Fields) -> None:
    gpu = host.device(given["gpu"]).uuid
    for process in host.world.on(gpu, given.get("gi")):
        host.world.signal(process.pid, kill=True)


def _mig(host: SimulatedHost, given: Fields) -> None:
    status = host.switch_mig(**given)
    if status:
        raise NvmlLikeError(status, f"device {given['gpu']} did not switch")


def _end_foreign(host: SimulatedHost, given: Fields) -> None:
    if all(instance.start != given["start"] for instance in host.device(given["gpu"]).gpu.instances.values()):
        raise NvmlLikeError(errors.NOT_FOUND, f"nothing starts at {given['start']} on device {given['gpu']}")
    host.remove_foreign(**given)


def _latency(host: SimulatedHost, given: Fields) -> None:
    host.faults.latency_s[call_named(given["call"])] = given["seconds"]


def _refuse(host: SimulatedHost, given: Fields) -> None:
    planned = host.faults.refusals.setdefault(call_named(given["call"]), deque())
    planned.extend([given["code"]] * given.get("times", 1))


def _missing(host: SimulatedHost, given: Fields) -> None:
    name = call_named(given["call"])
    if given.get("is_missing", True):
        host.missing.add(name)
    else:
        host.missing.discard(name)


def _vgpu(host: SimulatedHost, given: Fields) -> None:
    host.device(given["gpu"]).is_vgpu = given.get("is_on", True)


def _passthrough(host: SimulatedHost, given: Fields) -> None:
    host.device(given["gpu"]).gpu.is_passthrough = given.get("is_on", True)


_GPU: dict[str, type] = {"gpu": int}
_KINDS: dict[str, _Kind] = {
    "xid": _Kind({**_GPU, "xid": int}, {"gi": int, "ci": int, "count": int}, lambda h, f: h.xid(**f)),
    "ecc": _Kind(_GPU, {"count": int, "is_corrected": bool}, lambda h, f: h.ecc(**f)),
    "recovery": _Kind({**_GPU, "action": int}, {}, lambda h, f: h.ask_for(f["gpu"], f["action"])),
    "lose": _Kind(_GPU, {}, lambda h, f: h.lose(**f)),
    "reset": _Kind(_GPU, {}, lambda h, f: h.reset(**f)),
    "reboot": _Kind({}, {}, lambda h, f: h.reboot()),
    "mig": _Kind({**_GPU, "enabled": bool}, {}, _mig),
    "foreign": _Kind(
        {**_GPU, "profile": str, "start": int}, {"is_half": bool}, lambda h, f: h.add_foreign(**f)
    ),
    "end_foreign": _Kind({**_GPU, "start": int}, {}, _end_foreign),
    "hold": _Kind(_GPU, {"is_profiler": bool}, lambda h, f: h.hold_open(**f)),
    "release": _Kind(_GPU, {"is_profiler": bool}, lambda h, f: h.release(**f)),
    "process": _Kind(
        _GPU,
        {"cgroup": str, "gi": int, "ci": int, "name": str, "user": str, "memory_mib": int}
        | {"is_mps": bool, "is_stubborn": bool, "is_graphics": bool, "load_pattern": str},
        _process,
    ),
    "end_process": _Kind(_GPU, {"gi": int}, _end),
    "latency": _Kind({"call": str, "seconds": float}, {}, _latency),
    "refuse": _Kind({"call": str, "code": int}, {"times": int}, _refuse),
    "missing": _Kind({"call": str}, {"is_missing": bool}, _missing),
    "vgpu": _Kind(_GPU, {"is_on": bool}, _vgpu),
    "passthrough": _Kind(_GPU, {"is_on": bool}, _passthrough),
}
# Numbers that make sense; whole ones count something, so nothing below zero does.
_LEAST = {"code": 1, "times": 1, "count": 1}
MOST_SECONDS = 600
MOST_TIMES = 1_000_000


def read_script(source: Path | str | Iterable[Mapping[str, Any]]) -> list[ScriptStep]:
    """Return the steps of a list, a JSON text or a JSON file; raises ScriptError and then plays none of it."""
    rows: Any = source
    if isinstance(source, Path):
        rows = source.read_text(encoding="utf-8")
    if isinstance(rows, str):
        try:
            rows = json.loads(rows)
        except ValueError as no:
            raise ScriptError(f"the script is no JSON: {no}") from no
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        raise ScriptError("the script must be a list of steps")
    return [_step(place, row) for place, row in enumerate(rows, 1)]


def play(host: SimulatedHost, script: Path | str | Iterable[Mapping[str, Any]]) -> None:
    """Let the steps of a script happen at their call or second from now; raises ScriptError and plays none."""
    steps = read_script(script)
    for place, step in enumerate(steps, 1):
        try:
            host.profile_of(host.device(step.fields.get("gpu", 0)), step.fields.get("profile"))
        except (KeyError, ValueError) as no:
            raise ScriptError(f"step {place} ({step.do}): {no.args[0]}") from no
    host.schedule(
        HostEvent(step.do, partial(_KINDS[step.do].run, host, dict(step.fields)), step.at_call, step.at_s)
        for step in steps
    )


def _step(place: int, row: object) -> ScriptStep:
    if not isinstance(row, Mapping):
        raise ScriptError(f"step {place} must be an object with the fields do and at_call or at_s")
    given = dict(row)
    do, at_call, at_s = given.pop("do", None), given.pop("at_call", None), given.pop("at_s", None)
    kind = _KINDS.get(do) if isinstance(do, str) else None
    if kind is None:
        raise ScriptError(f"step {place} wants to do {do!r}; known are {', '.join(sorted(_KINDS))}")
    if (at_call is None) == (at_s is None):
        raise ScriptError(f"step {place} ({do}) needs exactly one of at_call and at_s")
    if at_call is not None and (type(at_call) is not int or at_call < 1):
        raise ScriptError(f"step {place} ({do}): at_call must be a whole number from 1")
    if at_s is not None and (type(at_s) not in (int, float) or not at_s >= 0):
        raise ScriptError(f"step {place} ({do}): at_s must be a number of seconds from 0")
    _check_fields(place, do, kind, given)
    return ScriptStep(do, given, at_call, None if at_s is None else float(at_s))


def _check_fields(place: int, do: str, kind: _Kind, given: Fields) -> None:
    allowed = kind.needs | kind.may
    if unknown := sorted(set(given) - set(allowed)):
        raise ScriptError(f"step {place} ({do}) has no field {unknown[0]!r}; it takes {_names(allowed)}")
    if absent := sorted(set(kind.needs) - set(given)):
        raise ScriptError(f"step {place} ({do}) needs the field {absent[0]!r}")
    for name, value in given.items():
        if why := _why_not(name, value, allowed[name]):
            raise ScriptError(f"step {place} ({do}): {why}")


def _why_not(name: str, value: object, wanted: type) -> str:
    """Return what is wrong with the value of a field, "" for nothing."""
    if name == "gpu" and isinstance(value, str):
        return ""
    if wanted is float:
        is_number = type(value) in (int, float) and 0 <= value <= MOST_SECONDS  # type: ignore[operator]
        return "" if is_number else f"{name} must be a number of seconds from 0 to {MOST_SECONDS}"
    if type(value) is not wanted:
        return f"{name} must be of type {wanted.__name__}"
    if name in _LEAST and not _LEAST[name] <= value <= MOST_TIMES:  # type: ignore[operator]
        return f"{name} must be a whole number from {_LEAST[name]} to {MOST_TIMES}"
    if name == "call":
        try:
            call_named(str(value))
        except ValueError as no:
            return str(no)
    return ""


def _names(fields: Mapping[str, type]) -> str:
    return ", ".join(sorted(fields)) or "none"
