"""The lab: policy versions tried on one's own history or on a trace, side by side. Operators."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.common.csv_rows import MOST_TEXT
from portal.common.errors import BerthError, Conflict, Invalid
from portal.common.moments import span
from portal.fleet.models import Node
from portal.lab.models import OVER, LabRun, LabState
from portal.lab.selectors import TracedWait, anonymous_trace, answers_of, changed_most, traced
from portal.lab.services import LabWish, require_lab, run_of, runs_of, stop_run, submit_run
from portal.policies.models import Policy
from portal.teams.models import Team
from portal.web.access import done, person, refused, rights_of
from portal.web.lab.pictures import tables, titles, use_picture, wait_picture

MOST_VERSIONS = 30
TONES = {
    LabState.QUEUED: ("quiet", "clock"),
    LabState.RUNNING: ("info", "refresh"),
    LabState.DONE: ("good", "circle-check"),
    LabState.STOPPED: ("quiet", "lock"),
    LabState.FAILED: ("bad", "alert-triangle"),
}


class LabForm(forms.Form):
    """What is tried on what."""

    name = forms.CharField(
        label=gettext_lazy("Name"), max_length=80, widget=forms.TextInput({"class": "form-control"})
    )
    versions = forms.TypedMultipleChoiceField(
        label=gettext_lazy("Policy versions"), coerce=int, widget=forms.CheckboxSelectMultiple
    )
    since = forms.DateField(
        label=gettext_lazy("From"),
        required=False,
        widget=forms.DateInput({"class": "form-control", "type": "date"}, format="%Y-%m-%d"),
    )
    until = forms.DateField(
        label=gettext_lazy("Up to and including"),
        required=False,
        widget=forms.DateInput({"class": "form-control", "type": "date"}, format="%Y-%m-%d"),
    )
    demand = forms.FloatField(
        label=gettext_lazy("Demand, times"),
        min_value=0.1,
        max_value=5,
        widget=forms.NumberInput({"class": "form-control", "step": "0.1", "inputmode": "decimal"}),
    )
    like = forms.ChoiceField(
        label=gettext_lazy("Nodes like"), required=False, widget=forms.Select({"class": "form-select"})
    )
    more = forms.IntegerField(
        label=gettext_lazy("more, or with a minus fewer"),
        required=False,
        min_value=-2000,
        max_value=2000,
        widget=forms.NumberInput({"class": "form-control"}),
    )
    team_like = forms.ChoiceField(
        label=gettext_lazy("Teams like"), required=False, widget=forms.Select({"class": "form-select"})
    )
    teams = forms.IntegerField(
        label=gettext_lazy("Teams more"),
        required=False,
        min_value=1,
        max_value=10,
        help_text=gettext_lazy("With its quota and copies of its requests."),
        widget=forms.NumberInput({"class": "form-control"}),
    )
    seed = forms.IntegerField(
        label=gettext_lazy("Seed"),
        min_value=0,
        max_value=2**31 - 1,
        help_text=gettext_lazy("The same seed draws the same demand."),
        widget=forms.NumberInput({"class": "form-control"}),
    )
    trace = forms.CharField(
        label=gettext_lazy("Trace"),
        required=False,
        help_text=gettext_lazy(
            "CSV with seq, submit_s, duration_s, gpus and perhaps vc, instead of your own history."
        ),
        widget=forms.Textarea(
            {"class": "form-control mono", "rows": 4, "spellcheck": "false", "autocomplete": "off"}
        ),
    )
    nodes = forms.IntegerField(
        label=gettext_lazy("Nodes for the trace"),
        required=False,
        min_value=1,
        max_value=2000,
        widget=forms.NumberInput({"class": "form-control"}),
    )
    gpus_per_node = forms.IntegerField(
        label=gettext_lazy("GPUs of each"),
        required=False,
        min_value=1,
        max_value=16,
        widget=forms.NumberInput({"class": "form-control"}),
    )

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        versions, like, team = self.fields["versions"], self.fields["like"], self.fields["team_like"]
        assert isinstance(versions, forms.ChoiceField)
        assert isinstance(like, forms.ChoiceField)
        assert isinstance(team, forms.ChoiceField)
        rows = Policy.objects.all()[:MOST_VERSIONS]
        versions.choices = [*((row.version, _version(row)) for row in rows), (0, _("Built-in rules"))]
        names = Node.objects.order_by("name").values_list("name", flat=True)
        like.choices = [("", _("No change")), *((name, name) for name in names)]
        known = Team.objects.order_by("name").values_list("name", flat=True).distinct()
        team.choices = [("", _("No change")), *((name, name) for name in known)]

    def wish(self) -> LabWish:
        """Return what a valid form asks for."""
        data = self.cleaned_data
        nodes = {data["like"]: data["more"]} if data["like"] and data["more"] else {}
        teams = {data["team_like"]: data["teams"] or 1} if data["team_like"] else {}
        until = data["until"]
        return LabWish(
            name=data["name"],
            versions=data["versions"],
            since=_begin(data["since"]),
            until=None if until is None else min(_begin(until + timedelta(days=1)), timezone.now()),  # type: ignore[type-var]
            trace=data["trace"],
            nodes=data["nodes"] or 0,
            gpus_per_node=data["gpus_per_node"] or 8,
            what_if={"demand": data["demand"], "nodes": nodes, "teams": teams},
            seed=data["seed"],
        )


def _begin(day: Any) -> datetime | None:
    return None if day is None else timezone.make_aware(datetime.combine(day, time()))


def _version(row: Policy) -> str:
    state = _("active") if row.is_active else _("draft") if row.activated_at is None else ""
    return f"{row.version} · {row.name}" + (f" ({state})" if state else "")


@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """List the runs; a POST starts one."""
    rights = rights_of(request)
    require_lab(rights)
    today = timezone.localdate()
    first = {
        "since": today - timedelta(days=30), "until": today, "demand": 1.0, "seed": 1, "gpus_per_node": 8,
        "versions": [row.version for row in Policy.objects.all()[:2]],
    }  # fmt: skip
    if request.method == "POST":
        form = LabForm(request.POST)
        if form.is_valid():
            try:
                run = submit_run(actor=person(request), rights=rights, wish=form.wish(), now=timezone.now())
            except BerthError as error:
                _refuse(form, error)
            else:
                return redirect("web:lab_run", run.uid)
    else:
        form = LabForm(initial=first)
    rows = [(row, *TONES[LabState(row.state)]) for row in runs_of(rights)]
    context = {"rows": rows, "form": form, "most_bytes": MOST_TEXT}
    return render(request, "web/lab.html", context, status=422 if form.is_bound else 200)


@require_safe
def run_page(request: HttpRequest, uid: str) -> HttpResponse:
    """Show a run: how far it is, or what came of each version."""
    rights = rights_of(request)
    run = run_of(rights, uid)
    tone, icon = TONES[LabState(run.state)]
    context: dict[str, Any] = {
        "run": run, "tone": tone, "icon": icon, "is_over": run.state in OVER, "percent": run.progress_milli // 10,
        "is_done": run.state == LabState.DONE, "asked": _asked(run), "has_history": _has_history(run),
    }  # fmt: skip
    if run.state == LabState.DONE:
        name = request.GET.get("request", "").strip()[:80]
        answers = answers_of(run)
        heads = titles(answers)
        context |= {
            "pictures": [wait_picture(answers), use_picture(run, answers)],
            "tables": tables(answers),
            "heads": list(zip(heads, [one["version"] for one in answers], strict=True)),
            "changed": [
                (known, team, list(zip(heads, map(_span, waits), strict=True)))
                for known, team, waits in changed_most(run)
            ],
            "name": name,
            "traced": _traced(request, uid, name) if name else None,
        }
    return render(request, "web/lab_run.html", context)


def _traced(request: HttpRequest, uid: str, name: str) -> list[tuple[TracedWait, str]]:
    try:
        return [(one, _span(one.wait_s)) for one in traced(rights_of(request), uid, name)]
    except BerthError:
        return []


@require_safe
def trace(request: HttpRequest, uid: str) -> HttpResponse:
    """Download what a run plays as an anonymous trace."""
    try:
        text = "".join(anonymous_trace(rights_of(request), uid))
    except Conflict as error:
        return refused(request, error, "web:lab_run", uid)
    headers = {"Content-Disposition": f'attachment; filename="{uid}.csv"'}
    return HttpResponse(text, content_type="text/csv; charset=utf-8", headers=headers)


@require_POST
def stop(request: HttpRequest, uid: str) -> HttpResponse:
    """Stop a run."""
    try:
        stop_run(actor=person(request), rights=rights_of(request), uid=uid, now=timezone.now())
    except Conflict as error:
        return refused(request, error, "web:lab_run", uid)
    return done(request, _("The run stops."), "web:lab_run", uid)


def _has_history(run: LabRun) -> bool:
    return LabRun.objects.filter(pk=run.pk, history__isnull=False).exists()


def _asked(run: LabRun) -> list[str]:
    """Return what is other than it was, in words."""
    found = []
    if run.what_if["demand"] != 1.0:
        found.append(
            _("Demand × %(times)s, drawn by seed %(seed)d")
            % {"times": f"{run.what_if['demand']:g}", "seed": run.seed}
        )
    found += [f"{more:+d} × {name}" for name, more in sorted(run.what_if["nodes"].items())]
    found += [
        _("%(n)d more like team %(team)s") % {"n": more, "team": name}
        for name, more in sorted(run.what_if.get("teams", {}).items())
    ]
    return found


def _span(seconds: int | None) -> str:
    return "–" if seconds is None else span(seconds) or "–"


def _refuse(form: forms.Form, error: BerthError) -> None:
    fields = error.fields if isinstance(error, Invalid) else {}
    for name, text in fields.items():
        field = {"what_if": "more"}.get(name, name)
        form.add_error(field if field in form.fields else None, str(text))
    if not fields:
        form.add_error(None, str(error.detail))
