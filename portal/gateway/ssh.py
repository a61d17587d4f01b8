"""The sockets of ``berth ssh-proxy``: OpenSSH at one end, a stream to a server inside the lease at the other.

docs/ssh.md describes what is said: a ticket first, then bytes both ways. No page comes here, only programs.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from dataclasses import asdict
from datetime import datetime
from typing import Final

from django.db import DatabaseError

from nodeagent.protocol.codec import ProtocolError, read_object
from nodeagent.protocol.ssh import SSH, OpenSsh, SshOpened, preface
from portal.accounts.ssh_keys import keys_of
from portal.common.clock import db_now
from portal.common.errors import Unavailable
from portal.gateway import access
from portal.gateway.access import LeaseSeat, SeatRefusal
from portal.gateway.admission import NOT_ALLOWED, admit, refuse
from portal.gateway.database import in_database
from portal.gateway.lease_stream import LeaseStream, StreamLostError
from portal.gateway.nodes import AsgiMessage, NodeLink, Receive, Send, links
from portal.gateway.tickets import SSH_APP, TakenTicket
from portal.telemetry.viewers import headers_of

log = logging.getLogger(__name__)

MOST_PER_LEASE: Final = 32
OVER: Final = "over"


class SshConnection:
    """One connection of one person, and its stream."""

    def __init__(self, seat: LeaseSeat, link: NodeLink) -> None:
        self.seat = seat
        self.shown = self.sent = 0
        self.over = self.detail = ""
        self._stream = LeaseStream(link)

    def end(self, code: str) -> None:
        """End it now. Safe to repeat."""
        self.over = self.over or code
        self._stream.reset(code)

    async def serve(self, keys: list[str], receive: Receive, send: Send) -> None:
        """Carry bytes until either side ends."""
        loop = asyncio.get_running_loop()
        try:
            wish = OpenSsh(SSH, self.seat.uid, self.seat.generation)
            opened = read_object(SshOpened, await self._stream.open(asdict(wish)))
            await self._stream.write(preface({"keys": keys}))
            said = {"op": "opened", "host_key": opened.host_key}
            await send({"type": "websocket.send", "text": json.dumps(said)})
            tasks = [loop.create_task(self._to_lease(receive)), loop.create_task(self._to_person(send))]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        except StreamLostError as no:
            self.over, self.detail = self.over or no.code, no.detail
        except ProtocolError:
            self.over = self.over or "node_away"
        finally:
            self._stream.reset()

    async def _to_lease(self, receive: Receive) -> None:
        """Hand on what the person's ssh says, until it leaves; what it says that is no bytes is the end of its part."""
        try:
            while (message := await receive())["type"] == "websocket.receive":
                data = message.get("bytes")
                if data is None:
                    self._stream.finish()
                else:
                    self.sent += len(data)
                    await self._stream.write(data)
            self.over = self.over or "left"
        except StreamLostError as no:
            self.over, self.detail = self.over or no.code, no.detail

    async def _to_person(self, send: Send) -> None:
        """Hand on what the server says, until it has said all."""
        try:
            while data := await self._stream.read():
                self.shown += len(data)
                await send({"type": "websocket.send", "bytes": data})
            self.over = self.over or OVER
        except StreamLostError as no:
            self.over, self.detail = self.over or (OVER if no.code == "closed" else no.code), no.detail


connections: set[SshConnection] = set()


async def ssh_socket(scope: AsgiMessage, receive: Receive, send: Send) -> None:
    """Serve one SSH connection from ticket to close."""
    await receive()
    if "origin" in headers_of(scope["headers"]):
        await send({"type": "websocket.close", "code": NOT_ALLOWED})
        return
    found = await admit(scope, receive, send, lambda said: said, _seat_by)
    if found is None:
        return
    (seat, keys), _nothing = found
    link = links.get(seat.node_id)
    if link is None:
        await refuse(send, "node_away")
    elif Counter(one.seat.lease_id for one in connections)[seat.lease_id] >= MOST_PER_LEASE:
        await refuse(send, "too_many_sessions")
    else:
        await _serve(SshConnection(seat, link), keys, receive, send)


async def _serve(connection: SshConnection, keys: list[str], receive: Receive, send: Send) -> None:
    """Carry a connection, noted before its first byte and after its last."""
    seat, began = connection.seat, asyncio.get_running_loop().time()
    connections.add(connection)
    try:
        await in_database(lambda: access.note(seat, "ssh.opened", now=db_now()))
        await connection.serve(keys, receive, send)
    except (DatabaseError, Unavailable) as no:
        log.warning("an SSH connection could not be noted: %s", no)
        await refuse(send, "unavailable")
        return
    finally:
        connections.discard(connection)
    await refuse(send, connection.over, connection.detail)
    facts = {
        "seconds": int(asyncio.get_running_loop().time() - began),
        "shown_bytes": connection.shown,
        "sent_bytes": connection.sent,
        "why": connection.over,
    }
    try:
        await in_database(lambda: access.note(seat, "ssh.closed", now=db_now(), **facts))
    except (DatabaseError, Unavailable) as no:
        log.error("the end of an SSH connection in lease %s could not be noted: %s", seat.uid, no)


def _seat_by(ticket: TakenTicket, now: datetime) -> tuple[LeaseSeat, list[str]] | SeatRefusal:
    if ticket.app != SSH_APP or ticket.origin:
        return SeatRefusal("bad_ticket")
    seat = access.seat_of(ticket, now=now)
    if isinstance(seat, SeatRefusal):
        return seat
    keys = keys_of(ticket.user_id)
    return (seat, keys) if keys else SeatRefusal("no_keys")
