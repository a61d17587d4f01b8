"""A whole agent at the other end of the portal's socket, in the same event loop: no network, no second process."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from nodeagent.host.clock import boot_clock
from nodeagent.host.facts import HostFacts
from nodeagent.link.enrolment import NodeEnrolment, PortalRefusedError
from nodeagent.link.identity import Identity
from nodeagent.link.session import PortalSession
from nodeagent.protocol.messages import DeviceFact
from nodeagent.reconcile.journal import Journal
from nodeagent.reconcile.reconciler import Reconciler
from nodeagent.reconcile.worker import Worker
from nodeagent.simulation.devices.driver import SimulatedDriver
from tests.telemetry.conftest import rows
from tests.telemetry.talk import Talk

PATIENCE_S = 15.0


class Line:
    """The socket of a session, ending in the portal's consumer; cut, it fails as a lost connection does."""

    def __init__(self, talk: Talk) -> None:
        self.talk, self.is_cut = talk, False

    async def send(self, message: str, /) -> None:
        if self.is_cut:
            raise EOFError
        await self.talk.say(message)

    async def recv(self) -> str:
        return json.dumps(await self.talk.hear())


class Host:
    """One host: its devices and its state folder, over as many agents as are started on it."""

    def __init__(self, node: str, state: Path, facts: tuple[DeviceFact, ...]) -> None:
        self.node, self.state, self.facts = node, state, facts
        self.devices = state.parent / f"{state.name}-cards"
        for folder in (self.state, self.devices):
            folder.mkdir(parents=True, exist_ok=True)
        self.welcome_epochs: list[int] = []
        self.refusals: list[str] = []
        self.talk: asyncio.Task[None] | None = None

    def identity(self) -> Identity:
        return Identity(self.node, self.state)

    def lose_state(self) -> None:
        """Lose key and journal, as with a disk; what is on the devices stays."""
        shutil.rmtree(self.state)
        self.state.mkdir()

    @asynccontextmanager
    async def agent(self, token: str = "") -> AsyncIterator[PortalSession]:
        """Run an agent until the block ends; raises RefusedError when the portal turns it away in every way."""
        driver = SimulatedDriver(self.facts, self.devices, "boot-1", clock=boot_clock)
        reconciler = Reconciler(self.node, driver, Journal(self.state / "journal.jsonl"), boot_clock())
        worker = Worker(reconciler, driver, boot_clock)
        enrolment = NodeEnrolment(self.identity(), lambda: token)
        work = asyncio.create_task(worker.run())
        try:
            async with self._welcomed(enrolment, driver, worker) as (session, line):
                self.talk = talk = asyncio.create_task(session.run())
                try:
                    yield session
                finally:
                    line.is_cut = True
                    talk.cancel()
                    try:
                        await talk
                    except PortalRefusedError as no:
                        self.refusals.append(no.code)
                    except (asyncio.CancelledError, AssertionError, EOFError, TimeoutError):
                        pass  # cut off while it listened or spoke
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            worker.close()

    @asynccontextmanager
    async def _welcomed(
        self, enrolment: NodeEnrolment, driver: SimulatedDriver, worker: Worker
    ) -> AsyncIterator[tuple[PortalSession, Line]]:
        for _attempt in range(3):
            async with Talk("/agent/v1") as talk:
                line = Line(talk)
                session = PortalSession(line, enrolment, driver, worker, boot_clock, HostFacts())
                try:
                    welcome = await session.greet()
                except PortalRefusedError as no:
                    known = worker.reconciler.ledger.epoch > 0
                    if enrolment.final(no, is_known=known) is None and known:
                        last = no
                        continue
                    raise
                self.welcome_epochs.append(welcome.epoch)
                yield session, line
                return
        raise last


async def until(question: Callable[[], Any], wanted: Any) -> Any:
    """Ask the database until it answers as wanted; fails with the last answer."""
    found: Any = None
    try:
        async with asyncio.timeout(PATIENCE_S):
            while (found := await rows(question)) != wanted:
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"{found!r} instead of {wanted!r}") from None
    return found
