"""Decisions on requests: approve, also less than was asked for, reject, and what nobody decides on in time."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop, ngettext

from portal.accounts.models import User
from portal.audit.services import record
from portal.catalog.services import cost_milli
from portal.common import outbox
from portal.common.errors import Conflict, Forbidden, Invalid
from portal.common.moments import span
from portal.common.sql import fetch
from portal.leases.approvers import absent, approvers, audited, said_by
from portal.leases.models import ApprovalStep, LeaseRequest
from portal.leases.requests import (
    lock_request,
    needs_second_approval,
    quote_of,
    spec_of,
)
from portal.leases.states import RequestState
from portal.leases.transitions import move_requests
from portal.notifications.services import notify
from portal.teams.models import Team, TimeOutRule
from portal.teams.selectors import DECIDES, Rights

# The reason where a team's rule decided instead of a person.
NOBODY_DECIDED = gettext_noop("nobody decided in time")
OVERDUE = "request.approval_overdue"
# Those that have waited too long; where the rule is to remind, only those of whom nobody was reminded yet.
_OVERDUE = f"""
SELECT r.id FROM teams_team t JOIN leases_leaserequest r ON r.team_id = t.id
 WHERE t.approval_time_out_s IS NOT NULL AND r.state = '{RequestState.AWAITING_APPROVAL}'
   AND r.submitted_at <= %s - make_interval(secs => t.approval_time_out_s)
   AND NOT EXISTS (SELECT FROM notifications_notification n WHERE n.kind = '{OVERDUE}' AND n.target = r.uid)
 ORDER BY r.id LIMIT 100
