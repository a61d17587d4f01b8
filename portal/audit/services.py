from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from django.db import connection

from portal.accounts.models import User


def record(
    actor: User | None, action: str, target: str, *, at: datetime, team_id: int | None = None, **detail: Any
) -> None:
    """Write one audit entry in the present transaction; ``actor`` None is Berth itself."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO audit_auditentry (actor_id, action, target, team_id, detail, at)"
            " VALUES (%s, %s, %s, %s, %s::jsonb, %s)",
            [actor.pk if actor else None, action, target, team_id, json.dumps(detail), at],
        )
