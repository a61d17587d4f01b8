"""Sessions of browsers: they end when idle, and after their longest time whatever happens.

The end stands in the row's ``expire_date``, so pages and live sockets see the same one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.backends import db
from django.contrib.sessions.base_session import AbstractBaseSession
from django.contrib.sessions.models import Session
from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

log = logging.getLogger(__name__)
BEGAN = "_began"
TOUCH_EVERY = timedelta(minutes=1)


class SessionStore(db.SessionStore):
    """Django's sessions in the database, with an idle end and an absolute end for who is signed in."""

    ends_at: datetime | None = None

    def _get_session_from_db(self) -> Any:
        row = super()._get_session_from_db()  # type: ignore[misc]
        self.ends_at = row.expire_date if row else None
        return row

    def create_model_instance(self, data: dict[str, Any]) -> AbstractBaseSession:
        """Return the row to store; who signs in begins the session's time."""
        now = timezone.now()
        if SESSION_KEY in data:
            data.setdefault(BEGAN, now.timestamp())
        row = super().create_model_instance(data)
        row.expire_date = end_of(data, now)
        return row

    def touch(self, *, now: datetime) -> None:
        """Move the idle end on, at most once a minute."""
        if BEGAN not in self:  # begun before sessions had an end
            self[BEGAN] = now.timestamp()
            return
        end = end_of(self, now)
        if self.ends_at is None or end - self.ends_at >= TOUCH_EVERY:
            Session.objects.filter(session_key=self.session_key).update(expire_date=end)


def end_of(data: Any, now: datetime) -> datetime:
    """Return when a session that is used at ``now`` ends if nothing more is heard."""
    idle = now + timedelta(seconds=settings.SESSION_IDLE_S)
    began = data.get(BEGAN)
    if began is None:
        return idle
    return min(idle, datetime.fromtimestamp(began, UTC) + timedelta(seconds=settings.SESSION_COOKIE_AGE))


def keep_session(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[..., HttpResponse]:
    """Move the idle end on when a person does something; what a page fetches by itself is no sign of one."""

    def middleware(request: HttpRequest) -> HttpResponse:
        is_by_itself = request.method == "GET" and "HX-Request" in request.headers
        session = request.session
        if isinstance(session, SessionStore) and not is_by_itself and SESSION_KEY in session:
            try:
                session.touch(now=timezone.now())
            except DatabaseError as error:  # who reads is served also while the disk is full
                if connection.in_atomic_block:
                    raise
                log.warning("the end of a session was not moved: %s", error)
        return get_response(request)

    return middleware


def forget_sessions(*, now: datetime) -> int:
    """Drop the rows of sessions that have ended; returns how many."""
    return Session.objects.filter(expire_date__lt=now).delete()[0]
