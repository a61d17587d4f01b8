"""Terminals and apps in leases: echo of a key, floods, a file by HTTP through the gateway, how soon they end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import socket
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from websockets.asyncio.client import ClientConnection, connect

from tools.bench import notebook, stack, stream_ends
from tools.bench.client import BenchClient
from tools.bench.terminal_client import FloodReader

FILES, FILE_BYTES = 30, 2_500_000
KEYS, KEYS_BESIDE_FLOODS = 200, 60
FLOOD_MB = int(os.environ.get("BERTH_BENCH_FLOOD_MB", "100"))
STALLED = int(os.environ.get("BERTH_BENCH_STALLED", "100"))
FLOODS = 5
SETTLE_S = 3.0
MB = 1_000_000
READY = b"<ready>"


def measure() -> dict[str, Any]:
    with stack.running(is_demo=False) as here:
        world = here.start_bench_fleet()
        pids = [agent.pid for agent in here.agents]
        return asyncio.run(_measure(here.url, world, _gateway_of(here), pids, here.environment()))


async def _measure(
    url: str, world: dict[str, Any], gateway: int, agents: list[int], environment: dict[str, str]
) -> dict[str, Any]:
    client = BenchClient(url, world, connections=1)
    await client.open()
    try:
        jupyter = await notebook.measure(client)
        connection = client.connections[0]
        request, _ = await client.submit(connection)
        await client.until(request, "lease.active")
        open_one = _Opener(client, connection, client.leases[request])
        async with open_one() as quiet:
            await _figures(quiet, 20)  # the first ones find caches cold
            echo = await _figures(quiet, KEYS)
            flood = await asyncio.to_thread(_floods, await open_one.ticket(), gateway, agents)
            http = await _http(client, connection, client.leases[request], quiet)
        before = {pid: _resident(pid) for pid in (gateway, *agents)}
        async with contextlib.AsyncExitStack() as floods:
            for _ in range(STALLED):
                one = await floods.enter_async_context(open_one())
                await one.send(f"head -c {FLOOD_MB * MB} /dev/zero\n".encode())
            await asyncio.sleep(SETTLE_S)
            async with open_one() as quiet:
                beside = await _figures(quiet, KEYS_BESIDE_FLOODS)
            after = {pid: _resident(pid) for pid in before}
        ends = await stream_ends.measure(client, environment)
    finally:
        await client.close()
    return {
        "echo_ms": echo,
        "flood": flood,
        "http_file": http,
        "notebook": jupyter,
        "streams_end_ms": ends,
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

    async def ticket(self) -> dict[str, Any]:
        """Return what the portal says to whoever may open a terminal: a ticket and the gateways."""
        path = f"/api/v1/leases/{self._lease}/terminal/"
        told: dict[str, Any] = (
            await self._connection.call("POST", path, token=self._client.token, body={})
        ).body
        return told

    @contextlib.asynccontextmanager
    async def __call__(self) -> Any:
        told = await self.ticket()
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


def _floods(told: dict[str, Any], gateway: int, agents: list[int]) -> dict[str, Any]:
    """Draw floods from a terminal of a lease and from one of this process, by turns."""
    reader = FloodReader(told)
    bare, drawn, by_gateway, by_agent = [], [], [], []
    try:
        for _ in range(FLOODS):
            bare.append(_bare())
            before = _cpu_s(gateway), sum(_cpu_s(pid) for pid in agents)
            drawn.append(reader.draw(FLOOD_MB * MB))
            by_gateway.append(_cpu_s(gateway) - before[0])
            by_agent.append(sum(_cpu_s(pid) for pid in agents) - before[1])
    finally:
        reader.close()
    parts = sorted(100 * one / other for one, other in zip(bare, drawn, strict=True))
    return {
        "mb": FLOOD_MB, "drawn_s": round(statistics.median(drawn), 2),
        "bare_pty_s": round(statistics.median(bare), 2),
        "of_the_bare_pty_percent": round(statistics.median(parts)),
        "by_turns": [round(part) for part in parts],
        "gateway_cpu_s": round(statistics.median(by_gateway), 2),
        "agent_cpu_s": round(statistics.median(by_agent), 2),
    }  # fmt: skip


async def _http(
    client: BenchClient, connection: Any, lease: str, terminal: ClientConnection
) -> dict[str, float]:
    """Return how long a file takes from a web server in the lease, straight and through the gateway, by turns."""
    port = await _serve_file(terminal)
    path = f"/api/v1/leases/{lease}/apps/port-{port}/"
    told = (await connection.call("POST", path, token=client.token, body={})).body
    way = urlsplit(told["address"])
    direct: list[float] = []
    through: list[float] = []
    async with httpx.AsyncClient(
        trust_env=False, timeout=30, headers={"Accept-Encoding": "identity"}
    ) as http:
        base, host = f"http://127.0.0.1:{way.port}", {"Host": way.netloc}
        entered = await http.get(f"{base}{way.path}?{way.query}", headers=host)
        host["Cookie"] = entered.headers["set-cookie"].partition(";")[0]
        http.cookies.clear()
        for _ in range(FILES):
            for times, address, headers in (
                (direct, f"http://127.0.0.1:{port}/file", {}), (through, f"{base}/file", host),
            ):  # fmt: skip
                began = time.perf_counter()
                answer = await http.get(address, headers=headers)
                times.append(time.perf_counter() - began)
                if answer.status_code != 200 or len(answer.content) != FILE_BYTES:
                    raise RuntimeError(f"{address} answered {answer.status_code}")
    one, other = statistics.median(direct), statistics.median(through)
    return {
        "mb": FILE_BYTES / MB, "direct_ms": round(one * 1000, 1), "through_ms": round(other * 1000, 1),
        "times_direct": round(other / one, 2),
    }  # fmt: skip


async def _serve_file(terminal: ClientConnection) -> int:
    """Start a web server with the file in the lease and return its port, once it answers."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = int(one.getsockname()[1])
    server = f"python3 -m http.server -b 127.0.0.1 {port} >/dev/null 2>&1 &"
    await terminal.send(f"stty opost; head -c {FILE_BYTES} /dev/urandom > file; {server}\n".encode())
    for _ in range(100):
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return port
        await asyncio.sleep(0.1)
    raise RuntimeError("no web server came up in the lease")


def _cpu_s(pid: int) -> float:
    """Return the seconds of processor that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
    """Return the process that serves the gateway."""
    found = here.pid_of("gateway")
    assert found is not None
    return found


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
