"""The rules of a turn as operators see and change them: versions, one version, comparison, editor, review."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.common.errors import BerthError, Forbidden, Invalid
from portal.policies.changes import changes, told
from portal.policies.faults import sentence
from portal.policies.models import Policy
from portal.policies.selectors import active_version, in_force, policy_of
from portal.policies.services import (
    MOST_NAME,
    activate,
    built_in,
    check_body,
    roll_back,
    save_policy,
    whole_body,
)
from portal.web.access import done, person, refused, rights_of
from portal.web.policies.editor import RECOMMENDED, PolicyDraft, draft_of
from portal.web.policies.preview import try_body
from scheduler.engine.policy_body import BadPolicy, Fault, body_of

MOST_JSON = 100_000
RECOMMENDED_NAME = "recommended"
SHOWN = 200


def require_operator(request: HttpRequest) -> None:
    """Raise Forbidden for everybody but operators."""
    if not rights_of(request).is_operator:
        raise Forbidden(_("Only operators work on policies."))


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """List the versions, newest first, and say which one decides."""
    require_operator(request)
    found = in_force()
    rows = list(Policy.objects.select_related("made_by")[:SHOWN])
    context = {
        "rows": rows,
        "deciding": found.policy,
        "groups": told(body_of(found.policy)) if found.row is None else [],
        **_warning(),
    }
    return render(request, "web/policies.html", context)


@require_safe
def version(request: HttpRequest, number: int) -> HttpResponse:
    """Show one version in words and as JSON, and what can be done with it."""
    require_operator(request)
    row = _row(number)
    body, faults = _read(row)
    active = active_version()
    context = {
        "row": row,
        "groups": told(body) if body is not None else [],
        "faults": [(fault.field, sentence(fault)) for fault in faults],
        "as_json": json.dumps(body if body is not None else row.body, indent=2, ensure_ascii=False),
        "active": active,
        "is_draft": row.activated_at is None and not row.is_active,
    }
    return render(request, "web/policy.html", context)


@require_safe
def compare(request: HttpRequest) -> HttpResponse:
    """Show what differs between two versions, rule by rule."""
    require_operator(request)
    one, other = (_row(_number(request.GET.get(name))) for name in ("a", "b"))
    bodies = [_read(row)[0] for row in (one, other)]
    context = {
        "one": one,
        "other": other,
        "changes": None if None in bodies else changes(*bodies),  # type: ignore[arg-type]
        "versions": list(Policy.objects.values_list("version", "name")[:SHOWN]),
    }
    return render(request, "web/policy_compare.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def edit(request: HttpRequest) -> HttpResponse:
    """Show the form; a POST adds or drops rows, or goes on to the review when everything can be used."""
    require_operator(request)
    if request.method != "POST":
        return _edit_page(request, _start(request), _given_name(request, ""), active_version())
    name, based_on = request.POST.get("name", "").strip(), _number(request.POST.get("based_on"))
    if request.POST.get("do") == "back":
        return _edit_page(request, draft_of(_hidden_body(request)), name, based_on)
    draft = PolicyDraft.typed(request.POST)
    name_error = "" if 1 <= len(name) <= MOST_NAME and name.isprintable() else _name_error()
    if request.POST.get("do") != "review":
        return _edit_page(request, draft, name, based_on)
    try:
        whole = whole_body(draft.whole())
    except BadPolicy as error:
        return _edit_page(request, draft.refused(error), name, based_on, name_error, status=422)
    if name_error:
        return _edit_page(request, draft, name, based_on, name_error, status=422)
    return _review_page(request, name, whole, based_on)


@require_http_methods(["GET", "HEAD", "POST"])
def edit_json(request: HttpRequest) -> HttpResponse:
    """Take the rules as JSON, for those who keep them in a file."""
    require_operator(request)
    if request.method != "POST":
        whole = _start(request).whole()
        text = json.dumps(whole, indent=2, ensure_ascii=False)
        return _json_page(request, text, _given_name(request, ""), active_version())
    text, name = request.POST.get("body", ""), request.POST.get("name", "").strip()
    based_on = _number(request.POST.get("based_on"))
    try:
        whole = whole_body(_decoded(text))
    except BadPolicy as error:
        faults = [(fault.field, sentence(fault)) for fault in error.faults]
        return _json_page(request, text, name, based_on, faults, status=422)
    except (ValueError, RecursionError):
        faults = [("", _("This is not JSON. Look for a missing comma or quotation mark."))]
        return _json_page(request, text, name, based_on, faults, status=422)
    if not (1 <= len(name) <= MOST_NAME and name.isprintable()):
        return _json_page(request, text, name, based_on, [("name", _name_error())], status=422)
    return _review_page(request, name, whole, based_on)


@require_POST
def save(request: HttpRequest) -> HttpResponse:
    """Store what was reviewed, in force or as a draft; going live is confirmed first, with whom it concerns."""
    require_operator(request)
    what = request.POST.get("do", "")
    name, note = request.POST.get("name", "").strip(), request.POST.get("note", "")
    based_on, body = _number(request.POST.get("based_on")), _hidden_body(request)
    if what == "confirm":
        return _review_page(request, name, body, based_on, note=note, is_confirming=True)
    try:
        row = save_policy(
            actor=person(request), rights=rights_of(request), name=name, body=body, note=note, based_on=based_on,
            now=timezone.now(), is_active=what != "draft",
        )  # fmt: skip
    except Invalid as error:
        return _review_page(request, name, body, based_on, note=note, problems=_sentences(error), status=422)
    except BerthError as error:
        problems = [str(error.detail)]
        return _review_page(request, name, body, based_on, note=note, problems=problems, status=error.status)
    said = _("Version %(version)d decides from the next cycle on.") if row.is_active else _(
        "Version %(version)d is kept as a draft."
    )  # fmt: skip
    return done(request, said % {"version": row.version}, "web:policies")


@require_safe
def confirm(request: HttpRequest, number: int) -> HttpResponse:
    """Show what a stored version would change, and for whom, before it is put in force."""
    require_operator(request)
    row = _row(number)
    body, _faults = _read(row)
    if body is None or row.is_active:
        return redirect("web:policy", number)
    deciding, is_draft = in_force().policy, row.activated_at is None
    context = {
        "row": row,
        "name": row.name,
        "was_name": deciding.name,
        "changes": changes(body_of(deciding), body),
        "tried": try_body(body),
        "based_on": active_version(),
        "is_confirming": True,
        "action": reverse("web:policy_activate" if is_draft else "web:policy_roll_back", args=[number]),
    }
    return render(request, "web/policy_review.html", context)


@require_POST
def put_in_force(request: HttpRequest, number: int) -> HttpResponse:
    """Put a stored version in force."""
    require_operator(request)
    try:
        activate(
            actor=person(request), rights=rights_of(request), version=number,
            based_on=_number(request.POST.get("based_on")), now=timezone.now(),
        )  # fmt: skip
    except BerthError as error:
        return _not_done(request, error, number)
    said = _("Version %(version)d decides from the next cycle on.") % {"version": number}
    return done(request, said, "web:policies")


@require_POST
def back(request: HttpRequest, number: int) -> HttpResponse:
    """Go back to the rules of an old version, as a new one."""
    require_operator(request)
    try:
        row = roll_back(
            actor=person(request), rights=rights_of(request), to=number,
            based_on=_number(request.POST.get("based_on")), now=timezone.now(),
        )  # fmt: skip
    except BerthError as error:
        return _not_done(request, error, number)
    said = _("Version %(new)d has the rules of version %(old)d and decides from the next cycle on.")
    return done(request, said % {"new": row.version, "old": number}, "web:policies")


def _not_done(request: HttpRequest, error: BerthError, number: int) -> HttpResponse:
    if error.status in (403, 404):
        raise error
    return refused(request, error, "web:policy", str(number))


def _row(number: int) -> Policy:
    row = Policy.objects.select_related("made_by").filter(version=number).first()
    if row is None:
        raise Http404
    return row


def _number(text: str | None) -> int:
    """Return a version number of a form or address; what is none is -1, which no version has."""
    is_number = text is not None and text.isascii() and text.isdecimal() and len(text) <= 9
    return int(text or 0) if is_number else -1


def _read(row: Policy) -> tuple[dict[str, Any] | None, tuple[Fault, ...]]:
    """Return a version's whole body, or None and its faults."""
    try:
        return body_of(policy_of(row)), ()
    except BadPolicy as error:
        return None, error.faults


