"""What nodes and devices say about their health, and what becomes of it: one device leaves work, never its node.

Events of less than critical severity come and go with the agent's word. A critical one stays until an operator
clears it, also when the agent reports it no more: that a fault is quiet does not mean that it was repaired.

What is still true after that comes back with the next report. XIDs whose end the table of the agent leaves to people
do not: an agent remembers them until it starts again, and the operator's word is newer than its memory. States that
are read anew, like memory that cannot be repaired, always come back: nobody's word makes them untrue.

A program's fault on one MIG slice is that slice's affair: where the agent names the places, it is news only for who
holds them. What is critical takes the whole device out of work and so concerns everybody on it.

Lock order: devices by id, then their events, before leases and nodes (portal/leases/lifecycle.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from nodeagent.protocol.fault_rules import standard
from nodeagent.protocol.messages import HealthFact
from portal.accounts.models import User
from portal.audit.services import record
from portal.common.errors import Conflict, Invalid
from portal.common.retry import with_retries
from portal.common.sql import execute, fetch
from portal.fleet.models import Device, Health, HealthEvent, Node

CRITICAL: Final = "critical"
BY_AGENT: Final = "agent"
BY_HAND: Final = "by-hand"  # code of what an operator put in quarantine, cleared like any other
RESTING: Final = "setup_failed"  # code of a device that rests (portal/leases/device_cooldown.py)
OWN: Final = frozenset({BY_HAND, RESTING})  # what no agent says, so an agent's silence ends none of it
# A warning that comes back so soon is the same one: nobody is told twice of a fault that flutters.
SAME_WITHIN: Final = timedelta(minutes=10)
DEGRADING: Final = "drain"
# What an agent goes on saying until it starts again, although an operator has cleared it.
REMEMBERED: Final = frozenset(
    rule.code for rule in standard() if rule.clears == "operator" and rule.code.isdigit()
)

_OPEN = (
    "SELECT e.id, e.device_id, e.code, e.severity, e.action, e.detail, e.starts, e.unreported_at IS NOT NULL, d.health"
    " FROM fleet_healthevent e LEFT JOIN fleet_device d ON d.id = e.device_id"
    " WHERE e.node_id = %s AND e.cleared_at IS NULL ORDER BY e.id"
)
_OPEN_LOCKED = f"{_OPEN} FOR UPDATE OF e"
# Rows that refer to a device only share its key, so they never wait for this lock.
_LOCK_DEVICES = "SELECT id FROM fleet_device WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE"


_Told = tuple[str, str, str, list[int] | None, bool]


@dataclass(frozen=True, slots=True)
class _Open:
    """An open event as a report meets it; ``health`` is that of its device, None for a whole node."""

    pk: int
    device_id: int | None
    code: str
    severity: str
    action: str
    detail: str
    starts: list[int] | None
    is_unreported: bool
    health: str | None

    def as_told(self) -> _Told:
        """Return what a fact may change of it."""
        return self.severity, self.action, self.detail, self.starts, self.is_unreported


_Key = tuple[int | None, str]


def see_health(node: Node, facts: Sequence[HealthFact], *, now: datetime) -> list[HealthEvent]:
    """Store what a node says of its health; returns the events that are new, have become critical or reach further.

    A fact about a device of another node is left out. Call in the transaction of its report. Safe to repeat.
    """
    known = _known(_OPEN, node)
    if not facts and not known:
        return []
    said = _by_key(node, facts)
    concerned = {pk for pk, _code in (*known, *said) if pk is not None}
    events: list[HealthEvent | None] = []
    if _is_change(known, said):
        lock_devices(concerned)
        known = _known(_OPEN_LOCKED, node)  # an operator may have cleared one meanwhile
        for key, fact in said.items():
            if key in known:
                _keep(known[key], fact)
        news = [
            key
            for key, fact in said.items()
            if (_is_worse(known[key], fact) if key in known else not _is_answered(node, key, fact))
        ]
        events = [_opened(node, key, said[key], now) for key in news]
        _fall_silent(_silent(known, said), now)
    settle(concerned)
    return [event for event in events if event is not None]


def hold_devices(node: Node, facts: Sequence[HealthFact], also: Collection[int] = ()) -> None:
    """Lock the devices whose events ``see_health`` is going to change, and ``also`` these, by their ids.

    For who locks leases or nodes in between.
    """
    known = _known(_OPEN, node)
    said = _by_key(node, facts) if facts or known else {}
    changing = {pk for pk, _code in (*known, *said) if pk is not None} if _is_change(known, said) else set()
    lock_devices({*changing, *also})


def lock_devices(ids: Collection[int]) -> None:
    """Lock devices in the order in which all do; rows that refer to them are not held up."""
    if ids:
        fetch(_LOCK_DEVICES, [sorted(ids)])


def _known(sql: str, node: Node) -> dict[_Key, _Open]:
    return {(row.device_id, row.code): row for row in (_Open(*found) for found in fetch(sql, [node.pk]))}


def _is_change(known: Mapping[_Key, _Open], said: Mapping[_Key, HealthFact]) -> bool:
    """Say whether events have to be written; most reports only repeat what is known, and lock nothing."""
    if any(
        key not in known or known[key].as_told() != _after(known[key], fact) for key, fact in said.items()
    ):
        return True
    return any(row.severity != CRITICAL or not row.is_unreported for row in _silent(known, said))


def _silent(known: Mapping[_Key, _Open], said: Mapping[_Key, HealthFact]) -> list[_Open]:
    return [row for key, row in known.items() if key not in said and row.code not in OWN]


def _by_key(node: Node, facts: Sequence[HealthFact]) -> dict[_Key, HealthFact]:
    """Return the facts by device and code, the worst of each, as far as the node may speak of the device."""
    devices: dict[str, int] = (
        dict(fetch("SELECT uuid, id FROM fleet_device WHERE node_id = %s", [node.pk])) if facts else {}
    )
    found: dict[_Key, HealthFact] = {}
    for fact in sorted(facts, key=lambda fact: fact.severity == CRITICAL):
        if (not fact.device or fact.device in devices) and fact.code not in OWN:
            found[devices.get(fact.device), fact.code[:40]] = fact
    return found


def _is_worse(row: _Open, fact: HealthFact) -> bool:
    """Say whether a fact makes an open event critical, or concern slices that it did not before."""
    if fact.severity == CRITICAL != row.severity:
        return True
    starts = _after(row, fact)[3]
    return row.starts is not None and (starts is None or not set(starts) <= set(row.starts))


def _is_answered(node: Node, key: _Key, fact: HealthFact) -> bool:
    """Say whether an operator has cleared this very fault since the node booted.

    One that happens again is told in other words: the agent's sentence carries when and how often it happened.
    """
    device_id, code = key
    if code not in REMEMBERED or not node.boot_id:
        return False
    which: dict[str, Any] = {"node": node, "device_id": device_id, "code": code}
    before = (
        HealthEvent.objects.filter(**which, is_cleared_by_hand=True)
        .order_by("-cleared_at")
        .values_list("detail", "cleared_boot")
        .first()
    )
    return before == (fact.detail[:300], node.boot_id)


def _after(row: _Open, fact: HealthFact) -> _Told:
    """Return what becomes of an open event by a fact; what was critical stays so."""
    severity = CRITICAL if row.severity == CRITICAL else fact.severity[:12]
    return severity, fact.action[:20], fact.detail[:300], _starts(fact, severity), False


def _starts(fact: HealthFact, severity: str) -> list[int] | None:
    """Return which slices a fact concerns; what takes the device out of work concerns all of it."""
    return (
        None if fact.starts is None or severity == CRITICAL or not fact.device else sorted(set(fact.starts))
    )


def _keep(row: _Open, fact: HealthFact) -> None:
    """Bring an open event up to date."""
    told = _after(row, fact)
    if told != row.as_told():
        execute(
            "UPDATE fleet_healthevent SET severity = %s, action = %s, detail = %s, starts = %s::smallint[],"
            " unreported_at = NULL WHERE id = %s AND cleared_at IS NULL",
            [*told[:4], row.pk],
        )


def _opened(node: Node, key: _Key, fact: HealthFact, now: datetime) -> HealthEvent | None:
    """Return the event to tell about; None for one that was closed a moment ago and is open again.

    One that is or was of slices is told about all the same: it may be another slice by now, another's, or the
    whole device.
    """
    device_id, code = key
    which: dict[str, Any] = {"node": node, "device_id": device_id, "code": code}
    same = HealthEvent.objects.filter(**which)
    fields = {
        "severity": fact.severity[:12],
        "action": fact.action[:20],
        "detail": fact.detail[:300],
        "starts": _starts(fact, fact.severity),
        "at": now,
    }
    before = (
        same.filter(is_cleared_by_hand=False, cleared_at__gte=now - SAME_WITHIN)
        .order_by("-cleared_at")
        .first()
    )
    if before is not None and not same.filter(cleared_at=None).exists():
        was, was_of_slices = before.severity, before.starts is not None
        same.filter(pk=before.pk).update(
            cleared_at=None, cleared_by="", unreported_at=None, **{**fields, "at": before.at}
        )
        before.refresh_from_db()
        is_worse = fact.severity == CRITICAL != was
        return before if is_worse or was_of_slices or before.starts is not None else None
    event, _created = HealthEvent.objects.get_or_create(**which, cleared_at=None, defaults=fields)
    return event


def _fall_silent(rows: Sequence[_Open], now: datetime) -> None:
    """Close what the agent reports no more; of critical events only remember since when."""
    over = [row.pk for row in rows if row.severity != CRITICAL]
    if over:
        execute(
            "UPDATE fleet_healthevent SET cleared_at = %s, cleared_by = %s"
            " WHERE id = ANY(%s) AND cleared_at IS NULL",
            [now, BY_AGENT, over],
        )
    quiet = [row.pk for row in rows if row.severity == CRITICAL and not row.is_unreported]
    if quiet:
        execute(
            "UPDATE fleet_healthevent SET unreported_at = %s WHERE id = ANY(%s) AND cleared_at IS NULL",
            [now, quiet],
        )


def settle(device_ids: Collection[int]) -> None:
    """Give devices the health that their open events ask for. A missing device stays so.

    Only ``clear_health`` ends a quarantine; one that lost its mark (the device was away) gets it back.
    """
    if not device_ids:
        return
    rows = fetch(
        "SELECT d.id, d.health, d.health_reason, e.severity, e.action, e.detail FROM fleet_device d"
        " LEFT JOIN fleet_healthevent e ON e.device_id = d.id AND e.cleared_at IS NULL"
        " WHERE d.id = ANY(%s) ORDER BY d.id, e.id",
        [sorted(device_ids)],
    )
    by_device: dict[int, list[tuple[str, str, str]]] = {}
    present: dict[int, tuple[str, str]] = {}
    for pk, health, reason, *event in rows:
        present[pk] = health, reason
        by_device.setdefault(pk, []).extend([(event[0], event[1], event[2])] if event[0] is not None else [])
    for pk, (health, reason) in present.items():
        wanted = _wanted(health, reason, by_device[pk])
        if wanted != (health, reason):
            execute(
                "UPDATE fleet_device SET health = %s, health_reason = %s WHERE id = %s AND health = %s",
                [*wanted, pk, health],
            )


def _wanted(health: str, reason: str, events: Iterable[tuple[str, str, str]]) -> tuple[str, str]:
    """Return the health that open events (severity, action, detail) ask for, with its reason."""
    found = list(events)
    critical = [detail for severity, _action, detail in found if severity == CRITICAL]
    draining = [detail for _severity, action, detail in found if action == DEGRADING]
    if health == Health.MISSING or (health == Health.QUARANTINED and (reason or not critical)):
        return health, reason
    if critical:
        return str(Health.QUARANTINED), critical[-1][:200]
    if draining:
        return str(Health.DEGRADED), draining[-1][:200]
    return str(Health.OK), ""


@transaction.atomic
def quarantine(*, device: Device, actor: User | None, reason: str, now: datetime) -> HealthEvent:
    """Take one device out of work until it is cleared by hand; running leases go on. Safe to repeat.

    ``actor`` None is Berth itself.

    Raises Invalid without a reason, Conflict where the device is not listed by its node.
    """
    if not reason.strip():
        raise Invalid(fields={"reason": _("Say why, so that the people who are affected can be told.")})
    locked = Device.objects.select_for_update(no_key=True).get(pk=device.pk)
    if locked.health == Health.MISSING:
        raise Conflict(_("The node does not list this device any more: nothing is placed on it anyway."))
    event, created = HealthEvent.objects.get_or_create(
        node_id=locked.node_id,
        device=locked,
        code=BY_HAND,
        cleared_at=None,
        defaults={"severity": CRITICAL, "action": DEGRADING, "detail": reason.strip()[:300], "at": now},
    )
    if not created:
        event.detail = reason.strip()[:300]
        event.save(update_fields=["detail"])
    Device.objects.filter(pk=locked.pk).update(health=Health.QUARANTINED, health_reason=reason.strip()[:200])
    record(actor, "device.quarantined", locked.uuid, at=now, reason=reason.strip()[:300])
    return event


def clear_health(*, device: Device, actor: User, now: datetime) -> None:
    """Close the device's open health events and let it take work again. Safe to repeat.

    What is still true comes back with the agent's next report, unless it is an XID whose end is left to people; a
    missing device stays missing.
    """
    with_retries(lambda: _clear_device(device, actor, now))


@transaction.atomic
def _clear_device(device: Device, actor: User, now: datetime) -> None:
    fetch(_LOCK_DEVICES, [[device.pk]])
    _clear(device.health_events.filter(cleared_at=None), _boot_of(device.node_id), actor, now)
    Device.objects.filter(pk=device.pk).exclude(health=Health.MISSING).update(
        health=Health.OK, health_reason=""
    )
    record(actor, "device.cleared", device.uuid, at=now)


def clear_node_health(*, node: Node, actor: User, now: datetime) -> None:
    """Close the open events that concern the node as a whole. Safe to repeat."""
    with_retries(lambda: _clear_node(node, actor, now))


@transaction.atomic
def _clear_node(node: Node, actor: User, now: datetime) -> None:
    _clear(node.health_events.filter(cleared_at=None, device=None), _boot_of(node.pk), actor, now)
    record(actor, "node.health_cleared", node.name, at=now)


def _boot_of(node_id: int) -> str:
    return str(Node.objects.values_list("boot_id", flat=True).get(pk=node_id))


def _clear(still_open: QuerySet[HealthEvent], boot: str, actor: User, now: datetime) -> None:
    ids = list(still_open.select_for_update(no_key=True).order_by("pk").values_list("pk", flat=True))
    HealthEvent.objects.filter(pk__in=ids).update(
        cleared_at=now, cleared_by=actor.username, is_cleared_by_hand=True, cleared_boot=boot
    )
