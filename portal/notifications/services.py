from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from portal.accounts.models import User
from portal.notifications.models import Notification


def notify(users: Iterable[User], kind: str, *, target: str, at: datetime, **facts: Any) -> None:
    """Tell people once per kind and target. Safe to repeat."""
    Notification.objects.bulk_create(
        [Notification(user=user, kind=kind, target=target, facts=facts, created_at=at) for user in users],
        ignore_conflicts=True,
    )


def mark_read(user: User, *, at: datetime) -> int:
    """Mark all of a person's notifications as read; returns how many were new."""
    return Notification.objects.filter(user=user, read_at=None).update(read_at=at)
