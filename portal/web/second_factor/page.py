"""A person's own second factor, and what operators decide about second factors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.common.addresses import client_address
from portal.common.errors import BerthError
from portal.second_factor import passkeys, services
from portal.web.access import done, person, require_operator, rights_of
from portal.web.second_factor.forms import CodeForm, NameForm, PasskeyForm, ProofForm, RolesForm, mark
from portal.web.second_factor.pictures import qr_code


@never_cache
@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """Show whether the person has a second factor, and what they can do about it."""
    return _shown(request)


@never_cache
@sensitive_post_parameters("password")
@require_POST
def begin(request: HttpRequest) -> HttpResponse:
    """Make a secret for the person's app, once their password is right."""

    def start(now: Any) -> HttpResponse:
        services.begin(person(request), now=now)
        return redirect("web:second_factor_confirm")

    return proven(request, start)


@never_cache
@sensitive_post_parameters("code")
@require_http_methods(["GET", "HEAD", "POST"])
def confirm(request: HttpRequest) -> HttpResponse:
    """Show the secret and take the first code; then show the recovery codes, once."""
    app = services.begun(person(request))
    if app is None:
        return redirect("web:second_factor")
    form, status = CodeForm(request.POST if request.method == "POST" else None), 200
    if form.is_bound and form.is_valid():
        try:
            codes = services.confirm(person(request), form.cleaned_data["code"], now=timezone.now())
        except BerthError as error:
            status = mark(form, error)
        else:
            return render(
                request,
                "web/second_factor_codes.html",
                {"codes": "\n".join(codes), "goal": "/second-factor/"},
            )
    elif form.is_bound:
        status = 422
    context = {"form": form, "app": app, "picture": qr_code(app.address)}
    return render(request, "web/second_factor_confirm.html", context, status=status)


@never_cache
@sensitive_post_parameters("password")
@require_POST
def codes(request: HttpRequest) -> HttpResponse:
    """Make other recovery codes and show them, once."""

    def renew(now: Any) -> HttpResponse:
        made = services.renew_codes(person(request), now=now)
        return render(
            request, "web/second_factor_codes.html", {"codes": "\n".join(made), "goal": "/second-factor/"}
        )

    return proven(request, renew)


@never_cache
@sensitive_post_parameters("password")
@require_POST
def off(request: HttpRequest) -> HttpResponse:
    """Forget the person's factor, once their password is right."""

    def turn_off(now: Any) -> HttpResponse:
        services.turn_off(person(request), now=now)
        return done(request, _("Your second factor is off."), "web:second_factor")

    return proven(request, turn_off)


def proven(
    request: HttpRequest, act: Callable[[Any], HttpResponse], form: forms.Form | None = None
) -> HttpResponse:
    """Act once the person's password is right; else say on the page why not."""
    form, now = form or ProofForm(request.POST), timezone.now()
    if not form.is_valid():
        return _shown(request, form, status=422)
    try:
        services.prove(person(request), form.cleaned_data["password"], client_address(request), now=now)
        return act(now)
    except BerthError as error:
        return _shown(request, form, status=mark(form, error))


def _shown(request: HttpRequest, form: forms.Form | None = None, *, status: int = 200) -> HttpResponse:
    user, is_about_passkey = person(request), isinstance(form, PasskeyForm)
    context = {
        "state": services.state_of(user),
        "form": form if form and not is_about_passkey else ProofForm(),
        "passkey_form": form if is_about_passkey else PasskeyForm(auto_id="passkey-%s"),
        "has_password": user.has_usable_password() and not user.is_demo,
        "passkeys": passkeys.passkeys_of(user),
        "offers_passkeys": passkeys.are_offered(),
    }
    return render(request, "web/second_factor.html", context, status=status)


@require_http_methods(["GET", "HEAD", "POST"])
def rules(request: HttpRequest) -> HttpResponse:
    """Say which roles need a second factor."""
    require_operator(request)
    form = RolesForm(
        request.POST if request.method == "POST" else None, initial={"roles": services.required_roles()}
    )
    if form.is_bound and form.is_valid():
        try:
            ended = services.require(
                form.cleaned_data["roles"],
                actor=person(request),
                rights=rights_of(request),
                now=timezone.now(),
            )
        except BerthError as error:
            return _rules(request, form, NameForm(), status=mark(form, error))
        said = (
            ngettext("%(n)d session ended.", "%(n)d sessions ended.", ended) % {"n": ended} if ended else ""
        )
        return done(
            request, " ".join(filter(None, [_("The rule is saved."), said])), "web:second_factor_rules"
        )
    return _rules(request, form, NameForm(), status=422 if form.is_bound else 200)


@require_POST
def reset(request: HttpRequest) -> HttpResponse:
    """Forget somebody's factor."""
    require_operator(request)
    form = NameForm(request.POST)
    if form.is_valid():
        name = form.cleaned_data["username"]
        try:
            services.reset(name, actor=person(request), rights=rights_of(request), now=timezone.now())
        except BerthError as error:
            mark(form, error)
        else:
            said = _("%(name)s has no second factor any more, and is signed out everywhere.") % {"name": name}
            return done(request, said, "web:second_factor_rules")
    return _rules(request, RolesForm(initial={"roles": services.required_roles()}), form, status=422)


def _rules(request: HttpRequest, form: RolesForm, reset_form: NameForm, *, status: int) -> HttpResponse:
    context = {"form": form, "reset_form": reset_form}
    return render(request, "web/second_factor_rules.html", context, status=status)
