"""Who is on a socket, by session cookie or API token; asked again every few seconds. Synchronous."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth import HASH_SESSION_KEY, SESSION_KEY
from django.http.request import validate_host
from django.utils.crypto import constant_time_compare

from portal.accounts.models import ApiToken, BrowserSession, User
from portal.accounts.selectors import entering, live_token
from portal.accounts.sessions import SEEN_AS, SessionStore
from portal.accounts.sign_in_attempts import bad_tokens
from portal.common.addresses import believed
from portal.teams.models import Membership

Headers = Mapping[str, str]
LONGEST_KEY = 64
JOINED = {"cookie": "; ", "x-forwarded-for": ", "}


@dataclass(frozen=True, slots=True)
class Viewer:
    """A person on a socket, by the session or token they showed. ``held``: the teams of their roles."""

    user_id: int
    username: str
    language: str
    held: frozenset[int] = frozenset()
    session_key: str = ""
    token_id: int = 0

    @property
    def key(self) -> tuple[str, int]:
        """What the visitor showed: the same for all sockets of one session or token."""
        return self.session_key, self.token_id


def headers_of(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the headers as text, the last of each name; several of cookies and of proxies are joined."""
    found: dict[str, str] = {}
    for name, value in raw:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        found[key] = f"{found[key]}{JOINED[key]}{text}" if key in JOINED and key in found else text
    return found


def refused_for(headers: Headers, peer: str, *, now: datetime) -> int:
    """Count a socket that was not admitted; returns for how many seconds its place is refused, 0 while it may try.

    Only a token is a guess at a secret, as on every other door; a page whose session has ended tries again by itself.
    """
    if "authorization" not in headers:
        return 0
    address = believed(peer, headers.get("x-forwarded-for", ""), settings.TRUSTED_PROXIES)
    return bad_tokens.refused_for(address, now=now)


def is_allowed_origin(headers: Headers) -> bool:
    """Say whether the page that opens the socket is one of ours.

    A browser always sends Origin: it must name an allowed host, and the one that it talks to unless
    the origin is trusted by setting. A program with a token needs none.
    """
    if "origin" not in headers:
        return "authorization" in headers
    origin = headers["origin"].lower()
    try:
        parts = urlsplit(origin)
        host = parts.hostname or ""
    except ValueError:
        return False
    if parts.scheme not in ("http", "https"):
        return False
    if origin in settings.CSRF_TRUSTED_ORIGINS:
        return True
    bracketed = f"[{host}]" if ":" in host else host
    is_same = headers.get("host", parts.netloc).lower() == parts.netloc
    return is_same and validate_host(bracketed, settings.ALLOWED_HOSTS)


def admit(headers: Headers, *, now: datetime) -> Viewer | None:
    """Return who opens the socket, or None for nobody we know. A token that is sent must be alive."""
    if "authorization" in headers:
        visitor = _by_token(headers["authorization"], now)
    else:
        key = _session_key(headers.get("cookie", ""))
        visitor = _by_sessions([key], now).get((key, 0)) if key else None
    return _with_roles([visitor])[visitor.key] if visitor else None


def _by_token(header: str, now: datetime) -> Viewer | None:
    kind, _sep, secret = header.partition(" ")
    token = live_token(secret.strip(), now=now) if kind.lower() == "bearer" else None
    if token is None:
        return None
    return Viewer(token.user_id, token.user.username, token.user.language, token_id=token.pk)


def _session_key(cookie: str) -> str:
    try:
        morsel = SimpleCookie(cookie).get(settings.SESSION_COOKIE_NAME)
    except CookieError:
        return ""
    return morsel.value if morsel and morsel.value.isalnum() and len(morsel.value) <= LONGEST_KEY else ""


def _by_sessions(keys: Collection[str], now: datetime) -> dict[tuple[str, int], Viewer]:
    """Return the visitors behind the sessions that are alive and whose password has not changed since."""
    rows = BrowserSession.objects.filter(session_key__in=keys, expire_date__gt=now)
    said = {row.session_key: SessionStore().decode(row.session_data) for row in rows}
    # While an operator sees the portal as somebody else no socket is theirs: it would show what they see themselves.
    ids = {key: str(data.get(SESSION_KEY, "")) for key, data in said.items() if SEEN_AS not in data}
    wanted = [int(pk) for pk in ids.values() if pk.isdigit()]
    users = {str(user.pk): user for user in User.objects.filter(entering(), pk__in=wanted)}
    found: dict[tuple[str, int], Viewer] = {}
    for key, pk in ids.items():
        user = users.get(pk)
        if user is None or not _is_same_password(user, str(said[key].get(HASH_SESSION_KEY, ""))):
            continue
        found[key, 0] = Viewer(user.pk, user.username, user.language, session_key=key)
    return found


def _is_same_password(user: User, proof: str) -> bool:
    proofs = [user.get_session_auth_hash(), *user.get_session_auth_fallback_hash()]
    return any(constant_time_compare(proof, known) for known in proofs)


def _by_tokens(visitors: Iterable[Viewer], now: datetime) -> dict[tuple[str, int], Viewer]:
    given = {visitor.token_id: visitor for visitor in visitors if visitor.token_id}
    alive = ApiToken.objects.filter(
        entering("user__"), pk__in=given, revoked_at=None, expires_at__gt=now
    ).values_list("pk", flat=True)
    return {given[pk].key: given[pk] for pk in alive}


def review(visitors: Collection[Viewer], *, now: datetime) -> dict[tuple[str, int], Viewer]:
    """Return, by key, those who may stay, with the roles they hold now: at most four queries for all."""
    keys = {visitor.session_key for visitor in visitors if visitor.session_key}
    alive = _by_sessions(keys, now) if keys else {}
    if any(visitor.token_id for visitor in visitors):
        alive |= _by_tokens(visitors, now)
    return _with_roles(alive.values())


def _with_roles(visitors: Iterable[Viewer]) -> dict[tuple[str, int], Viewer]:
    people = list(visitors)
    held: dict[int, set[int]] = {}
    rows = Membership.objects.filter(user_id__in={person.user_id for person in people})
    for user_id, team_id in rows.values_list("user_id", "team_id"):
        held.setdefault(user_id, set()).add(team_id)
    return {person.key: replace(person, held=frozenset(held.get(person.user_id, ()))) for person in people}
