"""The sockets by which agents bring the output of jobs and what these leave. Each frame is answered with how much is
stored."""

from __future__ import annotations

import logging

from django.db import DatabaseError

from nodeagent.protocol.codec import ProtocolError
from nodeagent.protocol.jobs import ArtifactPiece, Stored, stored_text, unpack
from portal.agents.admission import ProvenNode
from portal.agents.consumers import CLOSE_BAD_FRAME, CLOSE_LATER
from portal.common.clock import db_now
from portal.common.errors import Unavailable
from portal.common.retry import with_retries
from portal.common.threads import DatabaseThreads
from portal.gateway.nodes import AsgiMessage, Receive, Send, greeted
from portal.jobs.artifacts import store_artifact
from portal.jobs.logs import store_piece

log = logging.getLogger(__name__)
# Apart from those of terminals: whoever prints much must not hold up who types.
_threads = DatabaseThreads("gateway-logs", workers=2)
# And apart from lines: a file may be large, and is read once more when it is whole. Several, so that the files of
# other nodes go on meanwhile.
_file_threads = DatabaseThreads("gateway-files", workers=4)


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

    def store() -> Stored:
        if isinstance(piece, ArtifactPiece):
            return store_artifact(node.node_id, piece, data, now=db_now())
        return store_piece(node.node_id, piece, data, now=db_now())

    threads = _file_threads if isinstance(piece, ArtifactPiece) else _threads
    return stored_text(await threads.run(lambda: with_retries(store)))
