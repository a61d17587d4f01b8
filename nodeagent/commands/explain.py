"""Say what the agent knows of a lease, what is seen of it right now, and what comes next; nothing is changed."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nodeagent.commands.dry_run import DryRunDriver, DryRunRuntime, rehearse
from nodeagent.commands.opening import open_host, state_of
from nodeagent.commands.options import UsageError, require_node
from nodeagent.drivers.base import Driver, TenantGate
from nodeagent.drivers.errors import NotOfferedError, NvmlLikeError
from nodeagent.host.clock import boot_clock
from nodeagent.reconcile.journal import Journal, Record, peek
from nodeagent.reconcile.lease_records import NS, READY, LeasePlace, LeaseRecord
from nodeagent.reconcile.reconciler import Reconciler
from nodeagent.reconcile.steps import read_partitions
from nodeagent.runtimes.base import Runtime


def add_options(known: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    known.add_argument("lease", help="name of the lease, as the portal shows it")
    known.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Explain; raises UsageError when the lease is not known here."""
    require_node(options)
    state = state_of(options)
    records = peek(state / "journal.jsonl")
    history = history_of(records, options.lease)
    if not history:
        raise UsageError(
            f"{options.lease} is not known on this node; leases that are over and reported are forgotten"
        )
    host = open_host(options, state, looks_only=True)
    found = {
        "lease": options.lease,
        "history": history,
        "now": _now(options, state, host.driver, host.runtime),
    }
    print(json.dumps(found, indent=2) if options.json else in_words(found))  # noqa: T201 - the answer
    return 0


def history_of(records: list[Record], lease: str) -> list[dict[str, Any]]:
    """Return the states of a lease as the journal tells them, the same state only once."""
    found: list[dict[str, Any]] = []
    for record in records:
        if record.get("lease") != lease:
            continue
        if record["op"] == "forget":
            entry: dict[str, Any] = {"generation": record["generation"], "phase": "forgotten"}
        else:
            entry = {
                "generation": record["generation"],
                "phase": record["phase"],
                "code": record["code"],
                "detail": record["detail"],
                "made": sum(place["made"] for place in record["places"]),
                "places": len(record["places"]),
            }
        if not found or found[-1] != entry:
            found.append(entry)
    return found


def _now(
    options: argparse.Namespace, state: Path, driver: Driver, runtime: Runtime | None
) -> list[dict[str, Any]]:
    """Return every generation that is still on the node, as it stands and as it goes on."""
    with tempfile.TemporaryDirectory(prefix="berth-explain-") as folder:
        shutil.copyfile(state / "journal.jsonl", Path(folder) / "journal.jsonl")
        shadow = DryRunDriver(driver)
        doors = None if runtime is None else DryRunRuntime(runtime)
        now = boot_clock()
        reconciler = Reconciler(options.node, shadow, Journal(Path(folder) / "journal.jsonl"), now, doors)
        lease_records = [
            record for record in reconciler.lease_records.values() if record.lease == options.lease
        ]
        entries = [_entry(record, reconciler, driver, runtime, now) for record in lease_records]
        reconciler.tick(now)
        plan = rehearse(reconciler, shadow, now)
    for entry in entries:
        entry["next"] = [asdict(step) for step in plan if step.lease == options.lease]
    return entries


def _entry(
    record: LeaseRecord, reconciler: Reconciler, driver: Driver, runtime: Runtime | None, now: int
) -> dict[str, Any]:
    report = record.report()
    return {
        "generation": record.generation,
        "phase": report.phase,
        "code": report.code,
        "detail": report.detail,
        "user": record.user,
        "team": record.team,
        "ends_in_s": round((record.deadline - now) / NS) if record.phase == READY else None,
        "grace_s": record.grace_s,
        "entrance": dict(record.entrance),
        "pids": None if runtime is None else runtime.pids(record.key),
        "places": [_place(place, reconciler, driver) for place in record.places],
    }


def _place(place: LeasePlace, reconciler: Reconciler, driver: Driver) -> dict[str, Any]:
    """Return one place: what was asked for, and what is seen of it."""
    slot = place.slot
    fact = reconciler.devices.get(slot.device)
    facts = None if fact is None else read_partitions(driver, slot.device)
    stands = None if facts is None else any(part.uuid == place.partition for part in facts)
    return {
        "device": None if fact is None else fact.index,
        "uuid": slot.device,
        "mode": slot.mode,
        "profile": slot.profile,
        "start": slot.start,
        "partition": place.partition or None,
        "stands": stands,
        "nodes": list(place.access.nodes) if place.access else [],
        "processes": _processes(driver, place.partition) if stands else None,
        "tries": place.tries,
    }


def _processes(driver: TenantGate, partition: str) -> list[dict[str, Any]] | None:
    try:
        return [asdict(process) for process in driver.processes(partition)]
    except (NvmlLikeError, NotOfferedError):
        return None


def in_words(found: dict[str, Any]) -> str:
    """Return the explanation for people."""
    lines = [f"lease {found['lease']}"]
    for entry in found["now"]:
        lines += _entry_words(entry)
    lines += ["", "as the journal tells it:"]
    for entry in found["history"]:
        made = f", {entry['made']} of {entry['places']} place(s) made" if "made" in entry else ""
        code = f", {entry['code']}: {entry['detail']}" if entry.get("code") else ""
        lines.append(f"  generation {entry['generation']}: {entry['phase']}{made}{code}")
    return "\n".join(lines)


def _entry_words(entry: dict[str, Any]) -> list[str]:
    ends = "" if entry["ends_in_s"] is None else f", ends in {entry['ends_in_s']} s"
    lines = [
        "",
        f"generation {entry['generation']}: {entry['phase']}{ends}, for {entry['user'] or 'unknown'}",
    ]
    if entry["code"]:
        lines.append(f"  because {entry['code']}: {entry['detail']}")
    for name, value in entry["entrance"].items():
        lines.append(f"  {name:<9}{value}")
    if entry["pids"] is not None:
        lines.append(f"  inside   {', '.join(map(str, entry['pids'])) or 'no process'}")
    for place in entry["places"]:
        seen = {True: "stands", False: "does not stand", None: "cannot be seen"}[place["stands"]]
        where = "a device not on this node" if place["device"] is None else f"device {place['device']}"
        lines.append(f"  {where}: {place['profile'] or place['mode']} at {place['start']} {seen}")
        if place["nodes"]:
            lines.append(f"    reached by {', '.join(place['nodes'])}")
        if place["processes"]:
            lines.append(f"    used by {', '.join(str(p['pid']) for p in place['processes'])}")
    lines += [f"  next: {step['action']}" for step in entry["next"]]
    return lines
