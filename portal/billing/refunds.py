"""Refunds by rule: what of a lease is not charged, or charged in part, because of how it ended.

The rule is chosen and applied by metering, in the transaction that writes the usage (docs/adr/0016).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.billing.models_refunds import RefundCause, RefundRule
from portal.billing.periods import lock_books
from portal.catalog.pricing import lowered
from portal.common.clock import db_now, whole_second
from portal.common.errors import Conflict, Invalid, NotFound
from portal.leases.failures import FORGOTTEN, UNHEARD, failure_code
from portal.leases.models import Lease, LeaseEvent
from portal.leases.promises import is_late, promises_of
from portal.leases.states import EndReason, LeaseState

NOT_HEARD = "the node has not been heard"
_OF_NODE = (FORGOTTEN, UNHEARD, NOT_HEARD)
_BY_END = {
    EndReason.MAINTENANCE: RefundCause.MAINTENANCE,
    EndReason.PREEMPTED: RefundCause.PREEMPTED,
    EndReason.RELEASED: RefundCause.EARLY_RELEASE,
    EndReason.FAULT: RefundCause.DEVICE_FAULT,
}
MOST_WITHIN_S, MOST_BACK_S = 86_400, 366 * 86_400
OVER = (LeaseState.ENDING, LeaseState.CLEANING, LeaseState.ENDED, LeaseState.FAILED)


@dataclass(frozen=True, slots=True)
class Refund:
    """A rule that applies to a lease, to what it used from ``since`` on."""

    rule: RefundRule
    since: datetime


def refunded_price(micro_per_hour: int, rule: RefundRule | None) -> int:
    """Return what is charged of an hourly price, rounded down to a micro-unit."""
    return micro_per_hour if rule is None else lowered(micro_per_hour, 1000 - rule.credit_milli)


def cause_of(lease: Lease, events: Sequence[LeaseEvent]) -> RefundCause | None:
    """Return why the money clock of a lease that is over stopped, None for what no rule refunds.

    By its events alone, in time order. One whose node fell silent and was not heard again until it ended lost its
    node, however it ended then.
    """
    stops = [event for event in events if event.was == LeaseState.ACTIVE]
    if not stops or lease.state not in OVER:
        return None
    last = stops[-1]
    if last.now == LeaseState.INTERRUPTED:
        return RefundCause.NODE_LOST
    if last.now == LeaseState.FAILED:
        is_node = last.reason in _OF_NODE or failure_code(last.reason) == "rebooted"
        return RefundCause.NODE_LOST if is_node else RefundCause.DEVICE_FAULT
    return _BY_END.get(EndReason(last.reason)) if last.reason in EndReason.values else None


def refunds_of(leases: Sequence[Lease], events: Mapping[int, Sequence[LeaseEvent]]) -> dict[int, Refund]:
    """Return by lease the refund that a rule gives it; no query where no lease is over, one where there is no rule.

    Of the rule for how a lease ended and that for a late start the one that gives back more.
    """
    over = [
        lease
        for lease in leases
        if lease.state in OVER and any(e.was == LeaseState.ACTIVE for e in events[lease.pk])
    ]
    rules = list(RefundRule.objects.all()) if over else []
    promised = promises_of(over) if any(rule.cause == RefundCause.LATE_START for rule in rules) else {}
    found = {}
    for lease in over if rules else []:
        causes = [cause_of(lease, events[lease.pk])]
        if lease.pk in promised and is_late(lease, promised[lease.pk]):
            causes.append(RefundCause.LATE_START)
        given = [_refund(lease, cause, events[lease.pk], rules) for cause in causes if cause is not None]
        stopped = [event.at for event in events[lease.pk] if event.was == LeaseState.ACTIVE][-1]
        refunds = [refund for refund in given if refund is not None]
        if refunds:
            found[lease.pk] = max(refunds, key=lambda one: one.rule.credit_milli * (stopped - one.since))
    return found


def _refund(
    lease: Lease, cause: RefundCause, events: Sequence[LeaseEvent], rules: Sequence[RefundRule]
) -> Refund | None:
    """Return the refund of a lease; that of a failed start goes before the others."""
    began = whole_second(next(event.at for event in events if event.now == LeaseState.ACTIVE))
    stopped = whole_second([event.at for event in events if event.was == LeaseState.ACTIVE][-1])
    at = lease.ended_at or stopped
    by_cause = {rule.cause: rule for rule in rules if rule.valid.lower <= at and _reaches(rule, at)}
    start = by_cause.get(RefundCause.FAILED_START)
    has_failed = cause in (RefundCause.NODE_LOST, RefundCause.DEVICE_FAULT)
    if has_failed and start is not None and stopped - began < timedelta(seconds=start.within_s or 0):
        rule: RefundRule | None = start
    else:
        rule = by_cause.get(cause)
    if rule is None or not rule.credit_milli:
        return None
    since = began if rule.most_s is None else max(began, stopped - timedelta(seconds=rule.most_s))
    return Refund(rule, since)


def _reaches(rule: RefundRule, at: datetime) -> bool:
    return rule.valid.upper is None or at < rule.valid.upper


@transaction.atomic
def set_refund_rule(
    *,
    cause: str,
    credit_milli: int,
    most_s: int | None,
    within_s: int | None,
    starts_at: datetime | None,
    actor: User | None,
) -> RefundRule:
    """Say what a cause gives back from an instant on (None: from now on); it ends the rule before it.

    Raises Invalid naming the field, and Conflict where a later rule for the cause is planned already. Waits for
    whoever writes events of leases, so that none of them ends in between under two rules.
    """
    lock_books()
    now = db_now()
    begin = now if starts_at is None else starts_at.replace(microsecond=0)
    fields: dict[str, str] = {}
    if cause not in RefundCause.values:
        fields["cause"] = _("There is no such cause.")
    if not 0 <= credit_milli <= 1000:
        fields["credit_percent"] = _("Give a percentage from 0 to 100.")
    if most_s is not None and not 1 <= most_s <= MOST_BACK_S:
        fields["most_s"] = _("Give a time of up to 366 days, or leave it out for all of the lease.")
    if cause == RefundCause.FAILED_START and not 1 <= (within_s or 0) <= MOST_WITHIN_S:
        fields["within_s"] = _("Say how soon after its start a lease has to fail: up to a day.")
    if cause != RefundCause.FAILED_START and within_s is not None:
        fields["within_s"] = _("Only a failed start has this time.")
    if begin < now:
        fields["starts_at"] = _(
            "A rule begins now or later: leases that have ended are billed by the rule of their time."
        )
    if fields:
        raise Invalid(fields=fields)
    last = RefundRule.objects.select_for_update().filter(cause=cause).order_by("-valid").first()
    if last is not None and begin <= last.valid.lower:
        raise Conflict(_("A later rule is already planned for this cause. Withdraw it first."))
    if last is not None:
        RefundRule.objects.filter(pk=last.pk).update(valid=(last.valid.lower, begin))
    try:
        with transaction.atomic():
            rule = RefundRule.objects.create(
                cause=cause,
                credit_milli=credit_milli,
                most_s=most_s,
                within_s=within_s,
                valid=(begin, None),
                created_by=actor,
                created_at=now,
            )
    except IntegrityError as error:
        raise Conflict(_("Another rule for this cause covers that time.")) from error
    record(
        actor, "refund_rule.set", cause, at=now, credit_milli=credit_milli, most_s=most_s, within_s=within_s,
        starts_at=begin.isoformat(),
    )  # fmt: skip
    return rule


@transaction.atomic
def withdraw_refund_rule(*, rule_id: int, actor: User | None) -> RefundRule:
    """Take back a rule that has not begun: the one before it goes on. Raises NotFound, or Conflict if it has."""
    lock_books()
    now = db_now()
    rule = RefundRule.objects.select_for_update().filter(pk=rule_id).first()
    if rule is None:
        raise NotFound
    if rule.valid.lower <= now:
        raise Conflict(_("This rule has begun: it can only be followed by another."))
    begin = rule.valid.lower
    RefundRule.objects.filter(pk=rule.pk).delete()
    before = RefundRule.objects.filter(cause=rule.cause, valid__endswith=begin).first()
    if before is not None:
        RefundRule.objects.filter(pk=before.pk).update(valid=(before.valid.lower, rule.valid.upper))
    record(actor, "refund_rule.withdrawn", rule.cause, at=now, starts_at=begin.isoformat())
    return rule
