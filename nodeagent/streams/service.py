"""All that streams end in, over all gateways: terminals, SSH, sockets, apps. One look at the journal."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from nodeagent.protocol.codec import ProtocolError, read_object
from nodeagent.protocol.lease_streams import APP, TCP, UNIX, OpenApp, OpenSocket
from nodeagent.protocol.ssh import SSH, OpenSsh
from nodeagent.protocol.streams import Event, Kind
from nodeagent.protocol.terminals import PTY, OpenTerminal
from nodeagent.streams.apps import Apps
from nodeagent.streams.base import StreamEnd, StreamHandler
from nodeagent.streams.dialing import Dialers
from nodeagent.streams.sockets import LeaseSockets
from nodeagent.streams.ssh import SshSessions
from nodeagent.streams.terminals import Ready, Terminals
from nodeagent.workloads.app_programs import AppPrograms
from nodeagent.workloads.entry import LeaseEntry

LOOK_EVERY_S: Final = 0.2


class LeaseStreams:
    """What the streams of this node end in. One event loop."""

    def __init__(self, entry: LeaseEntry, ready: Ready, programs: AppPrograms | None = None) -> None:
        """``ready`` returns the record of a lease that is open to its holder now, None for any other."""
        self._entry = entry
        self._ready = ready
        dialers = Dialers(entry)
        self.terminals = Terminals(entry, ready)
        self.sockets = LeaseSockets(dialers)
        self.ssh = SshSessions(entry)
        self.apps = Apps(entry, dialers, programs or AppPrograms())
        # Sockets last: what ends a lease's apps may still want to ask them.
        self._services: tuple[StreamHandler, ...] = (self.terminals, self.ssh, self.apps, self.sockets)
        self._by_kind: dict[str, tuple[StreamHandler, type]] = {
            PTY: (self.terminals, OpenTerminal),
            UNIX: (self.sockets, OpenSocket),
            TCP: (self.sockets, OpenSocket),
            APP: (self.apps, OpenApp),
            SSH: (self.ssh, OpenSsh),
        }

    async def run(self) -> None:
        """Keep time until cancelled."""
        try:
            while True:
                self.look()
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            for service in self._services:
                await service.close()
            self._entry.close()

    def look(self) -> None:
        """End what is over, and leave nothing of a lease that is."""
        keys = {key for service in self._services for key in service.keys}
        over = {key for key in keys if self._ready(key) is None}
        for service in self._services:
            service.look(over)
        for key in over:
            self._entry.clear(key)

    def take(self, end: StreamEnd, event: Event) -> None:
        """Act on what a gateway said; raises ProtocolError for what no gateway says."""
        if event.kind is Kind.OPEN:
            self._open(end, event.stream, event.body)
            return
        for service in self._services:
            service.take(end, event)

    def lost(self, end: StreamEnd) -> None:
        """A gateway's socket is gone."""
        for service in self._services:
            service.lost(end)

    def _open(self, end: StreamEnd, stream: int, body: dict[str, Any]) -> None:
        service, form = self._by_kind.get(str(body.get("kind")), (None, OpenSocket))
        try:
            wish: Any = read_object(form, body)
        except ProtocolError as no:
            end.reset(stream, no.code, no.detail)
            return
        record = self._ready((wish.lease, wish.generation))
        if record is None or service is None:
            end.reset(stream, "not_open_here", "this lease is not open on this node")
            return
        service.open(end, stream, wish, record)
