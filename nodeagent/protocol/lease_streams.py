"""Streams into a lease beside terminals: sockets of its programs, and apps that the agent starts for its holder."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from nodeagent.protocol.codec import ProtocolError

UNIX, TCP, APP = "unix", "tcp", "app"
STATE: Final = "state"
INSTALLING, STARTING, READY, FAILED, ENDED = "installing", "starting", "ready", "failed", "ended"
APP_STATES: Final = (INSTALLING, STARTING, READY, FAILED, ENDED)
LOG_LINES: Final = 50
MOST_LOG_BYTES: Final = 16 * 1024
MOST_PORT: Final = 65_535
# The name of a socket in the lease's run folder, and that of an app, which is part of a host name as well.
_SOCKET: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,29}(?:\.sock)?")
_APP: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,28}[a-z0-9])?")


def is_app_name(text: str) -> bool:
    """Say whether an app may have this name: it becomes part of a host name, before ``--``."""
    return _APP.fullmatch(text) is not None and "--" not in text


@dataclass(frozen=True, slots=True)
class OpenSocket:
    """A connection to a program in a lease: ``unix`` by the socket's name in its run folder, ``tcp`` by its port."""

    kind: str
    lease: str
    generation: int
    socket: str = ""
    port: int = 0

    def __post_init__(self) -> None:
        """Raise ProtocolError for an address that no program in a lease has."""
        if self.kind == UNIX and (not _SOCKET.fullmatch(self.socket) or self.port):
            raise ProtocolError("bad_name", "a socket has a plain name, and no port")
        if self.kind == TCP and (self.socket or not 1 <= self.port <= MOST_PORT):
            raise ProtocolError("bad_port", f"a port lies between 1 and {MOST_PORT}")
        if self.kind not in (UNIX, TCP):
            raise ProtocolError("unknown_kind", "a socket is unix or tcp")


@dataclass(frozen=True, slots=True)
class OpenApp:
    """An app in one generation of one lease: how it is started where it does not run yet, and when it is ready.

    ``{socket}`` and ``{port}`` in the command are where it listens; ``needs`` names its programs. ``restart``: one
    that failed or ended is started anew.
    """

    kind: str
    lease: str
    generation: int
    app: str
    command: tuple[str, ...]
    socket: str = ""
    port: int = 0
    ready_path: str = "/"
    needs: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    restart: bool = False

    def __post_init__(self) -> None:
        """Raise ProtocolError for an app that cannot be started or reached."""
        if self.kind != APP or not is_app_name(self.app) or not self.command:
            raise ProtocolError("bad_app", "an app has a name and a command")
        OpenSocket(UNIX if self.socket else TCP, self.lease, self.generation, self.socket, self.port)
        if not self.ready_path.startswith("/") or not self.ready_path.isascii() or " " in self.ready_path:
            raise ProtocolError("bad_path", "an app is asked by a path whether it is ready")


@dataclass(frozen=True, slots=True)
class AppWord:
    """The state of an app; ``detail`` says more to people, and the stream's bytes are what the app said last."""

    op: str
    state: str
    detail: str = ""

    def __post_init__(self) -> None:
        """Raise ProtocolError for a state that no app has."""
        if self.op != STATE or self.state not in APP_STATES:
            raise ProtocolError("unknown_word", f"an app is {', '.join(APP_STATES)}")


def wire(said: OpenSocket | OpenApp | AppWord) -> dict[str, Any]:
    """Return the object that goes over the wire."""
    return asdict(said)
