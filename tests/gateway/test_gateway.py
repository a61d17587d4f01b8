"""From a ticket to a shell and back: who gets in, who is put out, and what floods and dead gateways cost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from nodeagent.protocol.codec import decode, encode
from nodeagent.protocol.messages import Challenge, Refused, StreamHello
from nodeagent.protocol.streams import WINDOW
from portal.accounts.models import BrowserSession
from portal.audit.models import AuditEntry
from portal.common.clock import db_now
from portal.common.live import EVENTS, publish
from portal.fleet.models import Node
from portal.gateway import terminals as gateway_terminals
from portal.gateway.models import StreamTicket
from portal.gateway.nodes import links
from portal.gateway.terminals import MOST_IN_FLIGHT, terminals
from portal.gateway.watch import LOOK_EVERY_S
from portal.leases.models import Lease
from portal.leases.states import LeaseState
from portal.teams.models import Membership
from tests.gateway.running import (
    NodeEnd,
    Person,
    linked,
    serving,
    session_of,
    ticket,
    until,
    unused_port,
    visiting,
)
from tests.portal.builders import World
from tests.telemetry.conftest import rows

# Rights are looked at twice a second; the rest is patience with a busy machine.
SOON_S = 20

pytestmark = pytest.mark.django_db(transaction=True)


class Place:
    """An active lease of bob's, its node connected to a gateway."""

    def __init__(self, world: World, lease: Lease, node: NodeEnd, port: int) -> None:
        self.world, self.lease, self.node, self.port = world, lease, node, port

    async def ticket(self, **more: Any) -> str:
        return await ticket(self.world, self.lease, now=await rows(db_now), **more)

    def open(self, secret: str, **more: Any) -> Any:
        return visiting(self.port, secret, **more)


@pytest_asyncio.fixture
async def place(world: World, tmp_path: Path, settings: Any) -> AsyncIterator[Place]:
    lease = await rows(lambda: world.active("bob"))
    node = NodeEnd(await rows(lambda: lease.node.name), tmp_path)
    await node.enrol([lease])
    lease = await rows(lambda: Lease.objects.select_related("node").get(pk=lease.pk))
    async with serving() as port, node.dialling(port):
        await linked()
        yield Place(world, lease, node, port)


async def test_ticket_opens_a_shell_and_the_audit_log_knows_when_and_nothing_of_what(place: Place) -> None:
    async with place.open(await place.ticket()) as bob:
        opened = await bob.word("opened")
        answer = await bob.ask("echo $((6*7))-$BERTH_LEASE")

    assert answer == f"42-{place.lease.uid}"
    assert opened["is_former"] is False
    await until(lambda: not terminals)
    entries = await _audit(2)
    assert [entry.action for entry in entries] == ["terminal.opened", "terminal.closed"]
    assert {entry.target for entry in entries} == {place.lease.uid}
    assert set(entries[1].detail) == {"node", "seconds", "shown_bytes", "typed_bytes", "why"}
    assert "42" not in json.dumps([entry.detail["node"] for entry in entries])


async def _audit(count: int) -> list[AuditEntry]:
    async with asyncio.timeout(10):
        while True:
            found = await rows(
                lambda: list(AuditEntry.objects.filter(action__startswith="terminal.").order_by("id"))
            )
            if len(found) >= count:
                return list(found)
            await asyncio.sleep(0.02)


async def test_shell_that_exits_tells_its_status(place: Place) -> None:
    async with place.open(await place.ticket()) as bob:
        await bob.word("opened")
        await bob.socket.send(b"exit 3\n")
        end = await bob.ended()

    assert (await bob.word("exit"))["status"] == 3
    assert end == ("exited", 1000)


async def test_ticket_is_good_once(place: Place) -> None:
    secret = await place.ticket()
    async with place.open(secret) as bob:
        await bob.word("opened")
        async with place.open(secret) as again:
            assert await again.ended() == ("bad_ticket", 4401)


async def test_ticket_of_half_a_minute_ago_is_too_old(place: Place) -> None:
    secret = await place.ticket()
    await rows(lambda: StreamTicket.objects.update(expires_at=db_now() - timedelta(seconds=1)))

    async with place.open(secret) as bob:
        assert await bob.ended() == ("bad_ticket", 4401)


@pytest.mark.parametrize("origin", ["http://localhost:9999", None])
async def test_ticket_of_one_page_is_no_use_to_another_or_to_a_program(
    place: Place, origin: str | None
) -> None:
    secret = await place.ticket(origin="http://localhost:8000")

    async with place.open(secret, origin=origin) as thief:
        assert await thief.ended() == ("bad_ticket", 4401)


