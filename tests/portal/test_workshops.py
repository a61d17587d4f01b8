"""Workshops: one request for a list of people, each slice started by its person, the rest given back unbilled."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction

from portal.billing.metering import meter_all
from portal.billing.models import UsageRecord
from portal.budgets.models import BudgetAction, BudgetThreshold, SpendBasis, TeamBudget
from portal.budgets.periods import month_start
from portal.common.errors import BudgetExceeded, Conflict, Forbidden, Impossible, Invalid, NotFound
from portal.common.invariants import broken
from portal.fleet.models import Node
from portal.leases import bookings
from portal.leases.attendees import AttendeeList, find_attendees
from portal.leases.lifecycle import release_lease
from portal.leases.models import Lease, LeaseRequest, Placement, Workshop
from portal.leases.seats import claim_at_sign_in, claim_seat, return_unclaimed, seats_ahead, seats_of
from portal.leases.selectors import visible_workshops
from portal.leases.workshops import (
    WorkshopSpec,
    add_attendees,
    approve_workshop,
    ask_again,
    cancel_workshop,
    create_workshop,
    reject_workshop,
    remove_attendee,
    workshop_named,
)
from portal.teams.models import Membership, Role
from portal.teams.services import add_member
from tests.portal.builders import World, make_user

pytestmark = pytest.mark.django_db
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


@pytest.fixture
def campus(world: World) -> World:
    """A world in which alice's team has two students beside bob: dora in it, emil in no team at all."""
    for name in ("dora", "emil"):
        world.people[name] = make_user(name)
        world.people[name].email = f"{name}@example.org"
        world.people[name].save()
    add_member(team=world.team("vision"), user=world.user("dora"), role=Role.RESEARCHER, now=world.now)
    # Its nodes are heard as long as these tests look.
    Node.objects.update(last_seen_at=world.now + 5 * HOUR)
    return world


def named(world: World, text: str, *, who: str = "alice", team: str = "vision") -> AttendeeList:
    return find_attendees(text, team=world.team(team), rights=world.rights(who), until=world.now + 3 * HOUR)


def plan_one(
    world: World, text: str = "alice\ndora", *, who: str = "alice", gives_roles: bool = False, **more: object
) -> Workshop:
    values = {
        "name": "Intro to CUDA", "flavor": "h100-1g-10gb", "starts_at": world.now + HOUR, "duration_s": 7200,
    }  # fmt: skip
    return create_workshop(
        team=world.team("vision"),
        rights=world.rights(who),
        spec=WorkshopSpec(**{**values, **more}),  # type: ignore[arg-type]
        people=named(world, text, who=who),
        now=world.now,
        gives_roles=gives_roles,
    )


def states(world: World, workshop: Workshop, *, after: timedelta) -> dict[str, str]:
    found = seats_of(workshop, now=world.now + after)
    return {view.seat.user.username: view.state for view in found}


def lease_of(workshop: Workshop, name: str) -> Lease:
    return Lease.objects.get(request__seat__workshop=workshop, user__username=name)


def test_a_pasted_list_is_looked_up_by_name_mail_and_full_name(campus: World) -> None:
    found = named(campus, 'ALICE\n"Dora" <DORA@example.org>; emil@example.org\nnobody, Dora\n')

    assert [user.username for user in found.ready] == ["alice", "dora"]
    assert [user.username for user in found.outside] == ["emil"]
    assert found.unknown == ("nobody",)
    assert found.repeated == ("Dora",)


def test_who_cannot_give_roles_does_not_learn_who_else_has_an_account(campus: World) -> None:
    found = named(campus, "dora\nemil\ncharlie\nnobody", who="dora")

    assert [user.username for user in found.ready] == ["dora"]
    assert found.outside == ()
    assert found.unknown == ("emil", "charlie", "nobody")


def test_a_role_that_ends_before_the_workshop_is_not_enough(campus: World) -> None:
    Membership.objects.filter(user=campus.user("dora")).update(ends_at=campus.now + HOUR)

    assert [user.username for user in named(campus, "dora").outside] == ["dora"]


def test_a_list_too_long_is_refused(campus: World) -> None:
    with pytest.raises(Invalid) as refused:
        named(campus, "\n".join(f"student{n}" for n in range(201)))

    assert "200" in refused.value.fields["people"]


def test_everybody_gets_a_booking_of_their_own_and_is_told(campus: World) -> None:
    workshop = plan_one(campus)
    campus.turn()

    requests = LeaseRequest.objects.filter(seat__workshop=workshop)
    assert {(r.author.username, r.state, r.awaits_person) for r in requests} == {
        ("alice", "granted", True), ("dora", "granted", True),
    }  # fmt: skip
    assert set(Lease.objects.values_list("state", flat=True)) == {"booked"}
    assert campus.user("dora").notifications.get(kind="workshop.seat").facts["by"] == "Alice"
    assert states(campus, workshop, after=timedelta(0)) == {"alice": "ahead", "dora": "ahead"}


