"""One connection to the portal: handshake, then desired states down, reports, samples and heartbeats up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import count
from typing import Any, Protocol

from nodeagent import __version__
from nodeagent.host.facts import HostFacts
from nodeagent.link import sampler
from nodeagent.link.enrolment import NodeEnrolment, PortalRefusedError
from nodeagent.link.handshake import Socket, expect, fresh_nonce, require_epoch, require_portal
from nodeagent.link.key_change import KeyChange
from nodeagent.link.node_work import DriverIdentity, NodeWork
from nodeagent.protocol.cluster_usage import CLUSTER_USAGE, ClusterUsage
from nodeagent.protocol.codec import ProtocolError, decode, encode
from nodeagent.protocol.failpoints import failpoint
from nodeagent.protocol.messages import (
    FEATURES,
    HEALTH_SLICES,
    IMAGES,
    Ack,
    Challenge,
    Desired,
    DeviceFact,
    HealthFact,
    Heartbeat,
    Hello,
    KeyStored,
    Message,
    NodeImages,
    Refused,
    Report,
    Rotate,
    Welcome,
)
from nodeagent.reconcile.goals import FenceError
from nodeagent.reconcile.lease_records import NS

log = logging.getLogger(__name__)

RESEND_AFTER_S = 5.0
USAGE_EVERY_S = 60.0
JOB_BEGINS_NS = NS // 10


class ImageNews(Protocol):
    """The images of this node; ``changed`` is set whenever the portal should be told anew."""

    changed: asyncio.Event

    def told(self, epoch: int) -> NodeImages:
        """Return what the portal is told."""
        ...


class UsageNews(Protocol):
    """What a cluster counted; ``begin`` is called once for each connection."""

    def begin(self) -> None:
        """Forget what the connection before was told."""
        ...

    async def news(self, epoch: int) -> list[ClusterUsage]:
        """Return the frames that the portal has not heard on this connection."""
        ...


class PortalSession:
    """Talks on one socket until it closes. Bad frames are logged and left alone; nothing here ends work."""

    def __init__(
        self,
        socket: Socket,
        enrolment: NodeEnrolment,
        driver: DriverIdentity,
        worker: NodeWork,
        clock: Callable[[], int],
        host: HostFacts,
        features: tuple[str, ...] = FEATURES,
        images: ImageNews | None = None,
        usage: UsageNews | None = None,
    ) -> None:
        self._images = images
        self._usage = usage
        self._features = features
        self._socket = socket
        self._enrolment = enrolment
        self._driver = driver
        self._worker = worker
        self._reconciler = worker.reconciler
        self._clock = clock
        self._host = host
        self._boot_id = driver.boot_id()
        self._keys = KeyChange(enrolment.identity)
        self._seq = 0
        self._grumbled: set[str] = set()

    async def greet(self) -> Welcome:
        """Answer the challenge and return the welcome, once the portal proved itself; raises RefusedError."""
        challenge = await expect(self._socket, Challenge)
        hello = self._hello(challenge.nonce, await self._worker.inventory())
        await self._send(hello)
        welcome = await expect(self._socket, Welcome)
        ledger = self._reconciler.ledger
        enrolled = bool(hello.enrol_token)
        identity, proven = self._enrolment.identity, self._enrolment.proven_key
        require_portal(welcome, hello, challenge.nonce, proven, identity)
        require_epoch(welcome, ledger.epoch, enrolled=enrolled)
        if welcome.epoch < ledger.epoch and not enrolled:
            log.error(
                "the portal's epoch %d is older than %d: its desired states will be refused; "
                "give the agent a new enrolment token",
                welcome.epoch,
                ledger.epoch,
            )
        self._reconciler.meet(welcome.epoch, enrolled=enrolled)
        self._enrolment.accepted()
        self.welcome = welcome
        return welcome

    async def run(self) -> None:
        """Talk until the connection ends, whichever side ends it."""
        loop = asyncio.get_running_loop()
        jobs: list[Coroutine[Any, Any, None]] = [
            self._listen(),
            self._report(),
            self._beat(),
            self._sample(),
        ]
        if self._images is not None and IMAGES in self.welcome.features:
            jobs.append(self._tell_images(self._images))
        if self._usage is not None and CLUSTER_USAGE in self.welcome.features:
            jobs.append(self._tell_usage(self._usage))
        tasks = [loop.create_task(job) for job in jobs]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    def _hello(self, nonce: str, devices: tuple[DeviceFact, ...]) -> Hello:
        ledger = self._reconciler.ledger
        hello = Hello(
            node=self._reconciler.node,
            boot_id=self._boot_id,
            agent_version=__version__,
            driver=self._driver.name,
            driver_version=self._driver.version,
            devices=devices,
            last_epoch=ledger.epoch,
            last_revision=ledger.revision,
            cpu_milli=self._host.cpu_milli,
            memory_mib=self._host.memory_mib,
            site=self._host.site,
            rack=self._host.rack,
            runtime=self._reconciler.runtime_name,
            features=self._features,
            signature="",
        )
        proof = self._enrolment.credentials(nonce, is_known=ledger.epoch > 0, agent_nonce=fresh_nonce())
        return replace(hello, **proof)  # type: ignore[arg-type]

    async def _listen(self) -> None:
        while True:
            frame = await self._socket.recv()
            try:
                answer = self._take(decode(frame))
                if answer is not None:
                    await self._send(answer)
            except (ProtocolError, FenceError) as no:
                self._log_unusable_frame(no.code, str(no))
            except PortalRefusedError:
                raise
            except Exception:  # whatever the portal sends must not end the agent, and leases with it
                log.exception("a frame of the portal could not be carried out")

    def _take(self, message: Message) -> Message | None:
        """Act on a frame; returns what is to be answered, if anything."""
        if isinstance(message, Rotate):
            return self._keys.take(message)
        if isinstance(message, KeyStored):
            self._keys.stored(message)
        elif isinstance(message, Desired):
            if message.epoch != self.welcome.epoch:
                detail = f"epoch {message.epoch} is not that of this connection, {self.welcome.epoch}"
                raise FenceError("other_epoch", detail)
            failpoint("agent.received")
            self._worker.accept(message)
            failpoint("agent.accepted")
        elif isinstance(message, Ack):
            self._reconciler.acknowledged(message.seq)
        elif isinstance(message, Refused):
            raise PortalRefusedError(message.code, message.detail)
        else:
            self._log_unusable_frame("unexpected", f"the portal sent a {type(message).__name__}")
        return None

    async def _report(self) -> None:
        """Tell what is new at once, and again while it is not acknowledged."""
        changed = self._worker.changed
        changed.set()
        while True:
            patience = RESEND_AFTER_S if self._reconciler.is_unacknowledged else None
            try:
                async with asyncio.timeout(patience):  # unlike wait_for it never loses a cancellation
                    await changed.wait()
            except TimeoutError:
                if not self._reconciler.is_unacknowledged:
                    continue  # the answer came while we waited
                log.info("no answer to the last report; sending it again")
            await self._await_jobs()
            changed.clear()
            if not await self._send_report():
                await asyncio.sleep(1.0)
                changed.set()

    async def _await_jobs(self) -> None:
        """A job that is just being begun is told with its lease: one report for both, some milliseconds later."""
        until = self._clock() + JOB_BEGINS_NS
        while self._clock() < until and self._reconciler.is_beginning_job(self._clock() - JOB_BEGINS_NS):
            await asyncio.sleep(JOB_BEGINS_NS / NS / 20)

    async def _send_report(self) -> bool:
        seq = self._next_seq()
        leases = self._reconciler.lease_reports(seq)
        if leases is None:
            return False
        failpoint("agent.before_report")
        power, power_note = self._reconciler.power_facts()
        await self._send(
            Report(
                epoch=self.welcome.epoch,
                boot_id=self._boot_id,
                seq=seq,
                revision=self._reconciler.ledger.revision,
                leases=leases,
                partitions=self._reconciler.partition_facts(),
                health=self._health_facts(),
                power=power,
                power_note=power_note,
            )
        )
        failpoint("agent.reported")
        return True

    def _health_facts(self) -> tuple[HealthFact, ...]:
        """Return what devices said in words that this portal knows: an older one refuses places of slices."""
        facts = self._reconciler.health_facts()
        if HEALTH_SLICES in self.welcome.features:
            return facts
        return tuple(replace(fact, starts=None) for fact in facts)

    async def _tell_images(self, images: ImageNews) -> None:
        images.changed.set()
        while await images.changed.wait():
            images.changed.clear()
            await self._send(images.told(self.welcome.epoch))

    async def _tell_usage(self, usage: UsageNews) -> None:
        usage.begin()
        while True:
            for frame in await usage.news(self.welcome.epoch):
                await self._send(frame)
            await asyncio.sleep(USAGE_EVERY_S)

    async def _beat(self) -> None:
        while True:
            await self._send(Heartbeat(self.welcome.epoch, self._boot_id, self._reconciler.carried_out))
            await asyncio.sleep(self.welcome.heartbeat_s)

    async def _sample(self) -> None:
        loop, due = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        for turn in count():
            is_due = turn % sampler.PROCESSES_EVERY == 0
            processes = self._worker.processes if is_due else None
            reading = await self._worker.measure()
            await self._send(
                sampler.frame(
                    reading,
                    self._reconciler,
                    epoch=self.welcome.epoch,
                    boot_id=self._boot_id,
                    seq=self._next_seq(),
                    processes=processes,
                )
            )
            due = max(due + self.welcome.sample_s, loop.time())
            await asyncio.sleep(due - loop.time())

    async def _send(self, message: Message) -> None:
        await self._socket.send(encode(message))

    def _next_seq(self) -> int:
        """Return a number above all earlier ones of this boot, over restarts too: milliseconds since boot."""
        self._seq = max(self._seq + 1, self._clock() // 1_000_000)
        return self._seq

    def _log_unusable_frame(self, code: str, sentence: str) -> None:
        """Log each kind of bad frame once per connection."""
        if code not in self._grumbled:
            self._grumbled.add(code)
            log.warning("a frame of the portal was refused: %s", sentence)
