"""What the database itself refuses, tried with plain SQL; without the guard each of these would go through."""

from __future__ import annotations

import pytest
from django.db import DatabaseError, transaction

from portal.audit.models import AuditEntry
from portal.audit.services import record
from portal.common.sql import execute
from tests.portal.builders import World

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE audit_auditentry SET actor_id = NULL",
        "UPDATE audit_auditentry SET at = at + interval '1 hour'",
        "DELETE FROM audit_auditentry",
    ],
)
def test_what_was_written_down_is_never_changed(sql: str, world: World) -> None:
    record(world.user("alice"), "lease.released", "lse-1", at=world.now)
    before = list(AuditEntry.objects.values())

    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        execute(sql)

    assert list(AuditEntry.objects.values()) == before
