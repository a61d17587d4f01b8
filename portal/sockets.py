"""Every WebSocket address of the portal; any other one is closed with 4404."""

from __future__ import annotations

from typing import Any, cast

from django.urls import re_path

from portal.agents.consumers import AgentConsumer
from portal.telemetry.consumers import live_socket, unknown_socket
from portal.telemetry.periodic import beat

# Django's route takes any callable; its annotation knows only views.
_live, _agent, _unknown = cast(Any, live_socket), AgentConsumer.as_asgi(), cast(Any, unknown_socket)
routes: list[Any] = [
    re_path(r"^ws/live/$", _live),
    re_path(r"^agent/v1/?$", _agent),
    re_path(r"", _unknown),
]


async def start() -> None:
    """Begin to keep live figures, so that the first page of this process has some."""
    beat().start()


async def stop() -> None:
    """Stop listening before the event loop ends."""
    await beat().stop()
