"""What fires now, what nobody is told of, what was, and the rules; team admins see what is about their teams."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.alerts.rules import (
    acknowledge,
    alert_rule,
    alert_rules,
    change_rule,
    end_silence,
    make_rule,
    remove_rule,
    require_operator,
    require_reader,
    resume,
    silence,
    switch_rule,
)
from portal.alerts.selectors import open_alerts, past_alerts
from portal.alerts.telling import Silences, live_silences
from portal.common.clock import db_now
from portal.common.errors import Conflict, Invalid
from portal.fleet.pauses import paused_by
from portal.teams.selectors import Rights
from portal.web.access import done, person, refused, rights_of
from portal.web.alerts.forms import AlertRuleForm, SilenceForm, rule_form
from portal.web.alerts.rows import alert_row, alert_rule_row, silence_row

MOST_SHOWN, MOST_PAST = 100, 30


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """Show alerts, to operators silences and rules as well."""
    rights = rights_of(request)
    require_reader(rights)
    if not rights.is_operator:
        return render(request, "web/alerts.html", _alerts(rights, db_now()))
    return _page(request, SilenceForm(initial=_asked(request)), 200)


def _asked(request: HttpRequest) -> dict[str, str]:
    """Return what a link to the form of a silence has filled in."""
    return {name: request.GET[name][:100] for name in ("rule", "node", "team") if name in request.GET}


def _page(request: HttpRequest, form: SilenceForm, status: int) -> HttpResponse:
    now = db_now()
    rules = [alert_rule_row(rule) for rule in alert_rules()]
    context = _alerts(rights_of(request), now, sum(rule.folded for rule in rules)) | {
        "is_operator": True,
        "silences": [silence_row(row) for row in live_silences(now=now)],
        "rules": rules,
        "form": form,
    }
    return render(request, "web/alerts.html", context, status=status)


def _alerts(rights: Rights, now: datetime, folded: int = 0) -> dict[str, Any]:
    """Return the alerts in sight in words; ``folded`` are those that have no row."""
    silences, paused = Silences(now=now), paused_by(now=now)
    rows = open_alerts(rights)
    found = list(rows[: MOST_SHOWN + 1])
    more = folded + (rows.count() - MOST_SHOWN if len(found) > MOST_SHOWN else 0)
    return {
        "rows": [alert_row(alert, silences, paused) for alert in found[:MOST_SHOWN]],
        "more": ngettext("%(n)d more alert is not shown.", "%(n)d more alerts are not shown.", more)
        % {"n": more}
        if more
        else "",
        "past": [alert_row(alert) for alert in past_alerts(rights)[:MOST_PAST]],
    }


@require_POST
def make_silence(request: HttpRequest) -> HttpResponse:
    """Tell nobody of some alerts for a time."""
    rights = rights_of(request)
    require_operator(rights)
    form, now = SilenceForm(request.POST), db_now()
    if form.is_valid():
        given = {name: form.cleaned_data[name] for name in ("rule", "node", "team", "reason")}
        try:
            silence(**given, ends_at=form.ends_at(now), actor=person(request), rights=rights, now=now)
        except Invalid as error:
            _blame(
                form, {"length" if name == "ends_at" else name: text for name, text in error.fields.items()}
            )
        else:
            return done(request, _("They are shown, and told to nobody meanwhile."), "web:alerts")
    return _page(request, form, 422)


@require_POST
def stop_silence(request: HttpRequest, uid: str) -> HttpResponse:
    """End a silence."""
    end_silence(uid=uid, actor=person(request), rights=rights_of(request), now=db_now())
    return done(request, _("The silence has ended."), "web:alerts")


@require_POST
def take(request: HttpRequest, uid: str) -> HttpResponse:
    """Acknowledge an alert."""
    try:
        acknowledge(uid=uid, actor=person(request), rights=rights_of(request), now=db_now())
    except Conflict as error:
        return refused(request, error, "web:alerts")
    return done(request, _("You have acknowledged it: it is not escalated."), "web:alerts")


@require_POST
def resume_starts(request: HttpRequest, uid: str) -> HttpResponse:
    """Let new leases start again where an alert keeps them from it."""
    try:
        resume(uid=uid, actor=person(request), rights=rights_of(request), now=db_now())
    except Conflict as error:
        return refused(request, error, "web:alerts")
    return done(request, _("New leases may start there again."), "web:alerts")


@require_http_methods(["GET", "HEAD", "POST"])
def new_rule(request: HttpRequest) -> HttpResponse:
    """Make a rule."""
    return _edit(request, None)


@require_http_methods(["GET", "HEAD", "POST"])
def edit_rule(request: HttpRequest, key: int) -> HttpResponse:
    """Change a rule."""
    return _edit(request, key)


def _edit(request: HttpRequest, key: int | None) -> HttpResponse:
    rights = rights_of(request)
    require_operator(rights)
    rule = None if key is None else alert_rule(key)
    form = (
        AlertRuleForm(request.POST)
        if request.method == "POST"
        else rule_form(rule)
        if rule
        else AlertRuleForm()
    )
    if form.is_bound and form.is_valid():
        given: dict[str, Any] = {
            "spec": form.spec(), "actor": person(request), "rights": rights, "now": db_now(),
        }  # fmt: skip
        try:
            if key is None:
                make_rule(**given)
            else:
                change_rule(key=key, **given)
        except Invalid as error:
            _blame(form, error.fields)
        except Conflict as error:
            return refused(request, error, "web:alerts")
        else:
            return done(request, _("The rule is set."), "web:alerts")
    context = {"form": form, "rule": rule, "title": alert_rule_row(rule).title if rule else ""}
    return render(request, "web/alert_rule.html", context, status=422 if form.is_bound else 200)


@require_POST
def turn_rule(request: HttpRequest, key: int) -> HttpResponse:
    """Switch a rule on or off."""
    is_on = request.POST.get("on") == "1"
    switch_rule(key=key, is_on=is_on, actor=person(request), rights=rights_of(request), now=db_now())
    return done(request, _("The rule is on.") if is_on else _("The rule is off."), "web:alerts")


@require_POST
def drop_rule(request: HttpRequest, key: int) -> HttpResponse:
    """Remove a rule."""
    remove_rule(key=key, actor=person(request), rights=rights_of(request), now=db_now())
    return done(request, _("The rule is removed; what it found stays in the history."), "web:alerts")


def _blame(form: Any, fields: dict[str, Any]) -> None:
    for name, text in fields.items():
        form.add_error(name if name in form.fields else None, str(text))
