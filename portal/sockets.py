"""Every WebSocket address of the portal."""

from __future__ import annotations

from typing import Any

routes: list[Any] = []
