"""Workshops: slices for a list of people at one time, in one request and one approval.

Each person has a seat, and each seat a request of its own that books its slice; it starts once the person has come
(``seats``). Lock order: the workshop, budgets, requests, seats; quota rows and leases after them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.memberships import give_role
from portal.audit.services import record
from portal.catalog.models import Flavor
from portal.catalog.services import cost_milli
from portal.common.errors import Conflict, Forbidden, Impossible, Invalid, NotFound, TooManyWaiting
from portal.fleet.models import Mode
from portal.fleet.selectors import boards_by_node
from portal.leases.approvers import absent, approvers, audited, said_by
from portal.leases.attendees import MOST_SEATS, AttendeeList
from portal.leases.budget_gate import Expense, admit, hold_budgets, is_limited
from portal.leases.lifecycle import cancel_booking
from portal.leases.models import LeaseRequest, Workshop, WorkshopSeat
from portal.leases.requests import (
    RequestSpec,
    check_may_ask,
    check_spec,
    needs_approval,
    quote_of,
    submit_request,
)
from portal.leases.selectors import is_booked, visible_workshops, waiting_count
from portal.leases.states import Approval, RequestState
from portal.leases.transitions import move_requests
from portal.notifications.services import notify
from portal.quotas.selectors import smallest_ceiling
from portal.teams.models import Role, Team
from portal.teams.selectors import Rights

LEAST_WAIT = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class WorkshopSpec:
    """What each person of a workshop gets and when; ``return_after_s`` after the start unused slices go back."""

    name: str
    flavor: str
    starts_at: datetime
    duration_s: int
    return_after_s: int = 900
    purpose: str = ""

    @property
    def ends_at(self) -> datetime:
        """When the last lease of it ends."""
        return self.starts_at + timedelta(seconds=self.duration_s)

    @property
    def of_one(self) -> RequestSpec:
        """Return what one person gets, as a request."""
        return RequestSpec(
            flavor=self.flavor,
            duration_s=self.duration_s,
            name=self.name.strip(),
            purpose=self.purpose,
            starts_at=self.starts_at,
        )


def create_workshop(
    *,
    team: Team,
    rights: Rights,
    spec: WorkshopSpec,
    people: AttendeeList,
    now: datetime,
    gives_roles: bool = False,
) -> Workshop:
    """Store a workshop and ask for a slice for each of its people, or raise with what to change: all or nothing.

    ``gives_roles`` makes whoever is not in the team a researcher there until the workshop ends; only its admins can.
    Where the whole is more than the team may have without approval it only waits for an approver. Invalid,
    Impossible, Forbidden, NotFound, TooManyWaiting and BudgetExceeded change nothing. Opens its own transaction.
    """
    flavor = check_workshop(team, rights, spec, len(people.people), now=now)
    _check_people(people, gives_roles)
    with transaction.atomic():
        is_large = needs_approval(team, flavor, count=len(people.people), duration_s=spec.duration_s)
        is_large |= _asks_by_budget(team, flavor, spec, len(people.people), now)
        for user in people.outside:
            give_role(
                team=team, user=user, role=Role.RESEARCHER, rights=rights, now=now, ends_at=spec.ends_at
            )
        made = Workshop.objects.create(
            team=team,
            organiser=rights.user,
            flavor=flavor,
            name=spec.name.strip(),
            purpose=spec.purpose.strip(),
            starts_at=spec.starts_at,
            duration_s=spec.duration_s,
            returns_at=spec.starts_at + timedelta(seconds=spec.return_after_s),
            approval=Approval.AWAITING if is_large else Approval.NOT_NEEDED,
            created_at=now,
        )
        WorkshopSeat.objects.bulk_create(WorkshopSeat(workshop=made, user=user) for user in people.people)
        record(
            rights.user, "workshop.made", made.uid, at=now, team_id=team.pk, seats=len(people.people)
        )  # fmt: skip
        if is_large:
            others = approvers(team, besides=[rights.user.pk])
            notify(
                others, "workshop.awaits_approval", target=made.uid, at=now,
                by=str(rights.user), name=made.name, seats=len(people.people),
            )  # fmt: skip
        else:
            ask_for_seats(made, now=now)
    return made


def check_workshop(team: Team, rights: Rights, spec: WorkshopSpec, seats: int, *, now: datetime) -> Flavor:
    """Return the flavor of a workshop that could be had, or raise what keeps it from it; changes nothing."""
    check_may_ask(rights, team, "normal")
    fields: dict[str, str] = {}
    if not spec.name.strip():
        fields["name"] = _("Give it a name that those who come will know.")
    if not LEAST_WAIT.total_seconds() <= spec.return_after_s <= max(spec.duration_s, 60):
        fields["return_after_s"] = _("Wait for people at least a minute, and at most until it ends.")
    if not 1 <= seats <= MOST_SEATS:
        fields["people"] = _("Name 1 to %(n)d people.") % {"n": MOST_SEATS}
    try:
        flavor = check_spec(team, spec.of_one, now=now)
    except Invalid as error:
        raise Invalid(fields={**error.fields, **fields}) from error
    if fields:
        raise Invalid(fields=fields)
    _check_fits(team, flavor, seats)
    if waiting_count(team) + seats > settings.MAX_WAITING_PER_TEAM:
        raise TooManyWaiting
    return flavor


def _check_fits(team: Team, flavor: Flavor, seats: int) -> None:
    """Raise Impossible where devices or quota could never hold so many at once."""
    per_device = 1 if flavor.mode == Mode.EXCLUSIVE else max(1, 1000 // flavor.share_milli)
    most = sum(boards_by_node(flavor.device_model_id, flavor.mode)) * per_device
    said = _("All nodes together can hold %(n)d of %(flavor)s at once.")
    ceiling, each = smallest_ceiling(team), cost_milli(flavor, 1)
    if ceiling is not None and ceiling // each < min(most, seats):
        most = ceiling // each
        said = _("The quota of the team allows %(n)d of %(flavor)s at once.")
    if seats > most:
        raise Impossible(said % {"n": most, "flavor": flavor.shown_name}, nearest_count=most)


def _check_people(people: AttendeeList, gives_roles: bool) -> None:
    if people.unknown:
        names = ", ".join(people.unknown[:10])
        said = _("Nobody here goes by: %(names)s. Correct these lines or take them out.") % {"names": names}
        raise Invalid(fields={"people": said})
    if people.outside and not gives_roles:
        names = ", ".join(user.username for user in people.outside[:10])
        said = _("Not in the team: %(names)s. Let them be researchers in it until the workshop ends.")
        raise Invalid(fields={"people": said % {"names": names}})


def _asks_by_budget(team: Team, flavor: Flavor, spec: WorkshopSpec, seats: int, now: datetime) -> bool:
    """Hold the budgets and say whether one asks for an approval of the whole; raises BudgetExceeded."""
    if not is_limited(team):
        return False
    hold_budgets([team])
    price = quote_of(team, flavor, spec.of_one, now=now)
    whole = Expense(
        team, price.amount_micro * seats, spec.starts_at, spec.ends_at, hold_micro=price.hold_micro * seats,
        share_milli=flavor.share_milli * seats, memory_mib=flavor.memory_mib * seats,
    )  # fmt: skip
    return admit(whole, now=now) is not None


def ask_for_seats(workshop: Workshop, *, now: datetime) -> int:
    """Ask for the slices of all seats that have none, and tell their people; returns how many seats got one.

    Call inside a transaction with the workshop locked or new. Somebody who may not ask in the team any more gets none.
    """
    spec = RequestSpec(
        flavor=workshop.flavor.slug,
        duration_s=workshop.duration_s,
        name=workshop.name,
        purpose=workshop.purpose,
        starts_at=workshop.starts_at,
    )
    told = []
    seats = workshop.seats.filter(
        Q(request=None) | Q(request__state=RequestState.IMPOSSIBLE), claimed_at=None
    )
    for seat in seats.select_related("user"):
        try:
            seat.request = submit_request(
                team=workshop.team,
                actor=seat.user,
                rights=Rights(seat.user),
                spec=spec,
                now=now,
                is_approved=True,
                seat_of=workshop.organiser,
            )
        except (NotFound, Forbidden):
            continue
        seat.save(update_fields=["request"])
        told.append(seat.user)
    notify(
        told, "workshop.seat", target=workshop.uid, at=now,
        name=workshop.name, starts_at=workshop.starts_at.isoformat(), by=str(workshop.organiser),
    )  # fmt: skip
    return len(told)


def approve_workshop(
    *, workshop: Workshop, actor: User, rights: Rights, note: str, now: datetime
) -> Workshop:
    """Let the slices of a workshop that waits be asked for; its organiser may never decide it."""
    with transaction.atomic():
        locked = _decide(workshop, Approval.APPROVED, actor, rights, note, now)
        if now >= locked.starts_at:
            raise Conflict(_("It was to begin already. Ask its organiser for another time."))
        ask_for_seats(locked, now=now)
        record(
            actor, "workshop.approved", locked.uid, at=now, team_id=locked.team_id, **audited(locked.decided_for)
        )  # fmt: skip
        notify(
            [locked.organiser], "workshop.approved", target=locked.uid, at=now,
            **said_by(actor, locked.decided_for), name=locked.name,
        )  # fmt: skip
    return locked


@transaction.atomic
def reject_workshop(*, workshop: Workshop, actor: User, rights: Rights, note: str, now: datetime) -> Workshop:
    """Turn a workshop down with a reason that its organiser will read; nothing was asked for."""
    if not note.strip():
        raise Invalid(fields={"note": _("Say why, so that the person knows what to change.")})
    locked = _decide(workshop, Approval.REJECTED, actor, rights, note, now)
    record(
        actor, "workshop.rejected", locked.uid, at=now, team_id=locked.team_id, **audited(locked.decided_for)
    )  # fmt: skip
    notify(
        [locked.organiser], "workshop.rejected", target=locked.uid, at=now,
        **said_by(actor, locked.decided_for), note=note[:300], name=locked.name,
    )  # fmt: skip
    return locked


def _decide(
    workshop: Workshop, approval: str, actor: User, rights: Rights, note: str, now: datetime
) -> Workshop:
    """Write a decision on a workshop that waits, or raise Forbidden, NotFound or Conflict."""
    seats = rights.require_seats(workshop.team, workshop.organiser_id)
    if not seats:
        raise Forbidden(_("Nobody decides on a workshop of their own."))
    locked = lock_workshop(workshop)
    if locked.approval != Approval.AWAITING or locked.cancelled_at is not None:
        raise Conflict(_("This workshop does not wait for approval any more."))
    locked.approval, locked.decided_by, locked.decided_at = approval, actor, now
    locked.decided_for = absent(seats[0])
    locked.decision_note = note[:300]
    if approval == Approval.REJECTED:
        locked.cancelled_at = locked.settled_at = now
    locked.save(
        update_fields=[
            "approval",
            "decided_by",
            "decided_for",
            "decided_at",
            "decision_note",
            "cancelled_at",
            "settled_at",
        ]
    )
    return locked


@transaction.atomic
def add_attendees(
    *, workshop: Workshop, rights: Rights, people: AttendeeList, now: datetime, gives_roles: bool = False
) -> int:
    """Give more people a seat, who have none yet; returns how many. What was approved does not grow.

    Raises as ``create_workshop`` does, Conflict once it has begun or is over.
    """
    _require_manager(rights, workshop)
    locked = lock_workshop(workshop)
    _require_ahead(locked, now)
    held = set(locked.seats.values_list("user_id", flat=True))
    new = [user for user in people.people if user.pk not in held]
    spec = spec_of_workshop(locked)
    check_workshop(locked.team, rights, spec, len(held) + len(new), now=now)
    _check_people(people, gives_roles)
    is_large = needs_approval(
        locked.team, locked.flavor, count=len(held) + len(new), duration_s=locked.duration_s
    )
    is_large |= bool(new) and _asks_by_budget(locked.team, locked.flavor, spec, len(new), now)
    if new and locked.approval != Approval.AWAITING and is_large:
        raise Conflict(_("So many need an approval. Make another workshop for those who are new."))
    for user in new:
        if user in people.outside:
            give_role(
                team=locked.team, user=user, role=Role.RESEARCHER, rights=rights, now=now, ends_at=spec.ends_at
            )  # fmt: skip
        WorkshopSeat.objects.create(workshop=locked, user=user)
    if locked.approval != Approval.AWAITING:
        ask_for_seats(locked, now=now)
    record(
        rights.user, "workshop.people_added", locked.uid, at=now,
        team_id=locked.team_id, people=[user.username for user in new],
    )  # fmt: skip
    return len(new)


@transaction.atomic
def remove_attendee(*, workshop: Workshop, rights: Rights, username: str, now: datetime) -> None:
    """Take somebody's seat away who has not come; the slice is given up. Raises NotFound and Conflict."""
    _require_manager(rights, workshop)
    locked = lock_workshop(workshop)
    seat = locked.seats.select_related("user").filter(user__username=username).first()
    if seat is None:
        raise NotFound
    if seat.claimed_at is not None or locked.settled_at is not None:
        raise Conflict(_("This seat is not open any more."))
    give_up(lock_requests([seat]), actor=rights.user, now=now)
    seat.delete()
    notify([seat.user], "workshop.removed", target=locked.uid, at=now, name=locked.name)
    record(
        rights.user, "workshop.person_removed", locked.uid, at=now, team_id=locked.team_id, person=username
    )  # fmt: skip