def _warning() -> dict[str, Any]:
    """Return what the pages say when the active version cannot decide."""
    found = in_force()
    if found.faults is None or found.row is None:
        return {"broken": None}
    faults = [(fault.field, sentence(fault)) for fault in found.faults.faults]
    return {"broken": found.row, "broken_faults": faults, "deciding": found.policy}


def _start(request: HttpRequest) -> PolicyDraft:
    """Return the form to begin with: the version in the address, else the one that decides."""
    wanted = request.GET.get("from")
    if wanted is None:
        return draft_of(body_of(in_force().policy))
    if wanted == RECOMMENDED_NAME:
        return draft_of(RECOMMENDED)
    body, _faults = _read(_row(_number(wanted)))
    return draft_of(built_in() if body is None else body)


def _given_name(request: HttpRequest, typed: str) -> str:
    if typed:
        return typed
    wanted = request.GET.get("from")
    is_stored = wanted not in (None, RECOMMENDED_NAME)
    return _row(_number(wanted)).name if is_stored else in_force().policy.name


def _name_error() -> str:
    return _("Give it a name of at most %(most)d characters.") % {"most": MOST_NAME}


def _decoded(text: str) -> Any:
    """Return decoded JSON; raises ValueError for other text and for more than any policy needs."""
    if len(text) > MOST_JSON:
        raise ValueError
    return json.loads(text)


