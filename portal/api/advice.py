"""Advice about the size of leases, over HTTP."""

from __future__ import annotations

from django.utils import timezone
from django.utils.translation import gettext as _
from rest_framework.request import Request
from rest_framework.response import Response

from portal.accounts.models import Scope
from portal.advice.dismissing import dismiss_advice, restore_advice
from portal.advice.selectors import advice_for_lease, is_dismissed
from portal.advice.sizing import SizeAdvice
from portal.advice.words import advice_text
from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.fields import Empty
from portal.api.idempotency import once
from portal.api.representations import Row
from portal.api.responses_advice import DismissedAdviceAnswer, LeaseAdviceAnswer
from portal.api.wire import money
from portal.catalog.models import Flavor
from portal.common.clock import db_now
from portal.common.errors import Conflict, NotFound
from portal.leases.selectors import visible_lease

TAG = "leases"


class LeaseAdvice(Endpoint):
    """What is said about the size of one lease."""

    @call("Read advice about the size of a lease", answer=LeaseAdviceAnswer, refusals=(404, 409), tag=TAG)
    def get(self, request: Request, uid: str) -> Response:
        """Read whether another flavor would have done for less, and why; 409 where nothing can be said of the lease."""
        lease = visible_lease(self.rights, uid)
        found = advice_for_lease(lease, now=timezone.now())
        if found is None:
            raise Conflict(
                _("It never ran, is part of a gang or grew from another lease: its size is not judged.")
            )
        dismissed = is_dismissed(self.person, lease.flavor)
        return Response({**advice_row(found), "lease": lease.uid, "is_dismissed": dismissed})


class DismissAdvice(Endpoint):
    """Get no more advice about a flavor."""

    write_scope = Scope.LEASE_WRITE

    @call(
        "Dismiss advice about a flavor",
        body=Empty,
        answer=DismissedAdviceAnswer,
        refusals=(404, 422),
        tag=TAG,
    )
    @once
    def post(self, request: Request, slug: str) -> Response:
        """Get no more advice about leases of a flavor on pages and in quotes. Safe to repeat."""
        self.take(Empty)
        flavor = _flavor(slug)
        dismiss_advice(user=self.person, flavor=flavor, now=db_now())
        return Response({"flavor": flavor.slug, "is_dismissed": True})


class RestoreAdvice(Endpoint):
    """Get advice about a flavor again."""

    write_scope = Scope.LEASE_WRITE

    @call(
        "Restore advice about a flavor",
        body=Empty,
        answer=DismissedAdviceAnswer,
        refusals=(404, 422),
        tag=TAG,
    )
    @once
    def post(self, request: Request, slug: str) -> Response:
        """Get advice about leases of a flavor again. Safe to repeat."""
        self.take(Empty)
        flavor = _flavor(slug)
        restore_advice(user=self.person, flavor=flavor)
        return Response({"flavor": flavor.slug, "is_dismissed": False})


def advice_row(advice: SizeAdvice) -> Row:
    """Return what is said about a size."""
    need, size = advice.need, advice.size
    return {
        "verdict": str(advice.verdict),
        "sentence": advice_text(advice),
        "flavor": advice.flavor.slug,
        "count": advice.count,
        "leases": need.runs,
        "due_min": need.due_min,
        "known_min": need.known_min,
        "peak_memory_mib": need.peak_mib,
        "needed_memory_mib": need.memory_mib,
        "activity_percent": None if need.activity is None else round(need.activity * 100, 1),
        "activity_signal": need.signal,
        "suggested": size.flavor.slug if size else None,
        "seconds": advice.seconds,
        "price": money(advice.held.amount_micro, advice.currency) if advice.held else None,
        "suggested_price": money(size.amount_micro, advice.currency) if size else None,
        "saved": money(advice.saved_micro, advice.currency) if size else None,
        "saved_percent": advice.saved_percent if size else None,
        "speed_percent": advice.speed_percent,
        "stretch": None if advice.stretch is None else round(advice.stretch, 2),
    }


def _flavor(slug: str) -> Flavor:
    found = Flavor.objects.filter(slug=slug).first()
    if found is None:
        raise NotFound
    return found
