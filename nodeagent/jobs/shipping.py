"""Carries the output of jobs to the portal, by a socket of its own to one of the gateways.

Nothing is remembered here: a gateway says how far the output is stored, and the agent goes on there. A folder is
removed once all of its output is stored, or nobody wants it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI, WebSocketException

from nodeagent.jobs.folder import JobFolder, job_folders
from nodeagent.jobs.running import NodeJobs
from nodeagent.link.address import STREAMS_PATH, Address, AddressError, gateway_of
from nodeagent.link.enrolment import PortalRefusedError
from nodeagent.link.identity import Identity, StateError
from nodeagent.protocol.codec import ProtocolError
from nodeagent.protocol.jobs import LOG, MOST_PIECE, TELL, OutputPiece, Stored, pack, stored_of
from nodeagent.protocol.messages import Welcome
from nodeagent.runtimes.base import Key
from nodeagent.streams.gateways import greet

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.1
NOT_YET_S: Final = 0.3
AGAIN_S: Final = 1.0
ANSWER_WITHIN_S: Final = 30.0
OUTPUTS_PATH: Final = "/jobs/v1/agent"
LOST = (OSError, TimeoutError, EOFError, ConnectionClosed, InvalidHandshake, WebSocketException)


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
        tasks = [loop.create_task(self._jobs.run()), loop.create_task(self._dial())]
        try:
            done, _waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _dial(self) -> None:
        await self._news.wait()
        turn = 0
        while True:
            welcome = self._welcome
            gateways = welcome.gateways if welcome else ()
            if welcome is not None and gateways:
                turn += 1
                await self._serve_by(gateways[turn % len(gateways)], welcome.epoch)
            await asyncio.sleep(AGAIN_S)

    async def _serve_by(self, told: str, epoch: int) -> None:
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
                await OutputLink(socket, self._root, self._jobs).run()
        except (PortalRefusedError, StateError, AddressError, InvalidURI, ProtocolError) as no:
            log.warning("no output of jobs by gateway %s: %s", told, no)
        except LOST as no:
            log.info("the output of jobs waits for gateway %s: %s", told, no or type(no))


class OutputLink:
    """One socket: a task per job asks, sends, and waits for each answer."""

    def __init__(self, socket: Any, root: Path, jobs: NodeJobs) -> None:
        self._socket = socket
        self._root = root
        self._jobs = jobs
        self._answers: dict[Key, asyncio.Future[Stored]] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Serve until the socket ends."""
        loop = asyncio.get_running_loop()
        hearing = loop.create_task(self._hear())
        try:
            while not hearing.done():
                for folder in job_folders(self._root):
                    if folder.key not in self._tasks:
                        self._tasks[folder.key] = loop.create_task(self._ship(folder))
                self._tasks = {key: task for key, task in self._tasks.items() if not task.done()}
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
            waiting = self._answers.pop((stored.lease, stored.generation), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(stored)

    async def _ship(self, folder: JobFolder) -> None:
        """Send one job's output to its end, from where the portal has it."""
        lease, generation = folder.key
        with contextlib.suppress(*LOST):
            stored = await self._ask(OutputPiece(TELL, lease, generation))
            while not stored.is_done:
                is_over = self._jobs.is_over(folder.key)  # before reading: what comes later is read later
                begin, data = folder.read(stored.offset, MOST_PIECE)
                if not data and not is_over:
                    await asyncio.sleep(LOOK_EVERY_S)
                    continue
                is_last = is_over and begin + len(data) >= folder.size()
                piece = OutputPiece(LOG, lease, generation, begin, is_last=is_last)
                before, stored = stored, await self._ask(piece, data)
                if stored.offset == before.offset and not stored.is_done:
                    await asyncio.sleep(NOT_YET_S)  # the portal does not know of this attempt yet
            if self._jobs.is_over(folder.key):
                folder.remove()
            else:  # nobody wants it; looked at again when the job has ended
                await asyncio.sleep(ANSWER_WITHIN_S)

    async def _ask(self, piece: OutputPiece, data: bytes = b"") -> Stored:
        answer: asyncio.Future[Stored] = asyncio.get_running_loop().create_future()
        self._answers[piece.lease, piece.generation] = answer
        await self._socket.send(pack(replace(piece), data))
        async with asyncio.timeout(ANSWER_WITHIN_S):
            return await answer
