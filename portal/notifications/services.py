from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from django.db import connection

from portal.accounts.models import User
from portal.notifications.models import Notification, Topic

# By what stands before the point in the kind of a notification.
TOPIC_OF: Final = {
    "request": Topic.REQUESTS,
    "extension": Topic.REQUESTS,
    "lease": Topic.LEASES,
    "job": Topic.JOBS,
    "booking": Topic.BOOKINGS,
    "reservation": Topic.BOOKINGS,
    "workshop": Topic.BOOKINGS,
    "budget": Topic.BUDGETS,
    "fleet": Topic.FLEET,
    "node": Topic.FLEET,
    "invariant": Topic.FLEET,
    "alert": Topic.ALERTS,
    "escalation": Topic.ESCALATED,
    "team_alert": Topic.TEAM_ALERTS,
}
_TO_DELIVER: Final = """
INSERT INTO notifications_delivery
       (contact_id, notification_id, purpose, told_at, due_at, state, attempts, error)
SELECT contact.id, news.id, 'news', news.created_at, news.created_at, 'waiting', 0, ''
  FROM notifications_notification news
  JOIN notifications_contactpoint contact ON contact.user_id = news.user_id
 WHERE news.user_id = ANY(%(users)s) AND news.kind = %(kind)s AND news.target = %(target)s
   AND news.created_at = %(at)s
   AND contact.is_on AND contact.confirmed_at IS NOT NULL AND NOT %(topic)s = ANY(contact.muted)
   FOR KEY SHARE OF contact
    ON CONFLICT DO NOTHING
"""


def notify(
    users: Iterable[User], kind: str, *, target: str, at: datetime, is_news: bool = False, **facts: Any
) -> None:
    """Tell people once per kind and target, on their pages and where else they want to be told. Safe to repeat.

    With ``is_news`` what was told before is told anew with the present facts, unread again.
    """
    rows = [Notification(user=user, kind=kind, target=target, facts=facts, created_at=at) for user in users]
    if not rows:
        return
    if is_news:
        Notification.objects.bulk_create(
            rows,
            update_conflicts=True,
            unique_fields=["user", "kind", "target"],
            update_fields=["facts", "created_at", "read_at"],
        )
    else:
        Notification.objects.bulk_create(rows, ignore_conflicts=True)
    with connection.cursor() as cursor:
        topic = TOPIC_OF.get(kind.partition(".")[0], Topic.OTHER)
        people = [row.user_id for row in rows]
        about: dict[str, Any] = {
            "users": people,
            "kind": kind,
            "target": target,
            "at": at,
            "topic": topic.value,
        }
        cursor.execute(_TO_DELIVER, about)


def mark_read(user: User, *, at: datetime) -> int:
    """Mark all of a person's notifications as read; returns how many were new."""
    return Notification.objects.filter(user=user, read_at=None).update(read_at=at)
