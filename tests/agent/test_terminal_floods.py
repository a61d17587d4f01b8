"""What a terminal sends of a flood: few messages, every byte in order, and a key's echo without delay."""

from __future__ import annotations

import asyncio
import os
import pty
import tty
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from nodeagent.streams import terminals
from nodeagent.streams.terminals import FLOOD_FROM, READ_AT_ONCE, Terminal

SOON_S = 20
STREAM = 1


class Viewer:
    """A gateway's end that notes each message."""

    def __init__(self, credit: int) -> None:
        self.room = credit
        self.messages: list[bytes] = []

    def credit(self, _stream: int) -> int:
        return self.room

    def send(self, _stream: int, data: bytes) -> int:
        assert len(data) <= self.room
        self.room -= len(data)
        self.messages.append(data)
        return len(data)

    @property
    def shown(self) -> bytes:
        return b"".join(self.messages)


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    """The two ends of a terminal: the agent's, which never blocks, and that of a program."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    os.set_blocking(ours, False)
    os.set_blocking(theirs, False)
    yield ours, theirs
    os.close(theirs)


def terminal_on(fd: int) -> Terminal:
    return Terminal("name", ("a", 1), SimpleNamespace(terminal=fd))


async def write(fd: int, data: bytes) -> None:
    """Write as a program whose terminal is read now and then."""
    async with asyncio.timeout(SOON_S):
        while data:
            try:
                data = data[os.write(fd, data) :]
            except BlockingIOError:
                await asyncio.sleep(0)


async def until(question: Any) -> None:
    async with asyncio.timeout(SOON_S):
        while not question():
            await asyncio.sleep(0.001)


async def test_flood_goes_in_few_messages_and_complete(ends):
    data = os.urandom(600_000)
    viewer, terminal = Viewer(1 << 30), terminal_on(ends[0])
    terminal.attach(viewer, STREAM)

    await write(ends[1], data)
    await until(lambda: len(viewer.shown) == len(data))
    terminal.close()

    assert viewer.shown == data
    assert max(map(len, viewer.messages)) <= READ_AT_ONCE
    assert len(viewer.messages) < 600_000 / 4096 / 2


async def test_key_is_shown_at_once(ends, monkeypatch):
    monkeypatch.setattr(terminals, "HOLD_S", 3600)
    viewer, terminal = Viewer(1 << 30), terminal_on(ends[0])
    terminal.attach(viewer, STREAM)

    os.write(ends[1], b"k")
    await until(lambda: viewer.messages)
    terminal.close()

    assert viewer.messages == [b"k"]


async def test_end_of_a_flood_does_not_wait_for_more(ends):
    viewer, terminal = Viewer(1 << 30), terminal_on(ends[0])
    terminal.attach(viewer, STREAM)

    await write(ends[1], b"x" * FLOOD_FROM)
    await until(lambda: len(viewer.shown) == FLOOD_FROM)
    terminal.close()


async def test_flood_stops_at_the_credit_and_goes_on_where_it_stopped(ends):
    data = os.urandom(50_000)
    viewer, terminal = Viewer(10_000), terminal_on(ends[0])
    terminal.attach(viewer, STREAM)
    writing = asyncio.create_task(write(ends[1], data))

    await until(lambda: len(viewer.shown) == 10_000)
    viewer.room = 1 << 30
    terminal.flow()
    await writing
    await until(lambda: len(viewer.shown) == len(data))
    terminal.close()

    assert viewer.shown == data


async def test_what_was_held_for_somebody_who_left_is_shown_once_to_who_comes(ends, monkeypatch):
    monkeypatch.setattr(terminals, "HOLD_S", 3600)
    first, second, terminal = Viewer(1 << 30), Viewer(1 << 30), terminal_on(ends[0])
    terminal.attach(first, STREAM)
    await write(ends[1], b"x" * FLOOD_FROM)
    await until(lambda: len(terminal.kept.text()) == FLOOD_FROM)

    terminal.detach()
    terminal.attach(second, STREAM)
    os.write(ends[1], b"y")
    await until(lambda: second.shown.endswith(b"y"))
    terminal.close()

    assert (first.shown, second.shown) == (b"", b"x" * FLOOD_FROM + b"y")
