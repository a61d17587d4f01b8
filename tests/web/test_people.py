"""Accounts: operators find them, close that of whoever leaves, and let people in again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from portal.accounts.models import ApiToken, User
from portal.audit.models import AuditEntry
from portal.common.errors import Conflict, Forbidden, NotFound
from portal.jobs import departures
from portal.jobs.departures import close_account, open_work, people, reopen_account
from portal.jobs.models import Job
from portal.leases.models import Lease, LeaseRequest
from tests.jobs.test_jobs import hand_in
from tests.portal.builders import World
from tests.web.conftest import SignedIn

HOME = "/operations/people/"


def closed(world: World, name: str = "bob", *, ends_leases: bool = False, by: str = "operator") -> Any:
    return close_account(
        name, actor=world.user(by), rights=world.rights(by), ends_leases=ends_leases, now=world.now
    )


def busy(world: World) -> tuple[Lease, Lease, LeaseRequest, Job]:
    """Bob with a lease that runs, a booking, a request that waits, and a job that waits."""
    running = world.active("bob")
    start = world.now + timedelta(days=1)
    booked = world.submit("bob", starts_at=start)
    world.turn()
    waiting = world.submit("bob", "h100", count=1, duration_s=3600)
    (job,) = hand_in(world)
    return running, Lease.objects.get(request=booked), waiting, job


def test_who_leaves_comes_in_no_more_and_what_waits_is_taken_back(world: World, signed_in: SignedIn) -> None:
    running, booked, waiting, job = busy(world)
    bob, token = signed_in("bob"), world.token("bob", "admin")
    before = open_work(world.user("bob"))

    ended = closed(world)

    for row in (running, booked, waiting, job):
        row.refresh_from_db()
    assert ended == before
    assert (before.requests, before.jobs, before.leases) == (2, 1, 1)
    assert bob.get("/")["Location"].startswith("/sign-in/")
    asked = bob.get("/api/v1/me/", headers={"Authorization": f"Bearer {token}"})
    assert asked.status_code == 401
    assert (waiting.state, job.state, booked.state) == ("withdrawn", "cancelled", "ended")
    assert running.state == "active"  # it goes on to its end
    entry = AuditEntry.objects.get(action="account.closed")
    assert (entry.actor, entry.target, entry.detail["tokens"]) == (world.user("operator"), "bob", 1)


def test_what_runs_ends_too_where_that_is_asked_for_also_later(world: World) -> None:
    running, *_rest = busy(world)
    closed(world)

    closed(world, ends_leases=True)

    running.refresh_from_db()
    assert (running.state, running.end_reason) == ("ending", "released")
    assert open_work(world.user("bob")) == departures.OpenWork(0, 0, 0, 0)
    assert AuditEntry.objects.filter(action="account.closed").count() == 1


def test_one_thing_that_cannot_be_ended_keeps_none_of_the_others(world: World, monkeypatch) -> None:
    _running, _booked, waiting, job = busy(world)

    def refuse(**_words: object) -> None:
        raise Conflict("it has begun meanwhile")

    monkeypatch.setattr(departures, "cancel_job", refuse)
    closed(world)

    waiting.refresh_from_db()
    job.refresh_from_db()
    assert (waiting.state, job.state) == ("withdrawn", "waiting")


def test_whoever_comes_back_has_their_roles_and_no_old_token(world: World) -> None:
    world.token("bob", "read")
    closed(world)

    for _again in range(2):
        reopen_account("bob", actor=world.user("operator"), rights=world.rights("operator"), now=world.now)

    bob = User.objects.get(username="bob")
    assert (bob.is_active, bob.closed_at) == (True, None)
    assert world.rights("bob").has(world.team("perception"), "researcher")
    assert ApiToken.objects.get(user=bob).revoked_at == world.now
    assert AuditEntry.objects.filter(action="account.reopened").count() == 1


def test_nobody_closes_their_own_account_or_one_that_is_not_there(world: World) -> None:
    with pytest.raises(Conflict, match="your own"):
        closed(world, "operator")
    with pytest.raises(NotFound):
        closed(world, "nobody-here")
    for name in ("bob", "alice", "finance"):
        with pytest.raises(Forbidden):
            closed(world, "charlie", by=name)
        with pytest.raises(Forbidden):
            people(rights=world.rights(name))
    assert not User.objects.filter(is_active=False).exists()


def test_database_knows_no_account_that_is_closed_and_active(world: World) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        User.objects.filter(username="bob").update(closed_at=world.now)


def test_operator_finds_closes_and_reopens_on_pages(world: World, signed_in: SignedIn) -> None:
    busy(world)
    operator, alice = signed_in("operator"), signed_in("alice")
    User.objects.filter(username="bob").update(email="bob@example.org", display_name="<b>Bob</b>")

    listed = operator.get(HOME, {"q": "EXAMPLE.org"}).text
    shown = operator.get(f"{HOME}bob/").text
    assert "&lt;b&gt;Bob&lt;/b&gt;" in listed
    assert f'href="{HOME}bob/"' in listed
    assert f'href="{HOME}alice/"' not in listed
    assert f'action="{HOME}bob/close/"' in shown
    assert operator.post(f"{HOME}bob/close/", {"leases": "end"})["Location"] == f"{HOME}bob/"
    assert not User.objects.get(username="bob").is_active
    assert f'href="{HOME}bob/"' in operator.get(HOME, {"state": "closed"}).text
    assert f'href="{HOME}bob/"' not in operator.get(HOME, {"state": "open"}).text
    assert operator.post(f"{HOME}bob/reopen/").status_code == 302
    assert User.objects.get(username="bob").is_active

    own = operator.get(f"{HOME}operator/").text
    assert "/close/" not in own
    operator.post(f"{HOME}operator/close/", {"leases": "end"})
    assert User.objects.get(username="operator").is_active
    assert operator.get(f"{HOME}nobody-here/").status_code == 404
    for at in ("", "bob/"):
        assert alice.get(f"{HOME}{at}").status_code == 403
    for at in ("close", "reopen"):
        assert alice.post(f"{HOME}bob/{at}/").status_code == 403


def test_list_of_people_takes_as_many_queries_for_many_as_for_few(
    world: World, signed_in: SignedIn, django_assert_max_num_queries
) -> None:
    for number in range(60):
        User.objects.create(username=f"person-{number}")

    with django_assert_max_num_queries(14):
        page = signed_in("operator").get(HOME)

    assert "1–50 of" in page.text


def test_of_two_operators_who_close_each_other_one_is_too_late(world: World) -> None:
    rights = world.rights("operator")
    assert rights.is_operator  # as the call of whoever is closed meanwhile had found out
    User.objects.filter(username="operator").update(is_active=False)

    with pytest.raises(Forbidden):
        close_account("bob", actor=world.user("operator"), rights=rights, ends_leases=False, now=world.now)
    assert world.user("bob").is_active