def test_a_slice_starts_when_its_person_comes_and_costs_from_then_on(campus: World) -> None:
    workshop = plan_one(campus)
    campus.turn()
    begins, came = workshop.starts_at, workshop.starts_at + 10 * MINUTE
    assert bookings.start_booked(now=begins + MINUTE) == 0

    assert claim_at_sign_in(campus.user("dora"), now=came) == [workshop]

    assert bookings.start_booked(now=came) == 1
    lease = lease_of(workshop, "dora")
    campus.ready(lease, at=came + MINUTE)
    lease.refresh_from_db()
    assert (lease.state, lease.not_after) == ("active", workshop.ends_at)
    assert states(campus, workshop, after=HOUR + 12 * MINUTE) == {"alice": "open", "dora": "came"}
    assert not broken()


def test_whoever_is_early_gets_the_slice_at_its_time(campus: World) -> None:
    workshop = plan_one(campus)
    campus.turn()

    with pytest.raises(Conflict, match="from"):
        claim_seat(user=campus.user("dora"), workshop=workshop, now=campus.now)
    claim_seat(user=campus.user("dora"), workshop=workshop, now=workshop.starts_at - 5 * MINUTE)

    assert bookings.start_booked(now=workshop.starts_at - MINUTE) == 0
    assert bookings.start_booked(now=workshop.starts_at) == 1


def test_what_nobody_uses_goes_back_and_is_not_billed(campus: World) -> None:
    workshop = plan_one(campus)
    campus.turn()
    claim_seat(user=campus.user("dora"), workshop=workshop, now=workshop.starts_at)
    bookings.start_booked(now=workshop.starts_at)
    lease = lease_of(workshop, "dora")
    campus.ready(lease, at=workshop.starts_at)

    assert return_unclaimed(now=workshop.returns_at - MINUTE) == 0
    assert return_unclaimed(now=workshop.returns_at) == 1
    assert return_unclaimed(now=workshop.returns_at) == 0

    unused = lease_of(workshop, "alice")
    assert (unused.state, unused.request.state, unused.activated_at) == ("ended", "withdrawn", None)
    assert not Placement.objects.filter(lease=unused, is_live=True).exists()
    release_lease(lease=lease, actor=campus.user("dora"), now=workshop.returns_at + HOUR)
    campus.gone(lease, at=workshop.returns_at + HOUR)
    meter_all(now=workshop.returns_at + 2 * HOUR)
    assert set(UsageRecord.objects.values_list("lease", flat=True)) == {lease.pk}
    told = campus.user("alice").notifications.get(kind="workshop.settled")
    assert (told.facts["came"], told.facts["missing"]) == (1, 1)
    assert states(campus, workshop, after=3 * HOUR) == {"alice": "returned", "dora": "came"}
    with pytest.raises(Conflict, match="no slice"):
        claim_seat(user=campus.user("alice"), workshop=workshop, now=workshop.returns_at + MINUTE)
    assert not broken()


def test_a_seat_that_lost_its_place_waits_for_its_person_before_it_queues(campus: World) -> None:
    workshop = plan_one(campus, "dora")
    campus.turn()
    begins = workshop.starts_at
    bookings.replan_on([lease_of(workshop, "dora").node_id], begins, begins + HOUR, why="test", at=begins)

    assert campus.turn(begins + MINUTE) == []
    claim_seat(user=campus.user("dora"), workshop=workshop, now=begins + 2 * MINUTE)
    (made,) = campus.turn(begins + 2 * MINUTE)

    assert (made.state, made.request.remaining_s) == ("preparing", 7200 - 120)


def test_more_than_the_team_may_have_waits_for_one_approval_of_all(campus: World) -> None:
    team = campus.team("vision")
    team.approval_above_gpu_seconds = 1000
    team.save()
    workshop = plan_one(campus)
    assert (workshop.approval, LeaseRequest.objects.count()) == ("awaiting_approval", 0)
    assert campus.user("approver").notifications.get().facts["seats"] == 2
    decision = {"workshop": workshop, "note": "ok", "now": campus.now}

    with pytest.raises(Forbidden, match="their own"):
        approve_workshop(actor=campus.user("alice"), rights=campus.rights("alice"), **decision)
    with pytest.raises(NotFound):
        approve_workshop(actor=campus.user("charlie"), rights=campus.rights("charlie"), **decision)
    approve_workshop(actor=campus.user("approver"), rights=campus.rights("approver"), **decision)
    with pytest.raises(Conflict):
        approve_workshop(actor=campus.user("approver"), rights=campus.rights("approver"), **decision)

    assert set(LeaseRequest.objects.values_list("state", flat=True)) == {"queued"}
    assert len(campus.turn()) == 2


