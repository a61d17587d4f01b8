"""The socket that agents dial: one task reads frames, one sends the desired state when it rose."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from channels.consumer import get_handler_name
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings

from nodeagent.protocol.cluster_usage import CLUSTER_USAGE, ClusterUsage
from nodeagent.protocol.codec import ProtocolError, decode, encode
from nodeagent.protocol.messages import (
    HEALTH_SLICES,
    IMAGES,
    STREAMS,
    Ack,
    Challenge,
    Heartbeat,
    Hello,
    KeyStored,
    Message,
    NewKey,
    NodeImages,
    Refused,
    Report,
    Samples,
    Welcome,
)
from portal.agents import reports
from portal.agents.admission import Admitted, admit
from portal.agents.database import in_database
from portal.agents.desired import NodeOrders, orders
from portal.agents.errors import AgentRefused
from portal.agents.handshake import MOST_HELLO_BYTES, Handshake, UnprovenSockets
from portal.agents.keys import FEATURE, KeyRequest, store_new_key
from portal.agents.lost_nodes import heard
from portal.agents.portal_key import proofs, public_key
from portal.agents.restored_database import see_unknown
from portal.cluster_usage.services import store_cluster_usage
from portal.common.clock import db_now
from portal.common.errors import Unavailable
from portal.common.failpoints import failpoint
from portal.common.live import NODES, hub
from portal.common.logs import note_ids
from portal.fleet.images import store_images
from portal.telemetry.ingest import accept_samples

log = logging.getLogger(__name__)
# Of what agents may leave out for older portals, what this one takes.
TAKEN = (HEALTH_SLICES, IMAGES, CLUSTER_USAGE)
HEARTBEAT_S = 5
SAMPLE_S = 1
HELLO_WITHIN_S = 10
HEARD_EVERY_S = 3.0
# A single lease makes two reports on each other's heels and must not wait; more than that in a row is a crowd.
ROW, REST_S = 3, 0.01
CLOSE_REFUSED, CLOSE_REPLACED, CLOSE_BAD_FRAME, CLOSE_LATER = 4401, 4409, 4400, 4503

_sessions: dict[str, AgentConsumer] = {}
_waiting = UnprovenSockets()


def _settle_forgotten(who: Admitted) -> None:
    """Lose what a blank agent forgot, before it is welcomed and so before its node is noted as heard.

    A try that fails leaves the word before as the newest, and the next one stops the leases' clocks there.
    """
    reports.lose_forgotten(who.node_id, seen_at=who.seen_at, now=db_now())


class AgentConsumer(AsyncWebsocketConsumer):
    """One agent's connection, from challenge to close."""

    async def connect(self) -> None:
        """Accept and challenge; whoever does not answer in time is let go."""
        self.who: Admitted | None = None
        self.is_held = False
        self.handshake = Handshake()
        self.address = str((self.scope.get("client") or ("",))[0])
        self.is_waiting = _waiting.enter(self.address)
        self.tasks: list[asyncio.Task[None]] = []
        if not self.is_waiting:
            log.warning("too many sockets of %s have not said hello; one more is turned away", self.address)
            await self.close(code=CLOSE_LATER)
            return
        self.nonce = secrets.token_hex(32)
        self.look = asyncio.Event()
        self.sent_revision = -1
        self.newest: Report | None = None
        self.reported = asyncio.Event()
        self.heard_at = 0.0
        self.wish = KeyRequest()
        self.tasks.append(asyncio.create_task(self._hello_in_time()))
        await self.accept()
        await self._send(Challenge(self.nonce))

    async def dispatch(self, message: dict[str, Any]) -> None:
        """Handle one event. Database connections belong to ``in_database`` alone, so none is closed here."""
        await getattr(self, get_handler_name(message))(message)

    async def disconnect(self, code: int) -> None:
        """Forget the connection; the node's leases go on."""
        self.handshake.end()
        self._wait_no_more()
        for task in self.tasks:
            task.cancel()
        hub().leave(NODES, self._on_nudge)
        if self.who and _sessions.get(self.who.name) is self:
            del _sessions[self.who.name]

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Handle one frame; a bad one is answered, logged once and ends this connection only."""
        frame = text_data if text_data is not None else bytes_data or b""
        await self._answering(lambda: self._handle(self._decoded(frame)))

    def _decoded(self, frame: str | bytes) -> Message:
        """Return the message in a frame; whoever has not shown who it is gets little of the event loop."""
        if self.who is None and len(frame) > MOST_HELLO_BYTES:
            raise ProtocolError("too_large", f"a first frame has at most {MOST_HELLO_BYTES} bytes")
        return decode(frame)

    def _wait_no_more(self) -> None:
        if self.is_waiting:
            self.is_waiting = False
            _waiting.leave(self.address)

    async def _answering(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Do some work for this agent; False when it was refused and the connection is being closed."""
        try:
            await work()
            return True
        except ProtocolError as error:
            await self._refuse(error.code, error.detail, CLOSE_BAD_FRAME)
        except AgentRefused as error:
            await self._refuse(error.code, error.detail, CLOSE_REFUSED, why=error.why)
        except Unavailable:
            await self._refuse("unavailable", "The portal cannot store this now. Connect again.", CLOSE_LATER)
        except Exception:
            log.exception("a frame of node %s failed", self.who.name if self.who else "?")
            await self._refuse(
                "internal", "The portal could not take this frame. Connect again.", CLOSE_LATER
            )
        return False

    async def _handle(self, message: Message) -> None:
        if isinstance(message, Hello) and self.who is None:
            await self._welcome(message)
        elif self.who is None:
            raise AgentRefused("not_introduced", "Say hello first.")
        elif isinstance(message, Report):
            self._check_epoch(self.who, message.epoch)
            self.newest = message
            self.reported.set()
        elif isinstance(message, Samples):
            self._check_epoch(self.who, message.epoch)
            await accept_samples(self.who.node_id, self.who.name, message)
            await self._heard(self.who)
        elif isinstance(message, Heartbeat):
            self._check_epoch(self.who, message.epoch)
            await self._heard(self.who)
        elif isinstance(message, NodeImages):
            self._check_epoch(self.who, message.epoch)
            await self._store_images(self.who, message)
        elif isinstance(message, ClusterUsage):
            self._check_epoch(self.who, message.epoch)
            await self._store_usage(self.who, message)
        elif isinstance(message, NewKey):
            await self._store_key(self.who, message)
        else:
            raise ProtocolError("unexpected", "an agent does not send this")

    async def _welcome(self, hello: Hello) -> None:
        who = await in_database(
            lambda: admit(hello, nonce=self.nonce, now=db_now(), handshake=self.handshake)
        )
        self.who, self.is_held = who, who.is_held
        self._wait_no_more()
        note_ids(node=who.name)
        if who.is_blank:
            await in_database(lambda: _settle_forgotten(who))
        older = _sessions.get(who.name)
        if older is not None:
            await older.close(code=CLOSE_REPLACED)
        _sessions[who.name] = self
        hub().listen(NODES, self._on_nudge)
        shared = tuple(name for name in TAKEN if name in who.features)
        # The node counts as heard, and so as online, by what its agent says after this: only then was it let in.
        welcome = Welcome(who.name, who.epoch, HEARTBEAT_S, SAMPLE_S, shared)
        if hello.nonce:
            welcome = replace(welcome, portal_key=public_key(), proofs=self._proofs(hello, who))
        if STREAMS in who.features:
            welcome = replace(welcome, gateways=tuple(settings.GATEWAYS))
        await self._send(welcome)
        self.look.set()
        self.tasks.append(asyncio.create_task(self._keep_desired(who)))
        self.tasks.append(asyncio.create_task(self._keep_reports(who)))

    def _proofs(self, hello: Hello, who: Admitted) -> dict[str, str]:
        return proofs(
            nonce=self.nonce,
            agent_nonce=hello.nonce,
            node=who.name,
            public_key=who.public_key.hex(),
            epoch=who.epoch,
        )

    async def _keep_reports(self, who: Admitted) -> None:
        """Take reports one at a time. Each holds everything, so one that was overtaken while another was
        stored is left out: the busier the portal, the more changes share a transaction. When several came
        in a row, more are likely to follow, and a short rest lets them share the next one.
        """
        in_a_row = 0
        while await self.reported.wait():
            self.reported.clear()
            if not await self._answering(lambda: self._report(who)):
                return
            in_a_row = in_a_row + 1 if self.reported.is_set() else 0
            if in_a_row >= ROW:
                await asyncio.sleep(REST_S)

    async def _report(self, who: Admitted) -> None:
        report = self.newest
        if report is not None:
            await in_database(lambda: reports.accept_report(who.node_id, report))
            failpoint("report.committed")
            if self.is_held:
                await in_database(lambda: see_unknown(who.node_id, report, now=db_now()))
            await self._send(Ack(report.seq))

    async def _keep_desired(self, who: Admitted) -> None:
        """Send the desired state whenever it rose; look again every few seconds in case a nudge was lost."""
        in_a_row = 0
        while True:
            # Not wait_for: before Python 3.12 that loses a cancellation that comes together with a nudge.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await self.look.wait()
            self.look.clear()
            try:
                found = await in_database(lambda: orders(who.node_id, now=db_now(), features=who.features))
            except Exception as error:
                log.warning("desired state of %s not read (%s); trying again", who.name, error)
                continue
            desired = found.desired
            if desired.epoch != who.epoch:
                await self._refuse(
                    "stale_epoch",
                    "This node was enrolled anew or its key forgotten. Connect again.",
                    CLOSE_REFUSED,
                )
                return
            self.is_held = found.is_held
            # What cannot be said ends the line: an agent that hears nothing more would wait for ever on a sound one.
            if not await self._answering(lambda: self._tell(who, found)):  # noqa: B023 - awaited in this turn
                return
            in_a_row = in_a_row + 1 if self.look.is_set() else 0
            if in_a_row >= ROW:
                await asyncio.sleep(REST_S)

    async def _tell(self, who: Admitted, found: NodeOrders) -> None:
        """Send the desired state if it is newer than what was sent, and ask for a new key where one is wanted."""
        if found.desired.revision > self.sent_revision and not self.is_held:
            failpoint("desired.before_send")
            self.sent_revision = found.desired.revision
            await self._send(found.desired)
            failpoint("desired.sent")
        if found.wants_key and FEATURE in who.features:
            await self._ask_key()

    async def _ask_key(self) -> None:
        rotate = self.wish.ask(at=time.monotonic())
        if rotate is not None:
            await self._send(rotate)

    async def _store_images(self, who: Admitted, told: NodeImages) -> None:
        await in_database(lambda: store_images(who.node_id, told))

    async def _store_usage(self, who: Admitted, told: ClusterUsage) -> None:
        await in_database(lambda: store_cluster_usage(who.node_id, told, now=db_now()))

    async def _store_key(self, who: Admitted, offer: NewKey) -> None:
        nonce = self.wish.answered()
        if not nonce:
            raise ProtocolError("unexpected", "no new key was asked for")
        self.wish.is_storing = True
        try:
            stored = await in_database(lambda: store_new_key(who, nonce, offer, now=db_now()))
        finally:
            self.wish.is_storing = False
        self.who = replace(who, public_key=bytes.fromhex(stored))
        await self._send(KeyStored(stored))

    async def _heard(self, who: Admitted) -> None:
        now = time.monotonic()
        if now - self.heard_at >= HEARD_EVERY_S:
            self.heard_at = now
            await in_database(lambda: heard(who.node_id, now=db_now()))

    async def _hello_in_time(self) -> None:
        await asyncio.sleep(HELLO_WITHIN_S)
        if self.handshake.end():
            await self._refuse("too_late", f"Say hello within {HELLO_WITHIN_S} seconds.", CLOSE_REFUSED)

    def _check_epoch(self, who: Admitted, epoch: int) -> None:
        if epoch != who.epoch:
            raise AgentRefused("stale_epoch", "This frame belongs to an earlier enrolment. Connect again.")

    def _on_nudge(self, _channel: str, name: Any) -> None:
        if self.who is not None and name == self.who.name:
            self.look.set()

    async def _send(self, message: Message) -> None:
        await self.send(text_data=encode(message))

    async def _refuse(self, code: str, detail: str, close: int, *, why: str = "") -> None:
        log.warning("agent %s refused: %s (%s)", self.who.name if self.who else "?", code, why or detail)
        with contextlib.suppress(Exception):
            await self._send(Refused(code, detail))
            await self.close(code=close)
