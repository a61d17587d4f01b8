"""Say what this node has, what it can offer, and what is missing for the rest; nothing is changed."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nodeagent.commands import pools
from nodeagent.commands.opening import is_simulated, open_host, open_runtime, run_dir_of
from nodeagent.commands.options import patience_of, require_node
from nodeagent.containers.podman import find_podman
from nodeagent.drivers import registry
from nodeagent.drivers.base import Driver
from nodeagent.drivers.errors import DriverUnavailableError
from nodeagent.drivers.waiting import late
from nodeagent.host.files import spare_folder
from nodeagent.host.shell import HostShell, Shell
from nodeagent.protocol.messages import DeviceFact
from nodeagent.reconcile.steps import read_health, read_partitions
from nodeagent.runtimes.base import Runtime
from nodeagent.runtimes.engines import device_lines, podman_version


def add_options(known: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    known.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Look and print; 0 also when something is missing, because that is an answer.

    Where no device is found the host alone is printed; raises DriverUnavailableError then.
    """
    require_node(options)
    if options.driver in registry.BACKENDS:
        pool = pools.look(options)
        print(json.dumps(pool, indent=2) if options.json else pools.in_words(pool))  # noqa: T201 - the answer
        return 0
    state = Path(options.state) if options.state else spare_folder()
    where, patience = str(run_dir_of(options, state)), patience_of(options)
    runtime = None if is_simulated(options) else open_runtime(options, state, looks_only=True)
    try:
        host = open_host(options, state, looks_only=True, runtime=runtime)
    except DriverUnavailableError as no:
        # What is known of the host without them is an answer all the same.
        waited = waits(no.waits_for, patience.first_s)
        _say(options, report(None, runtime, options.node, where, waited, no_driver=str(no)))
        raise
    silent, waits_s = late(host.driver), min(patience.first_s, patience.rest_s)
    _say(options, report(host.driver, host.runtime, options.node, where, waits(silent, waits_s)))
    host.driver.close()
    return 0


def waits(what: str, most_s: float) -> dict[str, Any] | None:
    """Return what a start of the agent would wait for, and how long; None for nothing."""
    return {"for": what, "most_s": most_s} if what else None


def report(
    driver: Driver | None,
    runtime: Runtime | None,
    node: str,
    run_dir: str,
    waits: dict[str, Any] | None,
    no_driver: str = "",
) -> dict[str, Any]:
    """Return everything that is found, unknown as null; without a driver that is the host alone, and why."""
    health = None if driver is None else read_health(driver)
    return {
        "node": node,
        "driver": driver and driver.name,
        "driver_version": driver and driver.version,
        "no_driver": no_driver or None,
        "boot_id": driver.boot_id() if driver else registry.host_boot_id(),
        "is_root": os.geteuid() == 0,
        "run_dir": run_dir,
        "runtime": None if runtime is None else _runtime(runtime),
        "containers": containers(HostShell(), is_root=runtime is None and os.geteuid() == 0),
        "power": (driver and driver.power()) or None,
        "waits": waits,
        "devices": [_device(driver, fact) for fact in driver.inventory()] if driver else [],
        "health": None if health is None else [asdict(fact) for fact in health],
    }


def _runtime(runtime: Runtime) -> dict[str, Any]:
    return {
        "name": runtime.name,
        "isolates": runtime.is_isolating,
        "missing": runtime.why_not() or None,
        "open_leases": [f"{lease}.{generation}" for lease, generation in runtime.known()],
    }


def containers(shell: Shell, *, is_root: bool) -> dict[str, Any]:
    """Return this host's Podman, what is missing for jobs in containers, and the lines for its version.

    ``is_root``: root would run them, as where holders are played.
    """
    found = find_podman(shell, is_root=is_root)
    version = podman_version(shell)
    return {
        "podman": None if version is None else ".".join(map(str, version)),
        "missing": found if isinstance(found, str) else None,
        "lines": device_lines(version),
    }


