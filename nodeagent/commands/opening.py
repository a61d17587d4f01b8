"""Drivers and runtimes as the options ask for them."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from stat import S_IMODE
from tempfile import mkdtemp
from typing import Any, Final

from nodeagent.commands.options import UsageError, layouts, offered
from nodeagent.drivers import registry
from nodeagent.drivers.base import Driver
from nodeagent.drivers.waiting import Patience, wait_for_devices
from nodeagent.host.accounts import Account, account_of
from nodeagent.host.facts import HostFacts
from nodeagent.host.shell import HostShell
from nodeagent.link.address import Address
from nodeagent.link.enrolment import NodeEnrolment
from nodeagent.runtimes.base import Runtime
from nodeagent.runtimes.choice import choose, has_units, shows_files
from nodeagent.runtimes.host_folders import HostFolders
from nodeagent.runtimes.scratch import ScratchFolders
from nodeagent.workloads.entry import played_account

log = logging.getLogger(__name__)

ROOTS_RUN: Final = Path("/run/berth-agent")
# Holders reach what is theirs below the run folder by name, and list nothing.
PASSABLE: Final = 0o711
NOTICES: Final = "notices"


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
class Dialling:
    """Whom an agent talks to, as whom, and on what host."""

    address: Address
    enrolment: NodeEnrolment
    facts: HostFacts


@dataclass(frozen=True, slots=True)
class OpenedHost:
    """A host at work: driver, runtime of the holders and how to read its files (None: the driver plays them).

    ``look`` opens the driver of its devices once more, and only looks; None where no device can come late.
    """

    driver: Driver
    runtime: Runtime | None = None
    read: Callable[[str], str] | None = None
    look: Callable[[], Driver] | None = None


def open_host(
    options: argparse.Namespace,
    state: Path,
    *,
    looks_only: bool = False,
    patience: Patience | None = None,
    runtime: Runtime | None = None,
) -> OpenedHost:
    """Return driver and runtime as the options ask for them.

    ``looks_only``: nothing is made, changed or removed on the host, and what an agent notes belongs to that agent.
    ``patience``: wait for devices that do not answer yet; None looks once. ``runtime`` is that of a real host, where
    the caller opened it already. Raises UsageError, DriverUnavailableError or RuntimeMissingError.
    """
    if options.driver in registry.BACKENDS:
        raise UsageError(f"--driver {options.driver} lends a pool, not this host: use run or check")
    if is_simulated(options):
        # By name, so that a real host never loads the simulation.
        simulated: Any = import_module("nodeagent.commands.simulated")
        if options.driver == "simulated":
            return OpenedHost(simulated.open_simulated(options, state, looks_only=looks_only))
        home, driver, doors = simulated.open_played(options, state, looks_only=looks_only)
        return OpenedHost(driver, doors, home.read)
    folder = run_dir_of(options, state)
    if not looks_only:
        make_run_dir(folder)
    runtime = runtime or open_runtime(options, state, looks_only=looks_only)
    find = partial(
        registry.open_real,
        options.driver,
        run_dir=folder,
        offer=offered(options),
        may_limit_power=options.power_saving,
        dcgm_url=options.dcgm,
        layouts=layouts(options),
        can_bind=shows_files(runtime),
        has_units=has_units(runtime),
    )
    own = partial(find, looks_only=looks_only)
    found = own() if patience is None else wait_for_devices(own, patience)
    return OpenedHost(found, runtime, registry.read_text, partial(find, looks_only=True))


def open_folders(options: argparse.Namespace, state: Path) -> HostFolders:
    """Return the folders of the host that leases are given; raises UsageError.

    Simulated nodes have scratch folders without being asked: below the state folder, for root in one of the system's
    that ``nobody`` can reach.
    """
    account, scratch, temporary = _holder_account(options), options.scratch, None
    if options.data_sets is not None and not options.data_sets.is_dir():
        raise UsageError(
            f"--data-sets {options.data_sets} is no folder; make it, with one folder per team in it"
        )
    if scratch is None and not is_simulated(options) and options.scratch_limit:
        raise UsageError("--scratch-limit goes with --scratch")
    if is_simulated(options) and scratch is None:
        if os.geteuid() == 0:
            scratch = temporary = Path(mkdtemp(prefix="berth-scratch-"))
        else:
            scratch = state / "scratch"
    try:
        made = None if scratch is None else ScratchFolders(scratch, account, options.scratch_limit)
    except OSError as no:
        raise UsageError(f"cannot use the scratch folder {scratch}: {no.strerror}; name another") from no
    if made is not None and os.geteuid() == 0 and (closed := impassable(made.root)):
        log.warning(
            "holders cannot reach %s: %s is closed to them; choose another --scratch", made.root, closed
        )
    return HostFolders(made, options.data_sets, temporary)


def _holder_account(options: argparse.Namespace) -> Callable[[str], Account | None]:
    """Return who owns what is made for a holder: themselves on a real host, where the agent is root."""
    if is_simulated(options):
        return lambda user: played_account()
    return account_of if os.geteuid() == 0 else lambda user: None


def open_runtime(options: argparse.Namespace, state: Path, *, looks_only: bool = False) -> Runtime:
    """Return the runtime of a real host as the options ask for it; raises RuntimeMissingError."""
    return choose(
        options.runtime,
        HostShell(),
        run_dir=run_dir_of(options, state),
        boot_id=registry.host_boot_id(),
        looks_only=looks_only,
    )
