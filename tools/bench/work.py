"""Terminals in leases: echo of a key, a flood drawn to its end, floods that nobody draws. A stack of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import subprocess
import time
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tools.bench import stack
from tools.bench.client import BenchClient

KEYS, KEYS_BESIDE_FLOODS = 200, 60
FLOOD_MB = int(os.environ.get("BERTH_BENCH_FLOOD_MB", "100"))
STALLED = int(os.environ.get("BERTH_BENCH_STALLED", "100"))
ACK_BYTES = 128 * 1024
SETTLE_S = 3.0
MB = 1_000_000
READY = b"<ready>"


def measure() -> dict[str, Any]:
    with stack.running(is_demo=False) as here:
        world = here.start_bench_fleet()
        gateway, node = _gateway_of(here), here.agents
        return asyncio.run(_measure(here.url, world, gateway, [agent.pid for agent in node]))


async def _measure(url: str, world: dict[str, Any], gateway: int, agents: list[int]) -> dict[str, Any]:
    client = BenchClient(url, world, connections=1)
    await client.open()
    try:
        connection = client.connections[0]
        request, _ = await client.submit(connection)
        await client.until(request, "lease.active")
        open_one = _Opener(client, connection, client.leases[request])
        async with open_one() as quiet:
            await _figures(quiet, 20)  # the first ones find caches cold
            echo = await _figures(quiet, KEYS)
            drained = await _drain(quiet)
        before = {pid: _resident(pid) for pid in (gateway, *agents)}
        async with contextlib.AsyncExitStack() as floods:
            for _ in range(STALLED):
                one = await floods.enter_async_context(open_one())
                await one.send(f"head -c {FLOOD_MB * MB} /dev/zero\n".encode())
            await asyncio.sleep(SETTLE_S)
            async with open_one() as quiet:
                beside = await _figures(quiet, KEYS_BESIDE_FLOODS)
            after = {pid: _resident(pid) for pid in before}
    finally:
        await client.close()
    bare_s = await asyncio.to_thread(_bare)
    return {
        "echo_ms": echo,
        "flood": {
            "mb": FLOOD_MB, "drawn_s": round(drained, 2), "bare_pty_s": round(bare_s, 2),
            "of_the_bare_pty_percent": round(100 * bare_s / drained),
        },
        "floods_that_nobody_draws": {
            "terminals": STALLED,
            "gateway_grew_mb": round((after[gateway] - before[gateway]) / MB, 1),
            "agent_grew_mb": round(max(after[pid] - before[pid] for pid in agents) / MB, 1),
            "echo_of_another_ms": beside,
        },
    }  # fmt: skip


class _Opener:
    """Opens terminals in one lease; each is ready to be typed into, without echo of its own prompt."""

    def __init__(self, client: BenchClient, connection: Any, lease: str) -> None:
        self._client, self._connection, self._lease = client, connection, lease

    @contextlib.asynccontextmanager
    async def __call__(self) -> Any:
        path = f"/api/v1/leases/{self._lease}/terminal/"
        told = (await self._connection.call("POST", path, token=self._client.token, body={})).body
        async with connect(told["gateways"][0], compression=None, max_size=1 << 20, proxy=None) as socket:
            await socket.send(
                json.dumps({"ticket": told["ticket"], "rows": 24, "columns": 80, "terminal": ""})
            )
            await socket.send(b"PS1=; bind 'set enable-bracketed-paste off'; printf '\\074ready\\076'\n")
            seen = b""
            while READY not in seen:
                message = await socket.recv()
                seen += message if isinstance(message, bytes) else b""
            yield socket


async def _figures(socket: ClientConnection, keys: int) -> dict[str, float]:
    """Return percentiles of the time from a key to its echo, in milliseconds."""
    times = []
    for number in range(keys):
        key = b"abcdefghij"[number % 10 : number % 10 + 1]
        began, seen = time.perf_counter(), b""
        await socket.send(key)
        while key not in seen:
            message = await socket.recv()
            seen += message if isinstance(message, bytes) else b""
        times.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(0.01)
    await socket.send(b"\x15")
    times.sort()
    return {
        "p50": round(times[len(times) // 2], 1),
        "p99": round(times[min(len(times) - 1, len(times) * 99 // 100)], 1),
    }


async def _drain(socket: ClientConnection) -> float:
    """Return the seconds from the command to the last byte of a flood, drawn as a page would."""
    await socket.send(b"stty -opost; clear\n")
    await asyncio.sleep(0.5)
    began, got, unacked = time.perf_counter(), 0, 0
    await socket.send(f"head -c {FLOOD_MB * MB} /dev/zero\n".encode())
    while got < FLOOD_MB * MB:
        message = await socket.recv()
        if isinstance(message, bytes):
            got, unacked = got + message.count(0), unacked + len(message)
        if unacked >= ACK_BYTES:
            await socket.send(json.dumps({"op": "ack", "bytes": unacked}))
            unacked = 0
    return time.perf_counter() - began


def _bare() -> float:
    """Return the seconds that the same flood takes from a terminal that this process reads itself."""
    ours, theirs = pty.openpty()
    began = time.perf_counter()
    command = f"stty -opost; exec head -c {FLOOD_MB * MB} /dev/zero"
    with subprocess.Popen(["sh", "-c", command], stdin=theirs, stdout=theirs, start_new_session=True):
        os.close(theirs)
        got = 0
        with contextlib.suppress(OSError):  # EIO: the last program has let go of it
            while got < FLOOD_MB * MB:
                got += len(os.read(ours, 32 * 1024))
        took = time.perf_counter() - began
    os.close(ours)
    return took


def _gateway_of(here: stack.BenchStack) -> int:
    """Return the process that serves the gateway, by the log that it writes."""
    return next(pid for pid in here.pids() if Path(os.readlink(f"/proc/{pid}/fd/1")).stem == "gateway")


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
