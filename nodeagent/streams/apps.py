"""Apps in leases: programs with a page of their own, started as the holder when a gateway asks for them.

An app belongs to its lease, not to who looks at it: it runs until it ends or the lease does. Its stream tells its
state to one gateway each; what it printed last is shown when it does not start. An agent that starts anew finds an
app that still answers, in a unit; where holders are played, apps end with the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Collection
from typing import Final

from nodeagent.protocol.lease_streams import (
    ENDED,
    FAILED,
    INSTALLING,
    LOG_LINES,
    MOST_LOG_BYTES,
    READY,
    STARTING,
    STATE,
    AppWord,
    OpenApp,
    wire,
)
from nodeagent.protocol.streams import Event, Kind
from nodeagent.reconcile.lease_records import LeaseRecord
from nodeagent.runtimes.base import Key
from nodeagent.streams.base import StreamEnd
from nodeagent.streams.dialing import Dialers, DialFailedError
from nodeagent.workloads.app_programs import AppPrograms, InstallFailedError
from nodeagent.workloads.entry import EntryRefusedError, LeaseEntry, marked, start

log = logging.getLogger(__name__)

READY_WITHIN_S: Final = 120.0
ASK_FIRST_S: Final = 0.05
ASK_MOST_S: Final = 0.2
ANSWER_WITHIN_S: Final = 5.0
REAP_EVERY_S: Final = 0.2
MOST_PER_LEASE: Final = 16
MOST_WATCHERS: Final = 64
MARK: Final = "BERTH_APP"
PATH_BEHIND: Final = "BERTH_APP_PATH"
SOCKET: Final = "BERTH_APP_SOCKET"
# As from a login, so that modules and environments are there; the site's own folder comes behind the holder's.
_START: Final = (
    'umask 077; [ -z "$BERTH_APP_SOCKET" ] || rm -f -- "$BERTH_APP_SOCKET"; '
    'case "$SHELL" in */bash|*/zsh|*/sh|*/dash|*/ksh) shell=$SHELL;; *) shell=/bin/sh;; esac; '
    'exec "$shell" -lc \'PATH="$PATH${BERTH_APP_PATH:+:$BERTH_APP_PATH}"; export PATH; exec "$@"\' sh "$@"'
)
Watcher = tuple[StreamEnd, int]
Name = tuple[Key, str]


class LeaseApp:
    """One app of one lease, and who is told how it does."""

    def __init__(self, record: LeaseRecord, wish: OpenApp) -> None:
        self.record = record
        self.wish = wish
        self.word = AppWord(STATE, STARTING)
        self.watchers: set[Watcher] = set()
        self.task: asyncio.Task[None] | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self._said = b""
        self._loop = asyncio.get_running_loop()

    @property
    def lines(self) -> bytes:
        """What it printed last."""
        return b"\n".join(self._said.splitlines()[-LOG_LINES:])

    def tell(self, state: str, detail: str = "") -> None:
        """Tell everybody a new state."""
        self.word = AppWord(STATE, state, detail[:1000])
        for watcher in list(self.watchers):
            self.show(watcher)

    def show(self, watcher: Watcher) -> None:
        """Tell one stream the state, with the last lines before it where it went wrong."""
        end, stream = watcher
        if self.word.state in (FAILED, ENDED) and self.lines:
            end.send(stream, self.lines)
        end.say(stream, wire(self.word))

    def add_line(self, text: str) -> None:
        """Keep a line that somebody else said about it."""
        self._said = (self._said + text.encode() + b"\n")[-MOST_LOG_BYTES:]

    def listen(self, process: subprocess.Popen[bytes]) -> None:
        """Keep what a process prints last."""
        self.process, self._said = process, b""
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self._loop.add_reader(process.stdout.fileno(), self._hear)

    def _hear(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        try:
            data = os.read(self.process.stdout.fileno(), 64 * 1024)
        except BlockingIOError:
            return
        if not data:
            self.deafen()
        self._said = (self._said + data)[-MOST_LOG_BYTES:]

    def deafen(self) -> None:
        """Hear no more of the process. Safe to repeat."""
        if self.process is not None and self.process.stdout is not None and not self.process.stdout.closed:
            self._loop.remove_reader(self.process.stdout.fileno())
            self.process.stdout.close()


class Apps:
    """All apps of this node."""

    def __init__(self, entry: LeaseEntry, dialers: Dialers, programs: AppPrograms) -> None:
        self._entry = entry
        self._dialers = dialers
        self._programs = programs
        self._apps: dict[Name, LeaseApp] = {}
        self._by_stream: dict[Watcher, LeaseApp] = {}
        self._reaping: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    @property
    def keys(self) -> frozenset[Key]:
        """The leases with apps."""
        return frozenset(key for key, _app in self._apps)

    def open(self, end: StreamEnd, stream: int, wish: OpenApp, record: LeaseRecord) -> None:
        """Tell a stream how an app does, and start it where it does not run."""
        name = record.key, wish.app
        app = self._apps.get(name)
        if app is None and sum(key == record.key for key, _app in self._apps) >= MOST_PER_LEASE:
            end.reset(stream, "too_many_apps", f"at most {MOST_PER_LEASE} apps in a lease")
            return
        if app is not None and len(app.watchers) >= MOST_WATCHERS:
            end.reset(stream, "too_many_watchers", f"at most {MOST_WATCHERS} streams tell of one app")
            return
        if app is None:
            app = self._apps[name] = LeaseApp(record, wish)
        end.accept(stream, {})
        app.watchers.add((end, stream))
        self._by_stream[end, stream] = app
        if app.task is not None and app.task.done() and app.word.state == READY and app.process is None:
            app.task = self._loop.create_task(self._look_again(app))
        elif app.task is None or (app.task.done() and app.word.state in (FAILED, ENDED) and wish.restart):
            app.wish, app.word = wish, AppWord(STATE, STARTING)
            app.task = self._loop.create_task(self._run(app))
        app.show((end, stream))

    def take(self, end: StreamEnd, event: Event) -> None:
        """Act on what a gateway said of an app: nothing but that it needs to know no more."""
        if event.kind is Kind.RESET:
            self._leave((end, event.stream))
        elif event.kind is Kind.DATA and (end, event.stream) in self._by_stream:
            end.reset(event.stream, "not_asked", "nothing is sent to an app here")
            self._leave((end, event.stream))

    def lost(self, end: StreamEnd) -> None:
        """A gateway is gone; its apps run on."""
        for watcher in [each for each in self._by_stream if each[0] is end]:
            self._leave(watcher)

    def look(self, over: Collection[Key]) -> None:
        """Notice apps that ended, and forget those of leases that are over: they end with the lease."""
        for name, app in list(self._apps.items()):
            if name[0] in over:
                self._forget(name, "lease_over", "the lease is over")
            elif app.word.state == READY and app.process is not None:
                status = app.process.poll()
                if status is not None:
                    app.deafen()
                    app.tell(ENDED, _how(status))

    async def close(self) -> None:
        """Let go of all; where holders are played the apps end as well."""
        keys = self.keys
        for name in list(self._apps):
            self._forget(name, "agent_stopped", "the node's agent stops")
        if not self._entry.outlives_agent:
            for key in keys:
                self._kill({MARK.encode() + b"=1", f"BERTH_LEASE={key[0]}".encode()})
        for task in list(self._reaping):
            task.cancel()
        await asyncio.gather(*self._reaping, return_exceptions=True)

    # One app

    async def _run(self, app: LeaseApp) -> None:
        """Bring an app up: find it running, or install, start and wait for it."""
        try:
            if app.process is None and self._entry.outlives_agent and await self._answers(app):
                app.tell(READY)
                return
            self._end(app)
            # What an image lacks is not helped by what its node gets.
            if not app.record.image and self._programs.lacks(app.wish.needs):
                app.tell(INSTALLING)
                await self._programs.install(
                    app.wish.app, app.wish.needs, lambda line: app.tell(INSTALLING, line)
                )
                app.tell(STARTING)
            app.listen(await self._loop.run_in_executor(None, self._start, app))
            await self._await_ready(app)
        except InstallFailedError as no:
            for line in no.lines:
                app.add_line(line)
            app.tell(FAILED, "its programs could not be installed on this node")
        except EntryRefusedError as no:
            app.tell(FAILED, no.detail)
        except Exception:  # whatever it was: nobody is left waiting for it
            log.exception("app %s in lease %s could not be started", app.wish.app, app.record.lease)
            app.tell(FAILED, "it could not be started; the node's log says why")

    async def _look_again(self, app: LeaseApp) -> None:
        """Ask an app that an earlier agent started: its end is seen by nobody."""
        if not await self._answers(app):
            app.tell(ENDED, "it does not answer any more")

    def _start(self, app: LeaseApp) -> subprocess.Popen[bytes]:
        wish = app.wish
        socket = str(self._entry.run_folder(app.record) / wish.socket) if wish.socket else ""
        env = {**wish.env, MARK: "1", SOCKET: socket, PATH_BEHIND: self._programs.path}
        filled = [word.replace("{socket}", socket).replace("{port}", str(wish.port)) for word in wish.command]
        command = self._entry.command(app.record, ["/bin/sh", "-c", _START, "sh", *filled], env)
        return start(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    async def _await_ready(self, app: LeaseApp) -> None:
        began, pause = self._loop.time(), ASK_FIRST_S
        while True:
            assert app.process is not None
            status = app.process.poll()
            if status is not None:
                await asyncio.sleep(ASK_FIRST_S)  # what it said last is on its way
                app.deafen()
                app.tell(FAILED, _how(status))
                return
            if await self._answers(app):
                app.tell(READY)
                return
            if self._loop.time() - began > READY_WITHIN_S:
                app.tell(FAILED, f"it did not answer within {READY_WITHIN_S:.0f} seconds")
                self._end(app)
                return
            await asyncio.sleep(pause)
            pause = min(ASK_MOST_S, pause * 1.3)

    async def _answers(self, app: LeaseApp) -> bool:
        """Ask an app for a page; any answer that is no failure of its own will do."""
        wish, writer = app.wish, None
        request = f"GET {wish.ready_path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode()
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                made = await self._dialers.dial(app.record, name=wish.socket, port=wish.port)
                reader, writer = await asyncio.open_connection(sock=made)
                writer.write(request)
                first = await reader.readline()
        except (DialFailedError, EntryRefusedError, OSError, ValueError):
            return False
        finally:
            if writer is not None:
                writer.close()
        parts = first.split(None, 2)
        return len(parts) > 1 and parts[0].startswith(b"HTTP/1.") and parts[1][:1] in (b"1", b"2", b"3", b"4")

    def _end(self, app: LeaseApp) -> None:
        """End the processes of an app that does not come up, before another try."""
        if app.process is None:
            return
        app.deafen()
        with contextlib.suppress(OSError):
            os.killpg(app.process.pid, signal.SIGKILL)
        self._reap_later(app.process)
        app.process = None

    def _reap_later(self, process: subprocess.Popen[bytes]) -> None:
        task = self._loop.create_task(_reap(process))
        self._reaping.add(task)
        task.add_done_callback(self._reaping.discard)

    def _forget(self, name: Name, code: str, detail: str) -> None:
        app = self._apps.pop(name)
        if app.task is not None:
            app.task.cancel()
        for end, stream in list(app.watchers):
            self._leave((end, stream))
            end.reset(stream, code, detail)
        app.deafen()
        if app.process is not None:
            self._reap_later(app.process)

    def _leave(self, watcher: Watcher) -> None:
        app = self._by_stream.pop(watcher, None)
        if app is not None:
            app.watchers.discard(watcher)

    def _kill(self, marks: set[bytes]) -> None:
        for pid in marked(marks):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


async def _reap(process: subprocess.Popen[bytes]) -> None:
    """Take the status of a process that ends soon, which frees its number."""
    while process.poll() is None:
        await asyncio.sleep(REAP_EVERY_S)


def _how(status: int) -> str:
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"it was ended by {signal.Signals(-status).name}"
    return f"it ended with status {status}"
