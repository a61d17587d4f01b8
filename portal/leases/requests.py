"""Requests: submit and withdraw. Decisions are in ``approvals``, what follows a grant in ``lifecycle``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.accounts.models import User
from portal.audit.services import ENTRY, entry, record
from portal.catalog import pricing
from portal.catalog.models import Flavor
from portal.catalog.services import cost_milli
from portal.common import outbox
from portal.common.clock import db_now
from portal.common.errors import Conflict, Forbidden, Impossible, Invalid, NotFound, TooManyWaiting
from portal.common.failpoints import failpoint
from portal.common.moments import span
from portal.common.rows import NewRow, Rows
from portal.common.sql import fetch
from portal.fleet.models import Mode
from portal.fleet.selectors import boards_by_node
from portal.leases.approvers import approvers
from portal.leases.budget_gate import (
    Expense,
    Reached,
    admit,
    hold_budgets,
    is_limited,
    preview,
)
from portal.leases.labels import keep_labels, project_for
from portal.leases.lifecycle import cancel_booking
from portal.leases.models import LeaseRequest
from portal.leases.selectors import is_booked, waiting_count
from portal.leases.states import Opening, RequestState, WorkloadKind
from portal.leases.transitions import move_requests
from portal.leases.wallet_holds import priced_for_wallets
from portal.notifications.services import notify
from portal.quotas.selectors import RunLimit, shortest_run_limit, smallest_ceiling
from portal.teams.labels import check_tags
from portal.teams.models import Role, Team
from portal.teams.selectors import Rights

PRIORITIES = {"low": -10, "normal": 0, "high": 10}
_FLAVORS = Rows(Flavor, "device_model")
_REQUEST = NewRow(LeaseRequest)
_DRAFT, _SUBMITTED = str(RequestState.DRAFT), str(RequestState.SUBMITTED)
LOAD_PATTERNS = ("", "steady", "bursty", "idle", "dummy_loop")
MOST_NODES = 1000
BOOK_AHEAD = timedelta(days=90)


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """What a person asks for, as it came in: checked by ``check_spec``, priced by the catalogue.

    ``nodes`` n above 1 wants ``count`` units on each of n nodes, 0 wants ``count`` in all on as few nodes as
    possible. ``least_duration_s`` is how short it may be cut (0: not at all), ``most_count`` what it may grow
    to while boards idle (0: it does not grow), ``starts_at`` books a start (None: as soon as possible), ``opens`` is
    what the page offers first once it is active. ``project`` is the code of a project ("" for none), ``tags`` are names
    with values.
    """

    flavor: str
    duration_s: int
    count: int = 1
    priority: str = "normal"
    name: str = ""
    purpose: str = ""
    load_pattern: str = ""
    work: str = "interactive"
    is_preemptible: bool = False
    least_duration_s: int = 0
    starts_at: datetime | None = None
    nodes: int = 1
    most_count: int = 0
    opens: str = "device"
    project: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def units(self) -> int:
        """Return how many units start together, on all nodes."""
        return self.count * max(self.nodes, 1)


def check_spec(team: Team, spec: RequestSpec, *, now: datetime) -> Flavor:
    """Return the flavor that a team asks for, or raise Invalid naming every field that cannot be used."""
    fields: dict[str, Any] = {}
    flavor = _FLAVORS.first("it.slug = %s AND it.is_active", [spec.flavor])
    if flavor is None:
        raise Invalid(fields={"flavor": _("There is no such flavor. Choose one from the list.")})
    most = max(flavor.max_count, MOST_NODES) if spec.nodes == 0 else flavor.max_count
    if not 1 <= spec.count <= most:
        fields["count"] = _("Ask for 1 to %(n)d of this flavor.") % {"n": most}
    if not flavor.min_duration_s <= spec.duration_s <= flavor.max_duration_s:
        fields["duration_s"] = _("This flavor runs for %(low)s to %(high)s.") % {
            "low": span(flavor.min_duration_s),
            "high": span(flavor.max_duration_s),
        }
    elif (limit := shortest_run_limit(team)) and spec.duration_s > limit.most_s:
        fields["duration_s"] = too_long_sentence(limit)
    if spec.priority not in PRIORITIES:
        fields["priority"] = _("Choose low, normal or high.")
    if spec.load_pattern not in LOAD_PATTERNS:
        fields["load_pattern"] = _("Choose one of: steady, bursty, idle, dummy_loop.")
    if len(spec.name) > 80:
        fields["name"] = _("At most 80 characters.")
    if len(spec.purpose) > 300:
        fields["purpose"] = _("At most 300 characters.")
    fields |= _check_choices(spec, flavor) | _check_times(spec, flavor, now)
    if fields:
        raise Invalid(fields=fields)
    return flavor


def too_long_sentence(limit: RunLimit) -> str:
    """Return why a lease may not run so long by a quota, and what to do."""
    said = _(
        "By the quota of %(team)s a lease runs for at most %(time)s in all. Ask for less time, or ask"
        " whoever sets that quota for more."
    )
    return said % {"team": limit.team, "time": span(limit.most_s)}


def _check_choices(spec: RequestSpec, flavor: Flavor) -> dict[str, str]:
    """Return what is wrong with kind of work, nodes and growth, by field."""
    fields: dict[str, str] = {}
    if spec.work not in WorkloadKind.values:
        fields["work"] = _("Choose interactive, training or inference.")
    if spec.opens not in Opening.values:
        fields["opens"] = _("Choose notebook, terminal, ssh or device.")
    if not 0 <= spec.nodes <= MOST_NODES:
        fields["nodes"] = _("Ask for 0 to %(n)d nodes; 0 is as few as possible.") % {"n": MOST_NODES}
    elif spec.nodes != 1 and flavor.mode != Mode.EXCLUSIVE:
        fields["nodes"] = _("Only whole devices can be spread over nodes. Choose a flavor of whole devices.")
    if spec.most_count and spec.nodes != 1:
        fields["most_count"] = _("Only what starts on one node can grow.")
    elif spec.most_count and not spec.count <= spec.most_count <= flavor.max_count:
        fields["most_count"] = _("It can grow to at least what you ask for and at most %(n)d.") % {
            "n": flavor.max_count
        }
    return fields


def _check_times(spec: RequestSpec, flavor: Flavor, now: datetime) -> dict[str, str]:
    """Return what is wrong with the shortest time and the start, by field."""
    fields: dict[str, str] = {}
    if spec.least_duration_s and not flavor.min_duration_s <= spec.least_duration_s <= spec.duration_s:
        fields["least_duration_s"] = _(
            "The shortest time lies between %(low)d seconds and the time asked for."
        ) % {"low": flavor.min_duration_s}
    if spec.starts_at is not None and not now < spec.starts_at <= now + BOOK_AHEAD:
        fields["starts_at"] = _("A start can be booked in the future, at most %(n)d days ahead.") % {
            "n": BOOK_AHEAD.days
        }
    return fields


def check_possible(team: Team, flavor: Flavor, count: int, nodes: int = 1) -> None:
    """Raise Impossible when no state of this installation could ever serve the request."""
    boards = boards_by_node(flavor.device_model_id, flavor.mode)
    if not boards:
        raise Impossible(
            _("No device here offers %(flavor)s.") % {"flavor": flavor.shown_name}, nearest_count=0
        )
    per_device = 1 if flavor.mode == Mode.EXCLUSIVE else max(1, 1000 // flavor.share_milli)
    most = sum(boards) if nodes == 0 else max(boards) * per_device
    if count > most:
        if nodes == 0:
            said = _("All nodes together can hold %(n)d of %(flavor)s at once.")
        else:
            said = _("The largest node can hold %(n)d of %(flavor)s at once.")
        raise Impossible(said % {"n": most, "flavor": flavor.shown_name}, nearest_count=most)
    able = sum(have >= count for have in boards)
    if nodes > 1 and able < nodes:
        raise Impossible(
            ngettext(
                "Only %(n)d node has %(count)d of %(flavor)s each.",
                "Only %(n)d nodes have %(count)d of %(flavor)s each.",
                able,
            )
            % {"n": able, "count": count, "flavor": flavor.shown_name},
            nearest_nodes=able,
        )
    ceiling, each = smallest_ceiling(team), cost_milli(flavor, max(nodes, 1))
    if ceiling is not None and each * count > ceiling:
        raise Impossible(
            _("Your team's quota can never hold %(count)d of %(flavor)s: its ceiling allows %(n)d.")
            % {
                "count": count * max(nodes, 1),
                "flavor": flavor.shown_name,
                "n": ceiling // each * max(nodes, 1),
            },
            nearest_count=ceiling // each,
        )


def check_may_ask(rights: Rights, team: Team, priority: str) -> None:
    """Raise NotFound or Forbidden when this person may not ask for the team."""
    rights.require(team, Role.RESEARCHER, Role.ADMIN)
    if priority == "high" and not rights.has(team, Role.ADMIN):
        raise Forbidden(_("Only a team admin may ask with high priority."))


def submit_request(
    *,
    team: Team,
    actor: User,
    rights: Rights,
    spec: RequestSpec,
    now: datetime,
    is_approved: bool = False,
    is_job: bool = False,
    needs_containers: bool = False,
    seat_of: User | None = None,
) -> LeaseRequest:
    """Accept a request for GPU time, or raise with what to change.

    ``is_approved``: somebody has approved it already, as one time of a series. ``is_job``: for a batch job,
    ``needs_containers``: one that runs in an image. ``seat_of``: who organises the workshop in which ``actor`` gets
    this; it starts once the person has come.
    Invalid, Impossible, Forbidden, NotFound, TooManyWaiting and BudgetExceeded change nothing. Opens its own
    transaction; the scheduler is nudged after commit.
    """
    check_may_ask(rights, team, spec.priority)
    flavor = check_spec(team, spec, now=now)
    check_possible(team, flavor, spec.count, spec.nodes)
    check_queue_room(team)
    project, tags = project_for(team, spec.project), check_tags(spec.tags)
    request = _new_request(team, actor, flavor, spec, now)
    request.is_job, request.needs_containers = is_job, needs_containers
    request.awaits_person = seat_of is not None
    is_large = not is_approved and needs_approval(
        team, flavor, count=max(spec.units, spec.most_count), duration_s=spec.duration_s
    )
    has_budget = is_limited(team)
    # One statement needs no transaction of its own.
    with transaction.atomic() if is_large or has_budget or project or tags else nullcontext():
        if has_budget:
            hold_budgets([team])
            (expense,) = priced_for_wallets([expense_of(request, now=now)], [request])
            asks = admit(expense, now=now)
            if asks is not None and not is_approved:
                is_large, request.reasons = True, [{"code": "budget_reached", **asks.figures()}]
        if is_large:
            request.state, request.queued_at = RequestState.AWAITING_APPROVAL, None
        failpoint("submit.before_store")
        _store(request, seat_of or actor)
        keep_labels(request, project, tags)
        failpoint("submit.stored")
        if is_large:
            people = approvers(team, besides=[request.author_id])
            notify(people, "request.awaits_approval", target=request.uid, at=now, by=str(actor))
    if not is_large:
        outbox.nudge_on_commit(outbox.RUN_CYCLE)
    return request


def _new_request(team: Team, actor: User, flavor: Flavor, spec: RequestSpec, now: datetime) -> LeaseRequest:
    """Return a request as it enters the queue, priced and not stored yet."""
    price = quote_of(team, flavor, spec, now=now)
    return LeaseRequest(
        team=team,
        author=actor,
        flavor=flavor,
        count=spec.count,
        duration_s=spec.duration_s,
        remaining_s=spec.duration_s,
        priority=PRIORITIES[spec.priority],
        name=spec.name.strip(),
        purpose=spec.purpose.strip(),
        load_pattern=spec.load_pattern,
        state=RequestState.QUEUED,
        cost_milli=cost_milli(flavor, spec.units),
        quote_micro=price.amount_micro,
        currency=price.currency,
        submitted_at=now,
        queued_at=now,
        work=spec.work,
        is_preemptible=spec.is_preemptible,
        price_milli=pricing.paid_milli(flavor, is_preemptible=spec.is_preemptible),
        starts_at=spec.starts_at,
        least_duration_s=spec.least_duration_s,
        most_count=spec.most_count,
        nodes=spec.nodes,
        opens=spec.opens,
    )


def expense_of(request: LeaseRequest, *, now: datetime) -> Expense:
    """Return what a request would cost for the time it is still owed, from its booked start or from now on."""
    starts_at = max(request.starts_at or now, now)
    return Expense(
        team=request.team,
        micro=request.quote_micro * request.remaining_s // request.duration_s,
        starts_at=starts_at,
        ends_at=starts_at + timedelta(seconds=max(request.remaining_s, 1)),
        is_preemptible=request.is_preemptible,
        share_milli=request.flavor.share_milli * request.count * max(request.nodes, 1),
        memory_mib=request.flavor.memory_mib * request.count * max(request.nodes, 1),
    )


def budget_says(
    team: Team, flavor: Flavor, spec: RequestSpec, price: pricing.Quote, *, now: datetime
) -> tuple[Reached, ...]:
    """Return what budgets, wallets and quotas would say to a request that is sent now, the strictest first."""
    starts_at = spec.starts_at or now
    ends_at = starts_at + timedelta(seconds=spec.duration_s)
    expense = Expense(
        team, price.amount_micro, starts_at, ends_at, spec.is_preemptible, hold_micro=price.hold_micro,
        share_milli=flavor.share_milli * spec.units, memory_mib=flavor.memory_mib * spec.units,
    )  # fmt: skip
    return preview(expense, now=now)


def spec_of(request: LeaseRequest) -> RequestSpec:
    """Return what a request asks for now: the time still owed; a start that was booked has passed its turn."""
    return RequestSpec(
        flavor=request.flavor.slug,
        duration_s=request.remaining_s,
        count=request.count,
        priority=next((name for name, rank in PRIORITIES.items() if rank == request.priority), "normal"),
        name=request.name,
        purpose=request.purpose,
        load_pattern=request.load_pattern,
        work=request.work,
        is_preemptible=request.is_preemptible,
        least_duration_s=min(request.least_duration_s, request.remaining_s),
        nodes=request.nodes,
        most_count=request.most_count,
        opens=request.opens,
    )


def quote_of(team: Team, flavor: Flavor, spec: RequestSpec, *, now: datetime) -> pricing.Quote:
    """Return what a checked specification would cost; what it may grow by is not in it."""
    return pricing.quote(
        flavor,
        team_id=team.pk,
        is_preemptible=spec.is_preemptible,
        count=spec.units,
        duration_s=spec.duration_s,
        starts_at=spec.starts_at or now,
        price_milli=pricing.paid_milli(flavor, is_preemptible=spec.is_preemptible),
        leases=pricing.leases_of(spec.nodes, spec.count),
    )


def _store(request: LeaseRequest, actor: User) -> None:
    """Write a new request, its first steps, its audit entry and the nudge it owes: one statement, all or nothing."""
    at, owed = request.submitted_at, request.state == RequestState.QUEUED
    parts = [
        f"made AS ({_REQUEST.sql})",
        "steps AS (INSERT INTO leases_requestevent (request_id, was, now, at, reason)"
        " SELECT made.id, step.was, step.now, %s, ''"
        " FROM made, unnest(%s::text[], %s::text[]) WITH ORDINALITY AS step(was, now, place) ORDER BY place)",
        f"entry AS ({ENTRY})",
        *([f"item AS ({outbox.ITEM})"] if owed else []),
    ]
    values = [
        *_REQUEST.values(request),
        *(at, [_DRAFT, _SUBMITTED], [_SUBMITTED, str(request.state)]),
        *entry(actor, "request.submitted", request.uid, at=at, team_id=request.team_id),
        *([outbox.RUN_CYCLE, request.uid, at] if owed else []),
    ]
    ((request.pk,),) = fetch(f"WITH {', '.join(parts)} SELECT id FROM made", values)  # noqa: S608 (our own parts)
    request._state.adding = False


def needs_approval(team: Team, flavor: Flavor, *, count: int, duration_s: int) -> bool:
    """Say whether somebody must approve a request of this size before it enters the queue."""
    if team.approval_above_gpu_seconds is None:
        return False
    return flavor.share_milli * count * duration_s // 1000 > team.approval_above_gpu_seconds


def needs_second_approval(team: Team, flavor: Flavor, *, count: int, duration_s: int) -> bool:
    """Say whether a request of this size needs the approval of a second person."""
    above = team.second_approval_above_gpu_seconds
    return above is not None and flavor.share_milli * count * duration_s // 1000 > above


def check_queue_room(team: Team) -> None:
    """Raise TooManyWaiting when the team's queue is full."""
    if waiting_count(team) >= settings.MAX_WAITING_PER_TEAM:
        raise TooManyWaiting


