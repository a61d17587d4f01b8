"""What the pages of nodes say of a node in a word or two: its state and its driver."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from django.utils.translation import gettext as _

from portal.fleet.models import Node
from portal.fleet.selectors import ASLEEP, ONLINE, blocked_why, node_state
from portal.web.nodes.lifecycle import drain_text
from portal.web.power.rows import power_text


def shown_state(node: Node, *, now: datetime, away: Collection[int]) -> tuple[str, str]:
    """Return a node's state and its word, with the operator's decision before the agent's silence.

    ``away`` are the ids of nodes in maintenance.
    """
    state = node_state(node, now=now)
    words = {
        "online": _("Online"), "stale": _("Silent"), "offline": _("Offline"),
        "never": _("Waiting for the agent"),
    }  # fmt: skip
    if node.pk in away:
        return "draining", _("Maintenance")
    if node.is_cordoned and state == ONLINE:
        return "draining", drain_text(node, now=now) or _("Cordoned")
    if blocked_why(node, now=now) == ASLEEP:
        return "asleep", str(power_text(node) or _("Asleep"))
    return state, words[state]


def driver_text(node: Node) -> str:
    """Return a node's driver and its version, each word once; "" while its agent never spoke."""
    version = node.driver_version.removeprefix(f"{node.driver}-")
    return " ".join(part for part in (node.driver, version) if part)