@transaction.atomic
def ask_again(*, workshop: Workshop, rights: Rights, now: datetime) -> int:
    """Ask once more for the seats that got no slice; returns for how many. Raises Conflict once it has begun."""
    _require_manager(rights, workshop)
    locked = lock_workshop(workshop)
    _require_ahead(locked, now)
    if locked.approval == Approval.AWAITING:
        return 0
    return ask_for_seats(locked, now=now)


@transaction.atomic
def cancel_workshop(*, workshop: Workshop, rights: Rights, now: datetime) -> int:
    """End a workshop and give up what has not begun; what runs goes on. Returns how many slices. Safe to repeat."""
    _require_manager(rights, workshop)
    locked = lock_workshop(workshop)
    if locked.cancelled_at is not None:
        return 0
    locked.cancelled_at, locked.settled_at = now, locked.settled_at or now
    locked.save(update_fields=["cancelled_at", "settled_at"])
    seats = list(locked.seats.filter(claimed_at=None, returned_at=None).select_related("user"))
    count = give_up(lock_requests(seats), actor=rights.user, now=now)
    people = [seat.user for seat in seats if seat.request_id is not None]
    notify(
        people, "workshop.cancelled", target=locked.uid, at=now, name=locked.name, by=str(rights.user)
    )  # fmt: skip
    record(rights.user, "workshop.cancelled", locked.uid, at=now, team_id=locked.team_id)
    return count


