"""Approvals: less than was asked for, of terms that were seen, by two people, and when nobody decides."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from portal.audit.models import AuditEntry
from portal.audit.organisation import ApprovalRules, change_team
from portal.common.errors import Conflict, Forbidden, Invalid
from portal.leases.approvals import approve_request, terms_of, time_out_approvals
from portal.leases.elastic import set_growth
from portal.leases.models import ApprovalStep, LeaseRequest
from portal.leases.selectors import awaiting_approval, decisions_waiting
from portal.teams.models import Role, Team
from portal.teams.services import add_member
from tests.portal.builders import World

HOUR = 3600


def rules(world: World, **values: Any) -> None:
    given = ApprovalRules(**{"approval_above_gpu_seconds": HOUR, **values})
    team = world.team("perception")
    change_team(
        team=team, name=team.name, cost_centre="", rules=given, rights=world.rights("operator"), now=world.now
    )
    world.teams["perception"] = Team.objects.get(slug="perception")


def ask(world: World, **more: Any) -> LeaseRequest:
    return world.submit("bob", "h100", duration_s=4 * HOUR, count=4, **more)


def approve(world: World, request: LeaseRequest, name: str, **less: Any) -> LeaseRequest:
    return approve_request(
        request=request, actor=world.user(name), rights=world.rights(name), note="", now=world.now, **less
    )


def colleagues(world: World) -> tuple[str, str]:
    """Return two who approve in the team itself; alice is admin of the team above."""
    for name in ("charlie", "finance"):
        add_member(team=world.team("perception"), user=world.user(name), role=Role.APPROVER, now=world.now)
    return "charlie", "finance"


def test_less_may_be_approved_than_was_asked_for(world: World) -> None:
    rules(world)
    request = ask(world, most_count=6)
    before = request.quote_micro

    approve(world, request, "approver", count=2, duration_s=HOUR)

    request.refresh_from_db()
    assert (request.state, request.count, request.duration_s, request.remaining_s) == (
        "queued",
        2,
        HOUR,
        HOUR,
    )
    assert request.most_count == 2
    assert request.quote_micro * 8 == before
    step = request.approval_steps.get()
    assert (step.asked_count, step.asked_duration_s, step.count, step.duration_s) == (4, 4 * HOUR, 2, HOUR)
    assert AuditEntry.objects.get(action="request.approved").detail == {"count": 2, "duration_s": HOUR}
    assert world.user("bob").notifications.get().facts["count"] == 2


@pytest.mark.parametrize("less", [{"count": 5}, {"count": 0}, {"duration_s": 5 * HOUR}, {"duration_s": 0}])
def test_more_than_was_asked_for_cannot_be_approved(world: World, less: dict[str, int]) -> None:
    rules(world)
    request = ask(world)

    with pytest.raises(Invalid) as refused:
        approve(world, request, "approver", **less)

    ((field, said),) = refused.value.fields.items()
    assert [field] == list(less)
    assert said == ("Approve 1 to 4." if field == "count" else "Approve 1 s to 4 h.")
    assert not ApprovalStep.objects.exists()


def test_an_approval_is_of_what_was_seen(world: World) -> None:
    rules(world)
    request = ask(world, most_count=6)
    seen = terms_of(request)
    bob: dict[str, Any] = {"actor": world.user("bob"), "rights": world.rights("bob"), "now": world.now}
    set_growth(request=request, most_count=5, **bob)

    with pytest.raises(Conflict, match="something else"):
        approve(world, request, "approver", terms=seen)

    request.refresh_from_db()
    assert approve(world, request, "approver", terms=terms_of(request)).state == "queued"


def test_what_was_approved_is_never_rewritten(world: World) -> None:
    rules(world)
    approve(world, ask(world), "approver")

    for change in (lambda rows: rows.update(count=1), lambda rows: rows.delete()):
        with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
            change(ApprovalStep.objects.all())


def test_above_the_second_threshold_two_people_approve_one_of_them_above(world: World) -> None:
    rules(world, second_approval_above_gpu_seconds=8 * HOUR)
    (first, other), request = colleagues(world), ask(world)

    approve(world, request, first)

    request.refresh_from_db()
    assert request.state == "awaiting_approval"
    assert not awaiting_approval(world.rights(first)).exists()
    assert not awaiting_approval(world.rights(other)).exists()
    assert decisions_waiting(world.rights("alice")) == 1
    assert world.user("alice").notifications.filter(kind="request.awaits_second_approval").exists()
    with pytest.raises(Conflict, match="approved this already"):
        approve(world, request, first)
    with pytest.raises(Conflict, match="team above"):
        approve(world, request, other)
    approve(world, request, "alice")
    request.refresh_from_db()
    assert (request.state, request.decided_by) == ("queued", world.user("alice"))


def test_who_decides_above_still_needs_a_second_person(world: World) -> None:
    rules(world, second_approval_above_gpu_seconds=8 * HOUR)
    request = ask(world)

    assert approve(world, request, "alice").state == "awaiting_approval"
    assert awaiting_approval(world.rights("approver")).exists()
    assert approve(world, request, "approver").state == "queued"


def test_cut_below_the_second_threshold_one_approval_is_enough(world: World) -> None:
    rules(world, second_approval_above_gpu_seconds=8 * HOUR)

    assert approve(world, ask(world), "approver", count=2).state == "queued"


def test_a_request_goes_on_waiting_until_its_teams_time_is_over(world: World) -> None:
    rules(world, approval_time_out_s=2 * HOUR, approval_time_out_then="reject")
    request = ask(world)

    assert time_out_approvals(now=world.now + timedelta(hours=1)) == 0
    assert time_out_approvals(now=world.now + timedelta(hours=2)) == 1
    assert time_out_approvals(now=world.now + timedelta(hours=3)) == 0

    request.refresh_from_db()
    assert (request.state, request.decided_by) == ("rejected", None)
    assert world.user("bob").notifications.get().facts["then"] == "reject"


def test_a_rule_may_approve_what_nobody_decides_on(world: World) -> None:
    rules(world, approval_time_out_s=HOUR, approval_time_out_then="approve")
    request = ask(world)

    time_out_approvals(now=world.now + timedelta(hours=1))

    request.refresh_from_db()
    assert request.state == "queued"
    assert AuditEntry.objects.get(action="request.timed_out_approve").actor is None


def test_a_rule_never_stands_in_for_the_second_person(world: World) -> None:
    rules(
        world,
        second_approval_above_gpu_seconds=HOUR,
        approval_time_out_s=HOUR,
        approval_time_out_then="approve",
    )
    request = ask(world)

    assert time_out_approvals(now=world.now + timedelta(hours=1)) == 1
    assert time_out_approvals(now=world.now + timedelta(hours=2)) == 0

    request.refresh_from_db()
    assert request.state == "awaiting_approval"
    assert world.user("approver").notifications.filter(kind="request.approval_overdue").count() == 1


def test_an_own_admin_does_not_change_the_rules(world: World) -> None:
    team = world.team("perception")
    add_member(team=team, user=world.user("charlie"), role=Role.ADMIN, now=world.now)

    with pytest.raises(Forbidden):
        change_team(
            team=team, name=team.name, cost_centre="", rules=ApprovalRules(None),
            rights=world.rights("charlie"), now=world.now,
        )  # fmt: skip


def test_a_second_approval_begins_no_lower_than_the_first(world: World) -> None:
    with pytest.raises(Invalid) as refused:
        rules(world, second_approval_above_gpu_seconds=1)

    assert "second_approval_above_gpu_seconds" in refused.value.fields
    with pytest.raises(IntegrityError), transaction.atomic():
        Team.objects.filter(slug="perception").update(second_approval_above_gpu_seconds=1)
