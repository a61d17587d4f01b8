"""Two gateways in processes of their own, the node at both: one of them is killed, and people go on by the other."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from django.conf import settings as portal_settings
from django.db import connection

from portal.common.clock import db_now
from portal.gateway.tickets import make_ticket
from portal.leases.models import Lease
from tests.gateway.running import NodeEnd, Person, session_of, ticket, unused_port, visiting
from tests.gateway.test_apps import PORTAL, app_file  # noqa: F401 - a fixture
from tests.portal.builders import World
from tests.telemetry.conftest import rows

pytestmark = pytest.mark.django_db(transaction=True)
TERMINALS = 10
UP_WITHIN_S = 60


@contextmanager
def gateway(catalogue: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a gateway on the test's database, as in production."""
    port = unused_port()
    env = {
        **os.environ,
        "DATABASE_URL": urlsplit(os.environ["DATABASE_URL"])
        ._replace(path=f"/{connection.settings_dict['NAME']}")
        .geturl(),
        "REDIS_URL": portal_settings.REDIS_URL,
        "BERTH_SECRET_KEY": portal_settings.SECRET_KEY,
        "BERTH_PORTAL_KEY": portal_settings.PORTAL_KEY,
        "BERTH_APPS_DOMAIN": "*.localhost:8001",
        "BERTH_APPS_CATALOGUE": catalogue,
        "DJANGO_SETTINGS_MODULE": "portal.settings",
    }
    words = [
        "-m",
        "uvicorn",
        "portal.gateway.application:application",
        "--ws",
        "websockets-sansio",
        "--port",
        str(port),
    ]
    process = subprocess.Popen([sys.executable, *words], env=env, stdout=subprocess.DEVNULL)
    try:
        yield process, port
    finally:
        process.kill()
        process.wait()


async def answers(process: subprocess.Popen[bytes], port: int) -> None:
    async with asyncio.timeout(UP_WITHIN_S):
        while True:
            assert process.poll() is None, "the gateway ended by itself"
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", port)) == 0:
                    return
            await asyncio.sleep(0.1)


async def come_in(
    world: World, lease: Lease, port: int, name: str = ""
) -> tuple[Any, Person, dict[str, Any]]:
    """Open a terminal; the node may only just be finding this gateway."""
    async with asyncio.timeout(UP_WITHIN_S):
        while True:
            secret = await ticket(world, lease, now=await rows(db_now))
            context = visiting(port, secret, terminal=name)
            person = await context.__aenter__()
            await person.hear()
            if person.words[0]["op"] == "opened":
                return context, person, person.words[0]
            await context.__aexit__(None, None, None)
            await asyncio.sleep(0.2)


@pytest.mark.deep
async def test_gateway_that_is_killed_costs_nobody_a_shell_or_an_app(
    world: World,
    tmp_path: Path,
    app_file: Path,  # noqa: F811
    settings: Any,
) -> None:
    lease = await rows(lambda: world.active("bob"))
    node = NodeEnd(await rows(lambda: lease.node.name), tmp_path)
    await node.enrol([lease])
    lease = await rows(lambda: Lease.objects.select_related("node").get(pk=lease.pk))
    file = settings.APPS_CATALOGUE
    with gateway(file) as (first, first_port), gateway(file) as (second, second_port):
        await asyncio.gather(answers(first, first_port), answers(second, second_port))
        async with node.dialling(first_port, second_port), AsyncExitStack() as opened:
            shells = []
            for number in range(TERMINALS):
                context, person, word = await come_in(world, lease, first_port)
                opened.push_async_exit(context.__aexit__)
                await person.socket.send(f"mine=shell-{number}\n".encode())
                assert await person.ask("echo $mine") == f"shell-{number}"
                shells.append((person, word["terminal"]))
            session = await session_of(world, "bob")
            now = await rows(db_now)
            secret = await rows(
                lambda: make_ticket(
                    lease,
                    world.user("bob"),
                    session_key=session,
                    origin=PORTAL,
                    app="web",
                    host="localhost",
                    now=now,
                )
            )
            headers = {"Host": f"web--{lease.uid}.localhost:8001"}
            async with httpx.AsyncClient(headers=headers, timeout=20, trust_env=False) as client:
                entered = await client.get(
                    f"http://127.0.0.1:{first_port}/_berth/enter", params={"t": secret}
                )
                client.headers["Cookie"] = entered.headers["set-cookie"].partition(";")[0]

                first.kill()

                for person, _name in shells:
                    async with asyncio.timeout(20):
                        await person.ended()
                for number, (_person, name) in enumerate(shells):
                    context, person, word = await come_in(world, lease, second_port, name)
                    opened.push_async_exit(context.__aexit__)
                    assert word["is_former"]
                    assert await person.ask("echo $mine") == f"shell-{number}"
                async with asyncio.timeout(20):
                    while (await client.get(f"http://127.0.0.1:{second_port}/ok")).status_code != 200:
                        await asyncio.sleep(0.1)