async def test_page_that_the_ticket_was_made_for_gets_in(place: Place) -> None:
    async with place.open(
        await place.ticket(origin="http://localhost:8000"), origin="http://localhost:8000"
    ) as bob:
        await bob.word("opened")


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "file://", "http://["])
async def test_page_of_a_stranger_is_refused_before_it_may_say_anything(place: Place, origin: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with place.open("x", origin=origin):
            pass

    assert refused.value.response.status_code == 403


FIRST: dict[str, Any] = {
    "nothing": "",
    "no object": "[]",
    "no ticket": json.dumps({"rows": 9, "columns": 9}),
    "ticket is a number": json.dumps({"ticket": 7, "rows": 9, "columns": 9}),
    "bytes": b"\x00\xff",
    "no size": json.dumps({"ticket": "x"}),
    "size of a house": json.dumps({"ticket": "x", "rows": 10**9, "columns": 9}),
    "another lease": json.dumps({"ticket": "x", "rows": 9, "columns": 9, "lease": "lse-1"}),
    "another terminal": json.dumps({"ticket": "x", "rows": 9, "columns": 9, "terminal": "../../etc"}),
    "long": json.dumps({"ticket": "x" * 5000, "rows": 9, "columns": 9}),
    "deep": "[" * 4000,
    "surrogate": '{"ticket": "\\ud800", "rows": 9, "columns": 9}',
}


@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST.keys())
async def test_first_message_that_makes_no_sense_is_refused(place: Place, first: Any) -> None:
    async with connect(f"ws://127.0.0.1:{place.port}/streams/v1/terminal", proxy=None) as socket:
        await socket.send(first)
        why, code = await Person(socket).ended()

    assert (why, code) in [("bad_message", 4400), ("bad_ticket", 4401)]
    assert not terminals


@pytest.mark.parametrize(
    "word",
    ["{", "[]", '{"op":"exit"}', '{"op":"ack","bytes":-1}', '{"op":"ack","bytes":99999999}',
     '{"op":"ack","bytes":true}', '{"op":"resize","rows":0}', '{"op":"resize","more":1}', "x" * 5000],
)  # fmt: skip
async def test_word_that_makes_no_sense_ends_the_terminal_and_no_other(place: Place, word: str) -> None:
    async with place.open(await place.ticket()) as bob, place.open(await place.ticket()) as other:
        await bob.word("opened")
        await bob.socket.send(word)

        assert await bob.ended() == ("bad_message", 4400)
        assert await other.ask("echo fine") == "fine"


async def _end_of_lease(place: Place, session: str) -> None:
    await rows(lambda: Lease.objects.filter(pk=place.lease.pk).update(state=LeaseState.ENDING))


async def _announced_end(place: Place, session: str) -> None:
    await _end_of_lease(place, session)
    await rows(lambda: publish(EVENTS, [{"lease": place.lease.uid}]))


async def _sign_out(place: Place, session: str) -> None:
    await rows(lambda: BrowserSession.objects.filter(session_key=session).delete())


async def _leave_team(place: Place, session: str) -> None:
    await rows(lambda: Membership.objects.filter(user=place.world.user("bob")).delete())


async def _lock_account(place: Place, session: str) -> None:
    user = place.world.user("bob")
    user.is_active = False
    await rows(user.save)


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (_end_of_lease, "lease_over"),
        (_announced_end, "lease_over"),
        (_sign_out, "signed_out"),
        (_leave_team, "not_allowed"),
        (_lock_account, "signed_out"),
    ],
)
async def test_lost_right_ends_the_terminal(place: Place, happens: Any, why: str) -> None:
    session = await session_of(place.world, "bob")
    async with place.open(await place.ticket(session_key=session)) as bob:
        pid = int(await bob.ask("echo $$"))
        await happens(place, session)
        async with asyncio.timeout(SOON_S):
            end = await bob.ended()

    assert LOOK_EVERY_S <= 0.5
    assert end[0] == why
    assert not terminals
    async with asyncio.timeout(5):
        while Path(f"/proc/{pid}").exists():
            await asyncio.sleep(0.02)


async def test_flood_to_a_screen_that_reads_nothing_stays_small_and_can_be_ended(place: Place) -> None:
    async with place.open(await place.ticket()) as lazy, place.open(await place.ticket()) as other:
        await lazy.word("opened")
        await lazy.socket.send(b"yes\n")
        flood = await until(lambda: next((one for one in terminals if one.shown >= MOST_IN_FLIGHT), None))

        assert await other.ask("echo quick") == "quick"
        held = sum(map(len, flood._queue))
        assert held <= WINDOW
        assert flood.shown <= MOST_IN_FLIGHT + gateway_terminals.MOST_AT_ONCE

        await _end_of_lease(place, "")
        async with asyncio.timeout(SOON_S):
            await until(lambda: not terminals)


