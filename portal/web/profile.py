"""A person's profile: the time zone and the language that everything is shown in."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone, translation
from django.utils.translation import get_language, gettext_lazy, pgettext_lazy
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from portal.accounts.zones import set_profile
from portal.common.zones import zone_names
from portal.web.access import done, person
from portal.web.own_paths import remember_language

LANGUAGES = (("en", "English"), ("zh-hans", "中文"))


class ProfileForm(forms.Form):
    """The zone and the language."""

    time_zone = forms.ChoiceField(
        label=gettext_lazy("Time zone"),
        help_text=gettext_lazy(
            "Every time that Berth shows you or asks for is in this zone. "
            "Months of bills are in that of the organisation."
        ),
        widget=forms.Select({"class": "form-select"}),
    )
    language = forms.ChoiceField(
        label=pgettext_lazy("profile", "Language"),
        choices=LANGUAGES,
        widget=forms.Select({"class": "form-select"}),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["time_zone"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = _zones_by_region()


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """Show what the person chose, and keep another choice."""
    user = person(request)
    form = ProfileForm(
        request.POST if request.method == "POST" else None,
        initial={
            "time_zone": user.time_zone or timezone.get_current_timezone_name(),
            "language": user.language or get_language() or settings.LANGUAGE_CODE,
        },
    )
    if not form.is_bound or not form.is_valid():
        context = {"form": form, "has_zone": bool(user.time_zone)}
        return render(request, "web/profile.html", context, status=422 if form.is_bound else 200)
    set_profile(user=user, **form.cleaned_data)
    with translation.override(user.language):
        answer = done(request, _("Your profile is saved."), "web:profile")
    return remember_language(answer, user.language)


def _zones_by_region() -> list[tuple[str, Any]]:
    """Return the zones as a list of choices, UTC first, then by region."""
    regions: dict[str, list[tuple[str, str]]] = {}
    for name in sorted(zone_names()):
        region, slash, place = name.partition("/")
        if slash and region != "Etc":
            regions.setdefault(region, []).append((name, place.replace("_", " ")))
    others = sorted(name for name in zone_names() if "/" not in name or name.startswith("Etc/"))
    return [
        ("UTC", "UTC"),
        *regions.items(),
        (_("Others"), [(name, name) for name in others if name != "UTC"]),
    ]
