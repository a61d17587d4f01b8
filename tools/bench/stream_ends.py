"""How long a terminal, an SSH connection and an app's answer outlive their right: release, expiry, a lost membership.

``python -m tools.bench.stream_ends CAUSE LEASE`` runs in the environment of the stack, makes the cause happen, and
prints when it did.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tools.bench.client import BenchClient

CAUSES = ("release", "expiry", "lost_right")
WITHIN_S = 30
# Expiry is tried with an end that is so near: the node and the portal both wait for it.
EXPIRES_IN = timedelta(seconds=2)
ENDLESS = """
import http.server, time
class Endless(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        while True:
            self.wfile.write(b"x" * 100)
            time.sleep(0.02)
http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Endless).serve_forever()
"""


async def measure(client: BenchClient, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return by cause how many milliseconds each stream lived on."""
    connection = client.connections[0]
    key = Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    body = {"name": "bench", "key": key.decode()}
    told = await connection.call("POST", "/api/v1/ssh-keys/", token=client.token, body=body)
    if told.status != 201:
        raise RuntimeError(f"no key: {told.status} {told.body}")
    return {cause: await _one(client, cause, environment) for cause in CAUSES}


async def _one(client: BenchClient, cause: str, environment: Mapping[str, str]) -> dict[str, float]:
    connection = client.connections[0]
    request, _ = await client.submit(connection)
    await client.until(request, "lease.active")
    lease = client.leases[request]

    async def ask(way: str) -> Any:
        path = f"/api/v1/leases/{lease}/{way}/"
        return (await connection.call("POST", path, token=client.token, body={})).body

    async with contextlib.AsyncExitStack() as streams:
        terminal = await streams.enter_async_context(
            _opened(await ask("terminal"), rows=24, columns=80, terminal="")
        )
        port = await _serve(terminal)
        ssh = await streams.enter_async_context(_opened(await ask("ssh")))
        chunks = await streams.enter_async_context(_answer(await ask(f"apps/port-{port}")))
        ends = {
            "terminal": asyncio.create_task(_end(terminal)),
            "ssh": asyncio.create_task(_end(ssh)),
            "app": asyncio.create_task(_end(chunks)),
        }
        at = await asyncio.to_thread(_happen, cause, lease, environment)
        async with asyncio.timeout(WITHIN_S):
            return {name: round((await end - at) * 1000) for name, end in ends.items()}


@contextlib.asynccontextmanager
async def _opened(told: dict[str, Any], **wish: Any) -> Any:
    async with connect(told["gateways"][0], compression=None, max_size=1 << 20, proxy=None) as one:
        await one.send(json.dumps({"ticket": told["ticket"], **wish}))
        while True:
            message = await one.recv()
            if isinstance(message, str) and json.loads(message)["op"] == "opened":
                break
        yield one


async def _serve(terminal: ClientConnection) -> int:
    """Start a program in the lease whose answer has no end; returns its port, once somebody listens there."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = int(one.getsockname()[1])
    code = base64.b64encode(ENDLESS.replace("PORT", str(port)).encode()).decode()
    await terminal.send(
        f"echo {code} | base64 -d > endless.py; python3 endless.py >/dev/null 2>&1 &\n".encode()
    )
    for _ in range(200):
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return port
        await asyncio.sleep(0.05)
    raise RuntimeError("no web server came up in the lease")


@contextlib.asynccontextmanager
async def _answer(told: dict[str, Any]) -> Any:
    """Give the pieces of an answer through the gateway, as the holder's browser gets them."""
    way = urlsplit(told["address"])
    base, host = f"http://127.0.0.1:{way.port}", {"Host": way.netloc}
    async with httpx.AsyncClient(trust_env=False, timeout=WITHIN_S) as http:
        entered = await http.get(f"{base}{way.path}?{way.query}", headers=host)
        host["Cookie"] = entered.headers["set-cookie"].partition(";")[0]
        http.cookies.clear()
        async with http.stream("GET", f"{base}/", headers=host) as answer:
            if answer.status_code != 200:
                raise RuntimeError(f"the app answered {answer.status_code}")
            yield answer.aiter_raw()


async def _end(stream: Any) -> float:
    """Return when the last came of a stream."""
    with contextlib.suppress(ConnectionClosed, httpx.HTTPError):
        async for message in stream:
            if isinstance(message, str) and json.loads(message)["op"] == "end":
                break
    return time.time()


def _happen(cause: str, lease: str, environment: Mapping[str, str]) -> float:
    """Make it happen in a process of the portal's; returns when, as ``time.time`` has it."""
    command = [sys.executable, "-m", "tools.bench.stream_ends", cause, lease]
    return float(subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout)


def main(cause: str, uid: str) -> None:
    """Make one cause happen and print when."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    import django

    django.setup()
    from portal.common.clock import db_now
    from portal.fleet.services import raise_revision
    from portal.leases import lifecycle
    from portal.leases.models import Lease
    from portal.teams.models import Membership

    lease = Lease.objects.select_related("user", "team", "request").get(uid=uid)
    at = db_now()
    if cause == "release":
        lifecycle.release_lease(lease=lease, actor=lease.user, now=at)
        at = db_now()
    elif cause == "expiry":
        at += EXPIRES_IN
        Lease.objects.filter(pk=lease.pk).update(not_after=at)
        raise_revision([lease.node_id])
    else:
        Membership.objects.filter(user=lease.user, team=lease.team).delete()
        at = db_now()
    print(at.timestamp())


if __name__ == "__main__":
    main(*sys.argv[1:])
