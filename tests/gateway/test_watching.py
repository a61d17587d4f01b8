"""Terminals that their holder shares: who sees them, that nobody types there, and when it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import pytest_asyncio
from websockets.asyncio.client import connect

from portal.accounts.models import BrowserSession
from portal.audit.models import AuditEntry
from portal.common.clock import db_now
from portal.gateway import watchers as gateway_watchers
from portal.gateway.models import TerminalShare
from portal.gateway.sharing import share_terminals, unshare_terminals
from portal.gateway.tickets import WATCH_APP
from portal.gateway.watchers import TerminalWatcher, watchers
from portal.leases.models import Lease
from portal.leases.states import LeaseState
from portal.teams.models import Membership
from tests.gateway.running import PATIENCE_S, Person, until
from tests.gateway.test_gateway import Place, place  # noqa: F401
from tests.telemetry.conftest import rows

pytestmark = pytest.mark.django_db(transaction=True)


class Watched:
    """Bob's lease, and Alice, who is an admin above his team and may watch."""

    def __init__(self, place: Place) -> None:  # noqa: F811
        self.place = place

    async def share(self, who: str | None = "alice") -> TerminalShare:
        world, now = self.place.world, await rows(db_now)
        user = world.user(who) if who else None
        lease = await rows(lambda: Lease.objects.select_related("team").get(pk=self.place.lease.pk))
        shared: TerminalShare = await rows(
            lambda: share_terminals(lease=lease, actor=world.user("bob"), user=user, now=now)
        )
        return shared

    async def watch(self) -> Any:
        secret = await self.place.ticket(who="alice", app=WATCH_APP)
        address = f"ws://127.0.0.1:{self.place.port}/streams/v1/watch"
        socket = await connect(address, compression=None, proxy=None)
        await socket.send(json.dumps({"ticket": secret}))
        return Person(socket)


@pytest_asyncio.fixture
async def watched(place: Place) -> AsyncIterator[Watched]:  # noqa: F811
    yield Watched(place)


def audited() -> list[str]:
    """Return what the audit log says of those who watched, the earliest first."""
    found = AuditEntry.objects.filter(action__startswith="terminal.watch", actor__username="alice")
    return list(found.order_by("id").values_list("action", flat=True))


async def sees(person: Person, text: bytes) -> None:
    while text not in person.shown:
        await person.hear()


async def test_a_watcher_sees_what_was_and_is_shown_in_the_terminal_that_is_used(watched: Watched) -> None:
    await watched.share()
    async with watched.place.open(await watched.place.ticket()) as bob:
        await bob.ask("echo before")
        alice = await watched.watch()
        opened = await alice.word("opened")
        await sees(alice, b"<before>")
        await bob.ask("echo during")
        await sees(alice, b"<during>")
        await bob.socket.send(json.dumps({"op": "resize", "rows": 30, "columns": 90}))
        resized = await alice.word("resize")

        async with watched.place.open(await watched.place.ticket()) as other:
            alice.words.clear()
            await other.word("opened")
            await alice.word("opened")
            await other.ask("echo elsewhere")
            await sees(alice, b"<elsewhere>")
            alice.words.clear()
            await bob.ask("echo back")
            await alice.word("opened")
            await sees(alice, b"<back>")

    assert (opened["rows"], opened["columns"]) == (40, 120)
    assert (resized["rows"], resized["columns"]) == (30, 90)
    assert await alice.ended() == ("not_shown", 4503)


async def test_what_a_watcher_types_reaches_nobody_and_ends_their_socket(watched: Watched) -> None:
    await watched.share(None)
    async with watched.place.open(await watched.place.ticket()) as bob:
        await bob.word("opened")
        for typed in (
            b"echo $((40+2))\r",
            json.dumps({"op": "hang_up"}),
            json.dumps({"op": "resize", "rows": 1}),
        ):
            alice = await watched.watch()
            await alice.word("opened")
            await alice.socket.send(typed)
            assert await alice.ended() == ("bad_message", 4400)

        assert await bob.ask("echo still here") == "still here"
        assert b"42" not in bob.shown


@pytest.mark.parametrize("how", ["taken back", "team left", "lease over", "signed out"])
async def test_watching_ends_with_the_share_the_right_and_the_lease(watched: Watched, how: str) -> None:
    share, world = await watched.share(), watched.place.world
    lease = await rows(lambda: Lease.objects.select_related("team").get(pk=watched.place.lease.pk))
    async with watched.place.open(await watched.place.ticket()) as bob:
        await bob.word("opened")
        alice = await watched.watch()
        await alice.word("opened")
        if how == "taken back":
            now = await rows(db_now)
            await rows(lambda: unshare_terminals(lease=lease, actor=world.user("bob"), key=share.pk, now=now))
        elif how == "team left":
            await rows(lambda: Membership.objects.filter(user=world.user("alice")).delete())
        elif how == "lease over":
            await rows(lambda: Lease.objects.filter(pk=lease.pk).update(state=LeaseState.ENDING))
        else:
            await rows(lambda: BrowserSession.objects.filter(user=world.user("alice")).delete())
        why, _code = await alice.ended()
        async with asyncio.timeout(PATIENCE_S):
            while len(noted := await rows(audited)) < 2:
                await asyncio.sleep(0.01)

    expected = {"lease over": "lease_over", "signed out": "signed_out"}
    assert why == expected.get(how, "not_allowed")
    assert noted == ["terminal.watch_opened", "terminal.watch_closed"]


async def test_a_watcher_who_does_not_keep_up_is_let_go_and_the_holder_goes_on(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_watchers, "MOST_BEHIND", 64 * 1024)
    monkeypatch.setattr(gateway_watchers, "MOST_IN_FLIGHT", 64 * 1024)
    await watched.share()
    async with watched.place.open(await watched.place.ticket()) as bob:
        await bob.word("opened")
        alice = await watched.watch()
        await until(lambda: watchers)
        assert await bob.ask("head -c 400000 /dev/zero | tr '\\0' x | tee /dev/tty | wc -c") == "400000"
        await until(lambda: not watchers)
        while not any(word["op"] == "end" for word in alice.words):
            message = await alice.socket.recv()
            alice.words.extend([json.loads(message)] if isinstance(message, str) else [])

    assert alice.words[-1]["code"] == "behind"


def test_sizes_that_nobody_was_shown_yet_do_not_heap_up() -> None:
    watcher = TerminalWatcher(cast(Any, None))
    for height in range(1, 100):
        watcher.resize(height, 80)
    watcher.feed(b"x")
    watcher.resize(24, 80)

    assert list(watcher._queue) == [
        {"op": "resize", "rows": 99, "columns": 80}, b"x", {"op": "resize", "rows": 24, "columns": 80},
    ]  # fmt: skip
    for _ in range(gateway_watchers.MOST_BEHIND // gateway_watchers.WORD):
        watcher.feed(b"x")
        watcher.resize(24, 80)
    assert watcher._end == "behind"
