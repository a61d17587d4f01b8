"""One ASGI application: ordinary HTTP through WSGI (measured faster), sockets through Channels."""

from __future__ import annotations

import os
from typing import Any, cast

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")

from a2wsgi import WSGIMiddleware
from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.wsgi import get_wsgi_application

HTTP_THREADS = 4

_wsgi = get_wsgi_application()

from portal import sockets  # noqa: E402 (needs the app registry)


async def _lifespan(_scope: Any, receive: Any, send: Any) -> None:
    while True:
        message = await receive()
        await (sockets.start if message["type"] == "lifespan.startup" else sockets.stop)()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return


application = ProtocolTypeRouter(
    {
        "http": WSGIMiddleware(cast(Any, _wsgi), workers=HTTP_THREADS),
        "websocket": URLRouter(sockets.routes),
        "lifespan": _lifespan,
    }
)
