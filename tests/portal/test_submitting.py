from __future__ import annotations

import pytest
from django.db import IntegrityError, connection

from portal.audit.models import AuditEntry
from portal.common.models import OutboxItem
from portal.common.outbox import RUN_CYCLE
from portal.leases.models import LeaseRequest
from scheduler import commit
from scheduler.engine.model import Reason, Wait
from tests.portal.builders import World


def test_a_request_comes_with_its_steps_its_entry_and_the_nudge_it_owes(world: World) -> None:
    request = world.submit()

    steps = list(request.events.values_list("was", "now", "at"))
    assert steps == [
        ("draft", "submitted", request.submitted_at),
        ("submitted", "queued", request.submitted_at),
    ]
    assert AuditEntry.objects.filter(target=request.uid).values_list(
        "action", "actor_id", "team_id"
    ).get() == (
        "request.submitted",
        request.author_id,
        request.team_id,
    )
    assert OutboxItem.objects.get(key=request.uid).topic == RUN_CYCLE


@pytest.mark.django_db(transaction=True)
def test_a_request_whose_entry_cannot_be_written_leaves_nothing(world: World) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE audit_auditentry ADD CONSTRAINT never CHECK (false) NOT VALID")
    try:
        with pytest.raises(IntegrityError):
            world.submit()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE audit_auditentry DROP CONSTRAINT never")

    assert not LeaseRequest.objects.exists()
    assert not OutboxItem.objects.exists()


def test_a_long_queue_tells_newcomers_first_and_leaves_the_others_as_they_are(world: World) -> None:
    told, fresh = world.submit(), world.submit()
    before, after = (Reason("behind", {"position": n, "granted": 0}) for n in (1, 2))
    commit.waits([Wait(told.pk, 1, (before,), False)])

    written = commit.waits(
        [Wait(r.pk, n, (after,), False) for n, r in ((1, told), (2, fresh))], only_first=True
    )

    found = dict(LeaseRequest.objects.values_list("pk", "reasons"))
    assert written == 1
    assert [found[told.pk][0]["position"], found[fresh.pk][0]["position"]] == [1, 2]
