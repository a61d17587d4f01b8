"""Workshops: book slices for a list of people, see who came, start one's own."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.common.clock import db_now
from portal.common.errors import BerthError, Conflict, Forbidden, Invalid
from portal.leases.attendees import find_attendees
from portal.leases.models import Workshop
from portal.leases.seats import CAME, NO_SLICE, claim_seat, own_seat, seats_of
from portal.leases.selectors import visible_workshops
from portal.leases.states import Approval
from portal.leases.workshop_quotes import quote_workshop
from portal.leases.workshops import (
    add_attendees,
    approve_workshop,
    ask_again,
    cancel_workshop,
    check_workshop,
    create_workshop,
    may_manage_workshop,
    may_see_people,
    reject_workshop,
    remove_attendee,
    workshop_named,
)
from portal.teams.models import Role, Team
from portal.teams.selectors import visible_teams
from portal.web.access import done, person, refused, rights_of
from portal.web.fields import NoteForm
from portal.web.workshops.forms import AttendeesForm, WorkshopForm, again
from portal.web.workshops.rows import WorkshopPreview, own_seat_row, preview, seat_rows, workshop_rows

SHOWN = 100


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """List the workshops of one's teams and those one comes to."""
    rights, now = rights_of(request), timezone.now()
    rows = workshop_rows(visible_workshops(rights)[:SHOWN], now=now)
    context = {
        "ahead": sorted((row for row in rows if not row.is_over), key=lambda row: row.starts_at),
        "past": [row for row in rows if row.is_over],
        "may_ask": rights.has_anywhere(Role.RESEARCHER, Role.ADMIN),
    }
    return render(request, "web/workshops.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    """Show the form; a POST shows what would be booked, and books it once that was seen."""
    rights, now = rights_of(request), db_now()
    teams = list(visible_teams(rights, Role.RESEARCHER, Role.ADMIN).order_by("name"))
    if not teams:
        raise Forbidden(_("You are in no team that may ask for GPU time."))
    if request.method != "POST":
        return _form(request, WorkshopForm(teams=teams, initial=_begin_with(request, teams)))
    values = request.POST.copy()
    if values.get("move_to"):
        values["starts_at"] = str(values["move_to"])
    form = WorkshopForm(values, teams=teams)
    if not form.is_valid():
        return _form(request, form, status=422)
    team, spec = form.team_chosen, form.spec()
    try:
        people = find_attendees(form.cleaned_data["people"], team=team, rights=rights, until=spec.ends_at)
        flavor = check_workshop(team, rights, spec, len(people.people) or 1, now=now)
        quote = quote_workshop(team, flavor, spec, len(people.people), now=now)
        shown = preview(quote, people)
        if request.POST.get("action") != "book" or not shown.is_ready:
            return _form(request, form, shown)
        made = create_workshop(
            team=team,
            rights=rights,
            spec=spec,
            people=people,
            now=now,
            gives_roles=form.cleaned_data["gives_roles"],
        )
    except Invalid as error:
        form.refuse(error)
        return _form(request, form, status=422)
    except BerthError as error:
        form.add_error(None, f"{error.detail} {error.next_step}")
        return _form(request, form, status=error.status)
    said = _("Booked. Everybody on the list was told.")
    if made.approval == Approval.AWAITING:
        said = _("So much time needs an approval. Approvers were told; nothing is booked until then.")
    return done(request, said, "web:workshop", made.uid)


def _begin_with(request: HttpRequest, teams: list[Team]) -> dict[str, object]:
    """Return what the form begins with: another workshop of one's own, or what the address names."""
    uid = request.GET.get("again", "")
    if uid:
        found = workshop_named(rights_of(request), uid)
        if may_manage_workshop(rights_of(request), found):
            return again(found, now=timezone.now())
    return {name: request.GET[name] for name in ("flavor", "team") if name in request.GET}


def _form(
    request: HttpRequest, form: WorkshopForm, shown: WorkshopPreview | None = None, *, status: int = 200
) -> HttpResponse:
    return render(request, "web/workshop_new.html", {"form": form, "preview": shown}, status=status)


@require_safe
def one(request: HttpRequest, uid: str) -> HttpResponse:
    """Show a workshop: to those who run it who came, to those who come their own slice."""
    return _shown(request, workshop_named(rights_of(request), uid))


def _shown(
    request: HttpRequest, found: Workshop, form: AttendeesForm | None = None, *, status: int = 200
) -> HttpResponse:
    rights, now = rights_of(request), timezone.now()
    (row,) = workshop_rows([found], now=now)
    may_manage = may_manage_workshop(rights, found)
    views = seats_of(found, now=now) if may_see_people(rights, found) else []
    own = own_seat(rights.user, found, now=now)
    is_ahead = not row.has_begun and not row.is_cancelled
    context = {
        "row": row,
        "seats": seat_rows(views, may_manage=may_manage and not row.is_cancelled),
        "sees_people": may_see_people(rights, found),
        "own": own_seat_row(own) if own and (own.state == CAME or not row.is_cancelled) else None,
        "may_manage": may_manage,
        "may_cancel": may_manage and not row.is_cancelled and not row.is_over,
        "may_ask_again": may_manage and is_ahead and any(view.state == NO_SLICE for view in views),
        "may_decide": row.state == Approval.AWAITING
        and not row.is_cancelled
        and rights.has(found.team, Role.ADMIN, Role.APPROVER)
        and found.organiser_id != rights.user.pk,
        "form": form or (AttendeesForm() if may_manage and is_ahead else None),
        "topics": f"team:{found.team.slug} me",
    }
    return render(request, "web/workshop.html", context, status=status)


@require_POST
def start(request: HttpRequest, uid: str) -> HttpResponse:
    """Start one's own slice; the page of the workshop shows it come up."""
    found = workshop_named(rights_of(request), uid)
    try:
        seat = claim_seat(user=person(request), workshop=found, now=db_now())
    except Conflict as error:
        return refused(request, error, "web:workshop", uid)
    said = _("Your slice is being made.")
    if seat.claimed_at is not None and seat.claimed_at < found.starts_at:
        said = _("You are early. Your slice starts by itself when the workshop begins.")
    return done(request, said, "web:workshop", uid)


@require_POST
def decide(request: HttpRequest, uid: str) -> HttpResponse:
    """Approve or reject a workshop with a note; deciding twice is answered, not repeated."""
    rights = rights_of(request)
    found = workshop_named(rights, uid)
    form = NoteForm(request.POST)
    if not form.is_valid():
        sentences = {name: str(errors[0]) for name, errors in form.errors.items()}
        return refused(request, Invalid(fields=sentences), "web:approvals")
    is_approved, note = form.cleaned_data["decision"] == "approve", form.cleaned_data["note"]
    act = approve_workshop if is_approved else reject_workshop
    try:
        act(workshop=found, actor=person(request), rights=rights, note=note, now=db_now())
    except BerthError as error:
        if error.status == 404:
            raise
        return refused(request, error, "web:workshop", uid)
    said = (
        _("Approved. Its slices are being booked.")
        if is_approved
        else _("Rejected. Nothing is booked for it.")
    )
    return done(request, said, "web:approvals")


@require_POST
def add(request: HttpRequest, uid: str) -> HttpResponse:
    """Give more people a seat."""
    rights, now = rights_of(request), db_now()
    found = workshop_named(rights, uid)
    form = AttendeesForm(request.POST)
    if not form.is_valid():
        return _shown(request, found, form, status=422)
    try:
        people = find_attendees(
            form.cleaned_data["people"], team=found.team, rights=rights, until=found.ends_at
        )
        count = add_attendees(
            workshop=found,
            rights=rights,
            people=people,
            now=now,
            gives_roles=form.cleaned_data["gives_roles"],
        )
    except Invalid as error:
        form.add_error("people", " ".join(str(text) for text in error.fields.values()))
        return _shown(request, found, form, status=422)
    except BerthError as error:
        if error.status in (403, 404):
            raise
        return refused(request, error, "web:workshop", uid)
    said = ngettext("%(n)d person more.", "%(n)d people more.", count) % {"n": count}
    return done(request, said if count else _("They all have a seat already."), "web:workshop", uid)


@require_POST
def remove(request: HttpRequest, uid: str) -> HttpResponse:
    """Take somebody's seat away."""
    username = request.POST.get("person", "")[:150]
    said = _("Their seat is gone; the slice was given back.")
    return _act(
        request,
        uid,
        lambda found: remove_attendee(
            workshop=found, rights=rights_of(request), username=username, now=db_now()
        ),
        said,
    )


@require_POST
def repeat(request: HttpRequest, uid: str) -> HttpResponse:
    """Ask once more for the seats that got no slice."""
    said = _("Asked again for those without a slice.")
    return _act(
        request,
        uid,
        lambda found: ask_again(workshop=found, rights=rights_of(request), now=db_now()),
        said,
    )


@require_POST
def cancel(request: HttpRequest, uid: str) -> HttpResponse:
    """End a workshop and give up what has not begun."""
    said = _("Cancelled. What had not begun is given up; nothing is billed for it.")
    return _act(
        request,
        uid,
        lambda found: cancel_workshop(workshop=found, rights=rights_of(request), now=db_now()),
        said,
    )


def _act(request: HttpRequest, uid: str, act: Callable[[Workshop], object], said: str) -> HttpResponse:
    found = workshop_named(rights_of(request), uid)
    try:
        act(found)
    except BerthError as error:
        if error.status in (403, 404):
            raise
        return refused(request, error, "web:workshop", uid)
    return done(request, said, "web:workshop", uid)
