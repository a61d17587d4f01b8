"""A nudge that was lost is sent again: the row says that work is owed, whatever became of the message."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction

from portal.celery import app as celery
from portal.common import outbox
from portal.common.clock import db_now
from portal.common.live import redis_client
from portal.common.models import OutboxItem
from portal.fleet.models import Node
from portal.leases.approvals import approve_request
from portal.teams.models import Team
from scheduler import tasks
from tests.portal.builders import World
from tests.portal.test_news import Capture

pytestmark = pytest.mark.django_db


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tasks that were sent, in order; nothing is on its way at the start."""
    found: list[str] = []
    monkeypatch.setattr(celery, "send_task", lambda topic, **_how: found.append(topic))
    redis_client().delete(f"berth:nudge:{outbox.RUN_CYCLE}")
    return found


def test_the_sweep_sends_again_what_is_owed_for_longer_than_five_seconds(
    world: World, sent: list[str]
) -> None:
    world.submit()
    owed = OutboxItem.objects.get()

    early = outbox.sweep(at=owed.created_at + timedelta(seconds=4))
    late = outbox.sweep(at=owed.created_at + timedelta(seconds=6))

    assert (early, late, sent) == ([], [outbox.RUN_CYCLE], [outbox.RUN_CYCLE])
    owed.refresh_from_db()
    assert (owed.attempts, owed.last_nudged_at) == (1, owed.created_at + timedelta(seconds=6))


def test_the_sweep_gives_an_item_up_after_a_hundred_tries(world: World, sent: list[str]) -> None:
    world.submit()
    OutboxItem.objects.update(attempts=outbox.MAX_ATTEMPTS)

    assert outbox.sweep(at=world.now + timedelta(minutes=1)) == []
    assert sent == []


def test_the_task_sweeps_and_reminds_nodes_that_lag_behind(
    world: World, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(tasks, "publish", lambda _channel, names: told.extend(names))
    outbox.add(outbox.RUN_CYCLE, key="lost", at=db_now() - timedelta(minutes=1))
    Node.objects.filter(name="gpu-01").update(desired_revision=3, observed_revision=2)

    tasks.sweep_outbox()

    assert (sent, told) == ([outbox.RUN_CYCLE], ["gpu-01"])


def test_a_turn_forgets_only_what_it_covered(world: World) -> None:
    outbox.add(outbox.RUN_CYCLE, key="before", at=world.now)
    upto = outbox.begin(outbox.RUN_CYCLE)
    outbox.add(outbox.RUN_CYCLE, key="meanwhile", at=world.now)
    outbox.add("another", key="another", at=world.now)

    outbox.done(outbox.RUN_CYCLE, upto)

    assert set(OutboxItem.objects.values_list("key", flat=True)) == {"meanwhile", "another"}


def test_a_second_nudge_joins_the_one_on_its_way_and_a_turn_that_began_takes_a_new_one(
    sent: list[str],
) -> None:
    outbox.nudge(outbox.RUN_CYCLE)
    outbox.nudge(outbox.RUN_CYCLE)
    assert len(sent) == 1

    outbox.begin(outbox.RUN_CYCLE)
    outbox.nudge(outbox.RUN_CYCLE)
    assert len(sent) == 2


def test_who_submits_or_approves_owes_a_turn_in_the_same_transaction(world: World) -> None:
    Team.objects.filter(slug="perception").update(approval_above_gpu_seconds=1)
    world.teams["perception"].refresh_from_db()
    large, small = world.submit("bob"), world.submit("charlie")
    assert set(OutboxItem.objects.values_list("key", flat=True)) == {small.uid}

    approver = world.user("approver")
    approve_request(request=large, actor=approver, rights=world.rights("approver"), note="", now=world.now)

    assert set(OutboxItem.objects.values_list("key", flat=True)) == {small.uid, large.uid}


def test_a_nudge_leaves_after_the_commit_and_not_at_all_where_there_is_none(
    sent: list[str], django_capture_on_commit_callbacks: Capture
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        with transaction.atomic():
            outbox.nudge_on_commit(outbox.RUN_CYCLE)
            transaction.set_rollback(True)
        with transaction.atomic():
            outbox.nudge_on_commit(outbox.RUN_CYCLE)
            assert sent == []

    assert sent == [outbox.RUN_CYCLE]
