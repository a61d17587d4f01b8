"""Where the portal is and how this node shows who it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from nodeagent.identity import Identity

PATH = "/agent/v1"
SCHEMES = {"ws": "ws", "http": "ws", "wss": "wss", "https": "wss"}
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
FOR_GOOD = frozenset({"unknown_node", "not_enrolled", "bad_token", "bad_key", "bad_signature"})


class AddressError(ValueError):
    """The portal's address cannot be used; the sentence shows what one looks like."""


class RefusedError(Exception):
    """The portal turned this node away: its stable code and what it says to do."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Address:
    """The portal's agent socket; ``is_local`` means no proxy is ever asked."""

    url: str
    is_local: bool


def address_of(portal: str) -> Address:
    """Return the agent socket of a portal's address; raises AddressError."""
    example = "give an address such as ws://portal:8000 or https://berth.example"
    try:
        parts = urlsplit(portal)
        port = parts.port
    except ValueError as no:
        raise AddressError(f"{portal!r} is not an address ({no}); {example}") from no
    scheme = SCHEMES.get(parts.scheme)
    if scheme is None or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise AddressError(f"{portal!r} is not the address of a portal; {example}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    where = host if port is None else f"{host}:{port}"
    base = parts.path.rstrip("/").removesuffix(PATH)
    return Address(f"{scheme}://{where}{base}{PATH}", parts.hostname in LOOPBACK)


class Enrolment:
    """Decides what the next hello shows: the signature alone, or a token with a fresh key as well."""

    def __init__(self, identity: Identity, token: Callable[[], str]) -> None:
        self.identity = identity
        self._read_token = token
        self._refused: dict[bool, RefusedError] = {}
        self._last_with_token = False

    def credentials(self, nonce: str, *, is_known: bool) -> dict[str, str]:
        """Return the fields of a hello that prove who this is."""
        token = self._token(is_known=is_known)
        self._last_with_token = bool(token)
        proof = {"signature": self.identity.sign(nonce)}
        if token:
            proof |= {"enrol_token": token, "public_key": self.identity.public_key()}
        return proof

    def final(self, no: RefusedError, *, is_known: bool) -> RefusedError | None:
        """Return the refusal to give up with, None to go on: for a node never known, refused in every way."""
        if no.code not in FOR_GOOD:
            return None
        self._refused[self._last_with_token] = no
        if is_known or (len(self._refused) < 2 and self._read_token()):
            return None
        return self._refused.get(True, no)

    def accepted(self) -> None:
        """Forget earlier refusals."""
        self._refused.clear()

    def _token(self, *, is_known: bool) -> str:
        """Return the token to show now: first thing for a new node, only after a refusal for a known one."""
        first, second = (False, True) if is_known else (True, False)
        with_token = second if first in self._refused and second not in self._refused else first
        if len(self._refused) == 2:
            self._refused.clear()
        return self._read_token() if with_token else ""


def token_source(token: str, file: Path | None) -> Callable[[], str]:
    """Return how to read the enrolment token: given as text, or from a file read anew each time."""

    def read() -> str:
        if token or file is None:
            return token
        try:
            return file.read_text(encoding="utf-8").strip()[:200]
        except (OSError, ValueError):
            return ""

    return read
