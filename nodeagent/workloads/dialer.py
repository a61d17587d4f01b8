"""The process in a lease that opens sockets there for the agent: as the holder, in the lease's view of the host.

The agent is root and would follow a link that a holder put in a socket's place, into anything that root may open.
So it asks this process, by datagrams on a socket pair, and gets the open socket back. A port on the loopback device
is opened only where the holder listens on it themselves: other people of a shared host have ports there too.
"""

from __future__ import annotations

import array
import contextlib
import errno
import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from nodeagent.workloads.inside import JoinError, join, place_of

MOST_WORD: Final = 1024
LISTEN: Final = "0A"
TABLES: Final = (
    ("/proc/self/net/tcp", socket.AF_INET, "127.0.0.1"),
    ("/proc/self/net/tcp6", socket.AF_INET6, "::1"),
)
# Where each kind of table shows "any address" and the loopback device.
HERE: Final = frozenset({"00000000", "0100007F", "0" * 32, "0" * 24 + "01000000"})


def serve(control: socket.socket) -> None:
    """Answer the agent until it goes away."""
    while word := control.recv(MOST_WORD):
        asked: dict[str, Any] = json.loads(word)
        try:
            opened = open_socket(str(asked["path"]), int(asked["port"]))
        except OSError as no:
            answer = {"id": asked["id"], "error": errno.errorcode.get(no.errno or 0, "EIO")}
            control.send(json.dumps(answer).encode())
            continue
        with opened:
            rights = array.array("i", [opened.fileno()])
            control.sendmsg(
                [json.dumps({"id": asked["id"]}).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
            )


def open_socket(path: str, port: int) -> socket.socket:
    """Begin to connect to a Unix socket, or to a port that this account listens on; raises OSError."""
    family, address = (socket.AF_UNIX, path) if path else listener(port)
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            made.connect(address)
    except OSError:
        made.close()
        raise
    return made


def listener(port: int) -> tuple[int, Any]:
    """Return how to reach the port that this account listens on; raises OSError where it does not."""
    found = errno.ECONNREFUSED
    for table, family, host in TABLES:
        try:
            lines = Path(table).read_text(encoding="utf-8").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            parts = line.split()
            where, _, number = parts[1].partition(":")
            if parts[3] != LISTEN or int(number, 16) != port or where not in HERE:
                continue
            if int(parts[7]) == os.getuid():
                return family, (host, port)
            found = errno.EACCES
    raise OSError(found, os.strerror(found))


def main(words: Sequence[str]) -> None:
    """Serve on the given descriptor, as the given account where that is another one: ``FD [UID GID]``.

    ``FD PLACE``: in the lease's container (nodeagent.workloads.inside).
    """
    control = socket.socket(fileno=int(words[0]))
    if len(words) == 2:
        try:
            join(place_of(words[1]))
        except JoinError as no:
            sys.exit(str(no))
    elif len(words) == 3:
        os.setgroups([])
        os.setresgid(*[int(words[2])] * 3)
        os.setresuid(*[int(words[1])] * 3)
    with control, contextlib.suppress(OSError, ValueError):
        serve(control)


if __name__ == "__main__":
    main(sys.argv[1:])
