from __future__ import annotations

from datetime import datetime
from typing import Any

from portal.accounts.models import User
from portal.audit.models import AuditEntry


def record(
    actor: User | None, action: str, target: str, *, at: datetime, team_id: int | None = None, **detail: Any
) -> None:
    """Write one audit entry in the present transaction; ``actor`` None is Berth itself."""
    AuditEntry.objects.create(
        actor=actor, action=action, target=target, team_id=team_id, detail=detail, at=at
    )
