"""How this node shows the portal who it is."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from nodeagent.link.identity import Identity, StateError

log = logging.getLogger(__name__)
Way = Literal["key", "next", "token"]

PORTAL_KEY = re.compile(r"[0-9a-f]{64}")
FOR_GOOD = frozenset(
    {"unknown_node", "not_enrolled", "bad_token", "bad_key", "bad_signature", "other_portal"}
)


class PortalRefusedError(Exception):
    """The portal turned this node away: its stable code and what it says to do."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class NodeEnrolment:
    """Decides what the next hello shows: a signature alone, by the key in force or the next one, or a token as well.

    A known node shows its key first, the next one when that is refused (the portal may have stored it and the
    answer was lost), the token last. A new node shows the token first. Each way is tried once before any is again.
    """

    def __init__(self, identity: Identity, token: Callable[[], str]) -> None:
        self.identity = identity
        self._read_token = token
        self._refused: dict[Way, PortalRefusedError] = {}
        self._last: Way = "key"
        self.proven_key = ""

    def credentials(self, nonce: str, *, is_known: bool, agent_nonce: str = "") -> dict[str, str]:
        """Return the fields of a hello that prove who this is, and which portal is expected.

        A token names the portal that made it, which goes before the one that was known.
        """
        ways = self._ways(is_known=is_known)
        fresh = [way for way in ways if way not in self._refused]
        if not fresh:
            self._refused.clear()
        way = (fresh or ways)[0]
        token, _dot, portal_key = (self._read_token() if way == "token" else "").partition(".")
        self._last = "key" if way == "token" and not token else way
        portal_key = portal_key if token and PORTAL_KEY.fullmatch(portal_key) else self.identity.portal_key
        by_next = self._last == "next"
        self.proven_key = self.identity.public_key(with_next=by_next)
        proof = {
            "signature": self.identity.sign(
                nonce, with_next=by_next, agent_nonce=agent_nonce, portal_key=portal_key
            )
        }
        if agent_nonce:
            proof |= {"nonce": agent_nonce, "portal_key": portal_key}
        if token:
            proof |= {"enrol_token": token, "public_key": self.proven_key}
        return proof

    def final(self, no: PortalRefusedError, *, is_known: bool) -> PortalRefusedError | None:
        """Return the refusal to give up with, None to go on: for a node never known, refused in every way."""
        if no.code not in FOR_GOOD:
            return None
        self._refused[self._last] = no
        if is_known or any(way not in self._refused for way in self._ways(is_known=False)):
            return None
        return self._refused.get("token", no)

    def accepted(self) -> None:
        """Forget earlier refusals; a next key that opened the door is the one in force from now on.

        After enrolment with a token a next key left over serves nobody any more.
        """
        self._refused.clear()
        try:
            if self._last == "next":
                self.identity.adopt()
            elif self._last == "token":
                self.identity.drop_next()
        except (OSError, StateError) as no:  # the door is open; the file is put right at the next start
            log.error("the node's key is not in its place yet: %s", no)

    def _ways(self, *, is_known: bool) -> list[Way]:
        """Return the ways there are now, the first to be tried first."""
        with_next: list[Way] = ["next"] if self.identity.has_next else []
        with_token: list[Way] = ["token"] if self._read_token() else []
        return ["key", *with_next, *with_token] if is_known else [*with_token, "key", *with_next]


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
