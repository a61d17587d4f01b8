"""Draws a flood from a terminal as cheaply as a browser's network thread does: what is measured is not this reader.

A client library's frames cost it some 0.3 s of processor for 100 MB, on the two cores that gateway, agent and the
program in the lease need.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import struct
import time
from typing import Any, Final
from urllib.parse import urlsplit

ACK_BYTES: Final = 128 * 1024
READ_AT_ONCE: Final = 256 * 1024
READY: Final = b"<ready>"
DONE: Final = b"<done>"
SILENT_S: Final = 60
_TEXT, _BINARY, _PING, _PONG = 0x81, 0x82, 0x89, 0x8A


class FloodReader:
    """One terminal's socket, with blocking reads. Raises RuntimeError where the terminal ends."""

    def __init__(self, told: dict[str, Any]) -> None:
        """Open the terminal that a ticket (the answer of ``…/terminal/``) is for."""
        way = urlsplit(told["gateways"][0])
        self._socket = socket.create_connection((way.hostname or "", way.port or 80), timeout=SILENT_S)
        self._buffer = bytearray(READ_AT_ONCE)
        self._unacked = 0
        self._last = b""
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall(
            f"GET {way.path} HTTP/1.1\r\nHost: {way.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self._rest = b""
        head = b""
        while not head.endswith(b"\r\n\r\n"):  # byte by byte: frames may follow at once
            head += self._socket.recv(1) or _over()
        if b" 101 " not in head.partition(b"\r\n")[0]:
            raise RuntimeError(f"no terminal: {head.decode()}")
        self._say(_TEXT, json.dumps({"ticket": told["ticket"], "rows": 24, "columns": 80, "terminal": ""}))
        self._say(_BINARY, "PS1=; bind 'set enable-bracketed-paste off'; printf '\\074ready\\076'\n")
        seen = b""
        while READY not in seen:
            seen += self._message()
        self._say(_BINARY, "stty -opost; printf '\\074ready\\076'\n")
        seen = seen.partition(READY)[2]
        while READY not in seen:
            seen += self._message()

    def draw(self, size: int) -> float:
        """Return the seconds from the command to the last byte of a flood of ``size`` bytes."""
        began, got = time.perf_counter(), 0
        # What is said at the end is not in the echo of the command.
        self._say(_BINARY, f"head -c {size} /dev/zero; printf '\\074done\\076\\n'\n")
        self._last = b""
        while DONE not in self._last:
            got += self._pass()
        if got < size:
            raise RuntimeError(f"{got} bytes instead of {size}")
        return time.perf_counter() - began

    def close(self) -> None:
        self._socket.close()

    def _pass(self) -> int:
        """Let one message pass by, all but its end unlooked at, acknowledge as a page does, and return its length."""
        size = left = self._head()
        while left:
            got = self._socket.recv_into(self._buffer, min(left, READ_AT_ONCE))
            left -= got or len(_over())
            self._last = (self._last + self._buffer[max(0, got - 64) : got])[-64:]
        self._acknowledge(size)
        return size

    def _message(self) -> bytes:
        found = self._exactly(self._head())
        self._acknowledge(len(found))
        return found

    def _head(self) -> int:
        """Return the length of the next binary message; words of the gateway are read over."""
        while True:
            kind, size = self._exactly(2)
            if size == 126:
                (size,) = struct.unpack("!H", self._exactly(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", self._exactly(8))
            if kind == _BINARY:
                return int(size)
            said = self._exactly(size)
            if kind == _PING:
                self._say(_PONG, said)
                continue
            if kind != _TEXT or json.loads(said).get("op") == "end":
                raise RuntimeError(f"the terminal ended: {said!r}")

    def _acknowledge(self, size: int) -> None:
        self._unacked += size
        if self._unacked >= ACK_BYTES:
            self._say(_TEXT, json.dumps({"op": "ack", "bytes": self._unacked}))
            self._unacked = 0

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            found += self._socket.recv(size - len(found)) or _over()
        return found

    def _say(self, kind: int, said: str | bytes) -> None:
        data = said.encode() if isinstance(said, str) else said
        # A mask of zeros is a mask; a client's frames must have one.
        size = struct.pack("!B", 0x80 | len(data)) if len(data) < 126 else struct.pack("!BH", 0xFE, len(data))
        self._socket.sendall(bytes((kind,)) + size + bytes(4) + data)


def _over() -> bytes:
    raise RuntimeError("the terminal's socket ended")
