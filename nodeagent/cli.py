"""The command line: options and environment in, exit codes and sentences for people out."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from textwrap import fill
from types import ModuleType
from typing import Final

from nodeagent import __version__
from nodeagent.commands import install, pools
from nodeagent.commands.opening import (
    Dialling,
    OpenedHost,
    is_simulated,
    notices_of,
    open_folders,
    open_host,
    run_dir_of,
    state_of,
)
from nodeagent.commands.options import (
    OFF,
    ON,
    USUAL_IMAGES_GIB,
    VARIABLES,
    UsageError,
    add_driver,
    add_host,
    add_node,
    add_simulation,
    folder_of,
    host_facts,
    limit_gib_of,
    patience_of,
    require_node,
    settle,
    switch,
    usual,
)
from nodeagent.containers.boxes import LeaseContainers
from nodeagent.containers.cache import ImageCache, remover
from nodeagent.containers.entry import ContainerEntry
from nodeagent.containers.opening import open_containers
from nodeagent.containers.podman import NETWORKS, image_folder_of
from nodeagent.drivers.errors import DriverUnavailableError
from nodeagent.drivers.registry import BACKENDS
from nodeagent.drivers.waiting import Patience, missing, wait_for_latecomers
from nodeagent.host.clock import boot_clock
from nodeagent.host.log_lines import LOG_FORMATS, JsonLines
from nodeagent.host.shell import HostShell
from nodeagent.host.signals import keep_ignored_signals
from nodeagent.jobs.running import NodeJobs
from nodeagent.jobs.shipping import OutputShipping
from nodeagent.link.address import AddressError, address_of
from nodeagent.link.agent import Agent
from nodeagent.link.enrolment import NodeEnrolment, PortalRefusedError, token_source
from nodeagent.link.exporter import ListenError, MetricsExporter, listen_address
from nodeagent.link.identity import KEY_FILE, Identity, StateError, lock_state
from nodeagent.processes.guard import Guard
from nodeagent.protocol.failpoints import DRILL_VARIABLE, FOLDER_VARIABLE, is_asked_for
from nodeagent.reconcile.journal import Journal, JournalError
from nodeagent.reconcile.lease_records import GONE
from nodeagent.reconcile.reconciler import Reconciler
from nodeagent.reconcile.worker import Worker
from nodeagent.runtimes.base import RuntimeRefusedError
from nodeagent.runtimes.choice import RuntimeMissingError, has_units
from nodeagent.runtimes.host_folders import FolderRuntime, HostFolders
from nodeagent.runtimes.systemd import SystemdRuntime
from nodeagent.streams.gateways import Gateways
from nodeagent.streams.service import LeaseStreams
from nodeagent.workloads.app_programs import AppPrograms
from nodeagent.workloads.entry import LeaseEntry, PlayedEntry, UnitEntry
from nodeagent.workloads.scratch_watch import ScratchWatch

log = logging.getLogger("nodeagent")

OK: Final = 0
USAGE: Final = 2
NO_DRIVER: Final = 3
REFUSED: Final = 4
STATE: Final = 5
INTERRUPTED: Final = 130  # as shells have it for SIGINT
UNREAD: Final = 141  # and for SIGPIPE
COMMANDS: Final = ("check", "apply", "explain", "soak", "install", "enter", "dial")
PARAGRAPHS: Final = (
    f"Commands beside running (run): {', '.join(COMMANDS)}; each has --help.",
    f"Environment, each checked like its option, which wins: {', '.join(VARIABLES.values())}.",
    "Exit codes: 0 stopped or done, 1 the command ran and its answer is no (a lease refused, a soak with harm, an "
    "installation not done), 2 wrong options, 3 no driver or runtime, 4 refused by the portal, 5 state folder "
    "unusable, 130 interrupted, 141 nobody reads on.",
)


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Carry out a command, or run the agent until a signal stops it; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["run"]:
        words.pop(0)
    name = words.pop(0) if words and words[0] in COMMANDS else ""
    # Each command is loaded when it is asked for: only the soak needs the simulation.
    command = import_module(f"nodeagent.commands.{name}") if name else None
    options = (_parser_of(name, command, environ) if command else parser(environ)).parse_args(words)
    logging.basicConfig(
        level=options.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    if getattr(options, "log_format", "") == "json":
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonLines(options.node))
    logging.getLogger("websockets").setLevel(logging.WARNING)
    try:
        settle(options)
        code = _run(options) if command is None else int(command.run(options))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left to say, nobody hears
        return UNREAD
    except (UsageError, AddressError, ListenError) as no:
        return _say(USAGE, no)
    except DriverUnavailableError as no:
        # Who waited in vain has a driver; whoever has none may want to try without.
        hint = "" if no.waits_for else " Simulate devices with --driver simulated --board h100-80gb."
        return _say(NO_DRIVER, f"{no}.{hint}")
    except (RuntimeMissingError, RuntimeRefusedError) as no:
        return _say(NO_DRIVER, no)
    except PortalRefusedError as no:
        return _say(REFUSED, f"the portal refused this node ({no.code}): {no.detail}")
    except (StateError, JournalError) as no:
        return _say(STATE, no)
    except KeyboardInterrupt:
        return _say(INTERRUPTED, "interrupted")


def parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    """Return the parser of the running agent; defaults come from the environment."""
    known = argparse.ArgumentParser(
        prog="berth-agent",
        description="Berth's agent for one GPU host: makes leases real and reports what it observes.",
        epilog="\n".join(fill(one, 100) for one in PARAGRAPHS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known.add_argument("--portal", default=usual(environ, "portal"), help="wss://host")
    known.add_argument(
        "--allow-plain",
        action="store_true",
        default=usual(environ, "allow_plain"),
        help="speak with a portal beyond this host without encryption",
    )
    add_node(known, environ)
    known.add_argument("--enrol-token", default=usual(environ, "enrol_token"), help="one-time token")
    known.add_argument(
        "--enrol-token-file", default=usual(environ, "enrol_token_file"), help="file with the token"
    )
    add_driver(known, environ)
    add_host(known, environ)
    _add_workloads(known, environ)
    known.add_argument(
        "--metrics",
        default=usual(environ, "metrics"),
        metavar="HOST:PORT",
        help="where to serve a page for Prometheus, such as 127.0.0.1:9835 (nowhere)",
    )
    known.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        default=usual(environ, "log_format", LOG_FORMATS[0]),
        help="lines for people, or one JSON object each (text)",
    )
    _add_log(known, "info")
    known.add_argument("--version", action="version", version=__version__)
    add_simulation(known)
    return known


def _add_workloads(known: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    """Add what may run inside leases: terminals, apps and containers."""
    known.add_argument(
        "--terminals",
        choices=(*ON[:1], *OFF[1:2]),
        default=usual(environ, "terminals", "1"),
        help="let holders open terminals in their leases by the portal's gateways, 1 or 0 (1)",
    )
    known.add_argument(
        "--app-path",
        default=usual(environ, "app_path"),
        metavar="FOLDERS",
        help="where programs of apps are looked for behind the holder's own, as in PATH (docs/apps.md)",
    )
    known.add_argument(
        "--app-installer",
        default=usual(environ, "app_installer"),
        metavar="COMMAND",
        help="what installs the programs of an app into --app-path when somebody first wants it; simulated only",
    )
    known.add_argument(
        "--containers",
        choices=(*ON[:1], *OFF[1:2]),
        default=usual(environ, "containers", "1"),
        help="run jobs in containers where Podman can do it, 1 or 0 (1)",
    )
    known.add_argument(
        "--image-folder",
        default=usual(environ, "image_folder"),
        metavar="FOLDER",
        help="images of the site as OCI layouts, which jobs name as oci:NAME:TAG (docs/containers.md)",
    )
    known.add_argument(
        "--image-limit",
        default=usual(environ, "image_limit", str(USUAL_IMAGES_GIB)),
        metavar="GIB",
        help=f"what images fetched for jobs may take together on this node, 0 is no limit ({USUAL_IMAGES_GIB})",
    )
    known.add_argument(
        "--scratch",
        default=usual(environ, "scratch"),
        metavar="FOLDER",
        help="where each lease gets a folder of its own that goes with it (none; below the state if simulated)",
    )
    known.add_argument(
        "--scratch-limit",
        default=usual(environ, "scratch_limit", "0"),
        metavar="GIB",
        help="what one lease may have in its scratch folder, 0 is no limit; with more it ends (0)",
    )
    known.add_argument(
        "--data-sets",
        default=usual(environ, "data_sets"),
        metavar="FOLDER",
        help="where each team has a folder of its name, which its leases read (none; docs/scratch.md)",
    )
    known.add_argument(
        "--container-network",
        choices=NETWORKS,
        default=usual(environ, "container_network", NETWORKS[0]),
        help="a network of each container's own, none, or that of the host (private)",
    )


def _parser_of(name: str, command: ModuleType, environ: Mapping[str, str]) -> argparse.ArgumentParser:
    """Return the parser of one command."""
    known = argparse.ArgumentParser(prog=f"berth-agent {name}", description=command.__doc__)
    if name in ("check", "apply", "explain"):
        add_node(known, environ)
        add_driver(known, environ)
        add_simulation(known)
    if name == "enter":  # sudo lets people give it any words
        known.set_defaults(log_level="warning")
    else:
        _add_log(known, "warning")
    command.add_options(known)
    return known


def _add_log(known: argparse.ArgumentParser, usual: str) -> None:
    known.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default=usual)


def _run(options: argparse.Namespace) -> int:
    if is_asked_for() and (os.environ.get(DRILL_VARIABLE) != "1" or options.driver != "simulated"):
        raise UsageError(
            f"{FOLDER_VARIABLE} breaks the agent on purpose: it is for drills ({DRILL_VARIABLE}=1, --driver simulated)"
        )
    if not options.portal:
        raise UsageError("give the portal's address with --portal or BERTH_PORTAL_URL")
    state = state_of(options)
    require_node(options)
    facts = host_facts(options)
    address, patience = (
        address_of(options.portal, allow_plain=switch(options, "allow_plain")),
        patience_of(options),
    )
    options.terminals = switch(options, "terminals")
    options.containers = switch(options, "containers")
    for name in ("scratch", "data_sets"):
        setattr(options, name, folder_of(options, name))
    options.scratch_limit, options.image_limit = (
        limit_gib_of(options, name) for name in ("scratch_limit", "image_limit")
    )
    if options.log_format not in LOG_FORMATS:
        raise UsageError(
            f"{VARIABLES['log_format']}={options.log_format}: use one of {', '.join(LOG_FORMATS)}"
        )
    try:
        options.metrics = listen_address(options.metrics) if options.metrics else None
    except ValueError as no:
        raise UsageError(f"--metrics: {no}") from no
    if options.container_network not in NETWORKS:
        raise UsageError(
            f"{VARIABLES['container_network']}={options.container_network}: use one of {', '.join(NETWORKS)}"
        )
    if options.app_installer and not is_simulated(options):
        raise UsageError(
            "--app-installer is for simulated devices: install programs yourself, and name --app-path"
        )
    keep_ignored_signals()
    lock, live = lock_state(state), pools.live if options.driver in BACKENDS else _live
    try:
        while live(options, state, Dialling(address, _enrolment(options, state), facts), patience):
            log.info("devices that were late answer now: the agent starts anew with them, leases go on")
            patience = replace(patience, rest_s=0)
    except OSError as no:
        raise StateError(f"cannot use the state folder {state}: {no}") from no
    finally:
        os.close(lock)
    log.info("stopped; leases go on")
    return OK


def _live(options: argparse.Namespace, state: Path, dialling: Dialling, patience: Patience) -> bool:
    """Work until a signal (False), or until devices answer that were missing when this life began (True)."""
    host = open_host(options, state, patience=patience)
    driver = host.driver
    folders = open_folders(options, state)
    runtime = None if host.runtime is None else FolderRuntime(host.runtime, folders)
    journal = Journal(state / "journal.jsonl")
    reconciler = Reconciler(options.node, driver, journal, boot_clock(), runtime, notices_of(options, state))
    worker = Worker(reconciler, driver, boot_clock, _guard(options, host))
    log.info("%s: %d device(s), driver %s", options.node, len(reconciler.devices), driver.name)
    entry = _entry(options, state, reconciler, folders) if options.terminals else None
    containers = None
    if entry is not None and options.containers:
        containers = open_containers(entry, reconciler.notice_of, network=options.container_network)
    cache = None
    if containers is not None:
        limit_mib, file = options.image_limit * 1024, state / "images.json"
        cache = ImageCache(file, limit_mib, reconciler.lease_records.values, remover(containers))
    agent = Agent(
        dialling.address,
        dialling.enrolment,
        driver,
        worker,
        host=dialling.facts,
        streams=_streams(options, dialling, reconciler, _way_in(entry, containers)) if entry else None,
        jobs=_jobs(options, state, dialling, worker, entry, containers, cache) if entry else None,
        scratch=_scratch_watch(folders, worker),
        images=cache,
    )
    try:
        return asyncio.run(_serve(agent, host, worker, options.metrics))
    finally:
        folders.close()
        worker.close()
        journal.close()
        driver.close()


async def _serve(agent: Agent, host: OpenedHost, worker: Worker, metrics: tuple[str, int] | None) -> bool:
    """Run the agent as ``_until_stopped`` does, with its page for Prometheus where one is wanted."""
    if metrics is None:
        return await _until_stopped(agent, host)
    with MetricsExporter(worker, boot_clock, lambda: agent.is_connected).serving(*metrics):
        return await _until_stopped(agent, host)


async def _until_stopped(agent: Agent, host: OpenedHost) -> bool:
    """Run the agent until it ends by itself, a signal asks it to (False), or late devices answer (True)."""
    loop = asyncio.get_running_loop()
    work = loop.create_task(agent.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.cancel)
    tasks = {work}
    if host.look is not None and missing(host.driver):
        tasks.add(loop.create_task(wait_for_latecomers(host.look, host.driver)))
    done, running = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in running:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome
    return work not in done


def _entry(
    options: argparse.Namespace, state: Path, reconciler: Reconciler, folders: HostFolders
) -> LeaseEntry | None:
    """Return how programs get into leases; None on a host whose holders get in by neither a unit nor play."""
    runtime = reconciler.units.runtime
    if is_simulated(options):
        reconciler.units.played_words = lambda record: folders.words(record.key, record.team)
        if folders.scratch is not None:
            folders.scratch.keep_only(
                key for key, record in reconciler.lease_records.items() if record.phase != GONE
            )
        return PlayedEntry(state, reconciler.notice_of, boot_clock, folders=folders)
    if runtime is not None and has_units(runtime):
        units = SystemdRuntime(HostShell())
        return UnitEntry(
            run_dir_of(options, state),
            lambda key: units.show(key).main_pid,
            runtime.pids,
            folders=folders,
        )
    log.warning("no terminals and no jobs: leases have no units on this host (docs/terminal.md)")
    return None


def _scratch_watch(folders: HostFolders, worker: Worker) -> ScratchWatch | None:
    """Return who measures scratch folders, None where they have no limit."""
    if folders.scratch is None or not folders.scratch.limit_gib:
        return None
    return ScratchWatch(worker.reconciler, folders.scratch, boot_clock, worker.poke)


def _way_in(entry: LeaseEntry, containers: LeaseContainers | None) -> LeaseEntry:
    """Return how all but jobs get into leases: where a lease has a container, into that."""
    return entry if containers is None else ContainerEntry(entry, containers)


def _jobs(
    options: argparse.Namespace,
    state: Path,
    dialling: Dialling,
    worker: Worker,
    entry: LeaseEntry,
    containers: LeaseContainers | None,
    cache: ImageCache | None,
) -> OutputShipping:
    """Return who runs batch jobs and carries their output."""
    jobs = NodeJobs(
        state / "jobs",
        entry,
        worker.reconciler,
        boot_clock,
        worker.poke,
        containers=containers,
        images=image_folder_of(options.image_folder),
        cache=cache,
    )
    worker.listeners.append(jobs.look)
    return OutputShipping(
        state / "jobs",
        jobs,
        dialling.address,
        dialling.enrolment.identity,
        allow_plain=switch(options, "allow_plain"),
    )


def _streams(
    options: argparse.Namespace, dialling: Dialling, reconciler: Reconciler, entry: LeaseEntry
) -> Gateways:
    """Return who serves terminals."""
    return Gateways(
        dialling.address,
        dialling.enrolment.identity,
        lambda: LeaseStreams(
            entry, reconciler.ready, AppPrograms(options.app_path, shlex.split(options.app_installer))
        ),
        allow_plain=switch(options, "allow_plain"),
    )


def _guard(options: argparse.Namespace, host: OpenedHost) -> Guard | None:
    """Return who watches the devices' processes; nobody where the driver plays them."""
    if host.runtime is None or host.read is None:
        return None
    return Guard(host.driver, host.runtime, host.read, policy=options.orphans, allowed=options.system_process)


def _enrolment(options: argparse.Namespace, state: Path) -> NodeEnrolment:
    file = Path(options.enrol_token_file) if options.enrol_token_file else None
    is_new = not (state / KEY_FILE).exists()
    source = token_source(options.enrol_token, file)
    if is_new and file is not None and not source():
        # It is read anew at each try, so it may still come.
        log.warning(
            "%s cannot be read or is empty, and the portal lets no new node in without its token (homes are hidden"
            " from the agent's unit: put it elsewhere, such as beside %s)",
            file,
            install.SETTINGS_FILE,
        )
    return NodeEnrolment(Identity(options.node, state), source)


def _say(code: int, sentence: object) -> int:
    print(f"berth-agent: {sentence}", file=sys.stderr)  # noqa: T201 - the answer to whoever started it
    return code
