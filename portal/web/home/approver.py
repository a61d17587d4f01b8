"""The home of approvers: what waits for a decision, and what each does to those who wait already."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.teams.selectors import Rights
from portal.web.requests.approvals import inbox


def context(request: HttpRequest, rights: Rights, _now: datetime) -> dict[str, Any]:
    """Return the inbox under a headline that counts it."""
    found = inbox(request, rights)
    count = found["page"].paginator.count
    count += sum(len(found[name]) for name in ("extensions", "series", "workshops"))
    if count:
        headline = ngettext("One decision waits for you", "%(n)d decisions wait for you", count) % {
            "n": count
        }
    else:
        headline = _("No decision waits for you")
    return {**found, "headline": headline}