def test_a_workshop_turned_down_asks_for_nothing(campus: World) -> None:
    team = campus.team("vision")
    team.approval_above_gpu_seconds = 1000
    team.save()
    workshop = plan_one(campus)
    who = {"actor": campus.user("approver"), "rights": campus.rights("approver"), "now": campus.now}

    with pytest.raises(Invalid):
        reject_workshop(workshop=workshop, note=" ", **who)
    reject_workshop(workshop=workshop, note="too many", **who)

    workshop.refresh_from_db()
    assert (workshop.approval, LeaseRequest.objects.count()) == ("rejected", 0)
    assert campus.user("alice").notifications.get(kind="workshop.rejected").facts["note"] == "too many"


def test_one_nobody_decided_on_in_time_lapses(campus: World) -> None:
    team = campus.team("vision")
    team.approval_above_gpu_seconds = 1000
    team.save()
    workshop = plan_one(campus)
    decision = {"workshop": workshop, "note": "", "now": workshop.starts_at}

    with pytest.raises(Conflict, match="begin"):
        approve_workshop(actor=campus.user("approver"), rights=campus.rights("approver"), **decision)
    return_unclaimed(now=workshop.returns_at)

    assert campus.user("alice").notifications.filter(kind="workshop.lapsed").exists()
    assert LeaseRequest.objects.count() == 0


def test_a_budget_judges_the_whole_and_refuses_all_of_it(campus: World) -> None:
    budget = TeamBudget.objects.create(
        team=campus.team("vision"), amount_micro=1_500_000,
        starts_on=month_start(campus.now), created_at=campus.now,
    )  # fmt: skip
    BudgetThreshold.objects.create(
        budget=budget, percent=100, action=BudgetAction.BLOCK, basis=SpendBasis.ACTUAL
    )

    plan_one(campus, "dora")  # 2 h of an eighth of a device at 3.60 an hour
    with pytest.raises(BudgetExceeded):
        plan_one(campus, "alice\ndora")

    assert (Workshop.objects.count(), LeaseRequest.objects.count()) == (1, 1)


def test_unknown_people_and_those_outside_are_named_and_nothing_changes(campus: World) -> None:
    with pytest.raises(Invalid) as unknown:
        plan_one(campus, "dora\nnobody")
    with pytest.raises(Invalid) as outside:
        plan_one(campus, "dora\nemil")

    assert "nobody" in unknown.value.fields["people"]
    assert "emil" in outside.value.fields["people"]
    assert Workshop.objects.count() == 0


def test_an_admin_lets_people_in_until_the_workshop_ends(campus: World) -> None:
    workshop = plan_one(campus, "emil", gives_roles=True)

    role = Membership.objects.get(user=campus.user("emil"))
    assert (role.role, role.ends_at) == ("researcher", workshop.ends_at)
    assert states(campus, workshop, after=timedelta(0)) == {"emil": "ahead"}


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"name": " "}, "name"),
        ({"flavor": "none"}, "flavor"),
        ({"duration_s": 10**8}, "duration_s"),
        ({"return_after_s": 0}, "return_after_s"),
        ({"return_after_s": 7201}, "return_after_s"),
        ({"starts_at": timedelta(days=-1)}, "starts_at"),
    ],
)
def test_what_cannot_be_is_refused_by_field(campus: World, more: dict[str, object], field: str) -> None:
    if isinstance(more.get("starts_at"), timedelta):
        more = {"starts_at": campus.now + more["starts_at"]}  # type: ignore[operator]

    with pytest.raises(Invalid) as refused:
        plan_one(campus, **more)

    assert field in refused.value.fields
    assert Workshop.objects.count() == 0


def test_more_than_there_is_is_refused_with_the_most_that_fits(campus: World) -> None:
    names = []
    for n in range(9):
        add_member(
            team=campus.team("vision"), user=make_user(f"student{n}"), role=Role.RESEARCHER, now=campus.now
        )
        names.append(f"student{n}")

    with pytest.raises(Impossible) as refused:
        plan_one(campus, "\n".join(names), flavor="h100")

    assert refused.value.facts["nearest_count"] == 8


