"""Calls to the REST API over kept-alive connections, cheap enough to leave the machine to the portal."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

MOST_WAIT_S = 30.0
ANSWER_WITHIN_S = 60.0
PATIENT_TRIES = 40
# Web servers close a kept-alive connection that is idle for about five seconds.
IDLE_S = 3.0
Body = dict[str, Any]


class ApiRefusal(Exception):
    """The portal refused a call; ``code`` is stable, the sentence says what to do."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(f"{status} {code}: {detail}")
        self.status, self.code, self.detail = status, code, detail


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; ``headers`` with lower-case names."""

    status: int
    headers: dict[str, str]
    body: Body


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the portal listens, without TLS."""

    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> Origin:
        """Return the origin of ``http://host[:port]``; raises ValueError for anything else."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/"):
            raise ValueError(f"{url!r} is not an address like http://127.0.0.1:8000")
        return cls(parts.hostname, parts.port or 80)

    @property
    def netloc(self) -> str:
        """Return host and port as they stand in a Host header."""
        return f"{self.host}:{self.port}"


class Connection:
    """One kept-alive connection; one call at a time."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._used_at = 0.0

    async def call(
        self, method: str, path: str, *, token: str, body: Body | None = None, key: str = ""
    ) -> Answer:
        """Make one call; raises OSError or EOFError when the connection broke, which is then closed."""
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                now = asyncio.get_running_loop().time
                if now() - self._used_at > IDLE_S:
                    self.close()
                reader, writer = self._streams or await self._open()
                writer.write(self._request(method, path, token, body, key))
                answer = await _read_answer(reader)
                self._used_at = now()
                return answer
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the connection. Safe to repeat."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self._streams = await asyncio.open_connection(self._origin.host, self._origin.port, limit=2**20)
        return self._streams

    def _request(self, method: str, path: str, token: str, body: Body | None, key: str) -> bytes:
        data = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: {self._origin.netloc}",
            f"Authorization: Bearer {token}",
            f"Content-Length: {len(data)}",
        ]
        lines += ["Content-Type: application/json"] if body is not None else []
        lines += [f"Idempotency-Key: {key}"] if key else []
        return "\r\n".join([*lines, "", ""]).encode() + data


async def _read_answer(reader: asyncio.StreamReader) -> Answer:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    status = int(head[0].split(" ", 2)[1])
    pairs = (line.partition(":") for line in head[1:] if line)
    headers = {name.lower(): value.strip() for name, _sep, value in pairs}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        raw = await _read_chunks(reader)
    else:
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
    return Answer(status, headers, _decode(raw))


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int((await reader.readline()).split(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readline()
    await reader.readline()
    return b"".join(parts)


def _decode(raw: bytes) -> Body:
    try:
        value = json.loads(raw) if raw else {}
    except ValueError:
        value = {"detail": raw[:200].decode("utf-8", "replace")}
    return value if isinstance(value, dict) else {"results": value}


class TraceClient:
    """A few kept-alive connections shared by everything the client does."""

    def __init__(self, origin: Origin, *, connections: int) -> None:
        self._idle: asyncio.LifoQueue[Connection] = asyncio.LifoQueue()
        for _ in range(connections):
            self._idle.put_nowait(Connection(origin))
        self.origin = origin
        self.waits = 0

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        connection = await self._idle.get()
        try:
            yield connection
        finally:
            self._idle.put_nowait(connection)

    async def get(self, path: str, *, token: str) -> Body:
        """Return what is at a path; raises ApiRefusal."""
        return await self.call("GET", path, token=token)

    async def call(
        self, method: str, path: str, *, token: str, body: Body | None = None, key: str = ""
    ) -> Body:
        """Make a call that is safe to repeat, as often as the portal asks for it; raises ApiRefusal.

        429, 503 and a broken connection are waited out; a POST that makes something needs a ``key``.
        """
        for attempt in range(PATIENT_TRIES):
            try:
                async with self._connection() as connection:
                    answer = await connection.call(method, path, token=token, body=body, key=key)
            except (OSError, EOFError, TimeoutError) as error:
                refusal = ApiRefusal(0, "unreachable", f"{self.origin.netloc} does not answer ({error!r})")
                pause = min(5.0, 0.2 * 2**attempt)
            else:
                if answer.status < 400:
                    return answer.body
                refusal = _refusal(answer)
                if answer.status not in (429, 503):
                    raise refusal
                pause = _retry_after(answer)
            self.waits += 1
            await asyncio.sleep(pause)
        raise refusal

    async def pages(self, path: str, *, token: str) -> AsyncIterator[Body]:
        """Yield the rows of a list, page after page, oldest first when the path asks for it."""
        while path:
            page = await self.get(path, token=token)
            for row in page["results"]:
                yield row
            following = urlsplit(page.get("next") or "")
            path = f"{following.path}?{following.query}" if following.path else ""

    async def close(self) -> None:
        """Close every connection that is idle."""
        while not self._idle.empty():
            self._idle.get_nowait().close()


def _refusal(answer: Answer) -> ApiRefusal:
    body = answer.body
    errors = "; ".join(str(e.get("detail", "")) for e in body.get("errors") or [] if isinstance(e, dict))
    detail = " ".join(part for part in (str(body.get("detail", "")), errors) if part)
    return ApiRefusal(answer.status, str(body.get("code", "unknown")), detail)


def _retry_after(answer: Answer) -> float:
    text = answer.headers.get("retry-after", "")
    return min(MOST_WAIT_S, float(text)) if text.isdecimal() else 1.0
