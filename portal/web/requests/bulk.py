"""Asking for many at once: a pasted or chosen CSV file, its preview, and sending all of it or nothing."""

from __future__ import annotations

import secrets
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from portal.billing.selectors import currency
from portal.catalog.models import Flavor
from portal.common.errors import Forbidden, Invalid
from portal.common.moments import span
from portal.web.access import done, person, rights_of
from portal.web.figures import money, what_text
from portal.web.requests.new import teams_to_ask_for
from portal.web.requests.request_csv import COLUMNS, MOST_LINES, MOST_TEXT, CsvLine, ask_for_lines, read_csv
from portal.web.requests.tickets import first_use, forget, remember, seen_before

EXAMPLE = "flavor,hours,count,name\n{flavor},6,1,run 1\n{flavor},6,1,run 2\n"


class BulkForm(forms.Form):
    """The text of a CSV file."""

    csv = forms.CharField(
        label=gettext_lazy("Lines"),
        max_length=MOST_TEXT,
        strip=False,
        help_text=gettext_lazy("The first line names the columns. Paste it, or choose a file."),
        widget=forms.Textarea(
            {"class": "form-control code", "rows": 10, "spellcheck": "false", "autocomplete": "off"}
        ),
    )
    ticket = forms.CharField(max_length=40, required=False, widget=forms.HiddenInput)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """Show the form; a POST previews what each line would be, or sends them all."""
    rights = rights_of(request)
    teams = teams_to_ask_for(rights)
    if not teams:
        raise Forbidden(_("You are in no team that may ask for GPU time."))
    if request.method != "POST":
        return _shown(request, BulkForm(initial={"ticket": secrets.token_hex(12)}), [])
    form = BulkForm(request.POST)
    if not form.is_valid():
        return _shown(request, form, [], status=422)
    try:
        lines = read_csv(form.cleaned_data["csv"], teams=teams, rights=rights)
    except Invalid as error:
        form.add_error("csv", error.fields["csv"])
        return _shown(request, form, [], status=422)
    is_sent = request.POST.get("action") == "send"
    mark = f"requests-sent:{person(request).pk}:{form.cleaned_data['ticket']}"
    if is_sent and form.cleaned_data["ticket"] and not first_use(mark):
        return seen_before(mark)
    is_ready = ask_for_lines(lines, actor=person(request), rights=rights, is_trial=not is_sent)
    if is_sent and is_ready:
        remember(mark, "")
        said = ngettext("%(n)d request is in.", "%(n)d requests are in.", len(lines)) % {"n": len(lines)}
        return done(request, said, "web:requests")
    if is_sent:
        forget(mark)
    return _shown(request, form, lines, is_ready=is_ready, status=200 if is_ready else 422)


def _shown(
    request: HttpRequest, form: BulkForm, lines: list[CsvLine], *, is_ready: bool = False, status: int = 200
) -> HttpResponse:
    made = [line.made for line in lines if line.made is not None]
    flavor = Flavor.objects.filter(is_active=True).values_list("slug", flat=True).first() or "h100"
    context: dict[str, Any] = {
        "form": form,
        "rows": [_row(line) for line in lines],
        "is_ready": is_ready,
        "total": money(sum(one.quote_micro for one in made)) if lines and len(made) == len(lines) else None,
        "currency": currency(),
        "columns": [name for name in COLUMNS if name not in ("flavor", "hours")],
        "example": EXAMPLE.format(flavor=flavor),
        "most": MOST_LINES,
    }
    return render(request, "web/requests_bulk.html", context, status=status)


def _row(line: CsvLine) -> dict[str, Any]:
    made = line.made
    return {
        "number": line.number,
        "name": line.form.data.get("name", ""),
        "what": what_text(made.flavor.shown_name, made.count, made.nodes)
        if made
        else line.form.data.get("flavor", ""),
        "team": made.team.name if made else line.form.data.get("team", ""),
        "duration": span(made.duration_s) if made else line.form.data.get("duration", ""),
        "price": money(made.quote_micro) if made else None,
        "needs_approval": line.needs_approval,
        "faults": [f"{column}: {why}" if column else why for column, why in line.faults],
    }
