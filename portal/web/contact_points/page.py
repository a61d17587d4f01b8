"""Where else a person is told: mailboxes, chats and webhooks, with what was sent there."""

from __future__ import annotations

from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.common.clock import db_now
from portal.common.errors import BerthError, Conflict, Invalid, TooManyCalls
from portal.notifications import contact_points
from portal.notifications.models import ContactKind, ContactPoint, Delivery
from portal.web.access import done, person, refused
from portal.web.contact_points.forms import ContactForm, NewContactForm

SHOWN = 20
# The page that follows shows the secret of a new webhook once.
NEW_SECRET = "new_contact_secret"  # noqa: S105 (the name of a place in the session)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """List the person's contact points; a POST adds one and goes on to it."""
    form = NewContactForm(request.POST if request.method == "POST" else None)
    if form.is_bound and form.is_valid():
        try:
            made = contact_points.add_contact_point(
                user=person(request),
                origin=request.build_absolute_uri("/"),
                now=db_now(),
                **form.cleaned_data,
            )
        except (Conflict, Invalid, TooManyCalls) as error:
            _add_errors(form, error)
        else:
            if made.secret:
                request.session[NEW_SECRET] = {str(made.row.pk): made.secret}
            return redirect("web:contact_point", made.row.pk)
    context = {
        "rows": ContactPoint.objects.filter(user=person(request)),
        "form": form,
        "has_mail": contact_points.has_mail(),
    }
    return render(request, "web/contact_points.html", context, status=422 if form.is_bound else 200)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def contact_point(request: HttpRequest, key: int) -> HttpResponse:
    """Show a contact point and what was sent there; a POST changes when and of what it is told."""
    row = contact_points.own(person(request), key)
    form = ContactForm(request.POST) if request.method == "POST" else ContactForm.of(row)
    if row.kind == ContactKind.WEBHOOK:
        del form.fields["digest_at"]
    if form.is_bound and form.is_valid():
        try:
            contact_points.change_contact_point(
                user=person(request), contact_id=key, now=db_now(), **form.changes()
            )
            return done(request, _("Your choice is saved."), "web:contact_point", str(key))
        except Invalid as error:
            _add_errors(form, error)
    new = request.session.get(NEW_SECRET, {})
    secret = new.get(str(key), "") if request.method == "GET" else ""
    if secret:
        del request.session[NEW_SECRET]
    context: dict[str, Any] = {
        "row": row,
        "form": form,
        "secret": secret,
        "deliveries": Delivery.objects.filter(contact=row).select_related("notification")[:SHOWN],
        "waits": row.confirmed_at is None,
    }
    return render(request, "web/contact_point.html", context, status=422 if form.is_bound else 200)


@require_POST
def try_out(request: HttpRequest, key: int) -> HttpResponse:
    """Send a test message, or the link of a mailbox once more."""
    try:
        contact_points.test_contact_point(user=person(request), contact_id=key, now=db_now())
    except TooManyCalls as error:
        return refused(request, error, "web:contact_point", str(key))
    return done(request, _("It is on its way: look at the list below."), "web:contact_point", str(key))


@require_POST
def remove(request: HttpRequest, key: int) -> HttpResponse:
    """Forget one of the person's own contact points."""
    contact_points.remove_contact_point(user=person(request), contact_id=key, now=db_now())
    return done(request, _("Removed: nothing is sent there any more."), "web:contact_points")


@require_safe
def confirm(request: HttpRequest, signed: str) -> HttpResponse:
    """Confirm one's own mailbox by the link that was sent there."""
    row = contact_points.confirm_contact_point(user=person(request), signed=signed, now=db_now())
    return done(request, _("Confirmed: Berth writes to this mailbox now."), "web:contact_point", str(row.pk))


def _add_errors(form: forms.Form, error: BerthError) -> None:
    fields = error.fields if isinstance(error, Invalid) else {}
    for field, text in fields.items():
        form.add_error({"muted": "topics"}.get(field, field), text)
    if not fields:
        form.add_error(None, f"{error.detail} {error.next_step}")
