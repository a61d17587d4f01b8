"""A person's own sessions and password: see where one is signed in, end what one does not know, change the password."""

from __future__ import annotations

import math
from typing import Any

from django import forms
from django.contrib.auth import update_session_auth_hash
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST, require_safe

from portal.accounts.models import ApiToken
from portal.accounts.sessions import live_sessions
from portal.audit.sign_ins import change_password, end_other_sessions, end_session
from portal.common.addresses import client_address
from portal.common.errors import Forbidden, Invalid, TooManyCalls
from portal.sso.providers import active_providers
from portal.web.access import done, person

SHOWN = 100
LONGEST_PASSWORD = 500


def _password_field(label: Any, kind: str, hint: Any = "") -> forms.CharField:
    return forms.CharField(
        label=label,
        help_text=hint,
        max_length=LONGEST_PASSWORD,
        strip=False,
        widget=forms.PasswordInput({"class": "form-control", "autocomplete": kind}),
    )


class PasswordForm(forms.Form):
    """The password there is, and twice the one to come."""

    old = _password_field(gettext_lazy("Present password"), "current-password")
    new = _password_field(
        gettext_lazy("New password"),
        "new-password",
        gettext_lazy("At least 10 characters; not your name, and none that many people use."),
    )
    again = _password_field(gettext_lazy("New password again"), "new-password")
    revoke_tokens = forms.BooleanField(
        label=gettext_lazy("Revoke my API tokens as well"),
        required=False,
        widget=forms.CheckboxInput(),
    )

    def clean(self) -> None:
        """Refuse a new password that was typed in two ways."""
        data = super().clean() or self.cleaned_data
        if "new" in data and "again" in data and data["new"] != data["again"]:
            self.add_error("again", _("That is not what you typed above."))


@never_cache
@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """List the person's live sessions, with a form for another password."""
    return _shown(request, PasswordForm())


@require_POST
def end(request: HttpRequest, uid: str) -> HttpResponse:
    """End one of the person's own sessions."""
    end_session(user=person(request), uid=uid, now=timezone.now())
    return done(request, _("The session is ended: its next page asks to sign in."), "web:sessions")


@require_POST
def end_others(request: HttpRequest) -> HttpResponse:
    """End all of the person's sessions but this one. Safe to repeat."""
    here = request.session.session_key or ""
    n = end_other_sessions(user=person(request), but=here, now=timezone.now())
    said = ngettext("%(n)d other session is ended.", "%(n)d other sessions are ended.", n) % {"n": n}
    return done(request, said if n else _("There was no other session."), "web:sessions")


@never_cache
@sensitive_post_parameters("old", "new", "again")
@require_POST
def password(request: HttpRequest) -> HttpResponse:
    """Change the person's password; this session goes on, the others end."""
    form = PasswordForm(request.POST)
    if not form.is_valid():
        return _shown(request, form, status=422)
    try:
        change_password(
            user=person(request),
            old=form.cleaned_data["old"],
            new=form.cleaned_data["new"],
            with_tokens=form.cleaned_data["revoke_tokens"],
            address=client_address(request),
            but=request.session.session_key or "",
            now=timezone.now(),
        )
    except Invalid as error:
        for name, sentence in error.fields.items():
            form.add_error(name, str(sentence))
        return _shown(request, form, status=422)
    except Forbidden as error:
        form.add_error(None, str(error.detail))
        return _shown(request, form, status=403)
    except TooManyCalls as error:
        minutes = math.ceil(error.wait / 60)
        said = ngettext(
            "Too many tries. Wait %(n)d minute, then try again.",
            "Too many tries. Wait %(n)d minutes, then try again.",
            minutes,
        )
        form.add_error(None, said % {"n": minutes})
        answer = _shown(request, form, status=429)
        answer["Retry-After"] = str(error.wait)
        return answer
    update_session_auth_hash(request, person(request))
    return done(request, _("Your password is changed. All your other sessions are ended."), "web:sessions")


def _shown(request: HttpRequest, form: PasswordForm, *, status: int = 200) -> HttpResponse:
    user, now = person(request), timezone.now()
    since = dict(user.identities.values_list("provider_id", "created_at"))
    context = {
        "rows": live_sessions(user, now=now)[:SHOWN],
        "here": request.session.session_key,
        "form": form,
        "providers": [
            {"slug": one.slug, "name": one.name, "since": since.get(one.pk)} for one in active_providers()
        ],
        "n_tokens": ApiToken.objects.filter(user=user, revoked_at=None, expires_at__gt=now).count(),
    }
    return render(request, "web/sessions.html", context, status=status)
