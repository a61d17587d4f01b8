"""Notifications about alerts, as sentences."""

from __future__ import annotations

from typing import Final

from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from portal.alerts.words import condition_text, figure_text
from portal.web.notifications.kinds import Facts, Wording


def _rule(f: Facts) -> str:
    return str(
        f.get("rule") or condition_text(str(f.get("metric")), str(f.get("comparison")), f["threshold"])
    )


def _whom(f: Facts) -> str:
    """Return who it is about: some by name, and how many in all where that is more."""
    named = [str(name) for name in f.get("named", [])]
    more = int(f.get("count") or 0) - len(named)
    said = pgettext("list", ", ").join(named)
    if more <= 0:
        return said
    return ngettext("%(named)s and %(n)d more", "%(named)s and %(n)d more", more) % {"named": said, "n": more}


def _firing(f: Facts) -> str:
    return _("Alert: %(rule)s. %(whom)s; at the worst %(value)s.") % {
        "rule": _rule(f), "whom": _whom(f), "value": figure_text(str(f.get("metric")), f["value"])
    }  # fmt: skip


def _escalated(f: Facts) -> str:
    minutes = int(f.get("minutes") or 0)
    return ngettext(
        "Nobody has acknowledged for %(n)d minute: %(rule)s. %(whom)s.",
        "Nobody has acknowledged for %(n)d minutes: %(rule)s. %(whom)s.",
        minutes,
    ) % {"n": minutes, "rule": _rule(f), "whom": _whom(f)}


def _resolved(f: Facts) -> str:
    return _("Resolved: %(rule)s. %(whom)s.") % {"rule": _rule(f), "whom": _whom(f)}


def _team_firing(f: Facts) -> str:
    return _("Alert about your team: %(rule)s. %(whom)s; at the worst %(value)s.") % {
        "rule": _rule(f), "whom": _whom(f), "value": figure_text(str(f.get("metric")), f["value"])
    }  # fmt: skip


ALERT_KINDS: Final = {
    "alert.firing": Wording("alert-triangle", "bad", _firing),
    "escalation.alert": Wording("alert-triangle", "bad", _escalated),
    "alert.resolved": Wording("circle-check", "good", _resolved),
    "team_alert.firing": Wording("alert-triangle", "bad", _team_firing),
    "team_alert.resolved": Wording("circle-check", "good", _resolved),
}
