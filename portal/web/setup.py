"""The first start: the form that makes the organisation, and the list of what is left to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib.auth import login
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from portal.accounts.sessions import note_browser
from portal.accounts.zones import adopt_zone
from portal.catalog.first_start import SetupProgress, is_set_up, progress
from portal.common.clock import db_now
from portal.common.errors import Forbidden, Invalid
from portal.common.zones import LONGEST_NAME
from portal.policies.first_policy import set_up_with_policy
from portal.teams.models import Role, Team
from portal.teams.selectors import Rights
from portal.web.access import done, rights_of
from portal.web.fields import text_field
from portal.web.invitation import NewPasswordForm


class FirstStartForm(NewPasswordForm):
    """The setup code, the organisation, its currency and its first administrator."""

    code = text_field(
        gettext_lazy("Setup code"),
        40,
        gettext_lazy("“make up” prints it when it has started; “manage.py setup_code” prints it again."),
        autocapitalize="characters",
    )
    organisation = text_field(gettext_lazy("Name of the organisation"), 80)
    currency = text_field(
        gettext_lazy("Currency of prices"), 3, gettext_lazy("Three letters, such as EUR, USD or CNY.")
    )
    username = text_field(gettext_lazy("Your sign-in name"), 150, autocapitalize="none")
    display_name = text_field(gettext_lazy("Your name"), 100, required=False)
    field_order = ("code", "organisation", "currency", "username", "display_name", "password", "again")


@dataclass(frozen=True, slots=True)
class SetupStep:
    """One step of the first start; ``url`` is None where this person cannot take it."""

    title: str
    text: str
    link: str
    url: str | None
    is_done: bool
    is_optional: bool = False


@never_cache
@login_not_required
@sensitive_post_parameters("code", "password", "again")
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """Make the organisation of an empty installation; afterwards show those who run it what is left to do."""
    if not is_set_up():
        return _first(request)
    if not request.user.is_authenticated:
        return redirect(f"{reverse('web:sign_in')}?next={reverse('web:setup')}")
    rights = rights_of(request)
    if not runs_organisation(rights):
        raise Forbidden(_("Only those who run the organisation set it up."))
    found = progress()
    root = Team.objects.filter(parent=None).order_by("pk").first()
    context = {
        "steps": steps(found, rights, root.slug if root else ""),
        "is_ready": found.is_ready,
        "root": root,
    }
    return render(request, "web/setup.html", context)


def _first(request: HttpRequest) -> HttpResponse:
    form = FirstStartForm(
        request.POST if request.method == "POST" else None,
        initial={"code": request.GET.get("code", "")[:40], "currency": "EUR"},
    )
    if form.is_bound and form.is_valid():
        values = form.cleaned_data
        try:
            user = set_up_with_policy(
                code=values["code"],
                organisation=values["organisation"],
                currency=values["currency"],
                username=values["username"],
                display_name=values["display_name"],
                password=values["password"],
                now=db_now(),
            )
        except Invalid as error:
            form.take(error)
        else:
            login(request, user)
            note_browser(request)
            adopt_zone(user=user, name=request.POST.get("zone", "")[:LONGEST_NAME])
            said = _("%(name)s is ready. You hold every role; share them out as you like.")
            return done(request, said % {"name": values["organisation"].strip()}, "web:setup")
    return render(request, "web/setup_first.html", {"form": form}, status=422 if form.is_bound else 200)


def runs_organisation(rights: Rights) -> bool:
    """Say whether this person holds a role on the organisation itself that sets something up."""
    if rights.is_operator or rights.is_finance:
        return True
    roots = Team.objects.filter(parent=None, pk__in=rights.teams_with((Role.ADMIN,)))
    return roots.exists()


def steps(found: SetupProgress, rights: Rights, root: str) -> list[SetupStep]:
    """Return the steps in the order in which they are best taken."""
    admin = rights.has_anywhere(Role.ADMIN) or rights.is_operator
    operator, finance = rights.is_operator, rights.is_finance

    def to(name: str, may: bool, *args: Any) -> str | None:
        return reverse(f"web:{name}", args=args) if may else None

    return [
        SetupStep(
            _("The organisation and its first administrator"),
            _("Everything belongs to it; a role held here holds in every team."),
            _("See the organisation"), to("team", True, root), found.has_organisation,
        ),
        SetupStep(
            _("Teams"),
            _("Who shares a quota and a bill. Teams may lie below teams."),
            _("Make a team"), to("team_new", admin, root), found.has_teams, is_optional=True,
        ),
        SetupStep(
            _("People"),
            _("Each gets a role in a team and a link to choose a password."),
            _("Add a person"), to("person_new", admin, root), found.has_people, is_optional=True,
        ),
        SetupStep(
            _("Approvals"),
            _("Say above how many GPU-hours somebody has to approve a request."),
            _("Set a threshold"), to("team_settings", admin, root), found.has_threshold, is_optional=True,
        ),
        SetupStep(
            _("Nodes"),
            _("Enrol a GPU host: one command there, and its devices appear here."),
            _("Enrol a node"), to("nodes", operator), found.has_nodes,
        ),
        SetupStep(
            _("Flavors"),
            _("What people can ask for: whole devices, MIG slices, shares."),
            _("Offer flavors"), to("flavors", operator), found.has_flavors,
        ),
        SetupStep(
            _("Prices"),
            _("What an hour of each device model costs; 0 is a price, too."),
            _("Set the first price"), to("rates", finance), found.has_prices,
        ),
    ]  # fmt: skip
