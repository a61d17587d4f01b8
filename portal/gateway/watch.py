"""The gateway's conscience: twice a second, and with each change of a lease, who may keep what they have."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, Final

from django.db import DatabaseError

from portal.agents.consumers import CLOSE_REFUSED
from portal.common.clock import db_now
from portal.common.errors import Unavailable
from portal.common.live import EVENTS, hub
from portal.gateway import access
from portal.gateway.database import in_database
from portal.gateway.nodes import links
from portal.gateway.ssh import SshConnection, connections
from portal.gateway.terminals import BrowserTerminal, terminals
from portal.gateway.visits import AppVisit, leave_idle, visits
from portal.gateway.watchers import TerminalWatcher, watchers

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.5
# Without an answer of the database for so long nobody keeps what they have.
BLIND_FOR_S: Final = 5.0


class RightsWatch:
    """Asks again and again while the gateway runs."""

    def __init__(self) -> None:
        self._stir = asyncio.Event()
        self._seen_at = asyncio.get_running_loop().time()

    async def run(self) -> None:
        """Look until cancelled."""
        hub().listen(EVENTS, self._on_event)
        try:
            while True:
                try:
                    await self.look()
                except Exception:  # whatever it was: who may stay is asked again
                    log.exception("rights could not be checked")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY_S):
                        await self._stir.wait()
                self._stir.clear()
        finally:
            hub().leave(EVENTS, self._on_event)

    async def look(self) -> None:
        """End terminals, connections and apps whose right is gone, and sockets of nodes that were enrolled anew."""
        loop = asyncio.get_running_loop()
        leave_idle()
        held = _held()
        if not held and not links:
            self._seen_at = loop.time()
            return
        seats = {one.seat for one in held}
        try:
            gone = await in_database(lambda: access.refusals(seats, now=db_now())) if seats else {}
            known = await in_database(lambda: access.identities(list(links)))
            self._seen_at = loop.time()
        except (DatabaseError, Unavailable) as no:
            log.warning("rights of %d terminals, connections and apps not checked: %s", len(held), no)
            if loop.time() - self._seen_at > BLIND_FOR_S:
                for one in held:
                    one.end("unavailable")
            return
        for one in held:
            if one.seat in gone:
                one.end(gone[one.seat].code)
        for pk, link in list(links.items()):
            if known.get(pk, (link.node.epoch, link.node.public_key)) != (
                link.node.epoch,
                link.node.public_key,
            ):
                link.close(CLOSE_REFUSED)

    def _on_event(self, _channel: str, message: Any) -> None:
        named = message.get("lease") if isinstance(message, dict) else None
        if any(one.seat.uid == named for one in _held()):
            self._stir.set()


def _held() -> list[BrowserTerminal | TerminalWatcher | SshConnection | AppVisit]:
    return [*terminals, *watchers, *connections, *visits.values()]
