"""One's own browser sessions and password over HTTP."""

from __future__ import annotations

from django.contrib.auth import update_session_auth_hash
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from portal.accounts.models import BrowserSession, Scope
from portal.accounts.sessions import live_sessions
from portal.api.describe import PAGING, call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Flag, Text
from portal.api.pagination import PARAMETERS, Pages
from portal.api.representations import Row
from portal.api.responses import PasswordAnswer, SessionAnswer
from portal.api.wire import instant
from portal.audit.sign_ins import change_password, end_other_sessions, end_session
from portal.common.addresses import client_address

TAG = "people"
LONGEST_PASSWORD = 500


class PasswordBody(Body):
    """The password there is and the one to come."""

    old = Text(most=LONGEST_PASSWORD, trim_whitespace=False)
    new = Text(most=LONGEST_PASSWORD, trim_whitespace=False)
    revoke_tokens = Flag(default=False, help_text="Also revoke one's API tokens, the one of this call too.")


class Sessions(Endpoint):
    """One's own live sessions."""

    read_scope = Scope.ADMIN
    parameters = PARAMETERS

    @call("List sessions", answer=SessionAnswer, is_list=True, parameters=PAGING, tag=TAG)
    def get(self, request: Request) -> Response:
        """List one's own live browser sessions. `is_current` is the one that asks; a token is none."""
        pages, here = Pages(), current_key(request)
        rows = pages.page(live_sessions(self.person, now=timezone.now()), request)
        return Response(pages.answer([session_row(row, here) for row in rows]))

    @call("End all other sessions", status=204, tag=TAG)
    def delete(self, request: Request) -> Response:
        """End all of one's own sessions but the one that asks; asked with a token, all. Safe to repeat."""
        end_other_sessions(user=self.person, but=current_key(request), now=timezone.now())
        return Response(status=204)


class OneSession(Endpoint):
    """One of one's own sessions."""

    @call("End a session", status=204, refusals=(404,), tag=TAG)
    def delete(self, request: Request, uid: str) -> Response:
        """End one of one's own sessions at once: its next page asks to sign in."""
        end_session(user=self.person, uid=uid, now=timezone.now())
        return Response(status=204)


class Password(Endpoint):
    """One's own password."""

    @call("Change one's password", body=PasswordBody, answer=PasswordAnswer, refusals=(422,), tag=TAG)
    def put(self, request: Request) -> Response:
        """Change one's own password and end one's other sessions. Wrong tries count like tries to sign in."""
        values = self.take(PasswordBody)
        done = change_password(
            user=self.person,
            old=values["old"],
            new=values["new"],
            with_tokens=values["revoke_tokens"],
            address=client_address(request),
            but=current_key(request),
            now=timezone.now(),
        )
        if current_key(request):
            update_session_auth_hash(request, self.person)
        return Response({"sessions_ended": done.sessions, "tokens_revoked": done.tokens})


def current_key(request: Request) -> str:
    """Return the key of the browser session that asks; "" for a token."""
    return "" if request.auth is not None else request.session.session_key or ""


def session_row(row: BrowserSession, here: str) -> Row:
    """Return a session by its public name, never its key."""
    return {
        "id": row.uid,
        "browser": row.browser,
        "address": row.place,
        "began_at": instant(row.began_at),
        "seen_at": instant(row.seen_at),
        "ends_at": instant(row.expire_date),
        "is_current": row.session_key == here,
    }
