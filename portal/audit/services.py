from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from portal.accounts.models import User
from portal.common.sql import execute

ENTRY = (
    "INSERT INTO audit_auditentry (actor_id, action, target, team_id, detail, at)"
    " VALUES (%s, %s, %s, %s, %s::jsonb, %s)"
)


def record(
    actor: User | None, action: str, target: str, *, at: datetime, team_id: int | None = None, **detail: Any
) -> None:
    """Write one audit entry in the present transaction; ``actor`` None is Berth itself."""
    execute(ENTRY, entry(actor, action, target, at=at, team_id=team_id, **detail))


def entry(
    actor: User | None, action: str, target: str, *, at: datetime, team_id: int | None = None, **detail: Any
) -> list[Any]:
    """Return the values of ``ENTRY``, for a statement that writes the entry together with what it tells of."""
    return [actor.pk if actor else None, action, target, team_id, json.dumps(detail), at]
