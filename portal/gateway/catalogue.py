"""The apps that can be opened in a lease: data (apps.json, or the file of BERTH_APPS_CATALOGUE), and any port.

Each has a name, a command, where it listens (a socket, or a port of the lease's own), a path that answers once it is
ready, and the programs it needs. ``token`` says by which variable an app is told a secret that the gateway then shows
with every request; the browser never has it.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from nodeagent.protocol.codec import ProtocolError
from nodeagent.protocol.lease_streams import APP, MOST_PORT, TCP, UNIX, OpenApp, OpenSocket

FILE: Final = Path(__file__).with_name("apps.json")
FIELDS: Final = frozenset(
    {"name", "title", "command", "socket", "ready_path", "start_path", "needs", "token"}
)
# Where apps without a socket listen: a port that follows from the lease, so that all gateways name the same.
FIRST_PORT, PORTS = 20_000, 40_000
_PORT: Final = re.compile(r"port-([1-9][0-9]{0,4})")


@dataclass(frozen=True, slots=True)
class App:
    """One kind of app. Without a command it is a port where the holder started something themselves."""

    name: str
    title: str
    command: tuple[str, ...] = ()
    socket: str = ""
    port: int = 0
    ready_path: str = "/"
    start_path: str = "/"
    needs: tuple[str, ...] = ()
    token_variable: str = ""
    token_scheme: str = ""

    def socket_wish(self, lease: str, generation: int) -> OpenSocket:
        """Return how a connection to it is asked for."""
        if self.socket:
            return OpenSocket(UNIX, lease, generation, socket=self.socket)
        return OpenSocket(TCP, lease, generation, port=self.port or self._own_port(lease, generation))

    def wish(self, lease: str, generation: int, *, restart: bool) -> OpenApp:
        """Return how its start is asked for."""
        secret = self.token(lease, generation)
        return OpenApp(
            APP,
            lease,
            generation,
            self.name,
            self.command,
            socket=self.socket,
            port=0 if self.socket else self._own_port(lease, generation),
            ready_path=self.ready_path,
            needs=self.needs,
            env={self.token_variable: secret} if secret else {},
            restart=restart,
        )

    def token(self, lease: str, generation: int) -> str:
        """Return the secret between gateways and this app: of this lease alone, the same for every gateway."""
        return self._derived(lease, generation).hex() if self.token_variable else ""

    def authorization(self, lease: str, generation: int) -> bytes:
        """Return the header by which it knows a gateway, empty where it asks for none."""
        secret = self.token(lease, generation)
        return f"{self.token_scheme} {secret}".strip().encode() if secret else b""

    def _own_port(self, lease: str, generation: int) -> int:
        return FIRST_PORT + int.from_bytes(self._derived(lease, generation)[:4]) % PORTS

    def _derived(self, lease: str, generation: int) -> bytes:
        text = f"berth app\n{self.name}\n{lease}\n{generation}"
        return hmac.new(settings.SECRET_KEY.encode(), text.encode(), hashlib.sha256).digest()


def apps() -> tuple[App, ...]:
    """Return the apps of this installation, in the order of the page."""
    return _read(settings.APPS_CATALOGUE or str(FILE))


def app_of(name: str) -> App | None:
    """Return the app of a name: one of the catalogue, or ``port-7860``."""
    found = _PORT.fullmatch(name)
    if found and int(found[1]) <= MOST_PORT:
        port = int(found[1])
        return App(name, f"Port {port}", port=port)
    return next((app for app in apps() if app.name == name), None)


@functools.cache
def _read(path: str) -> tuple[App, ...]:
    """Raises ImproperlyConfigured for a file that describes no apps."""
    try:
        told = json.loads(Path(path).read_text(encoding="utf-8"))
        found = tuple(_app(each) for each in told)
        for app in found:
            app.wish("lse-0", 1, restart=False)
    except (OSError, ValueError, TypeError, KeyError, ProtocolError) as no:
        raise ImproperlyConfigured(f"BERTH_APPS_CATALOGUE: {path} describes no apps ({no}).") from no
    if len({app.name for app in found}) < len(found) or any(_PORT.fullmatch(app.name) for app in found):
        raise ImproperlyConfigured(f"BERTH_APPS_CATALOGUE: {path} names an app twice, or like a port.")
    return found


def _app(told: dict[str, Any]) -> App:
    if unknown := told.keys() - FIELDS:
        raise ValueError(f"an app has no {min(unknown)}")
    token = told.get("token") or {}
    return App(
        name=str(told["name"]),
        title=str(told.get("title") or told["name"]),
        command=tuple(map(str, told["command"])),
        socket=str(told.get("socket", "")),
        ready_path=str(told.get("ready_path", "/")),
        start_path=str(told.get("start_path", "/")),
        needs=tuple(map(str, told.get("needs", ()))),
        token_variable=str(token.get("variable", "")),
        token_scheme=str(token.get("scheme", "Bearer")) if token else "",
    )
