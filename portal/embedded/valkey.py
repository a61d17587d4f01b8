from __future__ import annotations

import os
import socket
from pathlib import Path

from portal.embedded.discovery import Engine


def command(engine: Engine, sock: Path, folder: Path, *, databases: int = 16) -> list[str]:
    """The server's command line: reachable by its socket alone, and nothing kept on disk.

    What it holds is disposable (nudges, live frames, cache); rows and the outbox are the work.
    """
    options = {
        "port": "0",
        "unixsocket": str(sock),
        "unixsocketperm": "700",
        "dir": str(folder),
        "save": "",
        "appendonly": "no",
        "databases": str(databases),
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "loglevel": "notice",
    }
    return [str(engine.program), *(part for name, value in options.items() for part in (f"--{name}", value))]


def run(engine: Engine, sock: Path, folder: Path, *, databases: int = 16) -> int:
    """Become the server."""
    os.execv(engine.program, command(engine, sock, folder, databases=databases))


def is_ready(sock: Path) -> bool:
    """Whether it answers a ping."""
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1)
            client.connect(str(sock))
            client.sendall(b"PING\r\n")
            return client.recv(16).startswith(b"+PONG")
    except OSError:
        return False
