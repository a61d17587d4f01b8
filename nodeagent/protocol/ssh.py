"""SSH into a lease: one stream is one connection, and what is said on it before any SSH."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any, Final

from nodeagent.protocol.codec import ProtocolError

SSH: Final = "ssh"
HEAD: Final = struct.Struct("!I")
MOST_PREFACE: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class OpenSsh:
    """A connection to an SSH server in one generation of one lease; ``keys`` are said on the stream, as a preface."""

    kind: str
    lease: str
    generation: int

    def __post_init__(self) -> None:
        """Raise ProtocolError for another kind."""
        if self.kind != SSH:
            raise ProtocolError("unknown_kind", "this stream is SSH")


@dataclass(frozen=True, slots=True)
class SshOpened:
    """The server is there: its public key, for as long as the lease is open on this node."""

    host_key: str

    def __post_init__(self) -> None:
        """Raise ProtocolError for what is no key of ours: it goes into a file of the person's."""
        kind, _, body = self.host_key.partition(" ")
        if kind != "ssh-ed25519" or not body.isascii() or len(body) > 200 or set(body) & set(" \r\n\t"):
            raise ProtocolError("bad_key", "the server's key is one line of Ed25519")


def preface(said: dict[str, Any]) -> bytes:
    """Return one object as it is said before any SSH: four bytes of length, then JSON."""
    text = json.dumps(said).encode()
    return HEAD.pack(len(text)) + text
