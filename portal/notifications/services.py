from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from portal.accounts.models import User
from portal.notifications.models import Notification


def notify(
    users: Iterable[User], kind: str, *, target: str, at: datetime, is_news: bool = False, **facts: Any
) -> None:
    """Tell people once per kind and target. Safe to repeat.

    With ``is_news`` what was told before is told anew with the present facts, unread again.
    """
    rows = [Notification(user=user, kind=kind, target=target, facts=facts, created_at=at) for user in users]
    if is_news:
        Notification.objects.bulk_create(
            rows,
            update_conflicts=True,
            unique_fields=["user", "kind", "target"],
            update_fields=["facts", "created_at", "read_at"],
        )
    else:
        Notification.objects.bulk_create(rows, ignore_conflicts=True)


def mark_read(user: User, *, at: datetime) -> int:
    """Mark all of a person's notifications as read; returns how many were new."""
    return Notification.objects.filter(user=user, read_at=None).update(read_at=at)
