"""Sockets in leases, opened by a process of the holder's in each lease that has any (nodeagent.workloads.dialer)."""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
from pathlib import Path
from typing import Final

from nodeagent.reconcile.lease_records import LeaseRecord
from nodeagent.runtimes.base import Key
from nodeagent.workloads.dialer import MOST_WORD
from nodeagent.workloads.entry import LeaseEntry, start

ANSWER_WITHIN_S: Final = 10.0
MOST_WAITING: Final = 512


class DialFailedError(Exception):
    """No socket: ``code`` is "refused" where nobody listens, "not_yours" where somebody else does, or stable too."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


_CODES: Final = {
    "ECONNREFUSED": ("refused", "nothing listens there in this lease"),
    "ENOENT": ("refused", "nothing listens there in this lease"),
    "EACCES": ("not_yours", "another account of this host listens there, not the lease's holder"),
    "EAGAIN": ("busy", "what listens there takes no more connections now"),
}


class Dialers:
    """The processes that open sockets, one per lease, started when they are first needed."""

    def __init__(self, entry: LeaseEntry) -> None:
        self._entry = entry
        self._dialers: dict[Key, asyncio.Task[_Dialer]] = {}

    @property
    def keys(self) -> frozenset[Key]:
        """The leases that have one."""
        return frozenset(self._dialers)

    async def dial(self, record: LeaseRecord, *, name: str = "", port: int = 0) -> socket.socket:
        """Return an open socket, to a name in the lease's run folder or a port of its holder's.

        Raises DialFailedError and EntryRefusedError.
        """
        loop = asyncio.get_running_loop()
        task = self._dialers.get(record.key)
        if task is None or (task.done() and (task.cancelled() or task.exception() or task.result().is_gone)):
            task = self._dialers[record.key] = loop.create_task(self._start(record))
        dialer = await asyncio.shield(task)
        path = str(dialer.folder / name) if name else ""
        return await dialer.dial(path, port)

    async def _start(self, record: LeaseRecord) -> _Dialer:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            process, folder = await loop.run_in_executor(None, self._begin, record, theirs)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return _Dialer(process, ours, folder)

    def _begin(self, record: LeaseRecord, theirs: socket.socket) -> tuple[subprocess.Popen[bytes], Path]:
        folder = self._entry.run_folder(record)
        command = self._entry.dialer(record, theirs.fileno())
        process = start(command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),))
        return process, folder

    def end(self, key: Key) -> None:
        """End the process of a lease. Safe to repeat."""
        task = self._dialers.pop(key, None)
        if task is not None:
            task.add_done_callback(_close)

    async def close(self) -> None:
        """End all of them."""
        for key in list(self._dialers):
            self.end(key)
        await asyncio.sleep(0)


def _close(task: asyncio.Task[_Dialer]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


class _Dialer:
    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, folder: Path) -> None:
        self.folder = folder
        self.is_gone = False
        self._process = process
        self._control = control
        self._control.setblocking(False)
        self._asked: dict[int, asyncio.Future[socket.socket]] = {}
        self._number = 0
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(control, self._hear)

    async def dial(self, path: str, port: int) -> socket.socket:
        if self.is_gone or len(self._asked) >= MOST_WAITING:
            raise DialFailedError("busy", "the lease takes no more connections now")
        self._number += 1
        number = self._number
        answer: asyncio.Future[socket.socket] = self._loop.create_future()
        self._asked[number] = answer
        try:
            self._control.send(json.dumps({"id": number, "path": path, "port": port}).encode())
            async with asyncio.timeout(ANSWER_WITHIN_S):
                return await answer
        except OSError as no:  # TimeoutError too: its queue is full, or it does not answer
            raise DialFailedError("busy", "the lease takes no more connections now") from no
        finally:
            self._asked.pop(number, None)

    def _hear(self) -> None:
        """Take one answer; it comes from the holder's side, so whatever it holds is looked at."""
        try:
            word, rights, _flags, _address = self._control.recvmsg(MOST_WORD, socket.CMSG_SPACE(4 * 4))
        except BlockingIOError:
            return
        except OSError:
            word, rights = b"", []
        found = _sockets(rights)
        try:
            said = json.loads(word)
            answer = self._asked.get(said["id"])
        except (ValueError, TypeError, KeyError):
            said, answer = {}, None
        if answer is not None and not answer.done():
            if found:
                answer.set_result(found.pop())
            else:
                code, detail = _CODES.get(str(said.get("error")), ("refused", "it cannot be reached"))
                answer.set_exception(DialFailedError(code, detail))
        for one in found:
            one.close()
        if not word:
            self.close()

    def close(self) -> None:
        if self.is_gone:
            return
        self.is_gone = True
        self._loop.remove_reader(self._control)
        self._control.close()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(DialFailedError("busy", "the lease takes no connections now"))
        with contextlib.suppress(OSError):
            os.kill(self._process.pid, signal.SIGKILL)
        self._loop.run_in_executor(None, self._process.wait)


def _sockets(rights: list[tuple[int, int, bytes]]) -> list[socket.socket]:
    """Return what was handed over, as far as it is a stream's socket; anything else is closed."""
    found = []
    for level, kind, data in rights:
        if level != socket.SOL_SOCKET or kind != socket.SCM_RIGHTS:
            continue
        descriptors = array.array("i")
        descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
        for descriptor in descriptors:
            made = None
            with contextlib.suppress(OSError):
                if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                    made = socket.socket(fileno=descriptor)
            if made is None:
                os.close(descriptor)
            elif made.type != socket.SOCK_STREAM:
                made.close()
            else:
                found.append(made)
    return found
