"""A TCP proxy between an agent and the portal that can be told to fail, for each direction by itself."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass, field

UP, DOWN = "up", "down"  # from the agent to the portal, from the portal to the agent
CHUNK = 64 * 1024


@dataclass
class ProxyDirection:
    """How one direction is served: passed on, swallowed without a word, or late."""

    is_swallowed: bool = False
    delay_s: float = 0.0
    passed: int = 0
    swallowed: int = 0


@dataclass
class ChaosProxy:
    """Runs in a thread of its own; every setter may be called from any thread.

    ``cut`` closes what is open and refuses what comes; ``swallow`` keeps connections open and loses their bytes
    (half open when it is one direction); ``delay`` holds each piece back.
    """

    host: str
    target: int
    lines: dict[str, ProxyDirection] = field(
        default_factory=lambda: {UP: ProxyDirection(), DOWN: ProxyDirection()}
    )
    port: int = 0
    opened: int = 0
    refused: int = 0
    closed: int = 0
    is_cut: bool = False

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._open: set[asyncio.StreamWriter] = set()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        ready.wait(10)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def cut(self) -> None:
        """Close every connection and accept no more until ``heal``."""
        self.is_cut = True
        self._loop.call_soon_threadsafe(self._close_all)

    def drop(self) -> None:
        """Close every connection once; new ones are welcome."""
        self._loop.call_soon_threadsafe(self._close_all)

    def heal(self) -> None:
        """Serve as usual again. Connections whose bytes were lost are closed: a stream with a hole is none."""
        was_lossy = any(line.is_swallowed for line in self.lines.values())
        self.is_cut = False
        for line in self.lines.values():
            line.is_swallowed, line.delay_s = False, 0.0
        if was_lossy:
            self._loop.call_soon_threadsafe(self._close_all)

    def _run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)

        async def serve() -> None:
            # Below the ports of outgoing connections: one of those may have taken a free one of theirs.
            for port in range(20_500, 32_000):
                with contextlib.suppress(OSError):
                    self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
                    self.port = port
                    break
            ready.set()

        self._loop.run_until_complete(serve())
        self._loop.run_forever()
        self._server.close()
        self._close_all()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def _close_all(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()
            self.closed += 1
        self._open.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut:
            self.refused += 1
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(self.host, self.target)
        except OSError:
            writer.transport.abort()
            return
        self.opened += 1
        self._open |= {writer, far_writer}
        pumps = (
            asyncio.create_task(self._pump(reader, far_writer, self.lines[UP])),
            asyncio.create_task(self._pump(far_reader, writer, self.lines[DOWN])),
        )
        _done, left = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        for one in (writer, far_writer):
            self._open.discard(one)
            one.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: ProxyDirection
    ) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while data := await reader.read(CHUNK):
                if line.delay_s:
                    await asyncio.sleep(line.delay_s)
                if line.is_swallowed:
                    line.swallowed += len(data)
                    continue
                writer.write(data)
                await writer.drain()
                line.passed += len(data)
