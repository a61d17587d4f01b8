"""Django's WSGI application behind an ASGI server, with as few steps between their threads as possible.

One step into a thread with the whole body at hand, one back with the answer: handing over headers, body
and end one by one, as general adapters do, costs a switch of threads each (docs/measurements.md). Only
long answers go piece by piece; nothing here trickles.
"""

from __future__ import annotations

import asyncio
import contextvars
import io
import sys
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
PIECE = 256 * 1024  # bytes of an answer that are gathered before they are sent
BODY_UP_TO = 2 * 1024 * 1024  # bytes of a request; the views refuse less than that with a sentence


class ClientLeft(Exception):
    """The connection ended before the request was whole: nobody waits for an answer."""


class ThreadedWsgi:
    """An ASGI application for HTTP that runs a WSGI application in a pool of threads."""

    def __init__(self, application: Application, *, workers: int) -> None:
        self._application = application
        self._threads = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="http")

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            body = await _whole_body(receive)
        except ClientLeft:
            return
        answer = _Answer(self._application, environ_of(scope, body), asyncio.get_running_loop(), send)
        context = contextvars.copy_context()
        rest = await asyncio.get_running_loop().run_in_executor(self._threads, context.run, answer.make)
        if answer.start is not None:
            await send(answer.start)
        await send({"type": "http.response.body", "body": rest})


class _Answer:
    """One run of the application. ``start`` is the message that begins the answer, None once it was sent."""

    def __init__(
        self, application: Application, environ: dict[str, Any], loop: asyncio.AbstractEventLoop, send: Send
    ) -> None:
        self._application, self._environ, self._loop, self._send = application, environ, loop, send
        self.start: Message | None = None

    def make(self) -> bytes:
        """Run the application; returns what is still to be sent, which is everything for an ordinary answer."""
        chunks: list[bytes] = []
        gathered = 0
        answer = self._application(self._environ, self._begin)
        try:
            for chunk in answer:
                chunks.append(chunk)
                gathered += len(chunk)
                if gathered > PIECE:
                    self._send_now(b"".join(chunks))
                    chunks, gathered = [], 0
        finally:
            close = getattr(answer, "close", None)
            if close is not None:
                close()
        return b"".join(chunks)

    def _begin(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> None:
        pairs = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        self.start = {"type": "http.response.start", "status": int(status[:3]), "headers": pairs}

    def _send_now(self, chunk: bytes) -> None:
        """Send from the thread, and wait until it was taken: a slow reader slows the sender."""
        messages = [self.start] if self.start is not None else []
        self.start = None
        for message in (*messages, {"type": "http.response.body", "body": chunk, "more_body": True}):
            asyncio.run_coroutine_threadsafe(_sent(self._send, message), self._loop).result()


async def _sent(send: Send, message: Message) -> None:
    await send(message)


async def _whole_body(receive: Receive) -> bytes:
    """Return the body, cut after ``BODY_UP_TO`` bytes, which is more than any view takes."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        if size <= BODY_UP_TO:
            parts.append(message.get("body", b""))
            size += len(parts[-1])
        if not message.get("more_body", False):
            return b"".join(parts)


def environ_of(scope: MutableMapping[str, Any], body: bytes) -> dict[str, Any]:
    """Return the WSGI environment of a request (PEP 3333)."""
    server, client = scope.get("server") or ("localhost", 80), scope.get("client")
    root = scope.get("root_path", "")
    environ: dict[str, Any] = {
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": root.encode().decode("latin-1"),
        "PATH_INFO": scope["path"].removeprefix(root).encode().decode("latin-1"),
        "QUERY_STRING": scope["query_string"].decode("latin-1"),
        "SERVER_PROTOCOL": f"HTTP/{scope['http_version']}",
        "SERVER_NAME": server[0],
        "SERVER_PORT": str(server[1] or 0),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scope.get("scheme", "http"),
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    if client is not None:
        environ["REMOTE_ADDR"], environ["REMOTE_PORT"] = client[0], str(client[1])
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").upper().replace("-", "_"), raw_value.decode("latin-1")
        if name not in ("CONTENT_LENGTH", "CONTENT_TYPE"):
            name = "HTTP_" + name
        environ[name] = f"{environ[name]},{value}" if name in environ else value
    return environ
