"""A gateway as one plain ASGI application, in a process of its own: agents dial it, terminals, and pages of apps.

uvicorn --ws websockets-sansio portal.gateway.application:application
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")

import django
from django.conf import settings

django.setup()

from portal.common.environment import NEW_KEY  # noqa: E402
from portal.common.live import hub  # noqa: E402 (needs the app registry)
from portal.gateway import visits  # noqa: E402
from portal.gateway.addresses import AGENT_PATH, OUTPUTS_PATH, SSH_PATH, TERMINAL_PATH, WATCH_PATH  # noqa: E402
from portal.gateway.app_hosts import is_apps_host  # noqa: E402
from portal.gateway.app_proxy import app_http  # noqa: E402
from portal.gateway.app_sockets import app_socket  # noqa: E402
from portal.gateway.nodes import AsgiMessage, Receive, Send, agent_socket, links  # noqa: E402
from portal.gateway.outputs import output_socket  # noqa: E402
from portal.gateway.ssh import connections, ssh_socket  # noqa: E402
from portal.gateway.stream_counts import tell_counts  # noqa: E402
from portal.gateway.terminals import terminal_socket, terminals  # noqa: E402
from portal.gateway.watch import RightsWatch  # noqa: E402
from portal.gateway.watchers import watch_socket, watchers  # noqa: E402

NO_KEY = "Set BERTH_SECRET_KEY (or BERTH_SECRET_KEY_FILE) to that of the portal. " + NEW_KEY
GOING_AWAY = 1012


async def application(scope: AsgiMessage, receive: Receive, send: Send) -> None:
    """Serve apps on their hosts; else sockets of agents and of terminals, and say over HTTP that it is there."""
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
    elif is_apps_host(_host(scope)):
        await (app_socket if scope["type"] == "websocket" else app_http)(scope, receive, send)
    elif scope["type"] == "websocket":
        await _socket(scope, receive, send)
    elif scope["type"] == "http":
        await _answer(send, is_known=scope["path"].rstrip("/").endswith("/healthz"))


def _host(scope: AsgiMessage) -> str:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")


async def _socket(scope: AsgiMessage, receive: Receive, send: Send) -> None:
    # A proxy may have given a gateway a path of its own, and may have left it in place.
    path = scope["path"].rstrip("/")
    if path.endswith(TERMINAL_PATH):
        await terminal_socket(scope, receive, send)
    elif path.endswith(WATCH_PATH):
        await watch_socket(scope, receive, send)
    elif path.endswith(SSH_PATH):
        await ssh_socket(scope, receive, send)
    elif path.endswith(AGENT_PATH):
        await agent_socket(scope, receive, send)
    elif path.endswith(OUTPUTS_PATH):
        await output_socket(scope, receive, send)
    else:
        await receive()
        await send({"type": "websocket.close", "code": 4404})


async def _answer(send: Send, *, is_known: bool) -> None:
    status, body = (
        (200, b"ok\n") if is_known else (404, b"This is a gateway of Berth; it speaks WebSocket.\n")
    )
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"x-content-type-options", b"nosniff")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _lifespan(receive: Receive, send: Send) -> None:
    watching: asyncio.Task[None] | None = None
    telling: asyncio.Task[None] | None = None
    while True:
        message: dict[str, Any] = await receive()
        if message["type"] == "lifespan.startup":
            if not settings.HAS_SECRET_KEY:
                await send({"type": "lifespan.startup.failed", "message": NO_KEY})
                return
            # It names the address of each socket, which is for a lease and its holder alone.
            logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
            watching = asyncio.get_running_loop().create_task(RightsWatch().run())
            telling = asyncio.get_running_loop().create_task(tell_counts(_counts))
            await send({"type": "lifespan.startup.complete"})
        else:
            if telling is not None:
                telling.cancel()
            await stop(watching)
            await send({"type": "lifespan.shutdown.complete"})
            return


def _counts() -> dict[str, int]:
    return {
        "terminals": len(terminals), "watchers": len(watchers), "ssh": len(connections), "apps": len(visits.visits),
        "nodes": len(links),
    }  # fmt: skip


async def stop(watching: asyncio.Task[None] | None) -> None:
    """Let everybody go, so that they find another gateway or come back to this one; shells live on meanwhile."""
    for terminal in list(terminals):
        terminal.end("restart")
    for watcher in list(watchers):
        watcher.end("restart")
    for connection in list(connections):
        connection.end("restart")
    await visits.close()
    for link in list(links.values()):
        link.close(GOING_AWAY)
    if watching is not None:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
    await hub().close()