def test_those_out_of_sight_find_nothing(campus: World) -> None:
    workshop = plan_one(campus)

    assert not visible_workshops(campus.rights("charlie")).exists()
    with pytest.raises(NotFound):
        workshop_named(campus.rights("charlie"), workshop.uid)
    with pytest.raises(NotFound):
        claim_seat(user=campus.user("charlie"), workshop=workshop, now=workshop.starts_at)
    for act in (cancel_workshop, ask_again):
        with pytest.raises(NotFound):
            act(workshop=workshop, rights=campus.rights("charlie"), now=campus.now)
    with pytest.raises(Forbidden):
        cancel_workshop(workshop=workshop, rights=campus.rights("dora"), now=campus.now)


def test_a_seat_taken_away_gives_its_slice_back(campus: World) -> None:
    workshop = plan_one(campus)
    campus.turn()

    remove_attendee(workshop=workshop, rights=campus.rights("alice"), username="dora", now=campus.now)

    assert states(campus, workshop, after=timedelta(0)) == {"alice": "ahead"}
    assert Lease.objects.get(user=campus.user("dora")).state == "ended"
    with pytest.raises(NotFound):
        remove_attendee(workshop=workshop, rights=campus.rights("alice"), username="dora", now=campus.now)


def test_people_are_added_until_it_begins_but_never_beyond_what_needs_an_approval(campus: World) -> None:
    team = campus.team("vision")
    team.approval_above_gpu_seconds = 1000
    team.save()
    workshop = plan_one(campus, "dora", duration_s=7200)
    more = {"workshop": workshop, "rights": campus.rights("alice")}

    assert add_attendees(people=named(campus, "dora"), now=campus.now, **more) == 0
    with pytest.raises(Conflict, match="approval"):
        add_attendees(people=named(campus, "alice"), now=campus.now, **more)
    team.approval_above_gpu_seconds = None
    team.save()
    assert add_attendees(people=named(campus, "alice\ndora"), now=campus.now, **more) == 1
    with pytest.raises(Conflict, match="begun"):
        add_attendees(people=named(campus, "alice"), now=workshop.starts_at, **more)

    assert len(campus.turn()) == 2


def test_cancelling_gives_up_what_has_not_begun_and_tells_them(campus: World) -> None:
    workshop = plan_one(campus)
    campus.turn()
    claim_seat(user=campus.user("dora"), workshop=workshop, now=workshop.starts_at)
    bookings.start_booked(now=workshop.starts_at)

    assert cancel_workshop(workshop=workshop, rights=campus.rights("alice"), now=workshop.starts_at) == 1
    assert cancel_workshop(workshop=workshop, rights=campus.rights("alice"), now=workshop.starts_at) == 0

    assert (lease_of(workshop, "alice").state, lease_of(workshop, "dora").state) == ("ended", "preparing")
    assert campus.user("alice").notifications.filter(kind="workshop.cancelled").exists()
    assert seats_ahead(campus.user("alice"), now=workshop.starts_at) == []


def test_a_seat_without_a_slice_is_its_organisers_matter_and_is_asked_for_again(campus: World) -> None:
    workshop = plan_one(campus, "dora")
    LeaseRequest.objects.filter(seat__workshop=workshop).update(state="impossible")

    assert states(campus, workshop, after=timedelta(0)) == {"dora": "no_slice"}
    assert ask_again(workshop=workshop, rights=campus.rights("alice"), now=campus.now) == 1
    assert ask_again(workshop=workshop, rights=campus.rights("alice"), now=campus.now) == 0
    assert states(campus, workshop, after=timedelta(0)) == {"dora": "ahead"}


def test_its_home_shows_a_seat_from_the_day_before_on(campus: World) -> None:
    plan_one(campus, "dora", starts_at=campus.now + 30 * HOUR)

    assert seats_ahead(campus.user("dora"), now=campus.now) == []
    (view,) = seats_ahead(campus.user("dora"), now=campus.now + 7 * HOUR)
    assert view.state == "ahead"
    (view,) = seats_ahead(campus.user("dora"), now=campus.now + 30 * HOUR)
    assert view.state == "open"


def test_the_database_lets_no_slice_begin_before_its_person_came(campus: World) -> None:
    workshop = plan_one(campus, "dora")
    campus.turn()

    with pytest.raises(IntegrityError, match="waits for its person"), transaction.atomic():
        Lease.objects.update(state="preparing")
    claim_seat(user=campus.user("dora"), workshop=workshop, now=workshop.starts_at)
    with pytest.raises(IntegrityError, match="claimed once"), transaction.atomic():
        workshop.seats.update(claimed_at=None)
    with pytest.raises(IntegrityError, match="decided"), transaction.atomic():
        Workshop.objects.update(duration_s=1)
