"""The first page: one home per role, each the answer to that role's daily question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_safe

from portal.teams.models import Role
from portal.teams.selectors import Rights
from portal.web.access import rights_of
from portal.web.home import admin, approver, finance, operator, researcher

ASKS = (Role.RESEARCHER, Role.ADMIN)


@dataclass(frozen=True)
class Home:
    """A home: its name in the address (``?home=``), its word on the tab, its template and what fills it."""

    name: str
    label: Any
    template: str
    context: Callable[[HttpRequest, Rights, datetime], dict[str, Any]]


RESEARCHER = Home("mine", _("My work"), "web/home_researcher.html", researcher.context)
FINANCE = Home("finance", _("Finance"), "web/home_finance.html", finance.context)
ADMIN = Home("team", _("Team"), "web/home_admin.html", admin.context)
APPROVER = Home("approvals", _("Approvals"), "web/home_approver.html", approver.context)
OPERATOR = Home("operations", _("Operations"), "web/home_operator.html", operator.context)


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """Show the home of a role: the one that is asked for, else that of the leading one."""
    rights = rights_of(request)
    homes = homes_of(rights)
    wanted = request.GET.get("home", "")
    shown = next((home for home in homes if home.name == wanted), homes[0])
    tabs = [(home.label, f"?home={home.name}", home is shown) for home in homes] if len(homes) > 1 else []
    context = {"tabs": tabs, **shown.context(request, rights, timezone.now())}
    return render(request, shown.template, context)


def homes_of(rights: Rights) -> list[Home]:
    """Return the homes of a person's roles, that of the leading role first; there is always one."""
    found = []
    if rights.is_operator:
        found.append(OPERATOR)
    if rights.is_finance:
        found.append(FINANCE)
    if rights.has_anywhere(Role.ADMIN):
        found.append(ADMIN)
    if rights.has_anywhere(Role.APPROVER) or rights.stands_in_for:
        found.append(APPROVER)
    if rights.has_anywhere(*ASKS) or not found:
        found.append(RESEARCHER)
    return found
