"""What waits for an operator's hand: sick devices, silent nodes, drains, what is to be accepted, what idles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from portal.alerts.models import AlertSeverity
from portal.alerts.selectors import firing_by_severity
from portal.common.moments import span
from portal.common.sql import fetch
from portal.fleet.draining import drain_state
from portal.fleet.maintenance import nodes_in_maintenance
from portal.fleet.models import HealthEvent, Node
from portal.fleet.selectors import OFFLINE, STALE, node_state
from portal.idle.models import IDLE, IdleStanding
from portal.leases.states import RUNNING_LEASES
from portal.telemetry.processes import orphans_by_node
from portal.web.figures import gpus
from portal.web.nodes.health import event_row

MOST = 8


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that an operator should look at, with the page where it is dealt with."""

    title: str
    text: str
    tone: str
    icon: str
    url: str
    act: str
    at: datetime | None = None


def troubles(*, now: datetime) -> list[Trouble]:
    """Return what needs a hand, the worst first; a fixed number of queries."""
    nodes = list(Node.objects.order_by("name"))
    away = nodes_in_maintenance(now=now)
    found = [
        *_alerts(),
        *_silent(nodes, away, now),
        *_ill(),
        *_late_drains(nodes, now),
        *_waiting(nodes),
        *_orphans(nodes, now),
        *_idle(),
    ]
    return sorted(found, key=lambda one: one.tone != "bad")


def _node_url(name: str) -> str:
    return reverse("web:node", args=[name])


def _alerts() -> Iterator[Trouble]:
    """Yield how many alerts fire, all in one; one query."""
    found = firing_by_severity()
    count = sum(found.values())
    if not count:
        return
    critical = found.get(AlertSeverity.CRITICAL, 0)
    yield Trouble(
        ngettext("One alert fires", "%(n)d alerts fire", count) % {"n": count},
        ngettext("%(n)d is critical.", "%(n)d are critical.", critical) % {"n": critical},
        "bad" if critical else "warn", "alert-triangle", reverse("web:alerts"), _("Open"),
    )  # fmt: skip


def _silent(nodes: list[Node], away: frozenset[int], now: datetime) -> Iterator[Trouble]:
    for node in nodes:
        state = node_state(node, now=now)
        if state not in (STALE, OFFLINE) or node.pk in away or node.last_seen_at is None:
            continue
        silent_s = int((now - node.last_seen_at).total_seconds())
        yield Trouble(
            _("%(node)s is silent for %(span)s") % {"node": node.name, "span": span(silent_s)},
            _("Nothing new is placed on it. Look at its agent and its network."),
            "bad" if state == OFFLINE else "warn", "wifi-off", _node_url(node.name), _("Open"),
        )  # fmt: skip


def _ill() -> Iterator[Trouble]:
    """Yield open health events, one per node: a node with many says how many."""
    by_node: dict[str, list[HealthEvent]] = defaultdict(list)
    rows = HealthEvent.objects.filter(cleared_at=None).select_related("device", "node")
    for event in rows.order_by("-severity", "-at")[:200]:
        by_node[event.node.name].append(event)
    for name, events in by_node.items():
        row = event_row(max(events, key=lambda one: one.severity == "critical"), is_operator=True)
        where = name if row.index is None else f"{name} #{row.index}"
        more = len(events) - 1
        said = [row.detail or row.means, row.action]
        if more:
            said.append(ngettext("One more on this node.", "%(n)d more on this node.", more) % {"n": more})
        yield Trouble(
            _("%(where)s · %(what)s") % {"where": where, "what": row.title},
            " ".join(str(text) for text in said if text),
            row.tone, "alert-triangle", _node_url(name), _("Open"), row.at,
        )  # fmt: skip


def _late_drains(nodes: list[Node], now: datetime) -> Iterator[Trouble]:
    for node in nodes:
        state = drain_state(node, now=now)
        if state == "overdue":
            yield Trouble(
                _("%(node)s is not drained in time") % {"node": node.name},
                _("Something is still on it."), "bad", "hourglass", _node_url(node.name), _("Open"), node.drain_by,
            )  # fmt: skip
        elif state == "drained":
            yield Trouble(
                _("%(node)s is drained") % {"node": node.name},
                _("It is empty: work on it can begin, then uncordon it."),
                "warn", "check", _node_url(node.name), _("Open"), node.drained_at,
            )  # fmt: skip


def _waiting(nodes: list[Node]) -> Iterator[Trouble]:
    """Yield nodes whose devices, or whose state after a restore, an operator has to accept."""
    counts: dict[int, int] = dict(
        fetch("SELECT node_id, count(*) FROM fleet_device WHERE NOT is_accepted GROUP BY node_id")
    )
    for node in nodes:
        if node.ahead_at is not None:
            yield Trouble(
                _("%(node)s has seen a later state") % {"node": node.name},
                _("It carries leases that are not known here. Accept that they end, or restore a later backup."),
                "bad", "shield-check", _node_url(node.name), _("Open"), node.ahead_at,
            )  # fmt: skip
        elif count := counts.get(node.pk, 0):
            yield Trouble(
                _("%(node)s has new hardware") % {"node": node.name},
                ngettext(
                    "One device waits to be accepted.", "%(n)d devices wait to be accepted.", count
                ) % {"n": count},
                "warn", "shield-check", _node_url(node.name), _("Open"),
            )  # fmt: skip


def _orphans(nodes: list[Node], now: datetime) -> Iterator[Trouble]:
    counts = orphans_by_node([node.name for node in nodes], now=now)
    for name, count in counts.items():
        if count:
            yield Trouble(
                ngettext("One orphan process on %(node)s", "%(n)d orphan processes on %(node)s", count)
                % {"n": count, "node": name},
                _("They use a device without a lease."), "warn", "cpu", _node_url(name), _("Open"),
            )  # fmt: skip


def _idle() -> Iterator[Trouble]:
    """Yield one entry for all leases that hold devices and do nothing."""
    rows = list(
        IdleStanding.objects.filter(state__in=IDLE, lease__state__in=RUNNING_LEASES)
        .order_by("-lease__share_milli", "pk")
        .values_list("lease__uid", "lease__share_milli", "lease__request__name")
    )
    if not rows:
        return
    held = sum(share for _uid, share, _name in rows)
    names = pgettext("list", ", ").join(name or uid for uid, _share, name in rows[:3])
    yield Trouble(
        ngettext("One lease idles", "%(n)d leases idle", len(rows)) % {"n": len(rows)},
        _("%(gpus)s devices held, and nothing computes on them: %(names)s")
        % {"gpus": gpus(held), "names": names},
        "warn", "hourglass", reverse("web:lease", args=[rows[0][0]]) if len(rows) == 1 else reverse("web:idle"),
        _("Open"),
    )  # fmt: skip