async def test_paste_of_a_megabyte_of_control_bytes_harms_nobody(place: Place) -> None:
    async with place.open(await place.ticket()) as bob, place.open(await place.ticket()) as other:
        await bob.word("opened")
        await bob.ask("echo ready")
        await bob.socket.send(b"cat >/dev/null\n")
        for _ in range(8):
            await bob.socket.send(b"\x16\x1b[31m\x07" * 18_000)

        assert await other.ask("echo quick") == "quick"


async def test_gateway_that_dies_is_replaced_by_another_with_the_same_shell(
    world: World, tmp_path: Path, settings: Any
) -> None:
    lease = await rows(lambda: world.active("bob"))
    node = NodeEnd(await rows(lambda: lease.node.name), tmp_path)
    await node.enrol([lease])
    lease = await rows(lambda: Lease.objects.select_related("node").get(pk=lease.pk))

    async def secret() -> str:
        return await ticket(world, lease, now=await rows(db_now))

    port = unused_port()
    async with node.dialling(port):
        async with serving(port):
            await linked()
            async with visiting(port, await secret()) as bob:
                name = (await bob.word("opened"))["terminal"]
                pid = await bob.ask("echo $$")
                stopping = asyncio.create_task(bob.ended())
        assert (await stopping)[0] in ("restart", "node_away", "")
        async with serving(port):
            await linked()
            async with visiting(port, await secret(), terminal=name) as bob:
                again = await bob.word("opened")

                assert again == {"op": "opened", "terminal": name, "is_former": True}
                assert await bob.ask("echo $$") == pid
                assert f"<{pid}>".encode() in bob.shown


async def test_node_that_is_away_is_said_so(world: World, settings: Any) -> None:
    lease = await rows(lambda: world.active("bob"))
    await rows(lambda: Node.objects.update(features=["streams"]))
    lease = await rows(lambda: Lease.objects.select_related("node").get(pk=lease.pk))
    async with serving() as port, visiting(port, await ticket(world, lease, now=await rows(db_now))) as bob:
        assert await bob.ended() == ("node_away", 4503)


async def test_agent_that_goes_takes_its_terminals_along_until_it_is_back(place: Place) -> None:
    async with place.open(await place.ticket()) as bob:
        await bob.word("opened")
        next(iter(links.values())).close(1012)

        assert await bob.ended() == ("node_away", 4503)
    await linked()
    async with place.open(await place.ticket()) as bob:
        assert await bob.ask("echo back") == "back"


async def test_node_that_was_enrolled_anew_loses_its_streams(place: Place) -> None:
    (link,) = links.values()
    await rows(lambda: Node.objects.filter(pk=place.lease.node_id).update(epoch=4))

    await until(lambda: link.closing.done())


async def test_agent_is_believed_by_its_key_and_epoch_alone(place: Place, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    stranger = NodeEnd("gpu-99", tmp_path / "other")
    stranger.identity = type(place.node.identity)("gpu-99", tmp_path / "other")
    said = []
    for identity, node, epoch in [
        (stranger.identity, "gpu-99", 3),
        (stranger.identity, place.node.node, 3),
        (place.node.identity, place.node.node, 2),
    ]:
        async with connect(f"ws://127.0.0.1:{place.port}/streams/v1/agent", proxy=None) as socket:
            challenge = decode(await socket.recv())
            assert isinstance(challenge, Challenge)
            signature = identity.sign_streams(challenge.nonce, agent_nonce="ab" * 32, epoch=epoch)
            hello = StreamHello(node, epoch, signature, "ab" * 32, identity.portal_key)
            await socket.send(encode(hello))
            answer = decode(await socket.recv())
            assert isinstance(answer, Refused)
            said.append(answer.code)

    assert said == ["bad_signature", "bad_signature", "stale_epoch"]


@pytest.mark.parametrize(
    "frame", ["{}", "[" * 9000, "x" * 70_000, b"\xff\x00", '{"v":1,"type":"ack","seq":1}']
)
async def test_hello_that_makes_no_sense_is_refused(place: Place, frame: Any) -> None:
    async with connect(f"ws://127.0.0.1:{place.port}/streams/v1/agent", proxy=None) as socket:
        await socket.recv()
        await socket.send(frame)
        answer = decode(await socket.recv())
        with pytest.raises(ConnectionClosed):
            await socket.recv()

    assert isinstance(answer, Refused)


async def test_no_other_address_is_served(place: Place) -> None:
    with pytest.raises(InvalidStatus):
        async with connect(f"ws://127.0.0.1:{place.port}/ws/live/", proxy=None):
            pass
