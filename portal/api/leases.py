"""Leases over HTTP: look, connect, extend, release."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _
from rest_framework.request import Request
from rest_framework.response import Response

from portal.accounts.models import Scope
from portal.advice.selectors import advice_for_lease
from portal.api.advice import advice_row
from portal.api.describe import AWAITING_ME, call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Empty, Text, Whole
from portal.api.filters import LeaseEventFilters, LeaseFilters
from portal.api.idempotency import once
from portal.api.money import usage_row
from portal.api.pagination import MAX_FEED_SIZE, Pages
from portal.api.representations import (
    Row,
    access_row,
    entrance_row,
    event_row,
    lease_row,
    lease_rows,
    part_row,
    promise_row,
    slot_row,
)
from portal.api.responses import EventAnswer
from portal.api.responses_energy import energy_row
from portal.api.responses_leases import AccessAnswer, LeaseAnswer, LeaseDetail, LeaseEventAnswer, SampleAnswer
from portal.api.responses_money import ReceiptAnswer, UsageAnswer
from portal.api.wire import instant, money
from portal.billing.energy import energy_of_lease
from portal.billing.models import UsageRecord
from portal.billing.selectors import cost_and_price, cost_so_far, currency
from portal.common.clock import db_now
from portal.common.errors import Forbidden
from portal.common.failpoints import failpoint
from portal.common.sql import fetch
from portal.jobs.words import outcome_text
from portal.leases import lifecycle
from portal.leases.access import scratch_of, way_in, whole_environment
from portal.leases.extending import (
    approve_extension,
    extend_lease,
    lock_together,
    reject_extension,
    waiting_extension,
    withdraw_extension,
)
from portal.leases.failures import failure_code, failure_detail, why_failed
from portal.leases.models import Lease, LeaseEvent, LeaseExtension
from portal.leases.next_blocks import latest_end
from portal.leases.promises import promises_of
from portal.leases.selectors import (
    awaiting_extensions,
    gang_environment,
    may_manage_lease,
    may_see_access,
    together,
    visible_lease,
    visible_leases,
)
from portal.leases.states import EndReason, LeaseState
from portal.teams.selectors import Rights
from portal.telemetry.selectors import Reading, latest_for_leases
from portal.web.leases.job_shares import bill_of

TAG = "leases"
_SLOTS = (
    "SELECT d.uuid, d.index, p.mode, p.profile, p.start, p.size, p.share_milli, p.memory_mib"
    " FROM leases_placement p JOIN fleet_device d ON d.id = p.device_id"
    " WHERE p.lease_id = %s ORDER BY d.index, p.start, p.id"
)
MOST_EXTRA_S = 31 * 86_400
HELD = (LeaseState.ACTIVE, LeaseState.INTERRUPTED)
FIELDS = {
    "sm": "sm_percent",
    "tensor": "tensor_percent",
    "bandwidth": "bandwidth_percent",
    "power_w": "power_w",
}


class ExtendBody(Body):
    """How much more time."""

    extra_s = Whole(least=1, most=MOST_EXTRA_S)


class ExtensionNoteBody(Body):
    """A note that whoever asked will read."""

    note = Text(most=300, default="", allow_blank=True)


class Leases(Endpoint):
    """The leases of one's teams."""

    parameters = LeaseFilters.names() | {"awaiting_me"}

    @call(
        "List leases",
        answer=LeaseAnswer,
        is_list=True,
        parameters=(*LeaseFilters.parameters(), AWAITING_ME),
        tag=TAG,
    )
    def get(self, request: Request) -> Response:
        """List the leases of one's teams, newest first, with cost so far and time left.

        `awaiting_me=true` lists those whose extension one could decide on.
        """
        pages, now = Pages(), timezone.now()
        rows = visible_leases(self.rights)
        if self.yes_or_no("awaiting_me"):
            rows = rows.filter(pk__in=awaiting_extensions(self.rights).values("lease_id"))
        found = pages.page(self.narrow(rows, LeaseFilters), request)
        answers = lease_rows(found, cost_so_far(found, now=now), currency=currency(), now=now)
        return Response(pages.answer(answers))


class OneLease(Endpoint):
    """One lease."""

    @call("Read a lease", answer=LeaseDetail, refusals=(404,), tag=TAG)
    def get(self, request: Request, uid: str) -> Response:
        """Read a lease with its slices, cost so far and time left."""
        return Response(detail(self.rights, visible_lease(self.rights, uid)))


class Release(Endpoint):
    """End a lease early."""

    write_scope = Scope.LEASE_WRITE

    @call("Release a lease", body=Empty, answer=LeaseDetail, refusals=(404, 409, 422), tag=TAG)
    @once
    def post(self, request: Request, uid: str) -> Response:
        """End a lease now: the money clock stops at once. Safe to repeat."""
        self.take(Empty)
        with transaction.atomic():
            was_booking = lifecycle.lock_request_of_booking(uid)
            lease = managed(self.rights, uid, is_locked=True)
            lifecycle.release_locked(lease, actor=self.person, now=db_now())
        failpoint("release.committed")
        if was_booking:
            lease = visible_lease(self.rights, uid)
        return Response(detail(self.rights, lease))


