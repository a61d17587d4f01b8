"""Notifications as sentences, made from their kind and figures in the reader's language."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode

from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from portal.budgets.models import BudgetAction, SpendBasis
from portal.common.moments import moment_of, span
from portal.common.templatetags.readable import amount
from portal.fleet.health import BY_HAND
from portal.fleet.health_words import action_text, code_name, code_text
from portal.leases.failures import failure_text
from portal.leases.models import Lease, LeaseRequest
from portal.notifications.models import Notification
from portal.teams.models import Role
from portal.web.notifications.delegations import DELEGATION_KINDS, decider
from portal.web.notifications.workshops import WORKSHOP_KINDS

Facts = dict[str, Any]
ABOUT_NODES = ("fleet.health", "node.drained", "node.ahead", "node.unknown_leases", "node.waits")


@dataclass(frozen=True)
class NotificationRow:
    """One piece of news; ``ends_at`` where it is about a moment to come."""

    text: str
    about: str
    icon: str
    tone: str
    url: str
    at: datetime
    is_new: bool


def notification_rows(rows: Iterable[Notification]) -> list[NotificationRow]:
    """Return notifications ready to show, in the order given; two queries name what they are about."""
    news = list(rows)
    names = _names({_object(row.target) for row in news})
    return [_row(row, names) for row in news]


def words_of(rows: list[Notification]) -> list[tuple[str, str, str]]:
    """Return sentence, what people call what it is about, and path of each, in the language that is active."""
    return [(row.text, row.about, row.url) for row in notification_rows(rows)]


def _names(targets: set[str]) -> dict[str, str]:
    """Return how people call the requests and leases among these."""
    requests = LeaseRequest.objects.filter(uid__in=[t for t in targets if t.startswith("req-")])
    leases = Lease.objects.filter(uid__in=[t for t in targets if t.startswith("lse-")])
    asked = {row.uid: row.name or row.flavor.shown_name for row in requests.select_related("flavor")}
    held = {
        row.uid: row.request.name or row.flavor.shown_name
        for row in leases.select_related("request", "flavor")
    }
    return asked | held


def _row(row: Notification, names: dict[str, str]) -> NotificationRow:
    icon, tone, write = _KINDS.get(row.kind, ("info-circle", "info", _unknown))
    facts = row.facts if isinstance(row.facts, dict) else {}
    return NotificationRow(
        text=write(facts),
        about=names.get(_object(row.target), ""),
        icon=icon,
        tone=tone,
        url=_url(row, facts),
        at=row.created_at,
        is_new=row.read_at is None,
    )


def _object(target: str) -> str:
    """Return the name of what a notification is about; what follows a # only tells news of it apart."""
    return target.partition("#")[0]


def _url(row: Notification, facts: Facts) -> str:
    if row.kind in ABOUT_NODES:
        return _node_url(facts)
    if row.kind in DELEGATION_KINDS:
        return reverse("web:deputies")
    if row.kind == "role.ends_soon" and facts.get("team"):
        return reverse("web:team", args=[facts["team"]])
    if row.kind == "budget.reached" and facts.get("team"):
        return reverse("web:team_budget", args=[facts["team"]])
    if row.kind == "invoice.issued" and facts.get("team"):
        return reverse("web:invoice", args=[facts["team"], facts.get("month", "this")])
    if row.kind == "report.mailed":
        given = {"month": facts.get("month", ""), "team": facts.get("team", "")}
        return f"{reverse('web:reports')}?{urlencode(given)}"
    if row.kind == "report.ready":
        return f"{reverse('web:reports')}?{urlencode({'month': facts.get('month', '')})}"
    return target_url(row.target)


def _node_url(facts: Facts) -> str:
    try:
        return reverse("web:node", args=[facts.get("node", "")])
    except NoReverseMatch:
        return ""


