"""Whether nodes sleep: what operators and the scheduler want, and what agents say became of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import transaction
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.common import outbox
from portal.common.errors import Conflict, Invalid
from portal.common.sql import execute, fetch
from portal.fleet.models import Node, NodeSleep, Power, PowerState
from portal.fleet.services import raise_revision

STAY_AWAKE = timedelta(hours=1)
LONGEST = timedelta(days=90)
TURNING = "turning"


def shown_power(node: Node) -> str:
    """Return awake, asleep, turning (told otherwise, not carried out yet), unsupported, or "" for unknown."""
    if node.power_state in (PowerState.AWAKE, PowerState.ASLEEP) and node.power_state != node.power_desired:
        return TURNING
    return node.power_state


def can_sleep(node: Node) -> bool:
    """Say whether the node's agent can let it sleep, as far as it has said so."""
    return node.power_state in (PowerState.AWAKE, PowerState.ASLEEP)


def rule_of(node: Node, *, now: datetime) -> str:
    """Return the operator's word that holds now: "awake", "asleep" or ""."""
    is_over = node.power_rule_until is not None and node.power_rule_until <= now
    return "" if is_over else node.power_rule


@transaction.atomic
def wake(*, node: Node, actor: User, now: datetime, until: datetime | None = None) -> None:
    """Wake the node now and keep it awake until a time (an hour from now unless said). Safe to repeat.

    Raises Invalid for a time that has passed or is more than 90 days away.
    """
    if until is not None and not now < until <= now + LONGEST:
        raise Invalid(fields={"until": _("Give a time in the next 90 days.")})
    until = until or now + STAY_AWAKE
    Node.objects.filter(pk=node.pk).update(power_rule=Power.AWAKE, power_rule_until=until)
    tell([node.pk], Power.AWAKE, now=now)
    record(actor, "node.kept_awake", node.name, at=now, until=until.isoformat())


@transaction.atomic
def let_sleep(*, node: Node, actor: User, now: datetime) -> None:
    """Let the node sleep as soon as it holds nothing, at any time of day, until it is needed. Safe to repeat.

    Raises Conflict where its agent cannot do that or has not said that it can.
    """
    if not can_sleep(node):
        raise Conflict(why_not(node))
    Node.objects.filter(pk=node.pk).update(power_rule=Power.ASLEEP, power_rule_until=None)
    record(actor, "node.may_sleep", node.name, at=now)


def why_not(node: Node) -> str:
    """Return why a node cannot sleep, in a sentence for operators."""
    if node.power_state == PowerState.UNSUPPORTED:
        return _("%(node)s cannot sleep: its driver or its operator does not allow it.") % {"node": node.name}
    return _("%(node)s has not said whether it can sleep.") % {"node": node.name}


def tell(node_ids: Sequence[int], power: Power, *, now: datetime) -> list[str]:
    """Want another power state of these nodes; returns the names of those for which it is new.

    Call in a transaction; locks nodes in id order. Whoever lets a node sleep has seen that it holds nothing.
    """
    rows = fetch(
        "WITH held AS (SELECT id FROM fleet_node WHERE id = ANY(%s) AND power_desired <> %s ORDER BY id FOR UPDATE)"
        " UPDATE fleet_node n SET power_desired = %s, power_changed_at = %s"
        " FROM held WHERE n.id = held.id RETURNING n.id, n.name",
        [sorted(set(node_ids)), str(power), str(power), now],
    )
    raise_revision([pk for pk, _name in rows])
    return sorted(name for _pk, name in rows)


def see_power(node: Node, power: str, note: str, *, now: datetime) -> None:
    """Store what the agent says of its power, and nudge a turn when it woke up. Call in its report's transaction.

    A sleep is kept from the report that says asleep to the first one that does not.
    """
    if (power, note[:200]) == (node.power_state, node.power_note):
        return
    slept, sleeps = node.power_state == PowerState.ASLEEP, power == PowerState.ASLEEP
    execute(
        "UPDATE fleet_node SET power_state = %s, power_note = %s,"
        " idle_since = CASE WHEN %s THEN %s ELSE idle_since END WHERE id = %s",
        [power, note[:200], slept and not sleeps, now, node.pk],
    )
    if sleeps and not slept:
        why = "operator" if rule_of(node, now=now) == Power.ASLEEP else "policy"
        NodeSleep.objects.get_or_create(node=node, ended_at=None, defaults={"began_at": now, "why": why})
    elif slept and not sleeps:
        _woke(node, now)


def _woke(node: Node, now: datetime) -> None:
    execute(
        "UPDATE fleet_nodesleep SET ended_at = greatest(%s, began_at) WHERE node_id = %s AND ended_at IS NULL",
        [now, node.pk],
    )
    if node.power_desired == Power.AWAKE and node.power_changed_at is not None:
        took_s = max(0, round((now - node.power_changed_at).total_seconds()))
        execute("UPDATE fleet_node SET wake_s = %s WHERE id = %s", [took_s, node.pk])
    outbox.add(outbox.RUN_CYCLE, key=node.name, at=now)
    outbox.nudge_on_commit(outbox.RUN_CYCLE)
