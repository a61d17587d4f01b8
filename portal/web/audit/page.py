"""The audit list: who did what to which object."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from portal.audit.models import AuditEntry
from portal.common.errors import Forbidden
from portal.web.access import rights_of
from portal.web.audit.forms import AuditFilter

PER_PAGE = 50
PAGES = {"lse-": "web:lease", "req-": "web:request"}


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One audit entry as a row; ``detail`` is what was recorded with it, as short text."""

    at: datetime
    actor: str
    action: str
    target: str
    url: str
    detail: str


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """List audit entries, newest first."""
    if not rights_of(request).is_operator:
        raise Forbidden(_("Only operators read the audit list."))
    form = AuditFilter(request.GET)
    rows = form.narrow(AuditEntry.objects.select_related("actor").order_by("-id"))
    found = Paginator(rows, PER_PAGE).get_page(request.GET.get("page"))
    entries = [_entry(row) for row in found]
    return render(request, "web/operator_audit.html", {"form": form, "page": found, "entries": entries})


def _entry(row: AuditEntry) -> AuditRow:
    name = next((PAGES[mark] for mark in PAGES if row.target.startswith(mark)), "")
    return AuditRow(
        at=row.at,
        actor=str(row.actor) if row.actor else _("Berth"),
        action=row.action,
        target=row.target,
        url=reverse(name, args=[row.target]) if name else "",
        detail=_brief(row.detail),
    )


def _brief(detail: dict[str, Any]) -> str:
    return ", ".join(
        f"{key}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)}"
        for key, value in detail.items()
    )[:300]
