"""The gateway's own cookie on an app's host, and which cookies go through to a lease and back.

What it holds is sealed: the key of a person's session must be readable nowhere, not even where they are themselves.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Final

from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings

GOOD_FOR_S: Final = 900
RENEWED_AFTER_S: Final = 300
# Longer in the browser than it is good for: who comes back later is told where to open the app again.
KEPT_FOR_S: Final = 30 * 86_400
Header = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class AppCookie:
    """Who opened which app in which lease, by the session or token that they showed at the portal at ``portal``."""

    user_id: int
    session_key: str
    token_id: int
    lease_id: int
    generation: int
    app: str
    lease: str
    portal: str
    language: str


def name() -> str:
    """Return the cookie's name: one that no other host may set, where there is TLS."""
    return "__Host-berth-app" if settings.BEHIND_TLS else "berth-app"


def seal(cookie: AppCookie) -> str:
    """Return a cookie's value."""
    return _fernet().encrypt(json.dumps(asdict(cookie)).encode()).decode()


def unseal(value: str) -> tuple[AppCookie, int] | None:
    """Return a cookie and the instant it was made at, in seconds since 1970; None for none of ours."""
    try:
        made_at = _fernet().extract_timestamp(value.encode())
        return AppCookie(**json.loads(_fernet().decrypt(value.encode()))), made_at
    except (InvalidToken, ValueError, TypeError):
        return None


def set_cookie(cookie: AppCookie) -> Header:
    """Return the header that sets it, for this host alone."""
    secure = "; Secure" if settings.BEHIND_TLS else ""
    text = f"{name()}={seal(cookie)}; Path=/; Max-Age={KEPT_FOR_S}; HttpOnly; SameSite=Lax{secure}"
    return b"set-cookie", text.encode()


def own_cookie(headers: Iterable[Header]) -> str:
    """Return the value of ours, "" without one."""
    for found, value in _pairs(headers):
        if found == name():
            return value
    return ""


def to_lease(headers: Iterable[Header]) -> list[Header]:
    """Return a request's headers with the cookies of gateway and portal taken out."""
    found = list(headers)
    kept = "; ".join(
        f"{one}={value}" if value is not None else one for one, value in _raw(found) if one not in ours()
    )
    rest = [(one, value) for one, value in found if one.lower() != b"cookie"]
    return [*rest, (b"cookie", kept.encode("latin-1"))] if kept else rest


def from_lease(value: bytes) -> bool:
    """Say whether a lease may set this cookie: for its own host, and none that is the gateway's or the portal's."""
    first, *attributes = value.decode("latin-1").split(";")
    if first.partition("=")[0].strip() in ours():
        return False
    return all(one.partition("=")[0].strip().lower() != "domain" for one in attributes)


@functools.cache
def ours() -> frozenset[str]:
    """Return the names of cookies that are no lease's business, in every form that a version of this used."""
    plain = {
        settings.SESSION_COOKIE_NAME,
        settings.CSRF_COOKIE_NAME,
        settings.LANGUAGE_COOKIE_NAME,
        "sessionid",
        "csrftoken",
        "berth-app",
    }
    bare = {one.removeprefix("__Host-").removeprefix("__Secure-") for one in plain}
    return frozenset({f"{start}{one}" for one in bare for start in ("", "__Host-", "__Secure-")})


def _pairs(headers: Iterable[Header]) -> list[tuple[str, str]]:
    return [(one, value or "") for one, value in _raw(headers)]


def _raw(headers: Iterable[Header]) -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []
    for header, line in headers:
        if header.lower() != b"cookie":
            continue
        for part in line.decode("latin-1").split(";"):
            one, sign, value = part.strip().partition("=")
            if one or sign:
                found.append((one.strip(), value if sign else None))
    return found


@functools.cache
def _fernet() -> Fernet:
    key = hashlib.sha256(f"berth app cookie\n{settings.SECRET_KEY}".encode()).digest()
    return Fernet(base64.urlsafe_b64encode(key))
