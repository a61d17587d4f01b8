"""A pool of a cluster as the options describe it: its back end, and the life of its agent."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from nodeagent.backends.base import Backend, BackendAwayError, BackendRefusedError, PoolFacts
from nodeagent.backends.clock import LostPoolError, PoolClock
from nodeagent.backends.kubernetes.backend import KubernetesBackend
from nodeagent.backends.leases import PoolLeases
from nodeagent.backends.slurm.backend import SlurmBackend
from nodeagent.backends.slurm.commands import SlurmCommands, quiet_environment
from nodeagent.backends.slurm.settings import ACCOUNT, GRES, NAME, SlurmSettings
from nodeagent.backends.slurm.usage import SlurmUsage
from nodeagent.backends.usage import PoolUsage
from nodeagent.backends.worker import PoolWorker
from nodeagent.commands.kubernetes_pool import open_kubernetes
from nodeagent.commands.opening import Dialling
from nodeagent.commands.options import UsageError, described, whole
from nodeagent.drivers import registry
from nodeagent.drivers.errors import DriverUnavailableError
from nodeagent.drivers.waiting import Patience
from nodeagent.host.clock import boot_clock
from nodeagent.host.files import put
from nodeagent.host.shell import HostShell
from nodeagent.link.agent import Agent
from nodeagent.link.exporter import MetricsExporter
from nodeagent.protocol.messages import POOL
from nodeagent.reconcile.journal import Journal

log = logging.getLogger(__name__)

USUAL_WAIT_S: Final = 240
MOST_WAIT_S: Final = 270  # a lease is held for five minutes before its place is another's


def settings_of(options: argparse.Namespace) -> SlurmSettings:
    """Return the pool that the options describe; raises UsageError."""
    partition, gres = options.slurm_partition, options.slurm_gres
    if not NAME.fullmatch(partition):
        raise UsageError("name the partition to lend with --slurm-partition, as sinfo -o %R lists it")
    if not GRES.fullmatch(gres):
        raise UsageError(
            "say what a unit is with --slurm-gres, as sinfo -o %G lists it without its number: gpu:a100"
        )
    if options.slurm_account and not ACCOUNT.fullmatch(options.slurm_account):
        raise UsageError(
            "--slurm-account has letters, digits, dots and dashes, and {team} for the team's name"
        )
    if options.slurm_user and not NAME.fullmatch(options.slurm_user):
        raise UsageError("--slurm-user is the name of an account of the system")
    if not options.slurm_user and os.geteuid():
        raise UsageError("only root may submit for its holders: run the agent as root, or name --slurm-user")
    model, vendor, memory_mib = described(options, "slurm", gres.partition(":")[2] or gres)
    return SlurmSettings(
        partition=partition, gres=gres, model=model, memory_mib=memory_mib, vendor=vendor,
        account=options.slurm_account, user=options.slurm_user,
    )  # fmt: skip


def wait_s_of(options: argparse.Namespace) -> int:
    """Return how long a job may wait in the cluster's queue; raises UsageError."""
    name = "kube" if options.driver == "kubernetes" else "slurm"
    said = getattr(options, f"{name}_wait")
    return whole(said, f"--{name}-wait", MOST_WAIT_S) if said else USUAL_WAIT_S


def open_backend(options: argparse.Namespace, pool_id: str = "") -> SlurmBackend | KubernetesBackend:
    """Return the back end of the driver; nothing is asked of the cluster yet. Raises UsageError."""
    if options.driver == "kubernetes":
        return open_kubernetes(options, wait_s=wait_s_of(options), pool_id=pool_id)
    return open_slurm(options, pool_id)


def open_slurm(options: argparse.Namespace, pool_id: str = "") -> SlurmBackend:
    """Return the back end; nothing is asked of the cluster yet. Raises UsageError."""
    settings = replace(settings_of(options), pool_id=pool_id)
    return SlurmBackend(_commands(options), settings, is_root=os.geteuid() == 0)


def open_usage(options: argparse.Namespace, pool_id: str) -> PoolUsage | None:
    """Return what reads the cluster's own accounting, None for a cluster that keeps none. Raises UsageError."""
    if options.driver != "slurm":
        return None
    settings = replace(settings_of(options), pool_id=pool_id)
    return PoolUsage(SlurmUsage(_commands(options), settings), _wall)


def _wall() -> int:
    return time.time_ns() // 1_000_000_000