class Extend(Endpoint):
    """Give a lease more time."""

    write_scope = Scope.LEASE_WRITE

    @call("Extend a lease", body=ExtendBody, answer=LeaseDetail, refusals=(404, 409, 422), tag=TAG)
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Give an active lease more time, up to the flavor's longest.

        Where the lease then takes more than the team may have without approval, its end stays and `extension`
        waits for an approver.
        """
        extra = self.take(ExtendBody)["extra_s"]
        lease = managed(self.rights, uid)
        with transaction.atomic():
            lock_together(lease)
            extend_lease(lease=lease, actor=self.person, extra_s=extra, now=db_now())
        return Response(detail(self.rights, visible_lease(self.rights, uid)))


class ApproveExtension(Endpoint):
    """Let a lease run longer."""

    @call(
        "Approve an extension", body=ExtensionNoteBody, answer=LeaseDetail, refusals=(404, 409, 422), tag=TAG
    )
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Let a lease run longer as was asked, if it still can; nobody decides on their own."""
        note = self.take(ExtensionNoteBody)["note"]
        lease = visible_lease(self.rights, uid)
        with transaction.atomic():
            lock_together(lease)
            approve_extension(lease=lease, actor=self.person, rights=self.rights, note=note, now=db_now())
        return Response(detail(self.rights, visible_lease(self.rights, uid)))


class RejectExtension(Endpoint):
    """Turn an extension down."""

    @call(
        "Reject an extension", body=ExtensionNoteBody, answer=LeaseDetail, refusals=(404, 409, 422), tag=TAG
    )
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Turn an extension down with a note that whoever asked will read; the lease keeps its end."""
        note = self.take(ExtensionNoteBody)["note"]
        lease = visible_lease(self.rights, uid)
        with transaction.atomic():
            lock_together(lease)
            reject_extension(lease=lease, actor=self.person, rights=self.rights, note=note, now=db_now())
        return Response(detail(self.rights, visible_lease(self.rights, uid)))


class WithdrawExtension(Endpoint):
    """Withdraw an extension."""

    write_scope = Scope.LEASE_WRITE

    @call("Withdraw an extension", body=Empty, answer=LeaseDetail, refusals=(404, 409, 422), tag=TAG)
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Withdraw an extension that waits for approval. Safe to repeat."""
        self.take(Empty)
        lease = visible_lease(self.rights, uid)
        withdraw_extension(lease=lease, actor=self.person, rights=self.rights, now=db_now())
        return Response(detail(self.rights, visible_lease(self.rights, uid)))


class LeaseSteps(Endpoint):
    """The steps of one lease."""

    @call("Read the steps of a lease", answer=EventAnswer, is_list=True, refusals=(404,), tag=TAG)
    def get(self, request: Request, uid: str) -> Response:
        """Read every step of a lease, oldest first: what the bill is made from."""
        found = visible_lease(self.rights, uid)
        return Response({"next": None, "results": [event_row(e) for e in found.events.all()]})


class LeaseAccess(Endpoint):
    """How the holder connects."""

    read_scope = Scope.LEASE_WRITE

    @call("Read how to connect", answer=AccessAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, uid: str) -> Response:
        """Read how to reach the slices: for the holder and the team's admins, while the lease runs."""
        lease = visible_lease(self.rights, uid)
        if not may_see_access(self.rights, lease):
            raise Forbidden(_("Only the holder and the team's admins see how to connect."))
        held = lease.placements.filter(is_live=True).select_related("device") if lease.state in HELD else []
        slots = list(held)
        return Response(
            {
                "node": lease.node.name,
                "entrance": entrance_row(lease, way_in(slots)),
                "environment": whole_environment(slots, gang_environment(lease, together(lease))),
                "slots": [access_row(slot) for slot in slots],
            }
        )


class LeaseUsage(Endpoint):
    """What a lease was billed for."""

    @call("Read the usage of a lease", answer=UsageAnswer, is_list=True, refusals=(404,), tag=TAG)
    def get(self, request: Request, uid: str) -> Response:
        """Read the billed intervals of a lease, oldest first."""
        lease = visible_lease(self.rights, uid)
        rows = UsageRecord.objects.filter(lease=lease).select_related(
            "lease__user", "lease__flavor", "team", "rate"
        )
        return Response(
            {"next": None, "results": [usage_row(r) for r in rows.order_by("span")[:MAX_FEED_SIZE]]}
        )


