"""Faults of the stores: Valkey forgets or refuses, PostgreSQL's rows are held, its sessions end, its disk is full."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress

import psycopg
import redis

from tools.drill.fault import FaultOutcome, NotObserved, Step
from tools.drill.stack import DrillStack


def flush(stack: DrillStack, step: Step) -> FaultOutcome:
    with stack.valkey() as valkey:
        valkey.set("drill:mark", 1)
        valkey.flushall()
        since = time.monotonic()
        if valkey.exists("drill:mark"):
            raise NotObserved("the mark is still there")
    return FaultOutcome("a mark set before was gone", since)


def valkey_full(stack: DrillStack, step: Step) -> FaultOutcome:
    with stack.valkey() as valkey:
        valkey.config_set("maxmemory", 1)
        try:
            try:
                valkey.set("drill:more", 1)
            except redis.exceptions.ResponseError as refused:
                seen = str(refused)[:40]
            else:
                raise NotObserved("a write was taken in spite of maxmemory")
            time.sleep(step.seconds)
        finally:
            valkey.config_set("maxmemory", 0)
    return FaultOutcome(f"{seen}… for {step.seconds:g} s", time.monotonic())


def row_lock(stack: DrillStack, step: Step) -> FaultOutcome:
    """A foreign session holds rows that everybody changes; it is busy, so nobody ends it."""
    return _held(stack, step, is_busy=True)


def idle_lock(stack: DrillStack, step: Step) -> FaultOutcome:
    """A foreign session holds the same rows and does nothing."""
    return _held(stack, step, is_busy=False)


def _held(stack: DrillStack, step: Step, *, is_busy: bool) -> FaultOutcome:
    waited, held = 0, 0
    with stack.database() as session, stack.database() as watcher:
        session.execute("SET lock_timeout = '15s'")
        with (
            suppress(psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected),
            session.transaction(),
        ):
            held = len(session.execute("SELECT id FROM quotas_quota ORDER BY id FOR UPDATE").fetchall())
            end = time.monotonic() + step.seconds
            while time.monotonic() < end:
                if is_busy:
                    session.execute("SELECT pg_sleep(0.2)")
                else:
                    time.sleep(0.2)
                (found,) = watcher.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                ).fetchone()  # type: ignore[misc]
                waited = max(waited, found)
            session.execute("SELECT 1")
    if not held:
        raise NotObserved("the rows could not be locked")
    return FaultOutcome(
        f"{held} quota rows held for {step.seconds:g} s, at most {waited} waited", time.monotonic()
    )


def terminate(stack: DrillStack, step: Step) -> FaultOutcome:
    with stack.database() as session:
        (count,) = session.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        ).fetchone()  # type: ignore[misc]
    if not count:
        raise NotObserved("nobody had a session")
    return FaultOutcome(f"{count} sessions ended", time.monotonic())


def disk_full(stack: DrillStack, step: Step) -> FaultOutcome:
    """PostgreSQL's disk has not a byte left; its own log says so or our own write is refused."""
    folder = stack.places.postgres
    ballast = folder / "ballast"
    try:
        with ballast.open("wb", buffering=0) as out:
            block = b"\0" * 65_536
            try:
                while True:
                    out.write(block)
            except OSError as refused:
                seen = refused.strerror
            until_s = time.monotonic() + step.seconds
            while time.monotonic() < until_s:  # what is given back meanwhile is taken again
                with suppress(OSError):
                    out.write(block)
                time.sleep(0.2)
        left = shutil.disk_usage(folder).free
        if left > 2_000_000:
            raise NotObserved(f"{left} bytes were left")
    finally:
        ballast.unlink(missing_ok=True)
    return FaultOutcome(f"{seen} for {step.seconds:g} s", time.monotonic())
