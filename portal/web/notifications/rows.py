"""Notifications as sentences, made from their kind and figures in the reader's language."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext as _

from portal.leases.models import Lease, LeaseRequest
from portal.notifications.models import Notification
from portal.web.notifications.alerts import ALERT_KINDS
from portal.web.notifications.approvals import APPROVAL_KINDS
from portal.web.notifications.kinds import Facts, Wording
from portal.web.notifications.leases import LEASE_KINDS
from portal.web.notifications.money import MONEY_KINDS
from portal.web.notifications.operations import OPERATIONS_KINDS
from portal.web.notifications.people import PEOPLE_KINDS
from portal.web.notifications.workshops import WORKSHOP_KINDS

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
    icon, tone, write = _WORDINGS.get(row.kind, Wording("info-circle", "info", _unknown))
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
    if row.kind in ALERT_KINDS:
        return reverse("web:alerts")
    if row.kind in ("delegation.begun", "delegation.ended"):
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


def _unknown(_f: Facts) -> str:
    return _("Something changed. Open it to see.")


_WORDINGS = {
    **LEASE_KINDS,
    **APPROVAL_KINDS,
    **WORKSHOP_KINDS,
    **MONEY_KINDS,
    **PEOPLE_KINDS,
    **OPERATIONS_KINDS,
    **ALERT_KINDS,
}
KINDS = frozenset(_WORDINGS)
