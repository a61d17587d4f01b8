"""The images that a team's jobs may run in, as a page."""

from __future__ import annotations

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods

from portal.common.clock import db_now
from portal.common.errors import Invalid
from portal.jobs.images import allowed_images, may_edit_images, store_allowed_images
from portal.teams.selectors import visible_team
from portal.web.access import done, rights_of


class ImagesForm(forms.Form):
    """A team's own list, one image in each line."""

    images = forms.CharField(
        label=gettext_lazy("Images"),
        max_length=32_768,
        required=False,
        help_text=gettext_lazy(
            "One in each line: registry.example/team/pytorch for all versions, with :2.9 or @sha256:… behind for one,"
            " registry.example/team/* for all below."
        ),
        widget=forms.Textarea(
            {"class": "form-control", "rows": 8, "spellcheck": "false", "autocapitalize": "none"}
        ),
    )


@require_http_methods(["GET", "HEAD", "POST"])
def images(request: HttpRequest, slug: str) -> HttpResponse:
    """Show which images a team's jobs may run in; who decides on them changes the list here."""
    rights = rights_of(request)
    team = visible_team(rights, slug)
    found = allowed_images(team)
    own = [one.name for one in found if one.team.pk == team.pk]
    form = ImagesForm(request.POST if request.method == "POST" else None, initial={"images": "\n".join(own)})
    if form.is_bound and form.is_valid():
        names = form.cleaned_data["images"].splitlines()
        try:
            store_allowed_images(team=team, rights=rights, names=names, now=db_now())
        except Invalid as error:
            form.add_error("images", str(error.fields["images"]))
        else:
            return done(request, _("The images of the team are stored."), "web:team_images", team.slug)
    context = {
        "team": team,
        "form": form,
        "own": own,
        "above": [one for one in found if one.team.pk != team.pk],
        "can_change": may_edit_images(rights, team),
    }
    return render(request, "web/team_images.html", context, status=422 if form.is_bound else 200)
