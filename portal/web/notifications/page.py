"""What happened to my leases and requests."""

from __future__ import annotations

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from portal.common.clock import db_now
from portal.notifications.models import Notification
from portal.notifications.services import mark_read
from portal.web.access import done, person
from portal.web.notifications.rows import notification_rows

PER_PAGE = 25


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """Show a person's own notifications, the newest first."""
    rows = Notification.objects.filter(user=person(request)).order_by("-created_at", "-id")
    shown = Paginator(rows, PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "page": shown,
        "rows": notification_rows(shown.object_list),
        "unread": rows.filter(read_at=None).exists(),
    }
    return render(request, "web/notifications.html", context)


@require_POST
def read(request: HttpRequest) -> HttpResponse:
    """Mark all of them as read. Safe to repeat."""
    mark_read(person(request), at=db_now())
    return done(request, _("All notifications are marked as read."), "web:notifications")
