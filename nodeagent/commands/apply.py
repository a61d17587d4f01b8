"""Show, step by step, what the agent would do for a desired state (--dry-run), or do it while no agent runs."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nodeagent.commands.dry_run import DryRunDriver, DryRunRuntime, PlannedStep, rehearse
from nodeagent.commands.opening import notices_of, open_host, state_of
from nodeagent.commands.options import UsageError, patience_of, require_node
from nodeagent.drivers.base import Driver
from nodeagent.host.clock import boot_clock
from nodeagent.link.identity import lock_state
from nodeagent.protocol.codec import ProtocolError, decode
from nodeagent.protocol.messages import VERSION, Desired
from nodeagent.reconcile.goals import FenceError
from nodeagent.reconcile.journal import Journal
from nodeagent.reconcile.lease_records import NS
from nodeagent.reconcile.reconciler import Reconciler
from nodeagent.reconcile.sequential import work_through
from nodeagent.runtimes.base import Runtime

REST_S = 0.05


def add_options(known: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    known.add_argument(
        "file", help="desired state as JSON: a frame, or an object with a list 'leases'; - is input"
    )
    known.add_argument("--dry-run", action="store_true", help="only show the steps; nothing is changed")
    known.add_argument("--within", type=float, default=60.0, metavar="S", help="give up after so long (60)")
    known.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Plan or apply; 1 when a lease would be, or was, refused."""
    require_node(options)
    state = state_of(options)
    body = _read(options.file)
    lock = None if options.dry_run else lock_state(state)
    try:
        patience = None if options.dry_run else patience_of(options)
        host = open_host(options, state, looks_only=options.dry_run, patience=patience)
        if options.dry_run:
            return _say(_plan(options, state, body, host.driver, host.runtime), as_json=options.json)
        return _say(_apply(options, state, body, host.driver, host.runtime), as_json=options.json)
    except FenceError as no:
        raise UsageError(f"the desired state is refused: {no}") from no
    finally:
        if lock is not None:
            os.close(lock)


def _plan(
    options: argparse.Namespace, state: Path, body: dict[str, Any], driver: Driver, runtime: Runtime | None
) -> dict[str, Any]:
    """Rehearse on a copy of the journal."""
    with tempfile.TemporaryDirectory(prefix="berth-plan-") as folder:
        if (state / "journal.jsonl").exists():
            shutil.copyfile(state / "journal.jsonl", Path(folder) / "journal.jsonl")
        shadow = DryRunDriver(driver)
        doors = None if runtime is None else DryRunRuntime(runtime)
        now = boot_clock()
        reconciler = Reconciler(options.node, shadow, Journal(Path(folder) / "journal.jsonl"), now, doors)
        reconciler.accept(_desired(body, reconciler), now)
        reconciler.tick(now)  # as the agent does before each of its steps: what is over by now ends
        steps = rehearse(reconciler, shadow, now)
        return {"dry_run": True, "steps": [asdict(step) for step in steps], "leases": _leases(reconciler)}


def _apply(
    options: argparse.Namespace, state: Path, body: dict[str, Any], driver: Driver, runtime: Runtime | None
) -> dict[str, Any]:
    """Work until nothing is left to be done, or time is up."""
    journal, notices = Journal(state / "journal.jsonl"), notices_of(options, state)
    reconciler = Reconciler(options.node, driver, journal, boot_clock(), runtime, notices)
    reconciler.accept(_desired(body, reconciler), boot_clock())
    until, steps = boot_clock() + int(options.within * NS), 0
    while boot_clock() < until:
        reconciler.tick(boot_clock())
        steps += work_through(reconciler, driver, boot_clock)
        reconciler.ledger.save()
        if reconciler.is_settled:
            break
        time.sleep(REST_S)
    return {
        "dry_run": False,
        "steps_done": steps,
        "settled": reconciler.is_settled,
        "leases": _leases(reconciler),
    }


def _leases(reconciler: Reconciler) -> list[dict[str, Any]]:
    return [
        {
            "lease": report.lease,
            "generation": report.generation,
            "phase": report.phase,
            "code": report.code,
            "detail": report.detail,
        }
        for report in (record.report() for record in reconciler.lease_records.values())
    ]


def _desired(body: dict[str, Any], reconciler: Reconciler) -> Desired:
    """Return the frame of a file; what it leaves out is taken from the journal. Raises UsageError."""
    ledger = reconciler.ledger
    frame = {"node": reconciler.node, "epoch": ledger.epoch, "revision": ledger.revision, **body}
    frame |= {"v": body.get("v", VERSION), "type": body.get("type", "desired")}
    try:
        message = decode(json.dumps(frame))
    except ProtocolError as no:
        raise UsageError(f"that is not a desired state: {no.detail} ({no.code})") from no
    if not isinstance(message, Desired):
        raise UsageError("that is a frame of another kind; give a desired state")
    return message


def _read(file: str) -> dict[str, Any]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        body = json.loads(text)
    except (OSError, ValueError) as no:
        raise UsageError(f"cannot read {file}: {no}") from no
    if not isinstance(body, dict):
        raise UsageError("a desired state is one JSON object with a list 'leases'")
    return body


def _say(found: dict[str, Any], *, as_json: bool) -> int:
    """Print a plan or a result; returns the exit code."""
    is_refused = any(lease["phase"] == "failed" for lease in found["leases"])
    is_done = found.get("settled", True)
    print(json.dumps(found, indent=2) if as_json else _in_words(found))  # noqa: T201 - the answer
    return 1 if is_refused or not is_done else 0


def _in_words(found: dict[str, Any]) -> str:
    if found["dry_run"]:
        lines = [_step_words(PlannedStep(**step)) for step in found["steps"]] or ["nothing to do"]
    else:
        lines = [
            f"{found['steps_done']} step(s) done" + ("" if found["settled"] else "; time is up, more is left")
        ]
    lines += ["", "leases afterwards:" if found["leases"] else "no leases afterwards"]
    return "\n".join(
        lines
        + [
            f"  {lease['lease']}.{lease['generation']:<4}{lease['phase']}"
            + (f"  {lease['code']}: {lease['detail']}" if lease["code"] else "")
            for lease in found["leases"]
        ]
    )


def _step_words(step: PlannedStep) -> str:
    refusal = f"  REFUSED {step.refusal}" if step.refusal else ""
    return f"{step.number:>3}. device {step.device}: {step.action} (lease {step.lease}){refusal}"
