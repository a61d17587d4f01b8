"""What every page shows around its content: navigation, role, live address, request id."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.functional import SimpleLazyObject
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from portal.common.logs import request_id
from portal.common.sql import fetch
from portal.leases.selectors import decisions_waiting
from portal.teams.models import Role
from portal.teams.selectors import Rights
from portal.web.access import rights_of
from portal.web.announcements import shown_announcements

# Counted on every page.
_UNREAD = "SELECT count(*) FROM notifications_notification WHERE user_id = %s AND read_at IS NULL"
ASKS = (Role.RESEARCHER, Role.ADMIN)
RANK = (Role.OPERATOR, Role.FINANCE, Role.ADMIN, Role.APPROVER, Role.RESEARCHER)


@dataclass(frozen=True)
class NavigationEntry:
    """One entry of the navigation; the pages in ``also`` light it up too."""

    name: str
    label: Any
    icon: str
    short: Any = ""
    section: Any = ""
    badge: int | None = None
    also: tuple[str, ...] = ()


def page(request: HttpRequest) -> dict[str, Any]:
    """Return what every page shows around its content; read only by pages that show it."""
    context: dict[str, Any] = {
        "live_url": "/ws/live/",
        "request_id": request_id.get(),
        "is_demo": settings.DEMO,
    }
    user = getattr(request, "user", None)
    if user is not None and user.is_authenticated:
        context["nav"] = SimpleLazyObject(lambda: navigation(request))
        context["announcements"] = SimpleLazyObject(lambda: shown_announcements(request))
        context["user_role"] = SimpleLazyObject(lambda: role_text(rights_of(request)))
    return context


def navigation(request: HttpRequest) -> list[dict[str, Any]]:
    """Return the entries this person may use, in order of use; unknown addresses are left out."""
    entries = [*_common(request), *_oversight(rights_of(request))]
    found = [_shown(entry, request.path) for entry in entries]
    return [entry for entry in found if entry is not None]


def role_text(rights: Rights) -> str:
    """Return the person's leading role and where they hold it, for instance "Researcher · Perception"."""
    held = sorted(rights.held, key=lambda pair: RANK.index(Role(pair[1])))
    if not held:
        return str(_("No team yet"))
    return f"{Role(held[0][1]).label} · {rights.name_of(held[0][0])}"


def _common(request: HttpRequest) -> list[NavigationEntry]:
    rights = rights_of(request)
    asks, decides = rights.has_anywhere(*ASKS), rights.may_decide
    ((unread,),) = fetch(_UNREAD, [rights.user.pk])
    waiting = decisions_waiting(rights) if decides else 0
    entries = [NavigationEntry("home", _("Home"), "home")]
    if asks:
        entries.append(
            NavigationEntry(
                "request_new",
                _("New request"),
                "circle-plus",
                pgettext_lazy("nav", "New"),
                also=("requests_bulk",),
            )
        )
    elif decides:
        entries.append(NavigationEntry("approvals", _("Approvals"), "checkbox", badge=waiting or None))
    entries.append(NavigationEntry("leases", _("Leases"), "list-details", also=("requests", "jobs")))
    entries.append(NavigationEntry("cluster", _("Cluster"), "layout-grid"))
    entries.append(NavigationEntry("calendar", _("Calendar"), "calendar", also=("reservations", "workshops")))
    if asks and decides:
        entries.append(NavigationEntry("approvals", _("Approvals"), "checkbox", badge=waiting or None))
    entries.append(NavigationEntry("teams", _("Teams"), "users"))
    if rights.has_anywhere(Role.ADMIN) and not rights.is_operator:
        entries.append(NavigationEntry("alerts", _("Alerts"), "alert-triangle"))
    entries.append(NavigationEntry("invoices", _("Invoices"), "file-invoice"))
    entries.append(NavigationEntry("notifications", _("Notifications"), "bell", badge=unread or None))
    return entries


def _oversight(rights: Rights) -> list[NavigationEntry]:
    entries = []
    if rights.is_finance:
        entries.append(NavigationEntry("reports", _("Chargeback"), "receipt", section=_("Finance")))
        entries.append(NavigationEntry("periods", _("Billing periods"), "calendar", section=_("Finance")))
        entries.append(NavigationEntry("notes", _("Credit and debit notes"), "pencil", section=_("Finance")))
        entries.append(NavigationEntry("wallets", _("Wallets"), "coin", section=_("Finance")))
        entries.append(NavigationEntry("imports", _("Imports"), "file-invoice", section=_("Finance")))
        entries.append(NavigationEntry("rates", _("Prices"), "tag", section=_("Finance")))
        entries.append(NavigationEntry("discounts", _("Discounts"), "tag", section=_("Finance")))
        entries.append(NavigationEntry("projects", _("Projects"), "tag", section=_("Finance")))
        entries.append(NavigationEntry("refunds", _("Refund rules"), "arrow-back-up", section=_("Finance")))
    if rights.is_finance or rights.is_operator:
        section = _("Finance") if rights.is_finance else _("Operations")
        entries.append(NavigationEntry("capacity_now", _("Capacity"), "gauge", section=section))
        entries.append(NavigationEntry("energy_factors", _("Carbon factors"), "bolt", section=section))
    if rights.is_operator:
        entries.append(NavigationEntry("nodes", _("Nodes"), "server-2", section=_("Operations")))
        entries.append(NavigationEntry("flavors", _("Flavors"), "cpu", section=_("Operations")))
        entries.append(
            NavigationEntry(
                "policies",
                _("Policies"),
                "adjustments",
                section=_("Operations"),
                also=("cohorts", "lab"),
            )
        )
        entries.append(NavigationEntry("alerts", _("Alerts"), "alert-triangle", section=_("Operations")))
        entries.append(NavigationEntry("idle", _("Idle leases"), "hourglass", section=_("Operations")))
        entries.append(NavigationEntry("maintenance", _("Maintenance"), "tools", section=_("Operations")))
        entries.append(
            NavigationEntry("announcements", _("Announcements"), "speakerphone", section=_("Operations"))
        )
        entries.append(NavigationEntry("people", _("People"), "users", section=_("Operations")))
        entries.append(
            NavigationEntry(
                "single_sign_on",
                _("Single sign-on"),
                "key",
                section=_("Operations"),
                also=("second_factor_rules",),
            )
        )
        entries.append(NavigationEntry("audit", _("Audit"), "history", section=_("Operations")))
    return entries


@cache
def _address(name: str) -> str:
    """Return a page's address; raises NoReverseMatch. Looked up once: there are some twenty on every page."""
    return reverse(f"web:{name}")


def _shown(entry: NavigationEntry, path: str) -> dict[str, Any] | None:
    try:
        url = _address(entry.name)
        others = [_address(name) for name in entry.also]
    except NoReverseMatch:
        return None
    asking = (_address("request_new"), _address("requests_bulk"))
    active = path == url if url == "/" else any(path.startswith(u) for u in (url, *others))
    return {
        "label": entry.label,
        "short": entry.short or entry.label,
        "url": url,
        "icon": entry.icon,
        "section": entry.section,
        "badge": entry.badge,
        "active": active and (url == asking[0] or path not in asking),
    }
