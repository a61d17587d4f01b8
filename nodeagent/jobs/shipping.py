"""Carries the output of jobs and the files that they leave to the portal, by sockets to one of the gateways.

Nothing is remembered here: a gateway says how far each is stored, and the agent goes on there. A folder is removed
once all of it is stored, or nobody wants it. Files have a socket of their own: no line waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI, WebSocketException

from nodeagent.jobs.folder import FoundFile, JobFolder, job_folders
from nodeagent.jobs.running import NodeJobs
from nodeagent.link.address import STREAMS_PATH, Address, AddressError, gateway_of
from nodeagent.link.enrolment import PortalRefusedError
from nodeagent.link.identity import Identity, StateError
from nodeagent.protocol.codec import ProtocolError
from nodeagent.protocol.jobs import (
    ALL_SENT,
    FILE,
    LEFT_OUT,
    LOG,
    MOST_FILE_PIECE,
    MOST_PIECE,
    ArtifactPiece,
    OutputPiece,
    Stored,
    pack,
    stored_of,
)
from nodeagent.protocol.messages import Welcome
from nodeagent.runtimes.base import Key
from nodeagent.streams.gateways import greet

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.1
READ_EVERY_S: Final = 0.04  # what somebody waits for a line, at most; one look costs some 20 µs
FILES_EVERY_S: Final = 0.5
NOT_YET_S: Final = 0.3
AGAIN_S: Final = 1.0
ANSWER_WITHIN_S: Final = 30.0
OUTPUTS_PATH: Final = "/jobs/v1/agent"
LOST = (OSError, TimeoutError, EOFError, ConnectionClosed, InvalidHandshake, WebSocketException)


class ShippingLink(Protocol):
    """What is done by one socket."""

    async def run(self) -> None:
        """Serve until there is no more to do, or the socket ends."""
        ...


class OutputShipping:
    """One per agent; runs jobs beside, so that the agent has one service for them."""

    def __init__(
        self, root: Path, jobs: NodeJobs, portal: Address, identity: Identity, *, allow_plain: bool = False
    ) -> None:
        self._root = root
        self._jobs = jobs
        self._portal = portal
        self._identity = identity
        self._allow_plain = allow_plain
        self._welcome: Welcome | None = None
        self._news = asyncio.Event()

    def welcomed(self, welcome: Welcome) -> None:
        """Take what the portal said last: which gateways there are."""
        self._welcome = welcome
        self._news.set()

    async def run(self) -> None:
        """Run jobs and carry their output until cancelled."""
        loop = asyncio.get_running_loop()
        begun: dict[Key, int] = {}

        def files(socket: Any) -> ArtifactLink:
            return ArtifactLink(socket, self._root, self._jobs, begun)

        tasks = [
            loop.create_task(self._jobs.run()),
            loop.create_task(
                self._dial(lambda socket: OutputLink(socket, self._root, self._jobs), lambda: True)
            ),
            loop.create_task(self._dial(files, lambda: bool(left_files(self._root, self._jobs)))),
        ]
        try:
            done, _waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _dial(self, link: Callable[[Any], ShippingLink], is_due: Callable[[], bool]) -> None:
        await self._news.wait()
        turn = 0
        while True:
            while not is_due():
                await asyncio.sleep(FILES_EVERY_S)
            welcome = self._welcome
            gateways = welcome.gateways if welcome else ()
            if welcome is not None and gateways:
                turn += 1
                await self._serve_by(link, gateways[turn % len(gateways)], welcome.epoch)
            await asyncio.sleep(AGAIN_S)

    async def _serve_by(self, link: Callable[[Any], ShippingLink], told: str, epoch: int) -> None:
        """Carry output by one gateway until its socket is lost; every loss is normal."""
        try:
            address = gateway_of(self._portal, told, allow_plain=self._allow_plain)
            url = address.url.replace(STREAMS_PATH, OUTPUTS_PATH)
            async with connect(
                url,
                open_timeout=10,
                ping_interval=20,
                ping_timeout=20,
                close_timeout=1,
                compression=None,
                proxy=None if address.is_local else True,
            ) as socket:
                await greet(socket, self._identity, epoch)
                await link(socket).run()
        except (PortalRefusedError, StateError, AddressError, InvalidURI, ProtocolError) as no:
            log.warning("no output of jobs by gateway %s: %s", told, no)
        except LOST as no:
            log.info("the output of jobs waits for gateway %s: %s", told, no or type(no))


def left_files(root: Path, jobs: NodeJobs) -> list[JobFolder]:
    """Return the jobs whose files were collected and are not handed over yet."""
    return [folder for folder in job_folders(root) if folder.collects and jobs.is_over(folder.key)]


class ArtifactLink:
    """One socket for the files that jobs left: one piece after another, each answered with how far it is stored."""

    def __init__(self, socket: Any, root: Path, jobs: NodeJobs, begun: dict[Key, int]) -> None:
        """``begun`` is kept from socket to socket: on how many the files of each job were begun.

        The least often begun go first, so that a job whose files are refused, each time, holds up no other.
        """
        self._socket = socket
        self._root = root
        self._jobs = jobs
        self._begun = begun

    async def run(self) -> None:
        """Hand over what there is; raises one of LOST where the socket ends before."""
        while folders := left_files(self._root, self._jobs):
            for folder in sorted(folders, key=lambda one: self._begun.get(one.key, 0)):
                await self._hand_over(folder)

    async def _hand_over(self, folder: JobFolder) -> None:
        lease, generation = folder.key
        begun = self._begun.get(folder.key, 0)
        self._begun[folder.key] = begun + 1
        found, unnamed = folder.found()
        more = [FoundFile("", unnamed, left_out="more")] if unnamed else []
        for file in (*found, *more):
            await self._hand_over_file(folder, file, asks_first=begun > 0)
        while not (await self._ask(ArtifactPiece(ALL_SENT, lease, generation))).is_done:
            await asyncio.sleep(NOT_YET_S)
        folder.forget_found()
        self._begun.pop(folder.key, None)

    async def _hand_over_file(self, folder: JobFolder, file: FoundFile, *, asks_first: bool) -> None:
        """Send one file from where the portal has it. ``asks_first``: it may have it all, so nothing is sent twice."""
        op = LEFT_OUT if file.left_out else FILE
        piece = ArtifactPiece(op, *folder.key, file.path, file.size, file.sha256, why=file.left_out)
        offset = 0
        if asks_first and piece.op == FILE:
            stored = await self._ask(piece)
            if stored.is_done:
                return
            offset = stored.offset
        while True:
            most = min(MOST_FILE_PIECE, file.size - offset)
            data = folder.read_file(file, offset, most) if piece.op == FILE else b""
            if len(data) < most and piece.op == FILE:  # somebody has been at the files here
                piece = replace(piece, op=LEFT_OUT, why="changed")
            stored = await self._ask(replace(piece, offset=offset), data)
            if stored.is_done:
                return
            if stored.offset == offset:  # the portal does not know of this attempt yet
                await asyncio.sleep(NOT_YET_S)
            offset = stored.offset

    async def _ask(self, piece: ArtifactPiece, data: bytes = b"") -> Stored:
        await self._socket.send(pack(piece, data))
        async with asyncio.timeout(ANSWER_WITHIN_S):
            answer = await self._socket.recv()
        return stored_of(answer if isinstance(answer, str) else answer.decode())


class OutputLink:
    """One socket: a task per job asks, sends, and waits for each answer."""

    def __init__(self, socket: Any, root: Path, jobs: NodeJobs) -> None:
        self._socket = socket
        self._root = root
        self._jobs = jobs
        self._answers: dict[tuple[str, int, int], asyncio.Future[Stored]] = {}
        self._tasks: dict[Path, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Serve until the socket ends."""
        loop = asyncio.get_running_loop()
        hearing = loop.create_task(self._hear())
        try:
            while not hearing.done():
                for folder in job_folders(self._root):
                    if folder.path not in self._tasks:
                        self._tasks[folder.path] = loop.create_task(self._ship(folder))
                self._tasks = {path: task for path, task in self._tasks.items() if not task.done()}
                await asyncio.wait([hearing], timeout=LOOK_EVERY_S)
            hearing.result()
        finally:
            tasks = [hearing, *self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _hear(self) -> None:
        async for frame in self._socket:
            stored = stored_of(frame if isinstance(frame, str) else frame.decode())
            waiting = self._answers.pop((stored.lease, stored.generation, stored.ordinal), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(stored)

    async def _ship(self, folder: JobFolder) -> None:
        """Send one job's output to its end, from where the portal has it."""
        lease, generation = folder.key
        with contextlib.suppress(*LOST):
            # From the start: what is stored already costs one piece, once per life of this agent.
            stored = Stored(lease, generation, 0)
            while not stored.is_done:
                # before reading: what comes later is read later
                is_over = self._jobs.is_over(folder.key, folder.ordinal)
                begin, data = folder.read(stored.offset, MOST_PIECE)
                if not data and not is_over:
                    await asyncio.sleep(READ_EVERY_S)
                    continue
                is_last = is_over and begin + len(data) >= folder.size()
                piece = OutputPiece(LOG, lease, generation, begin, is_last, folder.ordinal)
                before, stored = stored, await self._ask(piece, data)
                if stored.offset == before.offset and not stored.is_done:
                    await asyncio.sleep(NOT_YET_S)  # the portal does not know of this attempt yet
            if self._jobs.is_over(folder.key, folder.ordinal):
                if folder.collects:  # removed once they are stored too
                    await asyncio.sleep(AGAIN_S)
                else:
                    folder.remove()
            else:  # nobody wants it; looked at again when the job has ended
                await asyncio.sleep(ANSWER_WITHIN_S)

    async def _ask(self, piece: OutputPiece, data: bytes = b"") -> Stored:
        answer: asyncio.Future[Stored] = asyncio.get_running_loop().create_future()
        self._answers[piece.lease, piece.generation, piece.ordinal] = answer
        await self._socket.send(pack(replace(piece), data))
        async with asyncio.timeout(ANSWER_WITHIN_S):
            return await answer
