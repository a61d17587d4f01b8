"""See as: an operator looks at the portal as a person does. What goes through is decided here, in one place.

While it lasts, every request of that browser is the person's, and
- only reads: any other method than GET and HEAD is refused, and the database refuses writes, whatever a page does;
- only of ``SHOWN``: a page that is not named there is not shown, so that a new page with secrets is none by default.
The API is not in it, and ``telemetry.viewers`` opens no socket for such a session.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from django import forms
from django.db import connection, transaction
from django.db.utils import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import rotate_token
from django.shortcuts import redirect, render
from django.urls import Resolver404, resolve
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, gettext_noop
from django.views.decorators.http import require_http_methods, require_POST
from psycopg.errors import ReadOnlySqlTransaction

from portal.accounts.models import Impersonation
from portal.accounts.sessions import SEEN_AS
from portal.common.errors import Forbidden, Invalid
from portal.common.middleware import page_or_problem
from portal.notifications.impersonations import (
    MOST_REASON,
    begin_impersonation,
    end_impersonation,
    running_impersonation,
)
from portal.web.access import done, rights_of
from portal.web.fields import text_field

log = logging.getLogger(__name__)
PAST_SHOWN = 20
WAY_OUT = "web:see_as_end"
ONLY_READS = gettext_noop("You only look: nothing is changed while you see the portal as somebody else.")
NOT_SHOWN = gettext_noop("This page is not shown while you see the portal as somebody else.")
# No tokens, SSH keys, sessions, second factor, contact points, terminals, apps, processes, logs or files of jobs.
SHOWN = frozenset(
    {f"web:{name}" for name in (
        "home", "search", "notifications", "announcements_now", "forecasts", "cluster", "node",
        "requests", "requests_bulk", "request_new", "request_quote", "request", "leases", "lease", "jobs", "job",
        "approvals", "deputies", "calendar", "reservations", "reservation", "workshops", "workshop_new", "workshop",
        "teams", "team", "team_settings", "team_templates", "team_images", "team_quota", "team_budget", "team_wallet",
        "team_labels", "project", "projects", "invoices", "invoice", "invoice_line", "waste", "energy",
    )}
    | {"javascript-catalog", "docs", "docs_file", "error_codes"}
)  # fmt: skip


class OnlyLooksError(Forbidden):
    """Something that does not go through while an operator sees the portal as somebody else."""

    title = gettext_lazy("You only look")
    next_step = gettext_lazy("Leave, and you go on as yourself.")


class SeeAsForm(forms.Form):
    """As whom, and why."""

    username = text_field(gettext_lazy("User name"), 150, autocapitalize="none")
    reason = text_field(gettext_lazy("Reason"), MOST_REASON, gettext_lazy("The person reads it afterwards."))


class SeenAs:
    """Make the requests of an operator who sees the portal as somebody that person's, and let only reads through."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Pass on what is nobody else's, and what reads a page that is shown; refuse all else."""
        key = request.session.get(SEEN_AS) if request.session.session_key else None
        # Finding out what an address leads to takes up to a fifth of a millisecond, which only these are to pay.
        name = "" if key is None else _view_name(request)
        if key is None or name == WAY_OUT:
            return self.get_response(request)
        now = timezone.now()
        row = running_impersonation(key, request.user, now=now) if request.user.is_authenticated else None
        if row is None:
            # What was asked was asked of the other person's page: it is not done with the operator's rights.
            _leave(request, key)
            return redirect("web:see_as")
        request.user = row.person
        request.impersonation = row  # type: ignore[attr-defined]
        if request.method not in ("GET", "HEAD"):
            return page_or_problem(request, OnlyLooksError(_(ONLY_READS)))
        if name not in SHOWN:
            return page_or_problem(request, OnlyLooksError(_(NOT_SHOWN)))
        response = self._read(request)
        return response or page_or_problem(request, OnlyLooksError(_(ONLY_READS)))

    def _read(self, request: HttpRequest) -> HttpResponse | None:
        """Return the page, read in a transaction that can write nothing; None where the page tried to."""
        tries: list[str] = []

        def note(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
            try:
                return execute(sql, params, many, context)
            except DatabaseError as error:
                if isinstance(error.__cause__, ReadOnlySqlTransaction):
                    tries.append(sql)
                raise

        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION READ ONLY")
            with connection.execute_wrapper(note):
                response = self.get_response(request)
            if tries:
                transaction.set_rollback(True)
        for sql in tries:
            log.warning("a page that only shows something would have written: %s", sql[:200])
        return None if tries else response


@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """Ask as whom and why, and list who did lately; a POST begins. Operators."""
    rights = rights_of(request)
    if not rights.is_operator:
        raise Forbidden(_("Only operators see the portal as somebody else."))
    form = SeeAsForm(request.POST if request.method == "POST" else None)
    if form.is_bound and form.is_valid():
        try:
            row = begin_impersonation(rights=rights, now=timezone.now(), **form.cleaned_data)
        except Invalid as error:
            for field, sentence in error.fields.items():
                form.add_error(field, str(sentence))
        else:
            request.session[SEEN_AS] = row.pk
            # Pages that are open were the operator's own: their buttons do nothing any more.
            rotate_token(request)
            return redirect("web:home")
    past = Impersonation.objects.select_related("operator", "person")[:PAST_SHOWN]
    context: dict[str, Any] = {"form": form, "past": past}
    return render(request, "web/see_as.html", context, status=422 if form.is_bound else 200)


@require_POST
def end(request: HttpRequest) -> HttpResponse:
    """Leave: go on as oneself."""
    key = request.session.get(SEEN_AS)
    if key is not None:
        _leave(request, key)
    return done(request, _("You see the portal as yourself again."), "web:see_as")


def _leave(request: HttpRequest, key: int) -> None:
    """End the impersonation of this browser, by its way out or because it is over; its open pages do nothing more."""
    row = (
        Impersonation.objects.select_related("person", "operator")
        .filter(pk=key, operator_id=request.user.pk)
        .first()
    )
    if row is not None:
        end_impersonation(row, now=timezone.now())
    del request.session[SEEN_AS]
    rotate_token(request)


def _view_name(request: HttpRequest) -> str:
    try:
        return resolve(request.path_info).view_name
    except Resolver404:
        return ""
