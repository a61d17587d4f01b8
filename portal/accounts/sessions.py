"""Sessions of browsers: they end when idle, after their longest time whatever happens, and when their person says so.

The end stands in the row's ``expire_date``, so pages and live sockets see the same one. A session that is ended
early is a row that is gone: the next page signs in, live sockets close within seconds.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.backends import db
from django.contrib.sessions.base_session import AbstractBaseSession
from django.db import DatabaseError, connection
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from portal.accounts.models import BrowserSession, User
from portal.common.addresses import client_address
from portal.common.rows import Rows

log = logging.getLogger(__name__)
BEGAN, PLACE, BROWSER = "_began", "_place", "_browser"
# Under this key a session keeps which impersonation of its operator is on.
SEEN_AS = "_seen_as"
TOUCH_EVERY = timedelta(minutes=1)
_SESSIONS = Rows(BrowserSession)


class SessionStore(db.SessionStore):
    """Django's sessions in the database, with an idle end and an absolute end for who is signed in."""

    seen_at: datetime | None = None

    @classmethod
    def get_model_class(cls) -> type[AbstractBaseSession]:
        """Return the table that says whose a session is."""
        return BrowserSession

    def _get_session_from_db(self) -> Any:
        row = _SESSIONS.first(
            "it.session_key = %s AND it.expire_date > %s", [self.session_key, timezone.now()]
        )
        if row is None:
            self._session_key = None  # as Django's own store: a key that is not known is never used again
        self.seen_at = row.seen_at if row else None
        return row

    def create_model_instance(self, data: dict[str, Any]) -> AbstractBaseSession:
        """Return the row to store; who signs in begins the session's time."""
        now = timezone.now()
        if SESSION_KEY in data:
            data.setdefault(BEGAN, now.timestamp())
        row = super().create_model_instance(data)
        assert isinstance(row, BrowserSession)
        row.expire_date, row.seen_at = end_of(data, now), now
        row.uid = uid_of(str(row.session_key))
        if SESSION_KEY in data:
            row.user_id = int(data[SESSION_KEY])
            row.began_at = datetime.fromtimestamp(data[BEGAN], UTC)
            row.place, row.browser = data.get(PLACE, ""), data.get(BROWSER, "")
        return row

    def touch(self, *, now: datetime) -> None:
        """Move the idle end on, at most once a minute."""
        if self.seen_at is None or now - self.seen_at >= TOUCH_EVERY:
            rows = BrowserSession.objects.filter(session_key=self.session_key)
            rows.update(expire_date=end_of(self, now), seen_at=now)


def uid_of(session_key: str) -> str:
    """Return the public name of a session: it tells nothing of the key, which has 160 random bits."""
    return "ses-" + hashlib.sha256(session_key.encode()).hexdigest()[:16]


def note_browser(request: HttpRequest) -> None:
    """Keep from where and with what a person signs in, so that they know the session again."""
    request.session[PLACE] = client_address(request)[:50]
    request.session[BROWSER] = browser_of(request.headers.get("User-Agent", ""))


def browser_of(agent: str) -> str:
    """Return what a person calls their browser, as ``Firefox · Linux``; "" where it cannot be told."""
    # Each names those before it as well: the first that fits is the one.
    names = ("Edg", "OPR", "Firefox", "Chrome", "Safari", "curl", "python-httpx")
    shown = {"Edg": "Edge", "OPR": "Opera", "python-httpx": "berth"}
    systems = ("Windows", "Android", "iPhone", "iPad", "Mac OS X", "Linux")
    found = [shown.get(name, name) for name in names if f"{name}/" in agent][:1]
    found += [{"Mac OS X": "macOS"}.get(name, name) for name in systems if name in agent][:1]
    return " · ".join(found)


def live_sessions(user: User, *, now: datetime) -> QuerySet[BrowserSession]:
    """Return the sessions of a person that have not ended, the one used last first."""
    return BrowserSession.objects.filter(user=user, expire_date__gt=now).order_by("-seen_at", "uid")


def end_sessions(user: User, *, uid: str = "", but: str = "", now: datetime) -> list[str]:
    """End one live session of a person, or all, but the one with the key ``but``; returns their public names."""
    rows = live_sessions(user, now=now).exclude(session_key=but)
    if uid:
        rows = rows.filter(uid=uid)
    ended = list(rows.values_list("uid", flat=True))
    BrowserSession.objects.filter(uid__in=ended).delete()
    return sorted(ended)


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
    return BrowserSession.objects.filter(expire_date__lt=now).delete()[0]
