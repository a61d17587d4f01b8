"""Where a person approves a device that wants to sign in as them."""

from __future__ import annotations

from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from portal.accounts.models import DeviceCode
from portal.audit.device_codes import LENGTH, decide, find, shown
from portal.common.addresses import client_address
from portal.common.errors import BerthError
from portal.web.access import done, person
from portal.web.fields import text_field


class UserCodeForm(forms.Form):
    """The code that the device shows."""

    code = text_field(
        pgettext_lazy("device", "Code"), 2 * LENGTH, gettext_lazy("Eight letters, as your terminal shows them."),
        autocapitalize="characters", spellcheck="false",
    )  # fmt: skip


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """Ask for the code, show which device it is, and take the decision."""
    given = request.POST if request.method == "POST" else request.GET if "code" in request.GET else None
    form, now = UserCodeForm(given), timezone.now()
    if given is None:
        return _shown(request, UserCodeForm())
    if not form.is_valid():
        return _shown(request, form, status=422)
    try:
        row = find(person(request), form.cleaned_data["code"], now=now)
        if request.POST.get("decision") in ("approve", "refuse"):
            is_approved = request.POST["decision"] == "approve"
            decide(row, person(request), is_approved=is_approved, address=client_address(request), now=now)
            said = (
                _("The device is signed in. Go back to it.") if is_approved else _("The device was refused.")
            )
            return done(request, said, "web:tokens")
    except BerthError as error:
        form.add_error("code", str(error.detail))
        return _shown(request, form, status=error.status)
    return _shown(request, form, row)


def _shown(
    request: HttpRequest, form: UserCodeForm, row: DeviceCode | None = None, *, status: int = 200
) -> HttpResponse:
    context: dict[str, Any] = {"form": form, "row": row, "code": shown(row.user_code) if row else ""}
    return render(request, "web/device.html", context, status=status)
