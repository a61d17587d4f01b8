"""From a ticket to a command in the lease, with asyncssh's client where a person has ssh."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncssh
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from portal.accounts import ssh_keys
from portal.audit.models import AuditEntry
from portal.gateway import ssh as gateway_ssh
from portal.gateway.tickets import SSH_APP
from portal.leases.models import Lease
from portal.leases.states import LeaseState
from tests.gateway.running import PATIENCE_S, until
from tests.gateway.test_gateway import Place, place  # noqa: F401
from tests.portal.builders import World
from tests.telemetry.conftest import rows

pytestmark = pytest.mark.django_db(transaction=True)

MINE = asyncssh.generate_private_key("ssh-ed25519")


async def registered(world: World) -> None:
    line = MINE.export_public_key().decode()
    await rows(lambda: ssh_keys.add_key(world.user("bob"), name="laptop", line=line, now=world.now))


@asynccontextmanager
async def dialled(place: Place, secret: str, **more: Any) -> AsyncIterator[ClientConnection]:  # noqa: F811
    address = f"ws://127.0.0.1:{place.port}/gateway/streams/v1/ssh"
    async with connect(address, compression=None, proxy=None, **more) as web:
        await web.send(json.dumps({"ticket": secret}))
        yield web


async def ended(web: ClientConnection) -> tuple[str, int | None]:
    """Return why a connection ended, and with which number."""
    code = ""
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionClosed):
            while True:
                message = await web.recv()
                if isinstance(message, str) and json.loads(message)["op"] == "end":
                    code = json.loads(message)["code"]
    return code, web.close_code


@asynccontextmanager
async def session(place: Place) -> AsyncIterator[Any]:  # noqa: F811
    """What ssh has with berth ssh-proxy as its ProxyCommand: bytes on a socket, and a server whose key is known."""
    async with dialled(place, await place.ticket(app=SSH_APP)) as web:
        opened = json.loads(await web.recv())
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)

        async def to_lease() -> None:
            while data := await reader.read(65536):
                await web.send(data)
            await web.send(json.dumps({"op": "eof"}))

        async def to_person() -> None:
            async for message in web:
                if isinstance(message, bytes):
                    writer.write(message)
                    await writer.drain()
            writer.close()

        tasks = [asyncio.create_task(to_lease()), asyncio.create_task(to_person())]
        theirs.setblocking(False)
        known = asyncssh.import_known_hosts(f"* {opened['host_key']}\n")
        async with asyncssh.connect(
            "lease", sock=theirs, username="berth", client_keys=[MINE], known_hosts=known, config=None,
            agent_path=None,
        ) as found:  # fmt: skip
            yield found
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_command_runs_in_the_lease_and_the_visit_is_noted(place: Place, world: World) -> None:  # noqa: F811
    await registered(world)

    async with session(place) as found:
        said = await found.run("echo $BERTH_LEASE; cat; exit 5", input="x" * 600_000)

    assert said.exit_status == 5
    assert said.stdout == f"{place.lease.uid}\n" + "x" * 600_000
    await until(lambda: not gateway_ssh.connections)

    def noted() -> list[tuple[str, dict[str, Any]]]:
        return list(AuditEntry.objects.filter(action__startswith="ssh.").values_list("action", "detail"))

    async with asyncio.timeout(PATIENCE_S):
        while len(found_notes := await rows(noted)) < 2:
            await asyncio.sleep(0.02)
    facts = dict(found_notes)["ssh.closed"]
    assert facts["shown_bytes"] > 600_000
    assert "xxx" not in json.dumps(found_notes)


async def test_a_released_lease_ends_the_session(place: Place, world: World) -> None:  # noqa: F811
    await registered(world)

    async with dialled(place, await place.ticket(app=SSH_APP)) as web:
        await web.recv()
        await rows(lambda: Lease.objects.filter(pk=place.lease.pk).update(state=LeaseState.ENDING))
        assert (await ended(web))[0] == "lease_over"


@pytest.mark.parametrize("app", ["", SSH_APP])
async def test_a_ticket_opens_what_it_was_made_for(place: Place, world: World, app: str) -> None:  # noqa: F811
    await registered(world)
    secret = await place.ticket(app=app)

    async with dialled(place, secret) as web:
        first = json.loads(await web.recv())
        assert first["op"] == ("opened" if app else "end")
    async with dialled(place, secret) as again:
        assert await ended(again) == ("bad_ticket", 4401)


async def test_without_a_key_nobody_gets_in(place: Place) -> None:  # noqa: F811
    async with dialled(place, await place.ticket(app=SSH_APP)) as web:
        assert (await ended(web))[0] == "no_keys"


@pytest.mark.parametrize("first", ["", "{}", "[1]", '{"ticket": 5}', "x" * 5000])
async def test_a_message_that_makes_no_sense_is_answered(place: Place, first: str) -> None:  # noqa: F811
    address = f"ws://127.0.0.1:{place.port}/gateway/streams/v1/ssh"
    async with connect(address, compression=None, proxy=None) as web:
        await web.send(first)
        assert await ended(web) == ("bad_message", 4400)


async def test_no_page_opens_ssh(place: Place) -> None:  # noqa: F811
    with pytest.raises(Exception, match="403"):
        async with dialled(place, "x", origin="http://testserver"):
            raise AssertionError


async def test_garbage_instead_of_ssh_ends_one_session_alone(place: Place, world: World) -> None:  # noqa: F811
    await registered(world)

    async with dialled(place, await place.ticket(app=SSH_APP)) as web:
        assert json.loads(await web.recv())["op"] == "opened"
        await web.send(b"\0" * 100_000)
        assert (await ended(web))[0] in ("over", "broken")
    async with session(place) as found:
        assert (await found.run("echo still here")).stdout == "still here\n"
