"""The agent: dials the portal for ever, and works on whether or not anyone answers."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Protocol

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI, WebSocketException

from nodeagent.host.clock import boot_clock
from nodeagent.host.facts import HostFacts
from nodeagent.link.address import Address
from nodeagent.link.enrolment import NodeEnrolment, PortalRefusedError
from nodeagent.link.node_work import DriverIdentity, NodeWork
from nodeagent.link.session import ImageNews, PortalSession, UsageNews
from nodeagent.protocol.cluster_usage import CLUSTER_USAGE
from nodeagent.protocol.messages import (
    ARTIFACTS,
    CONTAINERS,
    FEATURES,
    IMAGES,
    JOBS,
    JOBS_FOLLOW,
    LARGE_PIECES,
    MAX_FRAME_BYTES,
    STREAMS,
    Welcome,
)

log = logging.getLogger(__name__)

FIRST_DELAY_S, MOST_DELAY_S = 0.2, 5.0
CLOSE_REPLACED = 4409
LOST = (OSError, TimeoutError, ConnectionClosed, InvalidHandshake, WebSocketException, EOFError)


class StreamService(Protocol):
    """What works beside this connection; it may end, and so end the agent, only by an error of its own."""

    async def run(self) -> None:
        """Serve until cancelled."""
        ...

    def welcomed(self, welcome: Welcome) -> None:
        """Take what the portal said of gateways."""
        ...


class Agent:
    """One node's agent, with ``images`` where it runs jobs in containers and ``usage`` where a cluster counts.

    ``run`` ends only when cancelled or when enrolment is refused for good.
    """

    def __init__(
        self,
        address: Address,
        enrolment: NodeEnrolment,
        driver: DriverIdentity,
        worker: NodeWork,
        *,
        clock: Callable[[], int] | None = None,
        dice: random.Random | None = None,
        host: HostFacts | None = None,
        streams: StreamService | None = None,
        jobs: StreamService | None = None,
        scratch: StreamService | None = None,
        images: ImageNews | None = None,
        features: tuple[str, ...] = (),
        usage: UsageNews | None = None,
    ) -> None:
        self._address = address
        self._enrolment = enrolment
        self._driver = driver
        self._worker = worker
        self._clock = clock or boot_clock
        self._dice = dice or random.Random()  # noqa: S311 - spreads reconnects, guards nothing
        self._host = host or HostFacts()
        self._services = [service for service in (streams, jobs, scratch) if service is not None]
        self._features = (
            *FEATURES,
            *([STREAMS, LARGE_PIECES] if streams else ()),
            *([JOBS, ARTIFACTS, JOBS_FOLLOW] if jobs else ()),
        )
        self._images = images
        self._features += (*((CONTAINERS, IMAGES) if images is not None else ()), *features)
        self._usage = usage
        self._features += (CLUSTER_USAGE,) if usage is not None else ()
        self._failures = 0
        self.is_connected = False

    async def run(self) -> None:
        """Work and talk until cancelled; raises RefusedError when a node never known is turned away."""
        jobs = [self._worker.run(), self._talk(), *(service.run() for service in self._services)]
        tasks = [asyncio.get_running_loop().create_task(job) for job in jobs]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in done:
            if isinstance(outcome, Exception):
                raise outcome

    async def _talk(self) -> None:
        while True:
            await self._talk_once()
            await asyncio.sleep(self._delay())

    async def _talk_once(self) -> None:
        """Hold one connection from dialling to its end; every loss of it is normal."""
        try:
            async with connect(
                self._address.url,
                max_size=MAX_FRAME_BYTES,
                open_timeout=10,
                ping_interval=20,
                ping_timeout=20,
                close_timeout=2,
                compression=None,
                proxy=None if self._address.is_local else True,
            ) as socket:
                session = PortalSession(
                    socket,
                    self._enrolment,
                    self._driver,
                    self._worker,
                    self._clock,
                    self._host,
                    self._features,
                    self._images,
                    self._usage,
                )
                welcome = await session.greet()
                for service in self._services:
                    service.welcomed(welcome)
                self._failures = 0
                self.is_connected = True
                log.info("connected to %s", self._address.url)
                await session.run()
        except PortalRefusedError as no:
            self._take_refusal(no)
        except InvalidURI as no:
            raise PortalRefusedError("bad_url", str(no)) from no
        except LOST as no:
            self._lost(no)
        finally:
            self.is_connected = False
            self._worker.reconciler.disconnected()

    def _take_refusal(self, no: PortalRefusedError) -> None:
        self._failures += 1
        final = self._enrolment.final(no, is_known=self._worker.reconciler.ledger.epoch > 0)
        if final is not None:
            raise final
        log.warning("the portal refused this node (%s): %s", no.code, no.detail)

    def _lost(self, no: BaseException) -> None:
        self._failures += 1
        closed = no.rcvd.code if isinstance(no, ConnectionClosed) and no.rcvd else None
        if closed == CLOSE_REPLACED:
            self._failures += 4
            log.error("another agent connected with this node's key; run only one agent per node")
        elif self._failures in (1, 5) or self._failures % 60 == 0:
            log.warning(
                "no connection to %s (%s); leases go on, trying again", self._address.url, no or type(no)
            )

    def _delay(self) -> float:
        """Return how long to wait before dialling again: longer each time, never the same for two nodes."""
        longest: float = min(MOST_DELAY_S, FIRST_DELAY_S * (1 << min(max(0, self._failures - 1), 10)))
        return longest * self._dice.uniform(0.5, 1.0)
