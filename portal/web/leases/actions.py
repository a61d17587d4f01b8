"""More time for a lease, and giving it back."""

from __future__ import annotations

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from portal.common.clock import db_now
from portal.common.errors import Conflict, Forbidden, Invalid
from portal.common.moments import span
from portal.leases.extending import (
    approve_extension,
    extend_lease,
    lock_together,
    reject_extension,
    withdraw_extension,
)
from portal.leases.lifecycle import lock_request_of_booking, release_locked
from portal.leases.models import Lease
from portal.leases.selectors import may_manage_lease, visible_lease
from portal.leases.states import LeaseState
from portal.web.access import done, person, refused, rights_of
from portal.web.fields import NoteForm
from portal.web.leases.forms import ExtendForm


@require_POST
def extend(request: HttpRequest, uid: str) -> HttpResponse:
    """Give an active lease more time, or say why that cannot be.

    The end that the person saw is sent along, so that a double click extends once.
    """
    lease = _managed(request, uid)
    form = ExtendForm(request.POST)
    if not form.is_valid():
        sentences = {name: str(errors[0]) for name, errors in form.errors.items()}
        return refused(request, Invalid(fields=sentences), "web:lease", uid)
    seen, extra_s = request.POST.get("seen", ""), form.cleaned_data["extra"]
    try:
        with transaction.atomic():
            locked = next(one for one in lock_together(lease) if one.pk == lease.pk)
            if seen and seen != locked.not_after.isoformat():
                raise Conflict(
                    _("The end of this lease has changed since you looked; it was not extended again.")
                )
            waiting = extend_lease(lease=locked, actor=person(request), extra_s=extra_s, now=db_now())
    except (Conflict, Invalid) as error:
        return refused(request, error, "web:lease", uid)
    if waiting is not None:
        said = _("So much time needs an approval. Approvers were told; until then the lease keeps its end.")
        return done(request, said, "web:lease", uid)
    return done(request, _("Extended by %(time)s.") % {"time": span(extra_s)}, "web:lease", uid)


@require_POST
def withdraw(request: HttpRequest, uid: str) -> HttpResponse:
    """Take back an extension that waits for approval. Safe to repeat."""
    lease = _managed(request, uid)
    withdraw_extension(lease=lease, actor=person(request), rights=rights_of(request), now=db_now())
    return done(request, _("The extension is withdrawn. The lease keeps its end."), "web:lease", uid)


@require_POST
def decide(request: HttpRequest, uid: str) -> HttpResponse:
    """Approve or reject an extension with a note; deciding twice is answered, not repeated."""
    rights = rights_of(request)
    lease = visible_lease(rights, uid)
    form = NoteForm(request.POST)
    if not form.is_valid():
        sentences = {name: str(errors[0]) for name, errors in form.errors.items()}
        return refused(request, Invalid(fields=sentences), "web:approvals")
    is_approved = form.cleaned_data["decision"] == "approve"
    act, note = approve_extension if is_approved else reject_extension, form.cleaned_data["note"]
    try:
        with transaction.atomic():
            lock_together(lease)
            act(lease=lease, actor=person(request), rights=rights, note=note, now=db_now())
    except (Conflict, Forbidden, Invalid) as error:
        return refused(request, error, "web:lease", uid)
    said = (
        _("Approved. The lease runs longer now.") if is_approved else _("Rejected. The lease keeps its end.")
    )
    return done(request, said, "web:approvals")


@require_POST
def release(request: HttpRequest, uid: str) -> HttpResponse:
    """End a lease early, or give up a booking. Safe to repeat."""
    try:
        with transaction.atomic():
            lock_request_of_booking(uid)
            lease = _managed(request, uid, is_locked=True)
            is_booking = lease.state == LeaseState.BOOKED
            release_locked(lease, actor=person(request), now=db_now())
    except Conflict as error:
        return refused(request, error, "web:lease", uid)
    said = _("Released. The money clock has stopped.")
    if is_booking:
        said = _("The booking is given up. Nothing is billed.")
    return done(request, said, "web:lease", uid)


def _managed(request: HttpRequest, uid: str, *, is_locked: bool = False) -> Lease:
    """Return the lease, or refuse: missing when out of sight, forbidden when it is not theirs to manage."""
    rights = rights_of(request)
    lease = visible_lease(rights, uid, is_locked=is_locked)
    if not may_manage_lease(rights, lease):
        raise Forbidden(_("Only the holder, a team admin or an operator may do this."))
    return lease