class LeaseReceipt(Endpoint):
    """What an ended lease cost, and each of the jobs in it."""

    @call("Read the receipt of a lease", answer=ReceiptAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, uid: str) -> Response:
        """Read what a lease cost; the total is null until all its seconds are counted.

        Where several jobs followed each other in the lease, their seconds and amounts add up to its own.
        """
        lease = visible_lease(self.rights, uid)
        bill, unit = bill_of(lease), lease.request.currency
        advice = advice_for_lease(lease, now=timezone.now())
        return Response(
            {
                "id": lease.uid,
                "is_counted": bill.is_counted,
                "seconds": bill.seconds,
                "agent_seconds": None if lease.agent_active_ms is None else lease.agent_active_ms / 1000,
                "total": money(bill.total_micro, unit),
                "refunded": money(bill.refunded_micro, unit),
                "refund": bill.refund.cause if bill.refund else None,
                "minimum": money(bill.minimum_micro, unit),
                "promise": promise_row(promises_of([lease]).get(lease.pk)),
                "scratch": scratch_of(lease),
                "energy": energy_row(energy_of_lease(lease, now=timezone.now())),
                "advice": advice_row(advice) if advice else None,
                "jobs": [
                    {
                        "id": part.attempt.job.uid,
                        "attempt": part.attempt.number,
                        "outcome": outcome_text(part.attempt),
                        "seconds": part.seconds,
                        "amount": money(part.micro, unit),
                    }
                    for part in bill.parts
                ],
            }
        )


class LeaseSample(Endpoint):
    """What was measured last."""

    @call("Read the newest sample of a lease", answer=SampleAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, uid: str) -> Response:
        """Read what was measured last; null is unknown, never zero."""
        lease = visible_lease(self.rights, uid)
        seen = latest_for_leases([lease.uid]).get(lease.uid)
        return Response(
            {
                "at": instant(datetime.fromtimestamp(seen.at, tz=UTC)) if seen else None,
                "util_percent": seen.util if seen else None,
                "memory_used_mib": seen.memory_used_mib if seen else None,
                "memory_mib": seen.memory_mib if seen else None,
                "source": seen.source if seen else "",
                **_more(seen),
            }
        )


def _more(seen: Reading | None) -> Row:
    """Return what some devices tell beside utilisation and memory, by the names of the answer."""
    more = seen.more if seen else None
    return {
        "sm_percent": more.sm if more else None,
        "tensor_percent": more.tensor if more else None,
        "bandwidth_percent": more.bandwidth if more else None,
        "power_w": seen.power_w if seen else None,
        "sources": {FIELDS[name]: source for name, source in more.sources.items()} if more else {},
    }


class LeaseEvents(Endpoint):
    """The steps of all leases in sight, as a feed."""

    parameters = LeaseEventFilters.names()

    @call(
        "List steps of leases", answer=LeaseEventAnswer, is_list=True,
        parameters=LeaseEventFilters.parameters(), tag=TAG,
    )  # fmt: skip
    def get(self, request: Request) -> Response:
        """List the steps of all leases in sight; with `ordering=id` a feed to read on from."""
        pages = Pages(most=MAX_FEED_SIZE)
        rows = LeaseEvent.objects.filter(lease__in=visible_leases(self.rights)).select_related("lease")
        found = pages.page(self.narrow(rows, LeaseEventFilters), request)
        return Response(pages.answer([{"lease": e.lease.uid, **event_row(e)} for e in found]))


def managed(rights: Rights, uid: str, *, is_locked: bool = False) -> Lease:
    """Return a lease this person may extend or release; raises NotFound or Forbidden."""
    lease = visible_lease(rights, uid, is_locked=is_locked)
    if not may_manage_lease(rights, lease):
        raise Forbidden(_("Only its holder, a team admin or an operator may do that."))
    return lease


def extension_row(lease: Lease, asked: LeaseExtension | None) -> Row | None:
    """Return the extension that waits for an approver, None where none does."""
    if asked is None:
        return None
    return {
        "state": asked.state,
        "extra_s": asked.extra_s,
        "until": instant(lease.not_after + timedelta(seconds=asked.extra_s)),
        "asked_by": asked.asked_by.username,
        "asked_at": instant(asked.asked_at),
    }


def detail(rights: Rights, lease: Lease) -> Row:
    """Return a lease as its page shows it; its relations must be at hand."""
    now = timezone.now()
    slots = fetch(_SLOTS, [lease.pk])
    end = latest_end(lease, now=now)
    cost, hourly, unit = cost_and_price(lease, now=now)
    return {
        **lease_row(lease, cost_micro=cost, currency=unit, now=now),
        "price_per_hour": money(hourly, unit),
        "fault": why_failed(lease) if lease.end_reason == EndReason.FAULT else "",
        "fault_code": failure_code(lease.fault),
        "fault_detail": failure_detail(lease.fault) if rights.is_operator else "",
        "agent_active_ms": lease.agent_active_ms,
        "policy_version": lease.policy_version,
        "demand_version": lease.demand_version,
        "latest_end": instant(max(end.at, lease.not_after)) if end else None,
        "latest_end_because": end.why if end else "",
        "extension": extension_row(lease, waiting_extension(lease)),
        "can_manage": may_manage_lease(rights, lease),
        "can_see_access": may_see_access(rights, lease),
        "slots": [slot_row(slot) for slot in slots],
        "parts": [part_row(part) for part in together(lease)],
    }
