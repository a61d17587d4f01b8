"""One step of leases and requests: locked in order, checked by the table of states, recorded, told to browsers.

Which step is due, and what else it means, is for those who call: ``lifecycle`` first of all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import Model

from portal.common.live import EVENTS, publish_on_commit
from portal.common.rows import Rows
from portal.common.sql import execute, fetch
from portal.common.states import check_move
from portal.leases.models import Lease, LeaseRequest
from portal.leases.states import LEASE_NEXT, REQUEST_NEXT, LeaseState

_LEASES = Rows(Lease, "team", "request")


@dataclass(frozen=True, slots=True)
class StateTable:
    """Where the states of a kind of rows stand, and where their steps are recorded."""

    model: type[Model]
    table: str
    events: str
    key: str


_LEASE_STEP = StateTable(Lease, "leases_lease", "leases_leaseevent", "lease_id")
_REQUEST_STEP = StateTable(LeaseRequest, "leases_leaserequest", "leases_requestevent", "request_id")


def lock_leases(lease_ids: Iterable[int]) -> list[Lease]:
    """Return the leases locked in id order, with what their moves need at hand."""
    return _LEASES.where("it.id = ANY(%s) ORDER BY it.id FOR UPDATE OF it", [list(lease_ids)])


def step_instant(lease: Lease, *, at: datetime, is_end: bool = False) -> datetime:
    """Return when the next step of a locked lease is recorded that was taken, or heard of, at ``at``.

    Never before the step before it: ``at`` may have been taken before whoever holds the lease now waited for it,
    or be an earlier word of its node. Never after the lease's end where it stops the money clock (or ``is_end``):
    however late that is done, nobody pays for more than was promised. The database refuses both.
    """
    if is_end or lease.state == LeaseState.ACTIVE:
        at = min(at, lease.ends_at)
    return at if lease.moved_at is None else max(at, lease.moved_at)


def move_all(
    leases: Sequence[Lease],
    to: str,
    *,
    at: datetime,
    reason: str = "",
    stamps: Collection[str] = (),
    **fields: Any,
) -> list[Lease]:
    """Move locked leases one step each and record why; extra ``fields`` are set with it.

    The leases must have been locked in this transaction. ``at`` becomes the instant of the step as
    ``step_instant`` allows it, and the fields named by ``stamps`` get that same instant. Raises IllegalMove when
    the table has no such step. Returns the leases that were moved, updated in place. One that this transaction has
    moved already by another copy, with its gang or its base, is only read again.
    """
    if not leases:
        return []
    for lease in leases:
        check_move(LEASE_NEXT, lease.state, to, f"lease {lease.uid}")
    instants = [step_instant(lease, at=at, is_end="ended_at" in stamps) for lease in leases]
    stamps = ("moved_at", *stamps)
    moved = _take_step(
        _LEASE_STEP, leases, to, instants=instants, reason=reason, stamps=stamps, fields=fields
    )
    for lease, instant in zip(leases, instants, strict=True):
        if lease.pk not in moved:
            lease.refresh_from_db(fields=["state", "moved_at", "ended_at", "end_reason", "not_after"])
            continue
        lease.state = to
        for name, value in [*((stamp, instant) for stamp in stamps), *fields.items()]:
            setattr(lease, name, value)
    done = [lease for lease in leases if lease.pk in moved]
    announce(done, at=at)
    return done


def _take_step(
    kind: StateTable,
    rows: Sequence[Any],
    to: str,
    *,
    instants: Sequence[datetime],
    reason: str,
    stamps: Sequence[str] = (),
    fields: dict[str, Any],
) -> set[int]:
    """Set the state of locked rows that are as said, with extra fields, and record the step: one statement.

    Returns the keys of those that were moved.
    """
    sets = [(kind.model._meta.get_field(name), getattr(value, "pk", value)) for name, value in fields.items()]
    columns = "".join(f', "{field.column}" = %s' for field, _value in sets)  # type: ignore[union-attr]
    columns += "".join(f', "{stamp}" = step.at' for stamp in stamps)
    found = fetch(
        "WITH step AS (SELECT * FROM unnest(%s::bigint[], %s::text[], %s::timestamptz[]) AS step(id, was, at)),"  # noqa: S608 (ours)
        f" moved AS (UPDATE {kind.table} it SET state = %s{columns} FROM step"
        "  WHERE it.id = step.id AND it.state = step.was RETURNING it.id)"
        f" INSERT INTO {kind.events} ({kind.key}, was, now, at, reason)"
        f" SELECT id, was, %s, at, %s FROM step JOIN moved USING (id) RETURNING {kind.key}",
        [
            *([row.pk for row in rows], [str(row.state) for row in rows], list(instants)),
            str(to),
            *(field.get_db_prep_save(value, connection) for field, value in sets),  # type: ignore[union-attr]
            *(str(to), str(reason)[:300]),
        ],
    )
    return {key for (key,) in found}


def note_events(steps: Sequence[tuple[int, str]], to: str, *, at: datetime, reason: str = "") -> None:
    """Record the first step of new leases: (id, state before) pairs. Call in the transaction that makes them."""
    execute(
        "INSERT INTO leases_leaseevent (lease_id, was, now, at, reason)"
        " SELECT id, was, %s, %s, %s FROM unnest(%s::bigint[], %s::text[]) AS step(id, was)",
        [str(to), at, str(reason), [pk for pk, _was in steps], [str(was) for _pk, was in steps]],
    )


def announce(leases: Sequence[Lease], *, at: datetime) -> None:
    """Tell the browsers that look, once the transaction is through."""
    publish_on_commit(
        EVENTS,
        [
            {
                "event": f"lease.{lease.state}",
                "lease": lease.uid,
                "request": lease.request.uid,
                "team": lease.team_id,
                "user": lease.user_id,
                "state": lease.state,
                "at": at.isoformat(),
            }
            for lease in leases
        ],
    )


def move_requests(
    requests: Sequence[LeaseRequest], to: str, *, at: datetime, reason: str = "", **fields: Any
) -> None:
    """Move locked requests one step each and record why; extra ``fields`` are set with it."""
    if not requests:
        return
    for request in requests:
        check_move(REQUEST_NEXT, request.state, to, f"request {request.uid}")
    instants = [at] * len(requests)
    _take_step(_REQUEST_STEP, requests, to, instants=instants, reason=reason, fields=fields)
    for request in requests:
        request.state = to
    publish_on_commit(
        EVENTS,
        [
            {
                "event": f"request.{to}",
                "lease": "",
                "request": r.uid,
                "team": r.team_id,
                "user": r.author_id,
                "state": to,
                "at": at.isoformat(),
            }
            for r in requests
        ],
    )
