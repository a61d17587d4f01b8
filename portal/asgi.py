"""One ASGI application: ordinary HTTP through WSGI (measured faster), sockets through Channels."""

from __future__ import annotations

import os
from typing import Any, cast

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")

from a2wsgi import WSGIMiddleware
from channels.routing import ProtocolTypeRouter, URLRouter
from django.conf import settings
from django.core.wsgi import get_wsgi_application

from portal.tracing import start_tracing

HTTP_THREADS = 4

start_tracing("berth-web")
_wsgi = get_wsgi_application()

from portal import sockets  # noqa: E402 (needs the app registry)
from portal.common import downloads  # noqa: E402
from portal.common.environment import NEW_KEY  # noqa: E402

NO_KEY = "Set BERTH_SECRET_KEY (or BERTH_SECRET_KEY_FILE) to 50 or more random characters. " + NEW_KEY


# An answer holds its thread until it is read: those of large files must not be the ones that pages wait for.
pages = WSGIMiddleware(cast(Any, _wsgi), workers=HTTP_THREADS)
large_files = WSGIMiddleware(cast(Any, _wsgi), workers=downloads.THREADS, send_queue_size=2)


async def _http(scope: Any, receive: Any, send: Any) -> None:
    await (large_files if downloads.is_download(scope["path"]) else pages)(scope, receive, send)


async def _lifespan(_scope: Any, receive: Any, send: Any) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup" and not settings.HAS_SECRET_KEY:
            await send({"type": "lifespan.startup.failed", "message": NO_KEY})
            return
        await (sockets.start if message["type"] == "lifespan.startup" else sockets.stop)()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return


application = ProtocolTypeRouter(
    {
        "http": _http,
        "websocket": URLRouter(sockets.routes),
        "lifespan": _lifespan,
    }
)
