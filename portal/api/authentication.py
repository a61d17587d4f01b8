"""Who calls, by token: one query for the token, its owner and their memberships."""

from __future__ import annotations

import functools
import json
import logging
from datetime import datetime, timedelta

from django.conf import settings
from django.db import DatabaseError, connection
from django.utils import timezone
from django.utils.translation import gettext as _
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from portal.accounts.models import ApiToken, User
from portal.accounts.services import TOKEN_MARK, digest_of
from portal.accounts.sign_in_attempts import bad_tokens
from portal.common.addresses import client_address
from portal.common.errors import TooManyCalls

log = logging.getLogger(__name__)
LAST_USED_EVERY = timedelta(minutes=1)
MAX_LENGTH = 100


class TokenAuthentication(BaseAuthentication):
    """``Authorization: Bearer bth_…`` with a token that is alive."""

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        """Return the owner and the token, None without the header, or raise for a dead token."""
        kind, _sep, secret = get_authorization_header(request).decode("latin-1").partition(" ")
        if kind.lower() != "bearer":
            return None
        now = timezone.now()
        token = bearer(secret.strip(), now=now)
        if token is None:
            wait_s = bad_tokens.refused_for(client_address(request), now=now)
            if wait_s:
                raise TooManyCalls(_("Too many calls with tokens that are not accepted."), wait_s=wait_s)
            raise AuthenticationFailed
        if token.last_used_at is None or now - token.last_used_at > LAST_USED_EVERY:
            _note_use(token, now)
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        """Return the challenge that makes a missing token a 401."""
        return 'Bearer realm="berth"'


def _note_use(token: ApiToken, now: datetime) -> None:
    """Keep when a token was last used; who only reads is served also while the disk is full."""
    try:
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
    except DatabaseError as error:
        if connection.in_atomic_block:
            raise
        log.warning("the last use of a token was not kept: %s", error)


def bearer(secret: str, *, now: datetime) -> ApiToken | None:
    """Return the live token with its owner, in ``held`` the owner's (team id, role) pairs, and whether a deputy's.

    Plain SQL: this runs for every call, and the three queries it replaces cost as much as the rest.
    """
    if not secret.startswith(TOKEN_MARK) or len(secret) > MAX_LENGTH:
        return None
    sql, tokens, people = _statement()
    with connection.cursor() as cursor:
        cursor.execute(sql, [now, now, digest_of(secret), now, settings.DEMO])
        row = cursor.fetchone()
    if row is None:
        return None
    token = ApiToken.from_db("default", tokens, row[: len(tokens)])
    token.user = User.from_db("default", people, row[len(tokens) : -2])
    token.is_deputy = row[-2]  # type: ignore[attr-defined]
    token.held = tuple((team, role) for team, role in json.loads(row[-1] or "[]"))  # type: ignore[attr-defined]
    return token


@functools.cache
def _statement() -> tuple[str, list[str], list[str]]:
    """Return the SQL and the field names of token and user in the order of its columns."""
    tokens, people = ApiToken._meta.concrete_fields, User._meta.concrete_fields
    columns = [f't."{f.column}"' for f in tokens] + [f'u."{f.column}"' for f in people]
    sql = (
        f"SELECT {', '.join(columns)},"  # noqa: S608 (columns of our own models)
        " EXISTS (SELECT FROM teams_delegation d WHERE d.deputy_id = u.id AND d.ended_at IS NULL AND d.ends_at > %s),"
        " (SELECT jsonb_agg(jsonb_build_array(m.team_id, m.role)) FROM teams_membership m WHERE m.user_id = u.id"
        " AND (m.ends_at IS NULL OR m.ends_at > %s))"
        " FROM accounts_apitoken t JOIN accounts_user u ON u.id = t.user_id"
        " WHERE t.digest = %s AND t.revoked_at IS NULL AND t.expires_at > %s AND u.is_active"
        " AND (%s OR NOT u.is_demo)"
    )
    return sql, [f.attname for f in tokens], [f.attname for f in people]
