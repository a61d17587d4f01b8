"""Deputies: they decide what somebody who is away may decide, as long as it lasts and nothing else."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from portal.audit.models import AuditEntry
from portal.audit.organisation import ApprovalRules, change_team
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.leases.approvals import approve_request, reject_request
from portal.leases.models import ApprovalStep, LeaseRequest
from portal.leases.selectors import (
    awaiting_approval,
    decisions_waiting,
    visible_lease,
    visible_request,
)
from portal.notifications.delegations import (
    BEGUN,
    ENDED,
    end_delegation,
    name_deputy,
    tell_of_delegations,
    visible_delegations,
)
from portal.teams.models import Delegation, Role, Team
from portal.teams.selectors import Rights
from portal.teams.services import add_member
from tests.portal.builders import World

HOUR = 3600
DAY = timedelta(days=1)


def rules(world: World, **values: Any) -> None:
    given = ApprovalRules(**{"approval_above_gpu_seconds": HOUR, **values})
    team = world.team("perception")
    change_team(
        team=team, name=team.name, cost_centre="", rules=given, rights=world.rights("operator"), now=world.now
    )
    world.teams["perception"] = Team.objects.get(slug="perception")


def ask(world: World, name: str = "bob", **more: Any) -> LeaseRequest:
    return world.submit(name, "h100", team="perception", duration_s=4 * HOUR, count=4, **more)


def away(world: World, name: str = "approver", deputy: str = "charlie", **more: Any) -> Delegation:
    values = {
        "starts_at": None,
        "ends_at": world.now + 7 * DAY,
        "reason": "holiday",
        "now": world.now,
        **more,
    }
    return name_deputy(rights=world.rights(name), deputy=deputy, **values)


def approve(world: World, request: LeaseRequest, name: str) -> LeaseRequest:
    return approve_request(
        request=request, actor=world.user(name), rights=world.rights(name), note="", now=world.now
    )


def test_a_deputy_decides_and_both_names_are_kept(world: World) -> None:
    rules(world)
    away(world)
    request = ask(world)

    assert list(awaiting_approval(world.rights("charlie"))) == [request]
    assert decisions_waiting(world.rights("charlie")) == 1
    approve(world, visible_request(world.rights("charlie"), request.uid), "charlie")

    request.refresh_from_db()
    charlie, approver = world.user("charlie"), world.user("approver")
    assert (request.state, request.decided_by, request.decided_for) == ("queued", charlie, approver)
    step = request.approval_steps.get()
    assert (step.approver, step.on_behalf_of) == (charlie, approver)
    entry = AuditEntry.objects.get(action="request.approved")
    assert (entry.actor, entry.detail) == (charlie, {"on_behalf_of": "approver"})
    facts = world.user("bob").notifications.get(kind="request.approved").facts
    assert facts == {"by": str(charlie), "on_behalf_of": str(approver)}


def test_a_deputy_is_asked_and_may_reject(world: World) -> None:
    rules(world)
    away(world)
    request = ask(world)

    reject_request(
        request=request, actor=world.user("charlie"), rights=world.rights("charlie"), note="no", now=world.now
    )

    request.refresh_from_db()
    assert (request.state, request.decided_for) == ("rejected", world.user("approver"))
    assert world.user("charlie").notifications.filter(kind="request.awaits_approval").exists()


def test_without_a_delegation_and_outside_its_time_there_is_no_right(world: World) -> None:
    rules(world)
    request = ask(world)
    later = away(world, starts_at=world.now + DAY, ends_at=world.now + 2 * DAY)
    for state in ("to come", "ended"):
        with pytest.raises(NotFound):
            approve(world, request, "charlie")
        with pytest.raises(NotFound):
            visible_request(world.rights("charlie"), request.uid)
        assert decisions_waiting(world.rights("charlie")) == 0, state
        if state == "to come":
            end_delegation(pk=later.pk, rights=world.rights("charlie"), now=world.now)
            running = away(world)
            approve(world, ask(world), "charlie")
            end_delegation(pk=running.pk, rights=world.rights("approver"), now=world.now)


def test_over_by_the_clock_there_is_no_right(world: World) -> None:
    rules(world)
    request = ask(world)
    past = {"created_at": world.now - 3 * DAY, "starts_at": world.now - 3 * DAY, "ends_at": world.now - DAY}
    Delegation.objects.create(
        delegator=world.user("approver"), deputy=world.user("charlie"), reason="holiday", **past
    )

    with pytest.raises(NotFound):
        approve(world, request, "charlie")


def test_a_deputy_sees_what_is_to_decide_and_nothing_else_of_the_team(world: World) -> None:
    small = world.submit("bob")
    lease = world.active("bob")
    rules(world)
    large = ask(world)
    away(world)
    charlie = world.rights("charlie")

    assert visible_request(charlie, large.uid) == large
    with pytest.raises(NotFound):
        visible_request(charlie, small.uid)
    with pytest.raises(NotFound):
        visible_lease(charlie, lease.uid)
    assert not charlie.has(world.team("perception"), *Role.values)


def test_a_deputy_loses_what_the_absent_loses(world: World) -> None:
    rules(world)
    away(world)
    request, approver = ask(world), world.user("approver")

    approver.is_active = False
    approver.save()
    with pytest.raises(NotFound):
        approve(world, request, "charlie")
    approver.is_active = True
    approver.save()
    approver.memberships.all().delete()
    with pytest.raises(NotFound):
        approve(world, request, "charlie")


def test_what_was_delegated_is_not_handed_on(world: World) -> None:
    rules(world)
    add_member(team=world.team("language"), user=world.user("charlie"), role=Role.APPROVER, now=world.now)
    away(world, "approver", "charlie")
    away(world, "charlie", "finance")

    request = ask(world)
    assert not awaiting_approval(world.rights("finance")).exists()
    with pytest.raises(Forbidden):
        approve(world, request, "finance")


def test_nobody_decides_on_their_own_through_a_deputy(world: World) -> None:
    rules(world)
    add_member(
        team=world.team("perception"), user=world.user("approver"), role=Role.RESEARCHER, now=world.now
    )
    away(world)
    away(world, "alice", "bob")

    own_of_absent = ask(world, "approver")
    own_of_deputy = ask(world, "bob")

    assert list(awaiting_approval(world.rights("charlie"))) == [own_of_deputy]
    assert list(awaiting_approval(world.rights("bob"))) == [own_of_absent]
    with pytest.raises(Forbidden, match="own"):
        approve(world, own_of_absent, "charlie")
    with pytest.raises(Forbidden, match="own"):
        approve(world, own_of_deputy, "bob")
    assert not world.user("charlie").notifications.filter(target=own_of_absent.uid).exists()


@pytest.mark.parametrize(("first", "second"), [("charlie", "approver"), ("approver", "charlie")])
def test_a_person_and_their_deputy_are_not_two(world: World, first: str, second: str) -> None:
    rules(world, second_approval_above_gpu_seconds=8 * HOUR)
    away(world)
    request = ask(world)

    assert approve(world, request, first).state == "awaiting_approval"
    assert not awaiting_approval(world.rights(second)).exists()
    assert not world.user(second).notifications.filter(kind="request.awaits_second_approval").exists()
    with pytest.raises(Conflict, match="count as one"):
        approve(world, request, second)
    assert approve(world, request, "alice").state == "queued"


def test_one_deputy_of_two_is_one_person(world: World) -> None:
    rules(world, second_approval_above_gpu_seconds=8 * HOUR)
    away(world)
    away(world, "alice")
    request = ask(world)

    approve(world, request, "charlie")

    with pytest.raises(Conflict, match="approved this already"):
        approve(world, request, "charlie")


def test_for_somebody_above_a_deputy_gives_the_second_approval(world: World) -> None:
    rules(world, second_approval_above_gpu_seconds=8 * HOUR)
    for name in ("charlie", "finance"):
        add_member(team=world.team("perception"), user=world.user(name), role=Role.APPROVER, now=world.now)
    away(world, "alice")
    request = ask(world)

    approve(world, request, "finance")
    assert list(awaiting_approval(world.rights("charlie"))) == [request]
    approve(world, request, "charlie")

    request.refresh_from_db()
    assert (request.state, request.decided_for) == ("queued", world.user("alice"))


def test_the_database_counts_them_as_one_too(world: World) -> None:
    rules(world, second_approval_above_gpu_seconds=8 * HOUR)
    away(world)
    request = ask(world)
    approve(world, request, "charlie")

    step = ApprovalStep.objects.get()
    step.pk, step.approver, step.on_behalf_of = None, world.user("approver"), None
    with pytest.raises(IntegrityError, match="count as one"), transaction.atomic():
        step.save(force_insert=True)


NONSENSE: dict[str, dict[str, Any]] = {
    "delegation_is_to_somebody_else": {"deputy": "approver"},
    "delegation_is_bounded": {"days": 91},
    "delegation_has_a_reason": {"reason": ""},
    "delegation_to_one_at_a_time": {"deputy": "bob", "twice": True},
    "delegation_is_ended_by_one_of_both": {"ended_by": "bob"},
}


@pytest.mark.parametrize("constraint", NONSENSE)
def test_the_database_refuses_nonsense(world: World, constraint: str) -> None:
    wrong = {"deputy": "charlie", "days": 7, "reason": "holiday", **NONSENSE[constraint]}
    if wrong.get("twice"):
        away(world)
    ended = {"ended_at": world.now, "ended_by": world.user(wrong["ended_by"])} if "ended_by" in wrong else {}

    with pytest.raises(IntegrityError, match=constraint), transaction.atomic():
        Delegation.objects.create(
            delegator=world.user("approver"), deputy=world.user(wrong["deputy"]), reason=wrong["reason"],
            created_at=world.now, starts_at=world.now, ends_at=world.now + wrong["days"] * DAY, **ended,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("deputy", {"deputy": "nobody-here"}),
        ("deputy", {"deputy": "approver"}),
        ("ends_at", {"ends_at": timedelta(days=91)}),
        ("ends_at", {"ends_at": timedelta(0)}),
        ("starts_at", {"starts_at": -DAY}),
        ("reason", {"reason": " "}),
        ("reason", {"reason": "two\nlines"}),
    ],
)
def test_a_wrong_delegation_is_refused_by_field(world: World, field: str, wrong: dict[str, Any]) -> None:
    given = {k: world.now + v if isinstance(v, timedelta) else v for k, v in wrong.items()}

    with pytest.raises(Invalid) as refused:
        away(world, **given)

    assert list(refused.value.fields) == [field]


def test_whoever_decides_nowhere_names_no_deputy_and_two_at_once_are_refused(world: World) -> None:
    with pytest.raises(Forbidden):
        away(world, "bob")
    away(world)
    with pytest.raises(Conflict, match="a part of that time"):
        away(world, deputy="bob", starts_at=world.now + DAY)
    away(world, deputy="bob", starts_at=world.now + 7 * DAY, ends_at=world.now + 9 * DAY)


@pytest.mark.parametrize("side", ["approver", "charlie"])
def test_either_side_ends_it_and_nobody_else(world: World, side: str) -> None:
    made = away(world)
    with pytest.raises(NotFound):
        end_delegation(pk=made.pk, rights=world.rights("alice"), now=world.now)

    for _again in range(2):
        end_delegation(pk=made.pk, rights=world.rights(side), now=world.now + DAY)

    made.refresh_from_db()
    assert made.ended_by == world.user(side)
    assert Rights(world.user("charlie")).stands_in_for == ()
    assert AuditEntry.objects.filter(action="delegation.ended").count() == 1
    assert world.user("charlie").notifications.get(kind=ENDED).facts["by"] == str(world.user(side))
    assert not visible_delegations(world.rights("alice")).exists()


def test_both_are_told_once_when_it_begins_and_ends(world: World) -> None:
    away(world, starts_at=world.now + DAY, ends_at=world.now + 2 * DAY)

    told = [tell_of_delegations(now=world.now + timedelta(hours=hours)) for hours in (1, 24, 25, 48, 49)]

    assert told == [0, 1, 0, 1, 0]
    for name in ("approver", "charlie"):
        kinds = world.user(name).notifications.order_by("created_at").values_list("kind", flat=True)
        assert list(kinds) == [BEGUN, ENDED]
