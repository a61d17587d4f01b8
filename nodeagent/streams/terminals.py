"""The terminals of a node: shells in leases, the streams that look at them, and the minute for which they are kept.

One event loop. A terminal reads its shell only while its stream has credit, so a flood that nobody draws costs
nothing: the program blocks. What was shown last is kept for whoever comes back within a minute, by another gateway if
need be; nobody reads meanwhile, so nothing is lost either.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections import deque
from collections.abc import Callable, Collection
from typing import Final

from nodeagent.protocol.codec import read_object
from nodeagent.protocol.streams import Event, Kind
from nodeagent.protocol.terminals import (
    AWAY,
    EXIT,
    HANG_UP,
    KEPT_S,
    RESIZE,
    OpenTerminal,
    TerminalOpened,
    TerminalWord,
    body_of,
)
from nodeagent.reconcile.lease_records import LeaseRecord
from nodeagent.runtimes.base import Key
from nodeagent.streams.base import StreamEnd
from nodeagent.streams.scrollback import Scrollback
from nodeagent.streams.shells import LeaseShell, start_shell
from nodeagent.workloads.entry import EntryRefusedError, LeaseEntry

log = logging.getLogger(__name__)

REAP_EVERY_S: Final = 0.2
KILL_AFTER_S: Final = 2.0
MOST_PER_LEASE: Final = 256
MOST_TERMINALS: Final = 1024
READ_AT_ONCE: Final = 128 * 1024
# A program that prints on and on hands over some 4 KiB at a time. So much at once is a flood, and waits a moment for
# what follows: a message costs several times what reading does.
FLOOD_FROM: Final = 2048
HOLD_S: Final = 0.002
DEFLATED_AT_ONCE: Final = 8  # some milliseconds each, in which nothing else is served
LEASE_OVER: Final = "lease_over"
EXITED: Final = "exited"
# The record of a lease that is open to its holder now, None for any other.
Ready = Callable[[Key], LeaseRecord | None]


class Terminal:
    """One shell on its terminal. ``viewer`` is the stream that looks at it, None while nobody does."""

    def __init__(self, name: str, key: Key, shell: LeaseShell) -> None:
        self.name = name
        self.key = key
        self.shell = shell
        self.viewer: tuple[StreamEnd, int] | None = None
        self.left_at = 0.0
        self.is_over = False
        self.kept = Scrollback()
        self._to_show = b""
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._held_until: asyncio.TimerHandle | None = None
        self._typed: deque[tuple[tuple[StreamEnd, int] | None, bytes]] = deque()
        self._is_reading = False
        self._loop = asyncio.get_running_loop()

    # Who looks

    def attach(self, end: StreamEnd, stream: int) -> None:
        """Show a stream what was shown last, and go on there; whoever looked before is told."""
        if self.viewer is not None:
            before, number = self.viewer
            before.reset(number, "taken_over", "this terminal was opened elsewhere")
        self.viewer = end, stream
        self._forget_held()  # it is kept, and shown with that
        self._typed.clear()  # what the shell did not take from whoever looked before
        self._to_show = self.kept.text()
        self.flow()

    def detach(self) -> None:
        """Let nobody look; the shell waits."""
        self.viewer, self.left_at, self._to_show = None, self._loop.time(), b""
        self._forget_held()
        self._read_on(False)

    # From the shell

    def flow(self) -> None:
        """Send on what the credit allows, and read only while it allows more."""
        if self.viewer is None:
            return
        end, stream = self.viewer
        if self._to_show:
            taken = end.send(stream, self._to_show)
            self._to_show = self._to_show[taken:]
        self._read_on(not self._to_show and end.credit(stream) > 0)

    def _readable(self) -> int:
        """Read what there is, up to the credit; returns how much that was. Of a flood several reads are sent as one."""
        if self.viewer is None:
            return 0
        end, stream = self.viewer
        most = min(end.credit(stream), READ_AT_ONCE)
        got = 0
        while self._held_bytes < most:
            try:
                data = os.read(self.shell.terminal, most - self._held_bytes)
            except BlockingIOError:
                break
            except OSError:  # EIO: the last program has let go of it
                data = b""
            if not data:
                self.is_over = True
                break
            self.kept.add(data)
            self._held.append(data)
            self._held_bytes += len(data)
            got += len(data)
        if self.is_over or got < FLOOD_FROM or self._held_bytes >= most:
            self._send_held()
        elif self._held_until is None:
            self._held_until = self._loop.call_later(HOLD_S, self._send_held)
        if self.is_over or end.credit(stream) <= 0:
            self._read_on(False)
        return got

    def _send_held(self) -> None:
        if self._held and self.viewer is not None:
            end, stream = self.viewer
            end.send(stream, b"".join(self._held))
        self._forget_held()

    def _forget_held(self) -> None:
        if self._held_until is not None:
            self._held_until.cancel()
            self._held_until = None
        self._held.clear()
        self._held_bytes = 0

    def _read_on(self, wanted: bool) -> None:
        wanted = wanted and not self.is_over
        if wanted and not self._is_reading:
            self._loop.add_reader(self.shell.terminal, self._readable)
        elif self._is_reading and not wanted:
            self._loop.remove_reader(self.shell.terminal)
        self._is_reading = wanted

    def drain(self) -> bool:
        """Read what a shell that has exited left behind; says whether all of it was sent."""
        if self.viewer is not None and not self._to_show and not self.is_over:
            end, stream = self.viewer
            while end.credit(stream) > 0 and not self.is_over:
                if not self._readable():
                    self._send_held()
                    return True
        return self.is_over

    # To the shell

    def type(self, data: bytes) -> None:
        """Give the shell what was typed; credit goes back as it takes it."""
        self._typed.append((self.viewer, data))
        if len(self._typed) == 1:
            self._write()

    def _write(self) -> None:
        while self._typed:
            viewer, data = self._typed[0]
            try:
                taken = os.write(self.shell.terminal, data)
            except BlockingIOError:
                self._loop.add_writer(self.shell.terminal, self._write)
                return
            except OSError:
                self._typed.clear()
                break
            self._typed.popleft()
            if taken < len(data):
                self._typed.appendleft((viewer, data[taken:]))
            if viewer is not None:
                viewer[0].consumed(viewer[1], taken)
        self._loop.remove_writer(self.shell.terminal)

    def close(self) -> None:
        """Let go of the terminal: its session is hung up by the kernel as well."""
        self._read_on(False)
        self._forget_held()
        self._loop.remove_writer(self.shell.terminal)
        os.close(self.shell.terminal)


class Terminals:
    """All terminals of this node, over all gateways."""

    def __init__(self, entry: LeaseEntry, ready: Ready) -> None:
        self._entry = entry
        self._ready = ready
        self._terminals: dict[str, Terminal] = {}
        self._by_stream: dict[tuple[StreamEnd, int], Terminal] = {}
        self._starting: dict[tuple[StreamEnd, int], Key] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    @property
    def count(self) -> int:
        """Return how many shells there are."""
        return len(self._terminals)

    @property
    def keys(self) -> frozenset[Key]:
        """The leases that have shells."""
        return frozenset(one.key for one in self._terminals.values())

    async def close(self) -> None:
        """End every shell: the agent that holds their terminals stops."""
        ending = list(self._terminals.values())
        for terminal in ending:
            self._end(terminal, "agent_stopped", "the node's agent stops; open a new terminal")
            terminal.shell.hang_up(kill=True)  # nobody is left to do it later
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_AFTER_S):
                while any(terminal.shell.process.poll() is None for terminal in ending):
                    await asyncio.sleep(0.01)

    def look(self, over: Collection[Key]) -> None:
        """End what is over: leases, shells that exited, terminals that nobody came back to."""
        for terminal in list(self._terminals.values()):
            if terminal.key in over:
                self._end(terminal, LEASE_OVER, "the lease is over")
            elif terminal.viewer is None:
                if self._loop.time() - terminal.left_at > KEPT_S:
                    self._end(terminal, "not_come_back", "")
            elif terminal.is_over or (_has_exited(terminal.shell) and terminal.drain()):
                self._exit(terminal)
        deflated = 0
        for terminal in self._terminals.values():
            if deflated < DEFLATED_AT_ONCE:
                deflated += terminal.kept.rest()

    def take(self, end: StreamEnd, event: Event) -> None:
        """Act on what a gateway said of a terminal; raises ProtocolError for what no gateway says."""
        terminal = self._by_stream.get((end, event.stream))
        if terminal is None:
            if event.kind is Kind.RESET:
                self._starting.pop((end, event.stream), None)
            return
        if event.kind is Kind.DATA:
            terminal.type(event.data)
        elif event.kind is Kind.WINDOW:
            terminal.flow()
        elif event.kind is Kind.CTL:
            self._hear(terminal, read_object(TerminalWord, event.body))
        elif event.kind is Kind.RESET:
            self._left(end, event.stream, is_away=event.body.get("code") == AWAY)

    def lost(self, end: StreamEnd) -> None:
        """A gateway's socket is gone: whoever looked may come back by another one."""
        for asked in [each for each in self._starting if each[0] is end]:
            del self._starting[asked]
        for known, stream in [each for each in self._by_stream if each[0] is end]:
            self._left(known, stream, is_away=True)

    def open(self, end: StreamEnd, stream: int, wish: OpenTerminal, record: LeaseRecord) -> None:
        """Show a stream the shell that it asks for, or a new one."""
        key = record.key
        former = self._terminals.get(wish.terminal)
        if former is not None and former.key == key and not former.is_over:
            self._show(former, end, stream, wish, is_former=True)
            return
        keys = [*(terminal.key for terminal in self._terminals.values()), *self._starting.values()]
        if len(keys) >= MOST_TERMINALS or keys.count(key) >= MOST_PER_LEASE:
            end.reset(stream, "too_many_terminals", f"at most {MOST_PER_LEASE} terminals in a lease")
            return
        self._starting[end, stream] = key
        self._keep(self._loop.create_task(self._start(end, stream, wish, record)))

    async def _start(self, end: StreamEnd, stream: int, wish: OpenTerminal, record: LeaseRecord) -> None:
        """Start a shell off the loop: systemd is asked, and may take its time."""
        try:
            shell = await self._loop.run_in_executor(
                None, start_shell, self._entry, record, wish.rows, wish.columns
            )
        except EntryRefusedError as no:
            log.warning("no terminal in lease %s: %s", wish.lease, no.detail)
            self._starting.pop((end, stream), None)
            end.reset(stream, no.code, no.detail)
            return
        made = Terminal(secrets.token_hex(16), record.key, shell)
        is_wanted = self._starting.pop((end, stream), None) is not None
        self._terminals[made.name] = made
        if is_wanted and self._ready(record.key) is not None:
            self._show(made, end, stream, wish, is_former=False)
        else:
            end.reset(stream, LEASE_OVER, "the lease is over")
            self._end(made, "", "")

    def _show(
        self, terminal: Terminal, end: StreamEnd, stream: int, wish: OpenTerminal, *, is_former: bool
    ) -> None:
        if terminal.viewer is not None:
            self._by_stream.pop(terminal.viewer, None)
        terminal.shell.resize(wish.rows, wish.columns)
        end.accept(stream, body_of(TerminalOpened(terminal.name, is_former)))
        self._by_stream[end, stream] = terminal
        terminal.attach(end, stream)

    def _hear(self, terminal: Terminal, word: TerminalWord) -> None:
        if word.op == RESIZE:
            terminal.shell.resize(word.rows, word.columns)
        elif word.op == HANG_UP:
            self._end(terminal, "hung_up", "")

    def _left(self, end: StreamEnd, stream: int, *, is_away: bool) -> None:
        terminal = self._by_stream.pop((end, stream), None)
        if terminal is None or terminal.viewer != (end, stream):
            return
        terminal.detach()
        if not is_away:
            self._end(terminal, "", "")

    def _exit(self, terminal: Terminal) -> None:
        """Say how a shell ended, and end its stream."""
        self._forget(terminal)
        terminal.shell.hang_up(kill=True)
        status = terminal.shell.process.poll()
        if terminal.viewer is not None:
            end, stream = terminal.viewer
            end.say(stream, body_of(TerminalWord(EXIT, status=status)))
            end.reset(stream, EXITED)
        terminal.close()
        self._reap_later(terminal)

    def _end(self, terminal: Terminal, code: str, detail: str) -> None:
        """Take a terminal away: its stream ends now, its programs are asked, and killed a little later."""
        self._forget(terminal)
        if terminal.viewer is not None:
            terminal.viewer[0].reset(terminal.viewer[1], code, detail)
        terminal.shell.hang_up()
        terminal.close()
        self._reap_later(terminal)

    def _forget(self, terminal: Terminal) -> None:
        self._terminals.pop(terminal.name, None)
        if terminal.viewer is not None:
            self._by_stream.pop(terminal.viewer, None)

    def _reap_later(self, terminal: Terminal) -> None:
        self._keep(self._loop.create_task(_reap(terminal.shell)))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _reap(shell: LeaseShell) -> None:
    """Kill what did not go by itself, and take the shell's status, which frees its number."""
    if shell.process.returncode is not None:
        return
    try:
        if not _has_exited(shell):
            await asyncio.sleep(KILL_AFTER_S)
    finally:
        shell.hang_up(kill=True)
    while shell.process.poll() is None:
        await asyncio.sleep(REAP_EVERY_S)


def _has_exited(shell: LeaseShell) -> bool:
    """Say whether a shell has exited, without taking its status: until that is taken its number is nobody else's."""
    if shell.process.returncode is not None:
        return True
    try:
        return os.waitid(os.P_PID, shell.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
