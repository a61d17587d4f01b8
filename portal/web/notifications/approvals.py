"""Notifications about approvals of requests, extensions and reservations, as sentences."""

from __future__ import annotations

from typing import Final

from django.utils.translation import gettext as _

from portal.common.moments import span
from portal.web.notifications.kinds import Facts, Wording, decider, moment_at


def _awaits(f: Facts) -> str:
    return _("%(who)s asks for your approval of a large request.") % {"who": f.get("by", "?")}


def _extension_awaits(f: Facts) -> str:
    return _("%(who)s asks for your approval to extend a lease.") % {"who": f.get("by", "?")}


def _extension_approved(f: Facts) -> str:
    return _("%(who)s approved more time for your lease; it ends %(at)s now.") % {
        "who": decider(f),
        "at": moment_at(f, "not_after"),
    }


def _extension_rejected(f: Facts) -> str:
    return _("%(who)s rejected more time for your lease: %(note)s") % {
        "who": decider(f),
        "note": f.get("note", "?"),
    }


def _series_awaits(f: Facts) -> str:
    return _("%(who)s asks for your approval of a reservation.") % {"who": f.get("by", "?")}


def _series_approved(f: Facts) -> str:
    return _("%(who)s approved your reservation; its times are being booked.") % {"who": decider(f)}


def _series_rejected(f: Facts) -> str:
    return _("%(who)s rejected your reservation: %(note)s") % {
        "who": decider(f),
        "note": f.get("note", "?"),
    }


def _approved(f: Facts) -> str:
    if "duration_s" in f:
        return _approved_less(f)
    return _("%(who)s approved your request; it is in the queue now.") % {"who": decider(f)}


def _approved_less(f: Facts) -> str:
    return _("%(who)s approved %(n)s for %(time)s of your request; it is in the queue now.") % {
        "who": decider(f),
        "n": f.get("count", "?"),
        "time": span(f.get("duration_s")) or "?",
    }


def _awaits_second(f: Facts) -> str:
    return _("%(who)s approved a large request. It needs your approval too.") % {"who": decider(f)}


def _overdue(f: Facts) -> str:
    return _("A request of %(who)s has waited for a decision for %(time)s.") % {
        "who": f.get("by", "?"),
        "time": span(f.get("after_s")) or "?",
    }


def _timed_out(f: Facts) -> str:
    time = {"time": span(f.get("after_s")) or "?"}
    if f.get("then") == "approve":
        return (
            _("Nobody decided on your request within %(time)s: it is approved, as your team’s rule says.")
            % time
        )
    return (
        _("Nobody decided on your request within %(time)s: it is rejected, as your team’s rule says.") % time
    )


def _rejected(f: Facts) -> str:
    return _("%(who)s rejected your request and says why.") % {"who": decider(f)}


APPROVAL_KINDS: Final[dict[str, Wording]] = {
    "request.awaits_approval": Wording("checkbox", "info", _awaits),
    "request.awaits_second_approval": Wording("checkbox", "info", _awaits_second),
    "request.approval_overdue": Wording("clock-pause", "warn", _overdue),
    "request.approval_timed_out": Wording("clock-pause", "info", _timed_out),
    "request.approved": Wording("circle-check", "good", _approved),
    "request.rejected": Wording("circle-x", "bad", _rejected),
    "extension.awaits_approval": Wording("checkbox", "info", _extension_awaits),
    "extension.approved": Wording("circle-check", "good", _extension_approved),
    "reservation.awaits_approval": Wording("checkbox", "info", _series_awaits),
    "reservation.approved": Wording("circle-check", "good", _series_approved),
    "reservation.rejected": Wording("circle-x", "bad", _series_rejected),
    "extension.rejected": Wording("circle-x", "bad", _extension_rejected),
}
