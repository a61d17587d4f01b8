"""Simulated hosts as the options describe them: devices of many vendors, or cards behind a played NVML."""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path
from typing import Any, Final

from nodeagent.drivers import registry
from nodeagent.drivers.base import Driver
from nodeagent.drivers.simulated.home import SimulatedHome
from nodeagent.drivers.simulated.library.calls import call_named
from nodeagent.drivers.simulated.library.script import ScriptError
from nodeagent.drivers.simulated.store import HARDWARE
from nodeagent.fleet import build, demo_spec, played, read_spec
from nodeagent.host.clock import boot_clock
from nodeagent.host.files import spare_folder
from nodeagent.options import UsageError, offered
from nodeagent.runtimes.base import Runtime

USUAL_COUNT: Final = 8
REBOOTS: Final = "reboots"


def add_simulation(known: argparse.ArgumentParser) -> None:
    """Add what simulated devices are made of."""
    group = known.add_argument_group("simulated devices (--driver simulated or simulated-nvml)")
    group.add_argument("--board", help="kind of board, such as h100-80gb")
    group.add_argument("--count", type=int, help=f"how many ({USUAL_COUNT})")
    group.add_argument("--modes", default="", help="sharing modes, separated by commas (all of the board)")
    group.add_argument("--spec", type=Path, help="JSON file that describes the node")
    group.add_argument("--fleet", choices=("demo",), help="be the node of this name in a known fleet")
    group.add_argument("--seed", type=int, default=0, help="seed of load and faults (0)")
    group.add_argument(
        "--latency",
        action="append",
        default=[],
        metavar="VERB=S",
        help="slow a verb, or a call of NVML, down",
    )
    group.add_argument("--fault-rate", type=float, default=0.0, help="chance that a change answers IN_USE")
    group.add_argument(
        "--health", action="append", default=[], metavar="INDEX:CODE:SEVERITY:TEXT", help="a health event"
    )
    group.add_argument(
        "--script", type=Path, help="JSON list of what happens to the host (simulated-nvml; docs/agent.md)"
    )
    group.add_argument("--reboot", action="store_true", help="start as if the host had rebooted")


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
    """Return the driver of simulated devices; raises UsageError or SpecError."""
    state = _copy_of(state) if looks_only else state
    spec = build(options.node, spec_of(options), seed=options.seed, reboots=_reboots(options, state))
    return registry.open_simulated(options.node, state, spec, boot_clock, options.seed)


def open_played(
    options: argparse.Namespace, state: Path, *, looks_only: bool = False
) -> tuple[SimulatedHome, Driver, Runtime]:
    """Return a host whose NVML is played, with driver and runtime of real cards; raises UsageError or SpecError."""
    spec = played(spec_of(options), call_named)
    home = SimulatedHome(
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


def _play(home: SimulatedHome, script: Path) -> None:
    """Let a script happen on a simulated host; raises UsageError for one that cannot be played."""
    try:
        home.host.play(script)
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