def lock_requests(seats: Iterable[WorkshopSeat]) -> list[LeaseRequest]:
    """Return the requests of seats, locked in id order."""
    ids = [seat.request_id for seat in seats if seat.request_id is not None]
    rows = LeaseRequest.objects.select_for_update(of=("self",)).select_related("team", "author")
    return list(rows.filter(pk__in=ids).order_by("pk"))


def give_up(requests: Iterable[LeaseRequest], *, actor: User | None, now: datetime) -> int:
    """Take back locked requests that have not begun, bookings too; returns how many."""
    count = 0
    for request in requests:
        if request.state == RequestState.QUEUED:
            move_requests([request], RequestState.WITHDRAWN, at=now)
            count += 1
        elif request.state == RequestState.GRANTED and is_booked(request):
            cancel_booking(request, actor=actor, at=now)
            count += 1
    return count


def lock_workshop(workshop: Workshop) -> Workshop:
    """Return a workshop locked, with what its steps need at hand."""
    rows = Workshop.objects.select_for_update(of=("self",))
    return rows.select_related("team", "organiser", "flavor__device_model").get(pk=workshop.pk)


def spec_of_workshop(workshop: Workshop) -> WorkshopSpec:
    """Return what a workshop asks for."""
    return WorkshopSpec(
        name=workshop.name,
        flavor=workshop.flavor.slug,
        starts_at=workshop.starts_at,
        duration_s=workshop.duration_s,
        return_after_s=int((workshop.returns_at - workshop.starts_at).total_seconds()),
        purpose=workshop.purpose,
    )


