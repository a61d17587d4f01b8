"""Notifications about leases, bookings and jobs, as sentences."""

from __future__ import annotations

from typing import Final

from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from portal.fleet.health import BY_HAND
from portal.fleet.health_words import code_text
from portal.leases.failures import failure_text
from portal.web.notifications.kinds import Facts, Wording, moment_at


def _ends_soon(_f: Facts) -> str:
    return _("A lease of yours ends soon. Save your work, or extend it.")


def _failed(f: Facts) -> str:
    why = failure_text(str(f.get("fault", "")))
    return _("A lease of yours failed. %(why)s The time after that is not billed.") % {"why": why}


def _interrupted(f: Facts) -> str:
    return _(
        "Node %(node)s is not heard; your lease there is interrupted and not billed until it is back."
    ) % {"node": f.get("node", "?")}


def _booking_soon(f: Facts) -> str:
    return _("Your booking on %(node)s begins %(at)s.") % {
        "node": f.get("node", "?"),
        "at": moment_at(f, "starts_at"),
    }


def _booking_taken(f: Facts) -> str:
    said = _("The time you wanted to book is taken: %(at)s.") % {"at": moment_at(f, "starts_at")}
    free = [moment_at({"at": text}, "at") for text in f.get("nearest") or ()]
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
        "paused": _("nothing new starts there while an alert lasts"),
        "late": _("its time had passed before it could begin"),
    }.get(str(f.get("why")), _("the node was not ready"))
    return _("Your booking for %(at)s on %(node)s could not be kept: %(why)s. It is planned anew now.") % {
        "at": moment_at(f, "starts_at"),
        "node": f.get("node", "?"),
        "why": why,
    }


def _reservation_missed(f: Facts) -> str:
    return _("One time of your reservation could not be booked, %(at)s: %(why)s") % {
        "at": moment_at(f, "starts_at"),
        "why": f.get("why", "?"),
    }


def _reservation_ended(_f: Facts) -> str:
    return _("A reservation of yours ended, because you may not ask for its team any more.")


def _cut_by_maintenance(f: Facts) -> str:
    return _(
        "A lease of yours ends %(at)s, before maintenance (%(reason)s). The rest goes back into the queue."
    ) % {
        "at": moment_at(f, "not_after"),
        "reason": f.get("reason") or "?",
    }


def _longer_again(f: Facts) -> str:
    return _("Maintenance was moved: a lease of yours runs until %(at)s.") % {"at": moment_at(f, "not_after")}


def _preempted_soon(f: Facts) -> str:
    why = {
        "reclaim": _("another team takes back what it is guaranteed"),
        "priority": _("it may be preempted, and a request that goes before it needs the place"),
        "elastic": _("it was grown while devices idled, and somebody waits for them now"),
    }.get(str(f.get("why")), _("somebody needs its place"))
    return _("A lease of yours must make room by %(at)s: %(why)s. Save your work now.") % {
        "at": moment_at(f, "ends_at"),
        "why": why,
    }


def _idle(f: Facts) -> str:
    said = {
        "dummy_loop": _("A lease of yours shows utilisation, but does hardly anything since %(since)s."),
        "keep_alive": _("A lease of yours does hardly anything since %(since)s."),
    }.get(str(f.get("why")), _("A lease of yours idles since %(since)s."))
    said %= {"since": moment_at(f, "since")}
    if "ends_at" not in f:
        return _("%(said)s Give it back if you do not need it.") % {"said": said}
    return _("%(said)s It is taken back %(at)s unless it is used or you put that off.") % {
        "said": said,
        "at": moment_at(f, "ends_at"),
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
        ) % {"at": moment_at(f, "ends_at")}
    if f.get("why") == "waiting":
        return _(
            "You have less time than you asked for: it ends %(at)s, because a request that waits longer starts then."
        ) % {"at": moment_at(f, "ends_at")}
    return _("You have less time than you asked for: it ends %(at)s, because its place is booked then.") % {
        "at": moment_at(f, "ends_at")
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


LEASE_KINDS: Final[dict[str, Wording]] = {
    "lease.started": Wording("player-play", "good", _started),
    "terminal.shared": Wording("terminal-2", "info", _terminal_shared),
    "lease.ends_soon": Wording("hourglass", "warn", _ends_soon),
    "lease.preempted_soon": Wording("hourglass", "warn", _preempted_soon),
    "lease.idle": Wording("hourglass", "warn", _idle),
    "lease.taken_back": Wording("hourglass", "warn", _taken_back),
    "lease.spared": Wording("circle-check", "good", _spared),
    "lease.preempted": Wording("refresh", "warn", _preempted),
    "lease.failed": Wording("circle-x", "bad", _failed),
    "lease.health": Wording("alert-triangle", "warn", _sick_device),
    "lease.interrupted": Wording("plug-connected", "warn", _interrupted),
    "lease.cut_short": Wording("clock", "warn", _cut_short),
    "lease.cut_by_maintenance": Wording("tools", "warn", _cut_by_maintenance),
    "lease.longer_again": Wording("clock", "good", _longer_again),
    "booking.soon": Wording("calendar", "info", _booking_soon),
    "booking.taken": Wording("calendar", "warn", _booking_taken),
    "booking.replanned": Wording("calendar", "warn", _booking_replanned),
    "reservation.missed": Wording("calendar", "warn", _reservation_missed),
    "reservation.ended": Wording("calendar", "warn", _reservation_ended),
    "job.started": Wording("player-play", "info", _job_started),
    "job.succeeded": Wording("circle-check", "good", _job_succeeded),
    "job.ended": Wording("circle-x", "bad", _job_ended),
}