def _commands(options: argparse.Namespace) -> SlurmCommands:
    return SlurmCommands(HostShell(quiet_environment()), options.slurm_bin)


def look(options: argparse.Namespace) -> dict[str, Any]:
    """Return what a pool consists of, for ``check``; raises DriverUnavailableError where its cluster does not say."""
    backend = open_backend(options)
    facts = count(backend)
    return {
        "node": options.node, "driver": backend.name, "driver_version": backend.version, "cluster": backend.cluster,
        "pool": asdict(facts), "devices": [asdict(one) for one in backend.devices(facts.units)],
    }  # fmt: skip


def in_words(found: dict[str, Any]) -> str:
    """Return what ``look`` found, for people."""
    pool, devices = found["pool"], found["devices"]
    lines = [
        f"cluster   {found['cluster']}, {found['driver']} {found['driver_version']}",
        f"units     {pool['units']}, of which {pool['away']} are out of service and jobs hold {pool['used']} now;"
        f" one host has at most {pool['most_on_one']}",
        *(f"each      {one['model']}, {one['memory_mib'] // 1024} GiB" for one in devices[:1]),
        *(f"missing   {sentence}" for _code, sentence in pool["notes"]),
    ]
    return "\n".join(lines)


def count(backend: Backend) -> PoolFacts:
    """Return what a pool consists of; raises DriverUnavailableError."""
    try:
        backend.reachable()
        return backend.facts()
    except (BackendAwayError, BackendRefusedError) as no:
        raise DriverUnavailableError(f"the pool cannot be read: {no}") from no


def live(options: argparse.Namespace, state: Path, dialling: Dialling, patience: Patience) -> bool:
    """Work until a signal (False), or until the pool has more units than when this life began (True)."""
    wait_s = wait_s_of(options)
    try:
        clock = PoolClock(state / "pool.json", registry.host_boot_id(), boot_clock, time.time_ns)
    except LostPoolError as no:
        raise UsageError(str(no)) from no
    backend = open_backend(options, clock.pool_id)
    units = _units(backend, state / "pool-facts.json")
    journal = Journal(state / "journal.jsonl")
    leases = PoolLeases(options.node, backend, journal, units, patience_s=wait_s, pool_id=clock.pool_id)
    worker = PoolWorker(leases, backend, clock, clock.keep)
    usage = open_usage(options, clock.pool_id)
    log.info("%s: a pool of %d unit(s), driver %s", options.node, len(leases.devices), backend.name)
    agent = Agent(
        dialling.address, dialling.enrolment, leases.driver, worker, clock=clock, host=dialling.facts,
        features=(POOL,), usage=usage,
    )  # fmt: skip
    try:
        return asyncio.run(_until_stopped(agent, worker, clock, options.metrics))
    finally:
        worker.close()
        if isinstance(backend, KubernetesBackend):
            backend.close()
        journal.close()
        clock.note()


def _units(backend: SlurmBackend | KubernetesBackend, file: Path) -> int:
    """Return how many units the pool has; where the cluster is away, how many it had when it was asked last."""
    try:
        facts = count(backend)
    except DriverUnavailableError:
        try:
            known = json.loads(file.read_text(encoding="ascii"))
            backend.remember(str(known["cluster"]), int(known["most_on_one"]))
            return int(known["units"])
        except (OSError, ValueError, KeyError, TypeError):
            pass  # nothing is known of it: say why it could not be read
        raise
    row = {"cluster": backend.cluster, "units": facts.units, "most_on_one": facts.most_on_one}
    put(file, json.dumps(row), mode=0o600)
    return facts.units


async def _until_stopped(
    agent: Agent, worker: PoolWorker, clock: PoolClock, metrics: tuple[str, int] | None
) -> bool:
    """Run the agent until a signal asks it to stop (False), or its pool has grown (True)."""
    if metrics is not None:
        with MetricsExporter(worker, clock, lambda: agent.is_connected).serving(*metrics):
            return await _until_stopped(agent, worker, clock, None)
    loop = asyncio.get_running_loop()
    work, grown = loop.create_task(agent.run()), loop.create_task(worker.grown.wait())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.cancel)
    done, _running = await asyncio.wait({work, grown}, return_when=asyncio.FIRST_COMPLETED)
    for task in (work, grown):
        task.cancel()
    for outcome in await asyncio.gather(work, grown, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome
    return work not in done
