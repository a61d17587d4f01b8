from __future__ import annotations

import errno
import socket

from portal.embedded.errors import CannotStart

# Ports from here on are handed to outgoing connections by the kernel and may vanish at any time.
FIRST_EPHEMERAL = 32_768
TRIES = 100


def listen(host: str, wanted: int) -> socket.socket:
    """A listening socket on the wanted port or the next free one.

    The supervisor holds it, so a restarted web server finds its visitors still waiting.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in range(wanted, min(wanted + TRIES, FIRST_EPHEMERAL)):
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
            sock.listen(1024)
        except OSError as error:
            sock.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise CannotStart(
                    "address",
                    f"Cannot listen on {host} ({error.strerror}): set BERTH_HOST to an address it has.",
                ) from error
            continue
        return sock
    raise CannotStart(
        "no_port", f"No free port from {wanted} on: set BERTH_PORT to a free one below {FIRST_EPHEMERAL}."
    )


def wanted_port(text: str | None, default: int = 8000) -> int:
    """The port a person asked for, or a refusal that says which ports are possible."""
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) < FIRST_EPHEMERAL:
        raise CannotStart(
            "bad_port", f"BERTH_PORT={text} is not a port: use a number from 1 to {FIRST_EPHEMERAL - 1}."
        )
    return int(text)


def next_port(port: int, default: int = 8001) -> int:
    """The port to try for what stands beside the portal."""
    return port + 1 if port + TRIES < FIRST_EPHEMERAL else default


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches what listens there."""
    return host == "localhost" or host == "::1" or host.startswith("127.")