def target_url(target: str) -> str:
    """Return the page of what a notification is about; "" when it has none."""
    target = _object(target)
    if target.startswith("req-"):
        return reverse("web:request", args=[target])
    if target.startswith("lse-"):
        return reverse("web:lease", args=[target])
    if target.startswith("job-"):
        return reverse("web:job", args=[target])
    if target.startswith("rsv-"):
        return reverse("web:reservation", args=[target])
    if target.startswith("wks-"):
        return reverse("web:workshop", args=[target])
    if target.startswith("nte-"):
        return reverse("web:note", args=[target])
    return ""


def _ends_soon(_f: Facts) -> str:
    return _("A lease of yours ends soon. Save your work, or extend it.")


def _role_ends_soon(f: Facts) -> str:
    facts = {**_role_facts(f), "at": moment_of(f.get("ends_at")) or "?"}
    return (
        _("Your role in %(team)s (%(role)s) ends at %(at)s. Ask an admin of the team if you need it longer.")
        % facts
    )


def _role_ended(f: Facts) -> str:
    return _("Your role in %(team)s (%(role)s) has ended.") % _role_facts(f)


def _seen_as(f: Facts) -> str:
    return _(
        "%(who)s, an operator, saw the portal as you from %(begin)s to %(end)s and changed nothing: %(reason)s"
    ) % {
        "who": f.get("by", "?"),
        "begin": _at(f, "began_at"),
        "end": _at(f, "ended_at"),
        "reason": f.get("reason", "?"),
    }


def _role_facts(f: Facts) -> dict[str, str]:
    role = str(f.get("role", ""))
    return {
        "team": str(f.get("team_name", "")),
        "role": str(Role(role).label) if role in Role.values else role,
    }


def _failed(f: Facts) -> str:
    why = failure_text(str(f.get("fault", "")))
    return _("A lease of yours failed. %(why)s The time after that is not billed.") % {"why": why}


def _interrupted(f: Facts) -> str:
    return _(
        "Node %(node)s is not heard; your lease there is interrupted and not billed until it is back."
    ) % {"node": f.get("node", "?")}


def _awaits(f: Facts) -> str:
    return _("%(who)s asks for your approval of a large request.") % {"who": f.get("by", "?")}


def _extension_awaits(f: Facts) -> str:
    return _("%(who)s asks for your approval to extend a lease.") % {"who": f.get("by", "?")}