def _hidden_body(request: HttpRequest) -> dict[str, Any]:
    """Return the body that a page carries in a hidden field; one that somebody changed by hand is refused."""
    try:
        return check_body(_decoded(request.POST.get("body", "")))
    except (ValueError, RecursionError) as error:
        raise Invalid(fields={"body": _("This is not JSON. Begin again.")}) from error


def _sentences(error: Invalid) -> list[str]:
    found = []
    for value in error.fields.values():
        items = value if isinstance(value, list) else [value]
        found += [str(item["detail"]) if isinstance(item, dict) else str(item) for item in items]
    return found


def _edit_page(
    request: HttpRequest,
    draft: PolicyDraft,
    name: str,
    based_on: int,
    name_error: str = "",
    *,
    status: int = 200,
) -> HttpResponse:
    context = {
        "sections": draft.sections(),
        "errors": draft.general_errors,
        "fault_count": len(draft.faults) + bool(name_error),
        "name": name[:MOST_NAME],
        "name_error": name_error,
        "most_name": MOST_NAME,
        "based_on": based_on,
    }
    return render(request, "web/policy_edit.html", context, status=status)


def _json_page(
    request: HttpRequest,
    text: str,
    name: str,
    based_on: int,
    faults: list[tuple[str, str]] | None = None,
    *,
    status: int = 200,
) -> HttpResponse:
    context = {
        "text": text[:MOST_JSON],
        "name": name[:MOST_NAME],
        "most_name": MOST_NAME,
        "based_on": based_on,
        "faults": faults or [],
    }
    return render(request, "web/policy_json.html", context, status=status)


def _review_page(
    request: HttpRequest,
    name: str,
    whole: Mapping[str, Any],
    based_on: int,
    *,
    note: str = "",
    is_confirming: bool = False,
    problems: list[str] | None = None,
    status: int = 200,
) -> HttpResponse:
    """Show what would change before anything is stored; whoever confirms also sees for whom."""
    now = in_force().policy
    context = {
        "name": name,
        "was_name": now.name,
        "body": json.dumps(whole, ensure_ascii=False),
        "changes": changes(body_of(now), whole),
        "based_on": based_on,
        "note": note,
        "problems": problems or [],
        "is_confirming": is_confirming,
        "tried": try_body(whole) if is_confirming else None,
        "action": reverse("web:policy_save"),
        "back": reverse("web:policy_edit"),
    }
    return render(request, "web/policy_review.html", context, status=status)
