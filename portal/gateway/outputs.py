"""The sockets by which agents bring the output of jobs. Each frame is answered with how much is stored."""

from __future__ import annotations

import logging

from django.db import DatabaseError

from nodeagent.protocol.codec import ProtocolError
from nodeagent.protocol.jobs import stored_text, unpack
from portal.agents.admission import ProvenNode
from portal.agents.consumers import CLOSE_BAD_FRAME, CLOSE_LATER
from portal.common.clock import db_now
from portal.common.errors import Unavailable
from portal.common.retry import with_retries
from portal.common.threads import DatabaseThreads
from portal.gateway.nodes import AsgiMessage, Receive, Send, greeted
from portal.jobs.logs import store_piece

log = logging.getLogger(__name__)
# Apart from those of terminals: whoever prints much must not hold up who types.
_threads = DatabaseThreads("gateway-logs", workers=2)


async def output_socket(scope: AsgiMessage, receive: Receive, send: Send) -> None:
    """Serve one agent's socket from challenge to close; a frame at a time, so a flood waits at its source."""
    node = await greeted(scope, receive, send)
    if node is None:
        return
    while (message := await receive())["type"] == "websocket.receive":
        try:
            answer = await _store(node, message.get("bytes") or b"")
        except ProtocolError as no:
            log.warning("node %s sent output that makes no sense: %s", node.name, no)
            await send({"type": "websocket.close", "code": CLOSE_BAD_FRAME})
            return
        except (DatabaseError, Unavailable, OSError) as no:
            log.warning("output of node %s could not be stored: %s", node.name, no)
            await send({"type": "websocket.close", "code": CLOSE_LATER})
            return
        await send({"type": "websocket.send", "text": answer})


async def _store(node: ProvenNode, frame: bytes) -> str:
    piece, data = unpack(frame)
    stored = await _threads.run(
        lambda: with_retries(lambda: store_piece(node.node_id, piece, data, now=db_now()))
    )
    return stored_text(stored)