def _device(driver: Driver, fact: DeviceFact) -> dict[str, Any]:
    partitions = read_partitions(driver, fact.uuid)
    return {
        "index": fact.index,
        "uuid": fact.uuid,
        "model": fact.model,
        "memory_mib": fact.memory_mib,
        "sm_count": fact.sm_count,
        "pci_bus_id": fact.pci_bus_id or None,
        "mig_enabled": fact.mig_enabled,
        "offers": list(fact.modes),
        "refusals": dict(fact.refusals),
        "profiles": [
            {
                "name": profile.name,
                "id": profile.profile_id,
                "memory_mib": profile.memory_mib,
                "sm_count": profile.sm_count,
                "slices": profile.slices,
                "starts": list(profile.starts),
                "most": profile.max_instances,
            }
            for profile in fact.profiles
        ],
        "partitions": None if partitions is None else [asdict(part) for part in partitions],
    }


def _say(options: argparse.Namespace, found: dict[str, Any]) -> None:
    print(json.dumps(found, indent=2) if options.json else in_words(found))  # noqa: T201 - the answer


def in_words(found: dict[str, Any]) -> str:
    """Return the findings for people."""
    lines = [
        f"node      {found['node']}",
        f"driver    {_driver_words(found)}",
        f"rights    {'root' if found['is_root'] else 'not root: partitions and limits cannot be changed'}",
        f"runtime   {_runtime_words(found['runtime'])}",
        *container_words(found["containers"]),
    ]
    if found["waits"] is not None:
        lines += [f"waits     up to {found['waits']['most_s']:g} s at a start, for {found['waits']['for']}"]
    for device in found["devices"]:
        lines += ["", *_device_words(device)]
    if found["health"] is None:
        return "\n".join([*lines, "", "health    unknown: the devices do not tell"])
    lines += ["", "health    nothing to report"] if not found["health"] else [""]
    lines += [f"health    {fact['severity']} {fact['code']} {fact['detail']}" for fact in found["health"]]
    return "\n".join(lines)


def _driver_words(found: dict[str, Any]) -> str:
    if found["driver"]:
        return f"{found['driver']} {found['driver_version']}"
    return "none yet" if found["waits"] is not None else "none"


def _runtime_words(runtime: dict[str, Any] | None) -> str:
    if runtime is None:
        return "none: the simulation plays the holders"
    kind = "isolates leases from each other" if runtime["isolates"] else "does NOT isolate leases"
    missing = f"; {runtime['missing']}" if runtime["missing"] else ""
    return f"{runtime['name']}, {kind}, {len(runtime['open_leases'])} open{missing}"


def container_words(found: dict[str, Any]) -> list[str]:
    """Return what there is for containers, and how holders start one with their lease's device."""
    name = f"Podman {found['podman']}" if found["podman"] else "none"
    missing = f"; no jobs in containers: {found['missing']}" if found["missing"] else ", also for jobs"
    lines = [f"containers {name}{missing}"]
    return lines + [f"  by {whose:<6} {line}" for whose, line in found["lines"].items()]


def _device_words(device: dict[str, Any]) -> list[str]:
    mig = {True: "MIG on", False: "MIG off", None: "no MIG"}[device["mig_enabled"]]
    sms = "SMs unknown" if device["sm_count"] is None else f"{device['sm_count']} SMs"
    lines = [
        f"device {device['index']:<3}{device['model']}, {device['memory_mib']} MiB, {sms}, {mig}",
        f"          {device['uuid']}",
        f"  offers  {', '.join(device['offers']) or 'nothing'}",
    ]
    lines += [f"  not     {mode}: {why}" for mode, why in device["refusals"].items()]
    lines += [
        f"  size    {p['name']:<14}{p['memory_mib']:>7} MiB  starts {', '.join(map(str, p['starts']))}"
        for p in device["profiles"]
    ]
    if device["partitions"] is None:
        return [*lines, "  stands  unknown: the device does not say"]
    return lines + [
        f"  stands  {part['profile'] or 'whole'} at {part['start']}  {part['uuid']}"
        + (f"  for {part['lease']}" if part["lease"] else "")
        for part in device["partitions"]
    ]
