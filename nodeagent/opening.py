"""Drivers and runtimes as the options ask for them."""

from __future__ import annotations

import argparse
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from stat import S_IMODE
from typing import Final

from nodeagent.agent import boot_clock
from nodeagent.drivers import registry
from nodeagent.drivers.base import Driver
from nodeagent.drivers.simulated.home import SimulatedHome
from nodeagent.drivers.simulated.library.script import ScriptError
from nodeagent.drivers.simulated.store import HARDWARE
from nodeagent.fleet import boards_of, build
from nodeagent.options import UsageError, offered, spec_of
from nodeagent.patience import Patience, wait_for_cards
from nodeagent.runtimes.base import Runtime
from nodeagent.runtimes.doors import choose
from nodeagent.runtimes.files import spare_folder
from nodeagent.shell import HostShell

log = logging.getLogger(__name__)

ROOTS_RUN: Final = Path("/run/berth-agent")
# Holders reach what is theirs below the run folder by name, and list nothing.
PASSABLE: Final = 0o711
NOTICES: Final = "notices"
REBOOTS: Final = "reboots"


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


def notices_of(options: argparse.Namespace, state: Path) -> Path:
    """Return the folder of notices, which holders must be able to pass (docs/agent.md)."""
    return run_dir_of(options, state) / NOTICES


def make_run_dir(folder: Path) -> None:
    """Make the run folder and that of notices passable for holders; one of ours that is not is put right.

    Private things lie in folders of their own below it. Raises UsageError where it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _let_pass(folder)
        (folder / NOTICES).mkdir(exist_ok=True)
        _let_pass(folder / NOTICES)
    except OSError as no:
        raise UsageError(
            f"cannot use the run folder {folder}: {no.strerror}; choose another with --run-dir"
        ) from no
    if os.geteuid() == 0 and (closed := impassable(folder)):
        log.warning("holders cannot reach %s: %s is closed to them; choose another --run-dir", folder, closed)


def impassable(folder: Path) -> str:
    """Return the first folder on the way to this one that other accounts cannot pass, "" for none."""
    way = reversed((folder.absolute(), *folder.absolute().parents))
    return next((str(one) for one in way if not one.stat().st_mode & 0o001), "")


def _let_pass(folder: Path) -> None:
    """Add what is missing to a folder of ours; never take anything away, it may be shared (--run-dir /run)."""
    facts = folder.stat()
    mode = S_IMODE(facts.st_mode)
    if facts.st_uid == os.geteuid() and mode | PASSABLE != mode:
        folder.chmod(mode | PASSABLE)


def is_simulated(options: argparse.Namespace) -> bool:
    """Say whether the devices are simulated ones."""
    return str(options.driver).startswith("simulated")


@dataclass(frozen=True, slots=True)
class Opened:
    """A host at work: driver, runtime of the holders and how to read its files (None: the driver plays them).

    ``look`` opens the driver of its cards once more, and only looks; None where no card can come late.
    """

    driver: Driver
    runtime: Runtime | None = None
    read: Callable[[str], str] | None = None
    look: Callable[[], Driver] | None = None


def open_host(
    options: argparse.Namespace, state: Path, *, looks_only: bool = False, patience: Patience | None = None
) -> Opened:
    """Return driver and runtime as the options ask for them.

    ``looks_only``: nothing is made, changed or removed on the host, and what an agent notes belongs to that agent.
    ``patience``: wait for cards that do not answer yet; None looks once. Raises UsageError, SpecError,
    DriverUnavailableError or RuntimeMissingError.
    """
    if options.driver == "simulated":
        return Opened(_open_simulated(options, _copy_of(state) if looks_only else state))
    if options.driver == "simulated-nvml":
        home = SimulatedHome(options.node, boards_of(spec_of(options)), state, boot_clock, seed=options.seed)
        home.host.boots += boot_clock()  # it lives in this process: the next one finds it rebooted
        if options.script is not None:
            _play(home, options.script)
        driver = home.driver(offered(options), listens=not looks_only, looks_only=looks_only)
        return Opened(driver, home.runtime(looks_only=looks_only), home.read)
    folder = run_dir_of(options, state)
    if not looks_only:
        make_run_dir(folder)
    runtime = open_runtime(options, state, looks_only=looks_only)
    find = partial(
        registry.open_real,
        options.driver,
        run_dir=folder,
        offer=offered(options),
        may_limit_power=options.power_saving,
        dcgm_url=options.dcgm,
        layout=options.layout,
        can_bind=options.runtime == "cdi",
    )
    own = partial(find, looks_only=looks_only)
    found = own() if patience is None else wait_for_cards(own, patience)
    return Opened(found, runtime, registry.read_text, partial(find, looks_only=True))


def open_runtime(options: argparse.Namespace, state: Path, *, looks_only: bool = False) -> Runtime:
    """Return the runtime of a real host as the options ask for it; raises RuntimeMissingError."""
    return choose(
        options.runtime,
        HostShell(),
        run_dir=run_dir_of(options, state),
        boot_id=registry.host_boot_id(),
        looks_only=looks_only,
    )


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


def _open_simulated(options: argparse.Namespace, state: Path) -> Driver:
    spec = build(options.node, spec_of(options), seed=options.seed, reboots=_reboots(options, state))
    return registry.open_simulated(options.node, state, spec, boot_clock, options.seed)


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