def _extension_approved(f: Facts) -> str:
    return _("%(who)s approved more time for your lease; it ends %(at)s now.") % {
        "who": decider(f),
        "at": _at(f, "not_after"),
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


def _at(f: Facts, name: str) -> str:
    """Return an instant among the figures as people read it; "?" where there is none."""
    return moment_of(f.get(name)) or "?"


def _booking_soon(f: Facts) -> str:
    return _("Your booking on %(node)s begins %(at)s.") % {
        "node": f.get("node", "?"),
        "at": _at(f, "starts_at"),
    }


def _booking_taken(f: Facts) -> str:
    said = _("The time you wanted to book is taken: %(at)s.") % {"at": _at(f, "starts_at")}
    free = [_at({"at": text}, "at") for text in f.get("nearest") or ()]
    if not free:
        return _("%(said)s Nothing near it is free; choose another flavor or week.") % {"said": said}
    return _("%(said)s Free near it: %(times)s.") % {"said": said, "times": pgettext("list", "; ").join(free)}


def _booking_replanned(f: Facts) -> str:
    why = {
        "held": _("its place was not clean in time"),
        "quota": _("the quota of the team was used up"),
        "device": _("a device is not healthy"),
        "maintenance": _("maintenance of the node"),
        "cordoned": _("the node takes no new work"),
        "late": _("its time had passed before it could begin"),
    }.get(str(f.get("why")), _("the node was not ready"))
    return _("Your booking for %(at)s on %(node)s could not be kept: %(why)s. It is planned anew now.") % {
        "at": _at(f, "starts_at"),
        "node": f.get("node", "?"),
        "why": why,
    }


def _reservation_missed(f: Facts) -> str:
    return _("One time of your reservation could not be booked, %(at)s: %(why)s") % {
        "at": _at(f, "starts_at"),
        "why": f.get("why", "?"),
    }


def _reservation_ended(_f: Facts) -> str:
    return _("A reservation of yours ended, because you may not ask for its team any more.")


def _cut_by_maintenance(f: Facts) -> str:
    return _(
        "A lease of yours ends %(at)s, before maintenance (%(reason)s). The rest goes back into the queue."
    ) % {
        "at": _at(f, "not_after"),
        "reason": f.get("reason") or "?",
    }


def _longer_again(f: Facts) -> str:
    return _("Maintenance was moved: a lease of yours runs until %(at)s.") % {"at": _at(f, "not_after")}


def _preempted_soon(f: Facts) -> str:
    why = {
        "reclaim": _("another team takes back what it is guaranteed"),
        "priority": _("it may be preempted, and a request that goes before it needs the place"),
        "elastic": _("it was grown while devices idled, and somebody waits for them now"),
    }.get(str(f.get("why")), _("somebody needs its place"))
    return _("A lease of yours must make room by %(at)s: %(why)s. Save your work now.") % {
        "at": _at(f, "ends_at"),
        "why": why,
    }


def _idle(f: Facts) -> str:
    said = {
        "dummy_loop": _("A lease of yours shows utilisation, but does hardly anything since %(since)s."),
        "keep_alive": _("A lease of yours does hardly anything since %(since)s."),
    }.get(str(f.get("why")), _("A lease of yours idles since %(since)s."))
    said %= {"since": _at(f, "since")}
    if "ends_at" not in f:
        return _("%(said)s Give it back if you do not need it.") % {"said": said}
    return _("%(said)s It is taken back %(at)s unless it is used or you put that off.") % {
        "said": said,
        "at": _at(f, "ends_at"),
    }


def _taken_back(_f: Facts) -> str:
    return _("A lease of yours was taken back, because it idled. Ask again when you need it.")


def _spared(f: Facts) -> str:
    if f.get("why") == "idle":
        return _("A lease of yours may stay: it is not seen idling any more, or no rule takes it back.")
    return _("A lease of yours may stay after all: nobody needs its place any more.")


def _preempted(_f: Facts) -> str:
    return _("A lease of yours was preempted. Its request is back in the queue with the time that is left.")


def _cut_short(f: Facts) -> str:
    if f.get("why") == "maintenance":
        return _(
            "You have less time than you asked for: it ends %(at)s, because maintenance begins then."
        ) % {"at": _at(f, "ends_at")}
    if f.get("why") == "waiting":
        return _(
            "You have less time than you asked for: it ends %(at)s, because a request that waits longer starts then."
        ) % {"at": _at(f, "ends_at")}
    return _("You have less time than you asked for: it ends %(at)s, because its place is booked then.") % {
        "at": _at(f, "ends_at")
    }


def _sick_device(f: Facts) -> str:
    """Return what happened to a GPU under a lease, what it means for the lease and what its holder can do."""
    where = {"index": f.get("index"), "node": f.get("node", "?")}
    if f.get("code") == BY_HAND:
        said = _("An operator took GPU %(index)s of %(node)s out of work, where a lease of yours is.") % where
    else:
        said = _("GPU %(index)s of %(node)s, where a lease of yours is: %(what)s.") % {
            **where,
            "what": code_text(str(f.get("code"))) or _("it reported an error"),
        }
    return f"{said} {_holders_advice(f)}"


def _holders_advice(f: Facts) -> str:
    action = f.get("action")
    if action == "restart_workload":
        return _("If your program stopped or its results look wrong, start it again; your lease goes on.")
    if action in ("reset_gpu", "reboot_node", "replace"):
        return _(
            "It has to be repaired. Save your work now: your lease may be lost with it. Nothing more is billed then, "
            "and the request goes back into the queue with the time that is left."
        )
    return _(
        "Nothing new is placed there; your lease goes on. Save your work: should the lease be lost, the request "
        "goes back into the queue with the time that is left."
    )


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


def _job_started(f: Facts) -> str:
    return _("The job %(name)s has begun.") % {"name": f.get("name") or f.get("job", "?")}


def _job_succeeded(f: Facts) -> str:
    return _("The job %(name)s succeeded.") % {"name": f.get("name") or f.get("job", "?")}


def _job_ended(f: Facts) -> str:
    return _("The job %(name)s ended without success.") % {"name": f.get("name") or f.get("job", "?")}


def _started(f: Facts) -> str:
    said = {
        "notebook": _("Your lease has started: open the notebook on its page."),
        "terminal": _("Your lease has started: open the terminal on its page."),
        "ssh": _("Your lease has started: its page has the command for SSH."),
    }
    return said.get(str(f.get("opens")), _("Your lease has started."))


def _terminal_shared(f: Facts) -> str:
    return _("%(who)s lets you watch the terminal of a lease.") % {"who": f.get("by", "?")}


def _note_facts(f: Facts) -> Facts:
    cents = f.get("amount_micro")
    amount = f"{cents / 1_000_000:+.2f}".replace("-", "\u2212") if isinstance(cents, int) else "?"
    return {
        "who": f.get("by", "?"),
        "amount": f"{amount} {f.get('currency', '')}".strip(),
        "invoice": f.get("invoice", "?"),
        "line": f.get("line", "?"),
        "month": f.get("month", "?"),
        "note": f.get("note") or "–",
    }


def _note_proposed(f: Facts) -> str:
    return _(
        "%(who)s proposes to correct invoice %(invoice)s, line %(line)s, by %(amount)s. A second person decides."
    ) % _note_facts(f)


def _note_approved(f: Facts) -> str:
    return _(
        "%(who)s approved your note on invoice %(invoice)s, line %(line)s: %(amount)s in %(month)s."
    ) % _note_facts(f)


def _note_rejected(f: Facts) -> str:
    return _("%(who)s rejected your note on invoice %(invoice)s, line %(line)s: %(note)s") % _note_facts(f)


def _invoice_issued(f: Facts) -> str:
    return _("Invoice %(number)s of %(team)s for %(month)s is issued: %(amount)s.") % {
        "number": f.get("number", "?"),
        "team": f.get("name", "?"),
        "month": f.get("month", "?"),
        "amount": _amount(f.get("amount_micro"), f.get("currency")),
    }


def _report_ready(f: Facts) -> str:
    amounts = f.get("amounts")
    sums = [_amount(micro, unit) for unit, micro in amounts.items()] if isinstance(amounts, dict) else []
    said = _(
        "%(month)s is closed. Its chargeback report is ready, as PDF, XLSX, CSV and FOCUS too: %(amount)s."
    )
    return said % {"month": f.get("month", "?"), "amount": ", ".join(sums) or "–"}


def _report_mailed(f: Facts) -> str:
    said = (
        _("The chargeback report of %(team)s for %(month)s.")
        if f.get("is_closed")
        else _("The chargeback report of %(team)s for %(month)s, as a draft: the month is not closed.")
    )
    return said % {"team": f.get("name", "?"), "month": f.get("month", "?")}


def _amount(micro: object, unit: object) -> str:
    """Return an amount of whole cents with its currency."""
    return f"{amount(Decimal(micro) / 1_000_000)} {unit}" if isinstance(micro, int) else "?"


def _budget_reached(f: Facts) -> str:
    values = {"team": f.get("name", "?"), "n": f.get("is_percent", "?"), "percent": f.get("percent", "?")}
    if f.get("basis") == SpendBasis.FORECAST:
        said = _(
            "The budget of %(team)s will probably end at %(n)s %%; a threshold stands at %(percent)s %%."
        )
    else:
        said = _("%(team)s has spent %(n)s %% of its budget; a threshold stands at %(percent)s %%.")
    follows = {
        BudgetAction.APPROVAL: _("New requests need an approval now."),
        BudgetAction.PREEMPTIBLE: _("Only preemptible requests start now."),
        BudgetAction.BLOCK: _("Nothing new starts now."),
    }
    action = str(f.get("action"))
    if action not in follows:
        return said % values
    parts = {"first": said % values, "second": follows[BudgetAction(action)]}
    return pgettext("sentences", "%(first)s %(second)s") % parts


def _unknown(_f: Facts) -> str:
    return _("Something changed. Open it to see.")


_KINDS: dict[str, tuple[str, str, Callable[[Facts], str]]] = {
    "role.ends_soon": ("hourglass", "warn", _role_ends_soon),
    "account.seen_as": ("users", "info", _seen_as),
    "role.ended": ("users", "info", _role_ended),
    "lease.started": ("player-play", "good", _started),
    "terminal.shared": ("terminal-2", "info", _terminal_shared),
    "lease.ends_soon": ("hourglass", "warn", _ends_soon),
    "lease.preempted_soon": ("hourglass", "warn", _preempted_soon),
    "lease.idle": ("hourglass", "warn", _idle),
    "lease.taken_back": ("hourglass", "warn", _taken_back),
    "lease.spared": ("circle-check", "good", _spared),
    "lease.preempted": ("refresh", "warn", _preempted),
    "lease.failed": ("circle-x", "bad", _failed),
    "lease.health": ("alert-triangle", "warn", _sick_device),
    "fleet.health": ("alert-triangle", "bad", _sick_fleet),
    "lease.interrupted": ("plug-connected", "warn", _interrupted),
    "lease.cut_short": ("clock", "warn", _cut_short),
    "lease.cut_by_maintenance": ("tools", "warn", _cut_by_maintenance),
    "node.drained": ("circle-check", "good", _node_drained),
    "node.ahead": ("alert-triangle", "bad", _node_ahead),
    "node.unknown_leases": ("alert-triangle", "bad", _node_unknown),
    "node.waits": ("server-2", "warn", _node_waits),
    "lease.longer_again": ("clock", "good", _longer_again),
    "booking.soon": ("calendar", "info", _booking_soon),
    "booking.taken": ("calendar", "warn", _booking_taken),
    "booking.replanned": ("calendar", "warn", _booking_replanned),
    "reservation.missed": ("calendar", "warn", _reservation_missed),
    "reservation.ended": ("calendar", "warn", _reservation_ended),
    "invariant.broken": ("alert-triangle", "bad", _invariant_broken),
    "invariant.healed": ("circle-check", "good", _invariant_healed),
    "job.started": ("player-play", "info", _job_started),
    "job.succeeded": ("circle-check", "good", _job_succeeded),
    "job.ended": ("circle-x", "bad", _job_ended),
    "note.proposed": ("checkbox", "info", _note_proposed),
    "note.approved": ("circle-check", "good", _note_approved),
    "note.rejected": ("circle-x", "bad", _note_rejected),
    "invoice.issued": ("receipt", "info", _invoice_issued),
    "report.ready": ("file-invoice", "info", _report_ready),
    "report.mailed": ("file-invoice", "info", _report_mailed),
    "budget.reached": ("coin", "warn", _budget_reached),
    "request.awaits_approval": ("checkbox", "info", _awaits),
    "request.awaits_second_approval": ("checkbox", "info", _awaits_second),
    "request.approval_overdue": ("clock-pause", "warn", _overdue),
    "request.approval_timed_out": ("clock-pause", "info", _timed_out),
    "request.approved": ("circle-check", "good", _approved),
    "request.given_up": ("ban", "bad", _given_up),
    "request.rejected": ("circle-x", "bad", _rejected),
    "extension.awaits_approval": ("checkbox", "info", _extension_awaits),
    "extension.approved": ("circle-check", "good", _extension_approved),
    "reservation.awaits_approval": ("checkbox", "info", _series_awaits),
    "reservation.approved": ("circle-check", "good", _series_approved),
    "reservation.rejected": ("circle-x", "bad", _series_rejected),
    "extension.rejected": ("circle-x", "bad", _extension_rejected),
    **WORKSHOP_KINDS,
    **DELEGATION_KINDS,
}
KINDS = frozenset(_KINDS)