def lock_request(request: LeaseRequest) -> LeaseRequest:
    """Return the request as it is now, locked; call in a transaction."""
    return (
        LeaseRequest.objects.select_for_update(of=("self",))
        .select_related("team", "author", "flavor")
        .get(pk=request.pk)
    )


@contextmanager
def held(request: LeaseRequest) -> Iterator[datetime]:
    """Hold a request for one step of it, in a transaction, and give the database's clock as of then.

    An instant from before whoever held it would put this step ahead of theirs.
    """
    with transaction.atomic():
        list(LeaseRequest.objects.select_for_update().filter(pk=request.pk).values_list("pk"))
        yield db_now()


@transaction.atomic
def withdraw_request(*, request: LeaseRequest, actor: User, rights: Rights, now: datetime) -> LeaseRequest:
    """Take back a request that has not started, or give up a booking, free of charge until it starts.

    Safe to repeat; raises Conflict once it has started.
    """
    locked = lock_request(request)
    if locked.author_id != actor.pk and not rights.has(locked.team, Role.ADMIN, Role.OPERATOR):
        raise Forbidden if rights.has(locked.team, *Role.values) else NotFound
    if locked.state == RequestState.WITHDRAWN:
        return locked
    if locked.state == RequestState.GRANTED and is_booked(locked):
        cancel_booking(locked, actor=actor, at=now)
        locked.refresh_from_db(fields=["state"])
        return locked
    if locked.state not in (RequestState.AWAITING_APPROVAL, RequestState.QUEUED):
        raise Conflict(_("This request has started already: release its lease instead."))
    move_requests([locked], RequestState.WITHDRAWN, at=now)
    record(actor, "request.withdrawn", locked.uid, at=now, team_id=locked.team_id)
    return locked
