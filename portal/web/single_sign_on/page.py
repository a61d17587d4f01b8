"""Identity providers, as operators see and set them up."""

from __future__ import annotations

from typing import Any

from django import forms
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.common.errors import BerthError, Invalid, NotFound
from portal.sso.models import IdentityProvider, ProviderAdmission, ProviderProtocol
from portal.sso.providers import (
    ProviderSpec,
    RuleSpec,
    add_provider,
    change_provider,
    remove_provider,
    require_operator,
    told,
)
from portal.teams.models import Role
from portal.web.access import done, person, rights_of
from portal.web.fields import password_field, text_field

MOST_RULE_TEXT = 150_000


class ProviderForm(forms.Form):
    """A provider, with one rule in each line."""

    name = text_field(
        gettext_lazy("Name"), 60, gettext_lazy("As the button shows it: “Sign in with Example SSO”.")
    )
    slug = text_field(
        gettext_lazy("Short name"),
        40,
        gettext_lazy("Part of the address that the provider sends people back to."),
    )
    protocol = forms.ChoiceField(
        label=gettext_lazy("Protocol"),
        choices=ProviderProtocol.choices,
        widget=forms.Select({"class": "form-select"}),
    )
    issuer = text_field(
        gettext_lazy("Issuer, or the directory's address"),
        300,
        gettext_lazy("Such as https://sso.example.org/realms/lab, or ldaps://ldap.example.org."),
        inputmode="url",
    )
    client_id = text_field(
        gettext_lazy("Client ID, or the DN that looks people up"),
        200,
        gettext_lazy("Of a directory such as cn=berth,ou=services,dc=example,dc=org."),
    )
    secret = password_field(gettext_lazy("Client secret, or the password of that DN"), "off")
    base_dn = text_field(
        gettext_lazy("People and groups are below"),
        300,
        gettext_lazy("Such as dc=example,dc=org."),
        required=False,
    )
    user_filter = text_field(
        gettext_lazy("Filter that finds a person"),
        300,
        gettext_lazy("With {name} for what was typed: (uid={name}), or (sAMAccountName={name})."),
        required=False,
    )
    groups_claim = text_field(
        gettext_lazy("Claim or attribute with the groups"),
        100,
        gettext_lazy(
            "Such as groups, or realm_access.roles for one inside another; memberOf of a directory."
        ),
    )
    admission = forms.ChoiceField(
        label=gettext_lazy("Who may come in"),
        choices=ProviderAdmission.choices,
        widget=forms.Select({"class": "form-select"}),
    )
    rules = forms.CharField(
        label=gettext_lazy("Groups"),
        required=False,
        max_length=MOST_RULE_TEXT,
        help_text=gettext_lazy(
            "One in each line: role, team and group, like “researcher perception ml-people”."
        ),
        widget=forms.Textarea({"class": "form-control", "rows": 5, "spellcheck": "false"}),
    )
    is_active = forms.BooleanField(
        label=gettext_lazy("Offered on the sign-in page"), required=False, widget=forms.CheckboxInput()
    )

    def __init__(self, *args: Any, is_new: bool, **more: Any) -> None:
        super().__init__(*args, **more)
        if not is_new:
            del self.fields["slug"]
            self.fields["secret"].required = False
            self.fields["secret"].help_text = _("Left empty: the one there is.")

    def clean_rules(self) -> list[RuleSpec]:
        """Return the rules, or refuse a line that has not all three."""
        rules = []
        for line in filter(None, map(str.strip, self.cleaned_data["rules"].splitlines())):
            role, team, group = [*line.split(None, 2), "", "", ""][:3]
            if not group:
                raise forms.ValidationError(
                    _("“%(line)s”: write role, team and group.") % {"line": line[:80]}
                )
            rules.append(RuleSpec(group, team, role))
        return rules

    def clean(self) -> dict[str, Any]:
        """Leave out what the protocol chosen has no use for."""
        values = self.cleaned_data
        if values.get("protocol") == ProviderProtocol.OPENID:
            values["base_dn"] = values["user_filter"] = ""
        return values

    def spec(self) -> ProviderSpec:
        """Return what was filled in."""
        values = {name: value for name, value in self.cleaned_data.items() if name != "slug"}
        return ProviderSpec(**values)


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """List the providers."""
    require_operator(rights_of(request))
    rows = [
        {**told(one), "people": one.people}
        for one in IdentityProvider.objects.annotate(people=Count("identities"))
    ]
    return render(request, "web/single_sign_on.html", {"rows": rows})


@sensitive_post_parameters("secret")
@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    """Set up a provider."""
    require_operator(rights_of(request))
    initial = {
        "protocol": ProviderProtocol.OPENID, "groups_claim": "groups", "user_filter": "(uid={name})",
        "admission": ProviderAdmission.GROUPS, "is_active": True,
    }  # fmt: skip
    form = ProviderForm(request.POST or None, is_new=True, initial=initial)
    if request.method == "POST" and form.is_valid() and _stored(request, form, ""):
        return done(request, _("The provider is set up. Try it in another browser."), "web:single_sign_on")
    return _form(request, form, "")


@sensitive_post_parameters("secret")
@require_http_methods(["GET", "HEAD", "POST"])
def change(request: HttpRequest, slug: str) -> HttpResponse:
    """Change a provider."""
    require_operator(rights_of(request))
    provider = IdentityProvider.objects.filter(slug=slug).first()
    if provider is None:
        raise NotFound
    known = told(provider)
    known["rules"] = "\n".join(f"{rule['role']} {rule['team']} {rule['group']}" for rule in known["rules"])
    form = ProviderForm(request.POST or None, is_new=False, initial=known)
    if request.method == "POST" and form.is_valid() and _stored(request, form, slug):
        return done(request, _("The provider is changed."), "web:single_sign_on")
    return _form(request, form, slug)


@require_POST
def remove(request: HttpRequest, slug: str) -> HttpResponse:
    """Forget a provider."""
    remove_provider(slug=slug, actor=person(request), rights=rights_of(request), now=timezone.now())
    return done(request, _("The provider is removed. Its people keep their accounts."), "web:single_sign_on")


def _stored(request: HttpRequest, form: ProviderForm, slug: str) -> bool:
    """Store what was filled in; False where it was refused, with the reason on the form."""
    more: dict[str, Any] = {"actor": person(request), "rights": rights_of(request), "now": timezone.now()}
    try:
        if slug:
            change_provider(slug=slug, spec=form.spec(), **more)
        else:
            add_provider(slug=form.cleaned_data["slug"], spec=form.spec(), **more)
    except Invalid as error:
        for name, text in error.fields.items():
            form.add_error(name, text)
        return False
    except BerthError as error:
        form.add_error(None, str(error.detail))
        return False
    return True


def _form(request: HttpRequest, form: ProviderForm, slug: str) -> HttpResponse:
    pattern = request.build_absolute_uri(reverse("web:sso_back", args=[slug or "SHORT-NAME"]))
    context = {"form": form, "slug": slug, "callback": pattern, "roles": Role.choices}
    return render(request, "web/single_sign_on_form.html", context, status=422 if form.errors else 200)