"""  # noqa: S608 (our own state)


def terms_of(request: LeaseRequest) -> str:
    """Return a short mark of what an approval would let through: another one means other terms."""
    terms = (
        request.flavor_id, request.count, request.nodes, request.duration_s, request.most_count,
        request.least_duration_s, request.starts_at, request.is_preemptible, request.quote_micro,
    )  # fmt: skip
    return hashlib.sha256(repr(terms).encode()).hexdigest()[:12]


def decides_above(rights: Rights, team: Team) -> bool:
    """Say whether this person decides in a team above this one; the organisation has none above it."""
    above = team.lineage[:-1]
    return not above or any(role in DECIDES and team_id in above for team_id, role in rights.held)


def open_seats(request: LeaseRequest, seats: Sequence[Rights], actor: User) -> list[Rights]:
    """Return in whose place this person can still approve, the first choice first: own rights, then others'.

    Two people approve what needs two; somebody who is away and their deputy are not two. Where somebody of a team
    above must come next, those who decide there come first.
    """
    steps = list(request.approval_steps.all())
    counted = {pk for step in steps for pk in (step.approver_id, step.on_behalf_of_id)}
    found = [] if actor.pk in counted else [seat for seat in seats if seat.user.pk not in counted]
    if steps and not any(step.is_above for step in steps):
        found.sort(key=lambda seat: not decides_above(seat, request.team))
    return found


def needs_second(request: LeaseRequest) -> bool:
    """Say whether two people must approve what the request asks for now; needs its team and flavor at hand."""
    units = max(request.count * max(request.nodes, 1), request.most_count)
    return needs_second_approval(request.team, request.flavor, count=units, duration_s=request.duration_s)


@transaction.atomic
def approve_request(
    *,
    request: LeaseRequest,
    actor: User,
    rights: Rights,
    note: str,
    now: datetime,
    count: int | None = None,
    duration_s: int | None = None,
    terms: str = "",
) -> LeaseRequest:
    """Let a request that awaits approval into the queue; its author may never decide it.

    With ``count`` or ``duration_s`` it gets less than it asked for. ``terms`` is what the person saw (``terms_of``).
    Above the team's second threshold the first approval is written down and the request goes on waiting: a second
    person approves too, and one of both decides in a team above; a person and their deputy count as one. Raises
    Conflict where the terms are others by now or this person has approved already, Invalid where less is not less,
    Forbidden and NotFound.
    """
    locked, seats = _decidable(request, actor, rights)
    if terms and terms != terms_of(locked):
        raise Conflict(_("This request asks for something else by now. Look at it again, then decide."))
    steps = list(locked.approval_steps.all())
    seat, is_above = _next_seat(locked, steps, seats, actor)
    decided_for = absent(seat)
    asked_count, asked_duration_s = locked.count, locked.duration_s
    changed = _cut(locked, count, duration_s, now)
    ApprovalStep.objects.create(
        request=locked, approver=actor, on_behalf_of=decided_for, is_above=is_above, at=now, note=note[:300],
        asked_count=asked_count, asked_duration_s=asked_duration_s,
        count=locked.count, duration_s=locked.duration_s, quote_micro=locked.quote_micro,
    )  # fmt: skip
    less = {"count": locked.count, "duration_s": locked.duration_s} if changed else {}
    if needs_second(locked) and not steps:
        if changed:
            locked.save(update_fields=list(changed))
        record(
            actor, "request.approved_first", locked.uid, at=now, team_id=locked.team_id, **less, **audited(decided_for)
        )  # fmt: skip
        besides = [locked.author_id, actor.pk, seat.user.pk]
        told = approvers(locked.team, besides=besides, is_above=not is_above)
        notify(
            told, "request.awaits_second_approval", target=locked.uid, at=now, **said_by(actor, decided_for)
        )
        return locked
    _let_in(locked, note=note, decided_by=actor, decided_for=decided_for, now=now, **changed)
    record(
        actor, "request.approved", locked.uid, at=now, team_id=locked.team_id, **less, **audited(decided_for)
    )  # fmt: skip
    facts: dict[str, Any] = {**said_by(actor, decided_for), **less}
    notify([locked.author], "request.approved", target=locked.uid, at=now, **facts)
    return locked


def _next_seat(
    request: LeaseRequest, steps: Sequence[ApprovalStep], seats: Sequence[Rights], actor: User
) -> tuple[Rights, bool]:
    """Return in whose place this person approves next, and whether that is in a team above; raises Conflict."""
    if any(step.approver_id == actor.pk for step in steps):
        raise Conflict(_("You have approved this already. Somebody else approves it next."))
    still = open_seats(request, seats, actor)
    if not still:
        raise Conflict(
            _(
                "A person and their deputy count as one, and one of both has approved this. Somebody else decides next."
            )
        )
    is_above = decides_above(still[0], request.team)
    if steps and not is_above and not any(step.is_above for step in steps):
        raise Conflict(_("Your team has approved this already. Somebody of a team above decides next."))
    return still[0], is_above


@transaction.atomic
def reject_request(
    *, request: LeaseRequest, actor: User, rights: Rights, note: str, now: datetime
) -> LeaseRequest:
    """Turn a request down with a reason that its author will read."""
    if not note.strip():
        raise Invalid(fields={"note": _("Say why, so that the person knows what to change.")})
    locked, seats = _decidable(request, actor, rights)
    decided_for = absent(seats[0])
    move_requests(
        [locked],
        RequestState.REJECTED,
        at=now,
        reason=note,
        decided_by=actor,
        decided_for=decided_for,
        decided_at=now,
        decision_note=note[:300],
    )
    record(actor, "request.rejected", locked.uid, at=now, team_id=locked.team_id, **audited(decided_for))
    notify([locked.author], "request.rejected", target=locked.uid, at=now, **said_by(actor, decided_for))
    return locked


def time_out_approvals(*, now: datetime) -> int:
    """Deal with requests that nobody has decided on in their team's time, each in its own transaction.

    A rule that approves never stands in for a second person or for a budget: there, people are reminded. Returns how
    many there were; safe to repeat.
    """
    due = [pk for (pk,) in fetch(_OVERDUE, [now])]
    for pk in due:
        with transaction.atomic():
            _time_out(pk, now)
    return len(due)


def _time_out(pk: int, now: datetime) -> None:
    request = lock_request(LeaseRequest(pk=pk))
    team = request.team
    if request.state != RequestState.AWAITING_APPROVAL or team.approval_time_out_s is None:
        return
    rule, after = TimeOutRule(team.approval_time_out_then), team.approval_time_out_s
    is_by_budget = any(reason.get("code") == "budget_reached" for reason in request.reasons)
    if rule == TimeOutRule.APPROVE and (needs_second(request) or is_by_budget):
        rule = TimeOutRule.REMIND
    if rule == TimeOutRule.REMIND:
        people = approvers(team, besides=[request.author_id])
        notify(people, OVERDUE, target=request.uid, at=now, by=str(request.author), after_s=after)
        return
    if rule == TimeOutRule.APPROVE:
        _let_in(request, note=NOBODY_DECIDED, decided_by=None, now=now)
    else:
        move_requests(
            [request],
            RequestState.REJECTED,
            at=now,
            reason=NOBODY_DECIDED,
            decided_at=now,
            decision_note=NOBODY_DECIDED,
        )
    record(
        None, f"request.timed_out_{rule}", request.uid, at=now, team_id=request.team_id, after_s=after
    )  # fmt: skip
    notify(
        [request.author], "request.approval_timed_out", target=request.uid, at=now, then=str(rule), after_s=after
    )  # fmt: skip


def _let_in(
    request: LeaseRequest, *, note: str, decided_by: User | None, now: datetime, **changed: Any
) -> None:
    """Put a locked request into the queue, with what was changed by the approval, and owe it a cycle."""
    move_requests(
        [request],
        RequestState.QUEUED,
        at=now,
        reason=note,
        queued_at=now,
        decided_by=decided_by,
        decided_at=now,
        decision_note=note[:300],
        **changed,
    )
    outbox.add(outbox.RUN_CYCLE, key=request.uid, at=now)
    outbox.nudge_on_commit(outbox.RUN_CYCLE)


def _cut(request: LeaseRequest, count: int | None, duration_s: int | None, now: datetime) -> dict[str, Any]:
    """Make a locked request ask for less, in memory, and return the fields that changed; raises Invalid."""
    fields: dict[str, str] = {}
    if count is not None and not 1 <= count <= request.count:
        fields["count"] = ngettext(
            "It asks for %(n)d: less cannot be approved.", "Approve 1 to %(n)d.", request.count
        ) % {"n": request.count}
    least_s = min(request.flavor.min_duration_s, request.duration_s)
    if duration_s is not None and not least_s <= duration_s <= request.duration_s:
        fields["duration_s"] = _("Approve %(low)s to %(high)s.") % {
            "low": span(least_s),
            "high": span(request.duration_s),
        }
    if fields:
        raise Invalid(fields=fields)
    given = (count or request.count, duration_s or request.duration_s)
    if given == (request.count, request.duration_s):
        return {}
    if request.is_job:
        name = "count" if given[0] != request.count else "duration_s"
        raise Invalid(fields={name: _("A batch job is approved as it is, or not at all.")})
    spec = replace(
        spec_of(request),
        count=given[0],
        duration_s=given[1],
        # What is approved is the most: it does not grow back to what it asked for.
        most_count=min(request.most_count, given[0]),
        least_duration_s=min(request.least_duration_s, given[1]),
        starts_at=request.starts_at,
    )
    price = quote_of(request.team, request.flavor, spec, now=now)
    changed = {
        "count": spec.count,
        "duration_s": spec.duration_s,
        "remaining_s": spec.duration_s,
        "most_count": spec.most_count,
        "least_duration_s": spec.least_duration_s,
        "cost_milli": cost_milli(request.flavor, spec.units),
        "quote_micro": price.amount_micro,
    }
    for name, value in changed.items():
        setattr(request, name, value)
    return changed


def _decidable(request: LeaseRequest, actor: User, rights: Rights) -> tuple[LeaseRequest, list[Rights]]:
    """Return the request, locked, and in whose place this person may decide on it, the first choice first."""
    seats = rights.require_seats(request.team, request.author_id)
    if not seats:
        raise Forbidden(_("Nobody decides on a request of their own."))
    locked = lock_request(request)
    if locked.state != RequestState.AWAITING_APPROVAL:
        raise Conflict(_("This request does not wait for approval any more."))
    return locked, seats
