"""``berth share`` and ``berth watch``: a lease's terminals, shown to somebody else, who types nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
import termios
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final
from urllib.parse import quote

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, api, guarded
from portal.cli.terminal import ACK_BYTES, LOST, REASONS

if TYPE_CHECKING:
    from portal.cli.client import ApiClient

FOR_NOW = ("not_shown", "behind", "node_away", "unavailable", "restart", "bad_ticket", "")
WAIT_S = 1.0
# Modes that programs leave behind: mouse, focus, pasting, the other screen, keys, colours, character sets.
TIDY: Final = (
    b"\x1b\\\x1b[?1000;1002;1003;1004;1005;1006;1015;2004l\x1b[?5l\x1b[?1047l\x1b[>4m\x1b[<u\x1b(B\x0f\x1b[!p"
    b"\x1b[?7h\x1b[?25h\x1b[0m\r\n"
)
_STRING: Final = re.compile(rb"\x1b[\x00-\x1a\x1c-\x1f\x7f]*[]PX^_]|\xc2[\x90\x98\x9d\x9e\x9f]")
_STRING_END: Final = re.compile(rb"[\x07\x18\x1a]|\xc2\x9c|(?=\x1b)")
_BEGUN: Final = re.compile(rb"(?:\x1b[\x00-\x1a\x1c-\x1f\x7f]*|\xc2)\Z")


class StrangerBytes:
    """What somebody else's terminal shows, without control strings (OSC, DCS and such).

    They would set the watcher's clipboard or title. In the place of each stands an end of one, so that what is left on
    both sides never makes a new one.
    """

    def __init__(self) -> None:
        self._is_inside = False
        self._rest = b""

    def pass_on(self, data: bytes) -> bytes:
        """Return what of the next bytes may be shown; what may begin a control string waits for those after it."""
        data, self._rest, shown = self._rest + data, b"", bytearray()
        while data:
            found = (_STRING_END if self._is_inside else _STRING).search(data)
            begun = None if found else _BEGUN.search(data)
            if begun is not None:
                # The control characters in between are carried out as well when they come first.
                at, self._rest = begun.start(), data[begun.start() : begun.start() + 1]
                data = data[:at] + data[at + 1 :]
            if not self._is_inside:
                shown += data[: found.start()] + b"\x1b\\" if found else data
            if found is None:
                break
            self._is_inside, data = not self._is_inside, data[found.end() :]
        return bytes(shown)


def tidy(keys: int, screen: BinaryIO) -> None:
    """Put a terminal back as a shell expects it, and drop what it answered to what it was shown."""
    screen.write(TIDY)
    screen.flush()
    with contextlib.suppress(termios.error):
        termios.tcflush(keys, termios.TCIFLUSH)


@guarded
def share(
    lease: Annotated[str, typer.Argument(metavar="LEASE", help="A lease of yours (lse-…).")],
    user: Annotated[str, typer.Option("--with", help="Name of a member of its team.")] = "",
    everybody: Annotated[bool, typer.Option("--all", help="Everybody in its team.")] = False,
    end: Annotated[
        bool, typer.Option("--end", help="Take back what is shared, all of it or --with somebody.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Let somebody watch the terminals of a lease of yours; without options say who may."""
    if everybody and (user or end):
        raise typer.BadParameter("give --with NAME, --all or --end")
    path = f"leases/{quote(lease, safe='') or '-'}/terminal/shares/"
    with api() as portal:
        if end:
            for row in portal.get(path)["results"]:
                if user in ("", row["user"]):
                    portal.delete(f"{path}{row['id']}/")
        elif user or everybody:
            portal.post(path, {"user": user or None})
        rows = portal.get(path)["results"]
    cells = [(row["user"] or "everybody in the team", formatting.when(row["created_at"])) for row in rows]
    output.listing(rows, ("WHO", "SINCE"), cells, empty="Nobody may watch.", as_json=as_json)


@guarded
def watch(
    lease: Annotated[
        str, typer.Argument(metavar="LEASE", help="A lease whose holder lets you watch (lse-…).")
    ],
) -> None:
    """Watch the terminal that the holder of a lease types in. Nothing that you type goes anywhere; Ctrl-C leaves."""
    with api() as portal, contextlib.suppress(KeyboardInterrupt):
        try:
            why = asyncio.run(_keep(portal, lease))
        finally:
            if sys.stdout.isatty():
                tidy(sys.stdout.fileno(), sys.stdout.buffer)
        output.say(REASONS.get(why) or f"Watching has ended ({why}).")
        raise typer.Exit(LOST)


async def _keep(portal: ApiClient, lease: str) -> str:
    """Show what is shown until it ends for good; returns why."""
    from websockets.exceptions import WebSocketException

    tries = 0
    while True:
        given = await asyncio.to_thread(portal.post, f"leases/{quote(lease, safe='') or '-'}/watch/")
        address = given["gateways"][tries % len(given["gateways"])]
        why = ""
        with contextlib.suppress(OSError, TimeoutError, WebSocketException):
            why = await _show(address, given["ticket"])
        if why not in FOR_NOW:
            return why
        tries += 1
        if tries == len(given["gateways"]):
            output.say("No terminal is open there just now. It is shown as soon as one is.")
        if tries % len(given["gateways"]) == 0:
            await asyncio.sleep(WAIT_S)


async def _show(address: str, ticket: str) -> str:
    """Show what comes over one socket until it ends; returns the code of the end."""
    from websockets.asyncio.client import connect

    async with connect(
        address, compression=None, max_size=1 << 20, open_timeout=10, close_timeout=1
    ) as socket:
        await socket.send(json.dumps({"ticket": ticket}))
        unacked, why, theirs = 0, "", StrangerBytes()
        async for message in socket:
            if isinstance(message, bytes):
                sys.stdout.buffer.write(theirs.pass_on(message))
                sys.stdout.buffer.flush()
                unacked += len(message)
                if unacked >= ACK_BYTES:
                    await socket.send(json.dumps({"op": "ack", "bytes": unacked}))
                    unacked = 0
                continue
            word: dict[str, Any] = json.loads(message)
            why = str(word["code"]) if word["op"] == "end" else why
        return why
