"""Streams that end in sockets of programs in leases. Half-closed in each direction by itself, bounded by the window.

A socket may be shared with a process of the holder's, which could make it block: every call says that it must not.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter, deque
from collections.abc import Collection, Coroutine
from typing import Any, Final

from nodeagent.protocol.lease_streams import OpenSocket
from nodeagent.protocol.streams import Event, Kind
from nodeagent.reconcile.lease_records import LeaseRecord
from nodeagent.runtimes.base import Key
from nodeagent.streams.base import StreamEnd
from nodeagent.streams.dialing import Dialers, DialFailedError
from nodeagent.workloads.entry import EntryRefusedError

log = logging.getLogger(__name__)

MOST_PER_LEASE: Final = 256
MOST_SOCKETS: Final = 1024
READ_AT_ONCE: Final = 128 * 1024
LEASE_OVER: Final = "lease_over"
Place = tuple[StreamEnd, int]


class LeaseSocket:
    """One connection into a lease, and the stream that it belongs to."""

    def __init__(self, key: Key, end: StreamEnd, stream: int, made: socket.socket) -> None:
        self.key = key
        self.is_over = False
        self._end, self._stream, self._socket = end, stream, made
        self._to_write: deque[memoryview] = deque()
        self._is_reading = self._is_writing = False
        self._is_heard_out = self._is_told_out = self._is_ending = False
        self._loop = asyncio.get_running_loop()
        # It may still be connecting: once it can be written to, it is there or has failed.
        self._write_on(True)

    def flow(self) -> None:
        """Read while the stream has room for it."""
        self._read_on(not self._is_heard_out and self._end.credit(self._stream) > 0)

    def take(self, data: bytes) -> None:
        """Write what the gateway sent, as the program takes it; room is given back then."""
        if data:
            self._to_write.append(memoryview(data))
            self._write()

    def finish(self) -> None:
        """Tell the program that nothing more comes, once it has what came."""
        self._is_ending = True
        self._write()

    def close(self, code: str = "", detail: str = "") -> None:
        """End it in both directions. Safe to repeat."""
        if self.is_over:
            return
        self.is_over = True
        self._read_on(False)
        self._write_on(False)
        self._socket.close()
        self._end.reset(self._stream, code or "closed", detail)

    def _readable(self) -> None:
        room = min(self._end.credit(self._stream), READ_AT_ONCE)
        if room <= 0:
            self._read_on(False)
            return
        try:
            data = self._socket.recv(room, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as no:
            self.close("broken", no.strerror or "")
            return
        if data:
            self._end.send(self._stream, data)
            if self._end.credit(self._stream) <= 0:
                self._read_on(False)
            return
        self._is_heard_out = True
        self._read_on(False)
        self._end.end(self._stream)
        self._end_if_done()

    def _write(self) -> None:
        while self._to_write and not self.is_over:
            try:
                taken = self._socket.send(self._to_write[0], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except BlockingIOError:
                self._write_on(True)
                return
            except OSError as no:
                self.close("broken", no.strerror or "")
                return
            if taken < len(self._to_write[0]):
                self._to_write[0] = self._to_write[0][taken:]
            else:
                self._to_write.popleft()
            self._end.consumed(self._stream, taken)
        if self.is_over:
            return
        failed = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failed:
            self.close("refused", "nothing listens there in this lease")
            return
        self._write_on(False)
        if self._is_ending and not self._is_told_out:
            self._is_told_out = True
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError as no:
                self.close("broken", no.strerror or "")
                return
            self._end_if_done()

    def _end_if_done(self) -> None:
        if self._is_heard_out and self._is_told_out:
            self.close()

    def _read_on(self, wanted: bool) -> None:
        if wanted != self._is_reading:
            if wanted:
                self._loop.add_reader(self._socket, self._readable)
            else:
                self._loop.remove_reader(self._socket)
        self._is_reading = wanted

    def _write_on(self, wanted: bool) -> None:
        if wanted != self._is_writing:
            if wanted:
                self._loop.add_writer(self._socket, self._write)
            else:
                self._loop.remove_writer(self._socket)
        self._is_writing = wanted


class LeaseConnections:
    """Streams that each carry one socket into a lease: those that are open, and those that are being opened."""

    def __init__(self) -> None:
        self._open_sockets: dict[Place, LeaseSocket] = {}
        self._opening: dict[Place, tuple[Key, asyncio.Task[None]]] = {}

    def begin(self, end: StreamEnd, stream: int, key: Key, opening: Coroutine[Any, Any, None]) -> None:
        """Open a connection in a task of its own; ``wanted`` says at its end whether anybody still waits for it."""
        self._opening[end, stream] = key, asyncio.get_running_loop().create_task(opening)

    def wanted(self, end: StreamEnd, stream: int) -> bool:
        """Say whether a connection that was being opened is still wanted, and that it is opened no more."""
        return self._opening.pop((end, stream), None) is not None

    def carry(self, end: StreamEnd, stream: int, key: Key, made: socket.socket) -> None:
        """Carry bytes between an answered stream and its socket from now on."""
        self._open_sockets[end, stream] = connection = LeaseSocket(key, end, stream, made)
        connection.flow()

    def take(self, end: StreamEnd, event: Event) -> None:
        """Act on what a gateway said of a connection."""
        place = end, event.stream
        found = self._open_sockets.get(place)
        if found is None:
            if event.kind is Kind.RESET:
                self._opening.pop(place, None)
            return
        if event.kind is Kind.DATA:
            found.take(event.data)
        elif event.kind is Kind.WINDOW:
            found.flow()
        elif event.kind is Kind.EOF:
            found.finish()
        elif event.kind is Kind.RESET:
            found.close()
        if found.is_over:
            del self._open_sockets[place]

    def lost(self, end: StreamEnd) -> None:
        """End what a gateway that is gone had open."""
        for place in [each for each in self._opening if each[0] is end]:
            del self._opening[place]
        for place in [each for each in self._open_sockets if each[0] is end]:
            self._open_sockets.pop(place).close()

    def look(self, over: Collection[Key]) -> None:
        """End connections into leases that are over, and forget those that have ended."""
        for place, (key, _task) in list(self._opening.items()):
            if key in over:
                del self._opening[place]
                place[0].reset(place[1], LEASE_OVER, "the lease is over")
        for place, one in list(self._open_sockets.items()):
            if one.key in over:
                one.close(LEASE_OVER, "the lease is over")
            if one.is_over:
                del self._open_sockets[place]


class LeaseSockets(LeaseConnections):
    """All connections to programs in leases, over all gateways."""

    def __init__(self, dialers: Dialers) -> None:
        super().__init__()
        self._dialers = dialers

    @property
    def keys(self) -> frozenset[Key]:
        """The leases with connections, or with the process that opens them."""
        opening = (key for key, _task in self._opening.values())
        open_now = (one.key for one in self._open_sockets.values())
        return frozenset(open_now) | self._dialers.keys | frozenset(opening)

    @property
    def count(self) -> int:
        """Return how many connections there are, those being opened included."""
        return len(self._open_sockets) + len(self._opening)

    def open(self, end: StreamEnd, stream: int, wish: OpenSocket, record: LeaseRecord) -> None:
        """Connect to a program in a ready lease."""
        held = Counter(one.key for one in self._open_sockets.values())
        held.update(key for key, _task in self._opening.values())
        if self.count >= MOST_SOCKETS or held[record.key] >= MOST_PER_LEASE:
            end.reset(stream, "too_many_connections", f"at most {MOST_PER_LEASE} connections into a lease")
            return
        self.begin(end, stream, record.key, self._open(end, stream, wish, record))

    async def _open(self, end: StreamEnd, stream: int, wish: OpenSocket, record: LeaseRecord) -> None:
        try:
            made = await self._dialers.dial(record, name=wish.socket, port=wish.port)
        except (DialFailedError, EntryRefusedError) as no:
            self.wanted(end, stream)
            end.reset(stream, no.code, no.detail)
            return
        if not self.wanted(end, stream):
            made.close()
            return
        end.accept(stream, {})
        self.carry(end, stream, record.key, made)

    def look(self, over: Collection[Key]) -> None:
        """End what belongs to leases that are over, the process that opens connections too."""
        super().look(over)
        for key in over:
            self._dialers.end(key)

    async def close(self) -> None:
        """End everything."""
        self.look(self.keys)
        await self._dialers.close()
