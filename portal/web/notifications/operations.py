"""Notifications for operators about nodes, devices and checks, as sentences."""

from __future__ import annotations

from typing import Final

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.fleet.health_words import action_text, code_name, code_text
from portal.web.notifications.kinds import Facts, Wording


def _sick_fleet(f: Facts) -> str:
    code = str(f.get("code"))
    what = code_text(code) or str(f.get("detail") or code)
    if f.get("index") is None:
        said = _("Node %(node)s: %(what)s (%(code)s).") % {
            "node": f.get("node", "?"), "what": what, "code": code_name(code)
        }  # fmt: skip
    else:
        said = _("Device %(index)s of %(node)s is in quarantine: %(what)s (%(code)s).") % {
            "index": f.get("index"), "node": f.get("node", "?"), "what": what, "code": code_name(code)
        }  # fmt: skip
    return f"{said} {action_text(str(f.get('action')))}".strip()


def _node_drained(f: Facts) -> str:
    return _("Node %(node)s is empty: nothing stands on it any more (%(reason)s).") % {
        "node": f.get("node", "?"),
        "reason": f.get("reason") or "?",
    }


def _node_ahead(f: Facts) -> str:
    return _("Node %(node)s has seen a later state than this database; was it restored?") % {
        "node": f.get("node", "?")
    }


def _node_unknown(f: Facts) -> str:
    count = int(f.get("count") or 0)
    if f.get("waits"):
        said = ngettext(
            "Node %(node)s carries %(n)d lease that this database does not know. It goes on until you accept.",
            "Node %(node)s carries %(n)d leases that this database does not know. They go on until you accept.",
            count,
        )
    else:
        said = ngettext(
            "Node %(node)s carried %(n)d lease that this database does not know. It was ended.",
            "Node %(node)s carried %(n)d leases that this database does not know. They were ended.",
            count,
        )
    return said % {"node": f.get("node", "?"), "n": count}


def _node_waits(f: Facts) -> str:
    count = int(f.get("count") or 0)
    return ngettext(
        "Node %(node)s has %(n)d new or changed device. It serves nobody before you accept it.",
        "Node %(node)s has %(n)d new or changed devices. They serve nobody before you accept them.",
        count,
    ) % {"node": f.get("node", "?"), "n": count}


def _given_up(_f: Facts) -> str:
    return _("A request failed too often and was given up. Look at the nodes that its leases were on.")


def _invariant_broken(f: Facts) -> str:
    return _(
        "A check found rows that contradict each other (%(name)s). Run “manage.py check_invariants” to see which."
    ) % {"name": f.get("name", "?")}


def _invariant_healed(f: Facts) -> str:
    return _("The rows agree with each other again (%(name)s).") % {"name": f.get("name", "?")}


OPERATIONS_KINDS: Final[dict[str, Wording]] = {
    "fleet.health": Wording("alert-triangle", "bad", _sick_fleet),
    "node.drained": Wording("circle-check", "good", _node_drained),
    "node.ahead": Wording("alert-triangle", "bad", _node_ahead),
    "node.unknown_leases": Wording("alert-triangle", "bad", _node_unknown),
    "node.waits": Wording("server-2", "warn", _node_waits),
    "invariant.broken": Wording("alert-triangle", "bad", _invariant_broken),
    "invariant.healed": Wording("circle-check", "good", _invariant_healed),
    "request.given_up": Wording("ban", "bad", _given_up),
}
