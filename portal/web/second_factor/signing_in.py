"""The second step of signing in: the code, or the set-up for who needs a factor and has none yet."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from portal.accounts.sign_in_attempts import Attempt
from portal.audit import sign_ins
from portal.common.addresses import client_address
from portal.common.errors import BerthError, TooManyCalls
from portal.second_factor.passkeys import ask_to_use, use_passkey
from portal.second_factor.services import begin, begun, check, confirm, has_factor, is_required
from portal.web.auth import enter
from portal.web.second_factor.forms import CodeForm, mark
from portal.web.second_factor.passkeys import keep, taken
from portal.web.second_factor.pictures import qr_code
from portal.web.second_step import KEPT_AS, HalfSignedIn, half_signed_in


@never_cache
@login_not_required
@sensitive_post_parameters("code", "answer")
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """Ask for a code after a right password, and let the person in once it is right."""
    who = half_signed_in(request)
    if who is None:
        messages.info(request, _("That took too long. Sign in again."))
        return redirect("web:sign_in")
    needs_app = not has_factor(who.user)
    if needs_app and not is_required(who.user):  # the rule has gone meanwhile
        return _enter(request, who)
    form, status = CodeForm(request.POST if request.method == "POST" else None), 200
    if "answer" in request.POST and not needs_app:
        try:
            use_passkey(
                who.user, answer=request.POST["answer"], challenge=taken(request).get("challenge", ""),
                now=timezone.now(),
            )  # fmt: skip
            return _enter(request, who)
        except BerthError as error:
            form = CodeForm({})
            form.errors.clear()
            return _shown(request, who, form, needs_app=False, status=mark(form, error), error=error)
    if form.is_bound:
        status = 422
        if form.is_valid():
            try:
                if not needs_app:
                    check(who.user, form.cleaned_data["code"], now=timezone.now())
                    return _enter(request, who)
                codes = confirm(who.user, form.cleaned_data["code"], now=timezone.now())
            except BerthError as error:
                status = mark(form, error)
                return _shown(request, who, form, needs_app=needs_app, status=status, error=error)
            goal = _enter(request, who)["Location"]
            return render(request, "web/second_factor_codes.html", {"codes": "\n".join(codes), "goal": goal})
    return _shown(request, who, form, needs_app=needs_app, status=status)


def _shown(
    request: HttpRequest,
    who: HalfSignedIn,
    form: CodeForm,
    *,
    needs_app: bool,
    status: int,
    error: BerthError | None = None,
) -> HttpResponse:
    context: dict[str, Any] = {"form": form, "who": who.user, "needs_app": needs_app}
    if needs_app:
        app = begun(who.user) or begin(who.user, now=timezone.now())
        context |= {"app": app, "picture": qr_code(app.address)}
    elif question := ask_to_use(who.user):
        keep(request, question)
        context["question"] = question
    answer = render(request, "web/second_step.html", context, status=status)
    if isinstance(error, TooManyCalls):
        answer["Retry-After"] = str(error.wait)
    return answer


def _enter(request: HttpRequest, who: HalfSignedIn) -> HttpResponse:
    now = timezone.now()
    request.session.pop(KEPT_AS, None)
    # What the password was counted for was given back when it was right.
    sign_ins.signed_in(who.user, Attempt((), 0, is_first_refused=False), client_address(request), now=now)
    who.user.backend = "portal.accounts.backends.PeopleBackend"
    return enter(request, who.user, zone=who.zone, goal=who.goal)
