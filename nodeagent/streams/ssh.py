"""SSH into leases: each stream is one connection, to a server of its own inside the lease (ssh_session.py)."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import socket
import subprocess
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict
from functools import cache
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from nodeagent.protocol.ssh import OpenSsh, SshOpened, preface
from nodeagent.reconcile.lease_records import LeaseRecord
from nodeagent.runtimes.base import Key
from nodeagent.streams.base import StreamEnd
from nodeagent.streams.sockets import LeaseConnections
from nodeagent.workloads.entry import EntryRefusedError, LeaseEntry, start

log = logging.getLogger(__name__)

MOST_PER_LEASE: Final = 32
MOST_SESSIONS: Final = 256
GOES_WITHIN_S: Final = 2.0


class SshSessions(LeaseConnections):
    """All SSH connections of this node, over all gateways."""

    def __init__(self, entry: LeaseEntry) -> None:
        super().__init__()
        self._entry = entry
        self._host_keys: dict[Key, Ed25519PrivateKey] = {}
        self._servers: list[tuple[Key, subprocess.Popen[bytes]]] = []

    @property
    def keys(self) -> frozenset[Key]:
        """The leases with connections or servers, and those whose server has a key already."""
        opening = (key for key, _task in self._opening.values())
        servers = (key for key, _server in self._servers)
        return frozenset(self._host_keys) | frozenset(opening) | frozenset(servers)

    def open(self, end: StreamEnd, stream: int, wish: OpenSsh, record: LeaseRecord) -> None:
        """Start a server in a ready lease and connect the stream to it."""
        del wish
        held = Counter(key for key, _server in self._servers)
        held.update(key for key, _task in self._opening.values())
        if held.total() >= MOST_SESSIONS or held[record.key] >= MOST_PER_LEASE:
            end.reset(stream, "too_many_sessions", f"at most {MOST_PER_LEASE} SSH connections into a lease")
        elif not can_serve():
            end.reset(stream, "no_ssh", "this node has no SSH server: its agent lacks asyncssh")
        else:
            self.begin(end, stream, record.key, self._open(end, stream, record))

    async def _open(self, end: StreamEnd, stream: int, record: LeaseRecord) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                server = await asyncio.get_running_loop().run_in_executor(None, self._start, record, theirs)
            except EntryRefusedError as no:
                log.warning("no SSH in lease %s: %s", record.lease, no.detail)
                self.wanted(end, stream)
                ours.close()
                end.reset(stream, no.code, no.detail)
                return
        self._servers.append((record.key, server))
        if not self.wanted(end, stream):
            ours.close()  # nobody wants it any more, and it ends by that
            return
        host_key = self._host_keys.setdefault(record.key, Ed25519PrivateKey.generate())
        secret = host_key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
        ours.sendall(
            preface({"host_key": secret})
        )  # some hundred bytes into an empty socket: it does not wait
        public = host_key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
        end.accept(stream, asdict(SshOpened(public)))
        self.carry(end, stream, record.key, ours)

    def _start(self, record: LeaseRecord, theirs: socket.socket) -> subprocess.Popen[bytes]:
        """Start a server; off the loop, because systemd is asked and may take its time."""
        command = self._entry.ssh_session(record)
        return start(command, stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def look(self, over: Collection[Key]) -> None:
        """End connections into leases that are over, and take the status of servers that have ended."""
        super().look(over)
        for key, server in self._servers:
            if key in over:
                _kill(server)
        self._servers = [each for each in self._servers if each[1].poll() is None]
        for key in over:
            self._host_keys.pop(key, None)

    async def close(self) -> None:
        """End everything: programs are hung up as their server goes, and servers that do not go are killed."""
        for session in self._open_sockets.values():
            session.close("agent_stopped", "the node's agent stops; connect again")
        self._open_sockets.clear()
        tasks = [task for _key, task in self._opening.values()]
        self._opening.clear()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOES_WITHIN_S):
                while any(server.poll() is None for _key, server in self._servers):
                    await asyncio.sleep(0.02)
        for _key, server in self._servers:
            _kill(server)
            await asyncio.get_running_loop().run_in_executor(None, server.wait)
        self._servers.clear()


@cache
def can_serve() -> bool:
    """Say whether this host has what the servers are made of."""
    return importlib.util.find_spec("asyncssh") is not None


def _kill(server: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        server.kill()
