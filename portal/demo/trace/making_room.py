"""Room for a play: the demo people give back what their story holds and take back what they wait for."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from portal.demo.trace.calls import ApiRefusal, TraceClient

LIVE = "state=preparing&state=active&state=interrupted"


async def make_room(api: TraceClient, tokens: Mapping[str, str]) -> tuple[int, int]:
    """Release the live leases of these people and withdraw their waiting requests; returns how many of each.

    Waiting requests go first: a slice given back must not be given to one of them.
    """
    withdrawn = released = 0
    for person, token in tokens.items():
        waiting = f"/api/v1/requests/?author={quote(person)}&state=queued&state=awaiting_approval"
        withdrawn += await _each(api, token, waiting, "/api/v1/requests/{}/withdraw/")
    for person, token in tokens.items():
        held = f"/api/v1/leases/?user={quote(person)}&{LIVE}"
        released += await _each(api, token, held, "/api/v1/leases/{}/release/")
    return released, withdrawn


async def _each(api: TraceClient, token: str, path: str, action: str) -> int:
    done = 0
    for uid in [row["id"] async for row in api.pages(f"{path}&page_size=200", token=token)]:
        try:
            await api.call("POST", action.format(uid), token=token, body={})
            done += 1
        except ApiRefusal as refusal:
            if refusal.status != 409:
                raise
    return done
