"""Simulated hosts as the options describe them: devices of many vendors, or devices behind a played NVML."""

from __future__ import annotations

import argparse
import shutil
import time
import uuid
from pathlib import Path
from typing import Any, Final

from nodeagent.commands.options import USUAL_COUNT, UsageError, offered
from nodeagent.drivers import registry
from nodeagent.drivers.base import Driver
from nodeagent.host.clock import boot_clock
from nodeagent.host.files import spare_folder
from nodeagent.runtimes.base import Runtime
from nodeagent.simulation.devices.driver import SimulatedDriver
from nodeagent.simulation.devices.store import HARDWARE
from nodeagent.simulation.full_host import FullHost
from nodeagent.simulation.nvml.calls import call_named
from nodeagent.simulation.script import ScriptError, play
from nodeagent.simulation.spec import SpecError, build, demo_spec, played, read_spec

REBOOTS: Final = "reboots"


def spec_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the description of the simulated node; options add to a file's or the fleet's."""
    sources = ("board", "spec", "fleet")
    if len(given := [name for name in sources if getattr(options, name) is not None]) > 1:
        raise UsageError(f"--{given[0]} and --{given[1]} both say what to simulate; give one of them")
    if options.board is None and (options.count is not None or options.modes):
        raise UsageError("--count and --modes go with --board; a description names them itself")
    if options.spec is not None:
        spec = dict(read_spec(options.spec))
    elif options.fleet is not None:
        spec = dict(demo_spec(options.node))
    elif options.board is not None:
        modes = [mode.strip() for mode in options.modes.split(",") if mode.strip()]
        count = USUAL_COUNT if options.count is None else options.count
        spec = {"boards": [{"board": options.board, "count": count, "modes": modes}]}
    else:
        raise UsageError("say what to simulate with --board, --spec or --fleet demo")
    if options.latency:
        spec["latency_s"] = dict(map(_latency, options.latency))
    if options.fault_rate:
        spec["fault_rate"] = options.fault_rate
    if options.health:
        spec["health"] = [_health(text) for text in options.health]
    return spec


def _latency(text: str) -> tuple[str, float]:
    verb, _, seconds = text.partition("=")
    try:
        return verb, float(seconds)
    except ValueError:
        raise UsageError(f"--latency {text!r}: give a verb and seconds, such as create=0.5") from None


def _health(text: str) -> dict[str, str]:
    parts = text.split(":", 3)
    if len(parts) != 4:
        raise UsageError(f"--health {text!r}: give INDEX:CODE:SEVERITY:TEXT, such as 6:63:warning:row remap")
    return dict(zip(("index", "code", "severity", "detail"), parts, strict=True))


def open_simulated(options: argparse.Namespace, state: Path, *, looks_only: bool = False) -> Driver:
    """Return the driver of simulated devices; raises UsageError."""
    state = _copy_of(state) if looks_only else state
    try:
        spec = build(options.node, spec_of(options), seed=options.seed, reboots=_reboots(options, state))
    except SpecError as no:
        raise UsageError(str(no)) from no
    boot = uuid.uuid5(uuid.NAMESPACE_OID, f"{registry.host_boot_id()}/{options.node}/{spec.reboots}")
    seed = options.seed or spec.faults.seed
    return SimulatedDriver(spec.devices, state, str(boot), faults=spec.faults, seed=seed, clock=boot_clock)


def open_played(
    options: argparse.Namespace, state: Path, *, looks_only: bool = False
) -> tuple[FullHost, Driver, Runtime]:
    """Return a host whose NVML is played, with driver and runtime of real devices; raises UsageError."""
    try:
        spec = played(spec_of(options), call_named)
    except SpecError as no:
        raise UsageError(str(no)) from no
    home = FullHost(
        options.node, spec.boards, state, boot_clock, seed=options.seed, sleep=time.sleep, faults=spec.faults
    )
    home.host.boots += boot_clock()  # it lives in this process: the next one finds it rebooted
    if options.script is not None:
        _play(home, options.script)
    driver = home.driver(
        offered(options) or spec.modes,
        listens=not looks_only,
        looks_only=looks_only,
        may_limit_power=options.power_saving,
    )
    return home, driver, home.runtime(options.runtime, looks_only=looks_only)


def _copy_of(state: Path) -> Path:
    """Return a copy of a simulated host's files: opening one writes them anew, and they may be an agent's at work.

    Raises UsageError where they cannot be read.
    """
    copy = spare_folder()
    for name in (HARDWARE, REBOOTS):
        try:
            shutil.copyfile(state / name, copy / name)
        except FileNotFoundError:
            continue
        except OSError as no:
            raise UsageError(f"cannot read {state / name}: {no.strerror}; run this as its owner") from no
    return copy


def _play(home: FullHost, script: Path) -> None:
    """Let a script happen on a simulated host; raises UsageError for one that cannot be played."""
    try:
        play(home.host, script)
    except (OSError, ScriptError) as no:
        raise UsageError(f"--script {script}: {no}") from no


def _reboots(options: argparse.Namespace, state: Path) -> int:
    """Return how often this simulated host was rebooted, this time included."""
    path = state / REBOOTS
    try:
        count = int(path.read_text(encoding="ascii")) if path.exists() else 0
    except ValueError:
        count = 0
    if options.reboot:
        count += 1
        path.write_text(str(count), encoding="ascii")
    return count
