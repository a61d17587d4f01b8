"""``berth terminal``: a shell in a lease, in the terminal at hand."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from portal.cli import output
from portal.cli.command import api, guarded

if TYPE_CHECKING:
    from portal.cli.client import ApiClient

KEPT_S = 60.0
ACK_BYTES = 128 * 1024
PIECE = 32 * 1024
LOST, CLOSED = 1, 1
END_OF_INPUT = b"\x04"
TRY_AGAIN = ("node_away", "unavailable", "restart", "bad_ticket", "")


@dataclass
class Visit:
    """One shell over as many sockets as it takes: its name, and how it ended."""

    lease: str
    terminal: str = ""
    status: int | None = None
    why: str = ""
    detail: str = ""
    is_input_over: bool = False
    typed: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)


@guarded
def terminal(
    lease: Annotated[str, typer.Argument(metavar="LEASE", help="A lease of yours (lse-…).")],
) -> None:
    """Open a shell in an active lease of yours. It ends with the lease; a lost connection is found again."""
    with api() as portal:
        code = asyncio.run(_keep(portal, lease))
    raise typer.Exit(code)


async def _keep(portal: ApiClient, lease: str) -> int:
    """Hold a shell until it ends; returns the exit code."""
    from websockets.exceptions import WebSocketException

    visit, lost_at, tries = Visit(lease), 0.0, 0
    with _raw() as is_screen:
        _listen(visit)
        while True:
            given = await asyncio.to_thread(portal.post, f"leases/{quote(lease, safe='') or '-'}/terminal/")
            address = given["gateways"][tries % len(given["gateways"])]
            visit.why, before = "", visit.terminal
            with contextlib.suppress(OSError, TimeoutError, WebSocketException):
                await _talk(visit, address, given["ticket"], is_screen=is_screen)
            if visit.why not in TRY_AGAIN:
                break
            if visit.terminal != before:
                lost_at, tries = 0.0, 0
            lost_at, tries = lost_at or time.monotonic(), tries + 1
            if time.monotonic() - lost_at > KEPT_S:
                break
            await asyncio.sleep(min(5.0, 0.2 * 2 ** min(tries, 6)))
    if visit.why == "exited":
        return visit.status if visit.status is not None and 0 <= visit.status < 256 else CLOSED
    output.say(REASONS.get(visit.why) or visit.detail or f"The terminal was closed ({visit.why or 'lost'}).")
    return LOST


async def _talk(visit: Visit, address: str, ticket: str, *, is_screen: bool) -> None:
    """Carry bytes over one socket until it ends; what it said last is noted in the visit."""
    from websockets.asyncio.client import connect

    async with connect(
        address, compression=None, max_size=1 << 20, open_timeout=10, close_timeout=1
    ) as socket:
        first = {"ticket": ticket, **_size(), "terminal": visit.terminal}
        await socket.send(json.dumps(first))
        sender: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        unacked = 0
        try:
            async for message in socket:
                if isinstance(message, bytes):
                    sys.stdout.buffer.write(message)
                    sys.stdout.buffer.flush()
                    unacked += len(message)
                    if unacked >= ACK_BYTES:
                        await socket.send(json.dumps({"op": "ack", "bytes": unacked}))
                        unacked = 0
                    continue
                word: dict[str, Any] = json.loads(message)
                if word["op"] == "opened":
                    visit.terminal = word["terminal"]
                    sender = sender or loop.create_task(_send(visit, socket))
                    if is_screen:
                        resize = lambda: loop.create_task(  # noqa: E731 - a handler takes no arguments
                            socket.send(json.dumps({"op": "resize", **_size()}))
                        )
                        loop.add_signal_handler(signal.SIGWINCH, resize)
                elif word["op"] == "exit":
                    visit.status = word["status"]
                elif word["op"] == "end":
                    visit.why, visit.detail = str(word["code"]), str(word["detail"])
        finally:
            if sender is not None:
                sender.cancel()
                await asyncio.gather(sender, return_exceptions=True)


async def _send(visit: Visit, socket: Any) -> None:
    while True:
        await socket.send(await visit.typed.get())


def _listen(visit: Visit) -> None:
    """Take what is typed, or piped, from now on; the end of a pipe is said to the shell as Ctrl-D."""
    loop, stdin = asyncio.get_running_loop(), sys.stdin.fileno()

    def read() -> None:
        data = os.read(stdin, PIECE)
        visit.typed.put_nowait(data or END_OF_INPUT)
        if not data:
            loop.remove_reader(stdin)

    try:
        loop.add_reader(stdin, read)
    except PermissionError:  # a file: it is all there
        for piece in iter(lambda: os.read(stdin, PIECE), b""):
            visit.typed.put_nowait(piece)
        visit.typed.put_nowait(END_OF_INPUT)


@contextlib.contextmanager
def _raw() -> Iterator[bool]:
    """Hand every key to the shell, Ctrl-C too, and put the terminal back afterwards; False where there is none."""
    stdin = sys.stdin.fileno()
    if not os.isatty(stdin):
        yield False
        return
    before = termios.tcgetattr(stdin)
    tty.setraw(stdin)
    try:
        yield True
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def _size() -> dict[str, int]:
    columns, rows = shutil.get_terminal_size()
    return {"rows": max(1, min(rows, 1000)), "columns": max(1, min(columns, 1000))}


REASONS = {
    "lease_over": "The lease is over, and its terminal with it.",
    "signed_out": "Your token is not accepted any more. Sign in with “berth login”.",
    "not_allowed": "You may not use this terminal any more.",
    "taken_over": "This terminal was opened elsewhere.",
    "not_open_here": "The node does not have this lease open yet. Try again in a moment.",
    "node_away": "The node cannot be reached now. Try again in a while.",
    "agent_stopped": "The node's agent restarted, and its shells ended. Open a new one.",
}
