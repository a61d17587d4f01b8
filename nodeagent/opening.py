"""Drivers and runtimes as the options ask for them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeagent.agent import boot_clock
from nodeagent.drivers import registry
from nodeagent.drivers.base import Driver
from nodeagent.drivers.simulated.home import SimulatedHome
from nodeagent.drivers.simulated.library.script import ScriptError
from nodeagent.fleet import boards_of, build
from nodeagent.options import UsageError, offered, spec_of
from nodeagent.runtimes.base import Runtime
from nodeagent.runtimes.doors import choose
from nodeagent.shell import HostShell

ROOTS_RUN: Final = Path("/run/berth-agent")


def state_of(options: argparse.Namespace) -> Path:
    """Return the state folder; raises UsageError where none is named."""
    if not options.state:
        raise UsageError("give a folder for key and journal with --state or BERTH_STATE_DIR")
    return Path(options.state)


def run_dir_of(options: argparse.Namespace, state: Path) -> Path:
    """Return the folder for what a reboot may lose."""
    if options.run_dir:
        return Path(options.run_dir)
    return ROOTS_RUN if os.geteuid() == 0 and not is_simulated(options) else state / "run"


def is_simulated(options: argparse.Namespace) -> bool:
    """Say whether the devices are simulated ones."""
    return str(options.driver).startswith("simulated")


@dataclass(frozen=True, slots=True)
class Opened:
    """A host at work: driver, runtime of the holders and how to read its files (None: the driver plays them)."""

    driver: Driver
    runtime: Runtime | None = None
    read: Callable[[str], str] | None = None


def open_host(options: argparse.Namespace, state: Path) -> Opened:
    """Return driver and runtime as the options ask for them.

    Raises UsageError, SpecError, DriverUnavailableError or RuntimeMissingError.
    """
    if options.driver == "simulated":
        return Opened(_open_simulated(options, state))
    if options.driver == "simulated-nvml":
        home = SimulatedHome(options.node, boards_of(spec_of(options)), state, boot_clock, seed=options.seed)
        home.host.boots += boot_clock()  # it lives in this process: the next one finds it rebooted
        if options.script is not None:
            _play(home, options.script)
        return Opened(home.driver(offered(options), listens=True), home.runtime(), home.read)
    folder, boot_id = run_dir_of(options, state), registry.host_boot_id()
    runtime = choose(options.runtime, HostShell(), run_dir=folder, boot_id=boot_id)
    driver = registry.open_real(
        options.driver,
        run_dir=folder,
        offer=offered(options),
        may_limit_power=options.power_saving,
        dcgm_url=options.dcgm,
        layout=options.layout,
        can_bind=options.runtime == "cdi",
    )
    return Opened(driver, runtime, registry.read_text)


def _play(home: SimulatedHome, script: Path) -> None:
    """Let a script happen on a simulated host; raises UsageError for one that cannot be played."""
    try:
        home.host.play(script)
    except (OSError, ScriptError) as no:
        raise UsageError(f"--script {script}: {no}") from no


def _open_simulated(options: argparse.Namespace, state: Path) -> Driver:
    spec = build(options.node, spec_of(options), seed=options.seed, reboots=_reboots(options, state))
    return registry.open_simulated(options.node, state, spec, boot_clock, options.seed)


def _reboots(options: argparse.Namespace, state: Path) -> int:
    """Return how often this simulated host was rebooted, this time included."""
    path = state / "reboots"
    try:
        count = int(path.read_text(encoding="ascii")) if path.exists() else 0
    except ValueError:
        count = 0
    if options.reboot:
        count += 1
        path.write_text(str(count), encoding="ascii")
    return count
