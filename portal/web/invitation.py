"""The link by which somebody new, or somebody who forgot, chooses a password."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.contrib.auth import logout
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from portal.audit.organisation import accept_invitation, invited
from portal.common.errors import Invalid, NotFound
from portal.web.fields import password_field


class NewPasswordForm(forms.Form):
    """A password for an account that is made or entered anew, typed twice."""

    password = password_field(
        gettext_lazy("Password"),
        "new-password",
        gettext_lazy("At least 10 characters; not your name, and none that many people use."),
    )
    again = password_field(gettext_lazy("Password again"), "new-password")

    def clean(self) -> None:
        """Refuse a password that was typed in two ways."""
        data = super().clean() or self.cleaned_data
        if "password" in data and "again" in data and data["password"] != data["again"]:
            self.add_error("again", _("That is not what you typed above."))

    def take(self, error: Invalid) -> None:
        """Show a refusal at the fields it names."""
        for name, sentence in error.fields.items():
            self.add_error(name, str(sentence))


@never_cache
@login_not_required
@sensitive_post_parameters("password", "again")
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest, key: str, token: str) -> HttpResponse:
    """Let who was invited choose a password; a link that was used or has ended is answered like a missing page."""
    user = invited(key, token)
    if user is None:
        raise NotFound(_("This link was used already, or it has ended. Ask for a new one."))
    form = NewPasswordForm(request.POST if request.method == "POST" else None)
    if form.is_bound and form.is_valid():
        try:
            accept_invitation(key, token, password=form.cleaned_data["password"], now=timezone.now())
        except Invalid as error:
            form.take(error)
        else:
            if request.user == user:
                logout(request)  # their sessions have ended, this one too: what is said next needs a new one
            messages.success(
                request, _("Your password is set. Sign in as %(name)s.") % {"name": user.username}
            )
            return redirect("web:sign_in")
    status = 422 if form.is_bound else 200
    return render(request, "web/join.html", {"form": form, "user_name": user.username}, status=status)