def _require_ahead(workshop: Workshop, now: datetime) -> None:
    if workshop.cancelled_at is not None or now >= workshop.starts_at:
        raise Conflict(_("This workshop has begun or is over."))


def _require_manager(rights: Rights, workshop: Workshop) -> None:
    if not may_manage_workshop(rights, workshop):
        raise Forbidden if workshop_in_sight(rights, workshop) else NotFound


def may_manage_workshop(rights: Rights, workshop: Workshop) -> bool:
    """Say whether this person runs the workshop: its organiser as long as they may ask, a team admin, an operator."""
    is_organiser = workshop.organiser_id == rights.user.pk
    return rights.has(workshop.team, Role.ADMIN, Role.OPERATOR, *((Role.RESEARCHER,) if is_organiser else ()))


def may_see_people(rights: Rights, workshop: Workshop) -> bool:
    """Say whether this person sees who is in the workshop and who came."""
    return may_manage_workshop(rights, workshop) or rights.has(workshop.team, Role.APPROVER)


def workshop_in_sight(rights: Rights, workshop: Workshop) -> bool:
    """Say whether this person sees that the workshop exists."""
    return visible_workshops(rights).filter(pk=workshop.pk).exists()


def workshop_named(rights: Rights, uid: str) -> Workshop:
    """Return a workshop by its name, or raise NotFound also when it is out of sight."""
    found = visible_workshops(rights).filter(uid=uid).first()
    if found is None:
        raise NotFound
    return found
