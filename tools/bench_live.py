"""What live data costs: CPU per delivered frame and how late frames and events arrive.

``python -m tools.bench_live [--nodes 100] [--browsers 20] [--seconds 10] [--json]``. Starts its own
servers (those of the tests) unless DATABASE_URL and REDIS_URL are given. A delivery is one node's frame
of one second reaching one browser; frames are published as the agents' socket does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import secrets
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tests import engines  # fixes the addresses of the servers before settings are read

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
os.environ.setdefault("BERTH_LOG_LEVEL", "WARNING")
os.environ.setdefault("BERTH_ACCEPT_NODES", "auto")
os.environ.setdefault("BERTH_SECRET_KEY", secrets.token_urlsafe(64))
DATABASE = "berth_bench_live"
DEVICES, SLOTS = 8, 16
EVENTS_SENT = 200
_SAMPLED_AT = re.compile(r'"power_w":(\d{10}\.\d+)')
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_mib(pid: int) -> float:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def own_database() -> None:
    """Make an empty database beside the one that DATABASE_URL names, and point the settings at it."""
    import psycopg

    url = urlsplit(os.environ["DATABASE_URL"])
    with psycopg.connect(url._replace(path="/postgres").geturl(), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {DATABASE}")
        connection.execute(f"CREATE DATABASE {DATABASE}")
    os.environ["DATABASE_URL"] = url._replace(path=f"/{DATABASE}").geturl()


def prepare(nodes: int) -> tuple[str, int, str]:
    """Make the tables and a fleet; returns a token of someone who sees all, a team id and its slug."""
    from django.core.management import call_command
    from django.utils import timezone

    from portal.fleet.models import Device, DeviceModel, Node
    from tests.portal.builders import EPOCH, build_world

    call_command("migrate", verbosity=0)
    world = build_world()
    model = DeviceModel.objects.first()
    made = Node.objects.bulk_create(
        Node(name=f"bench-{i:03}", created_at=EPOCH, last_seen_at=timezone.now()) for i in range(nodes)
    )
    Device.objects.bulk_create(
        Device(node=node, uuid=f"GPU-{node.name}-{i}", index=i, model=model, modes=["mig"])
        for node in made
        for i in range(DEVICES)
    )
    team = world.team("perception")
    return world.token("operator"), team.pk, team.slug


def frames_of(nodes: Iterable[int], team: int, seq: int, now: float) -> list[str]:
    """Return one second of some nodes as the agents' socket would publish it."""
    from portal.telemetry.frames import DeviceNow, Frame, SlotNow, pack

    made = []
    for n in nodes:
        name = f"bench-{n:03}"
        # The first device draws as many watts as there are seconds since 1970: browsers see how old a frame is.
        devices = tuple(
            DeviceNow(
                f"GPU-{name}-{i}",
                (seq * 7 + i) % 100 + 0.5,
                40_000,
                81_559,
                350.1 if i else now,
                61.0,
                "nvml",
            )
            for i in range(DEVICES)
        )
        slots = tuple(
            SlotNow(f"lse-{n:03}{i:013}", team, f"GPU-{name}-{i % DEVICES}", 4 * (i // DEVICES), 4, False,
                    (seq + i) % 100 + 0.5, 20_000, 40_192, "gpm")
            for i in range(SLOTS)
        )  # fmt: skip
        made.append(pack(Frame(name, now, "boot", seq, devices, slots)))
    return made


@dataclass
class FramesSeen:
    """What the browsers got: node frames, characters, and how late frames and events came (seconds)."""

    node_frames: int = 0
    characters: int = 0
    late: list[float] = field(default_factory=list)
    frames_late: list[float] = field(default_factory=list)
    sent: dict[str, float] = field(default_factory=dict)

    def take(self, text: str, known: set[str] | None) -> None:
        if text.startswith('{"type":"event"'):
            name = json.loads(text)["request"]
            if name in self.sent:
                self.late.append(time.monotonic() - self.sent[name])
            return
        self.node_frames += text.count('"state"')
        self.characters += len(text)
        if known is not None and text.startswith('{"type":"frame"'):
            # A frame of the fleet has every node each time: what came before is not late, but known.
            now, fresh = time.time(), set(_SAMPLED_AT.findall(text)) - known
            self.frames_late.extend(now - float(at) for at in fresh)
            known |= fresh


async def browse(
    url: str, token: str, until: float, seen: FramesSeen, options: argparse.Namespace, *, reads: bool
) -> None:
    """Watch as one browser does; ``reads``: it looks at how old each frame is, which costs it time."""
    from websockets.asyncio.client import connect

    known: set[str] | None = set() if reads else None
    headers = {"Authorization": f"Bearer {token}"}
    compression = "deflate" if options.deflate else None
    async with connect(url, additional_headers=headers, max_size=None, compression=compression) as ws:
        await ws.send(json.dumps({"op": "subscribe", "topics": [options.topic, "me"]}))
        with suppress(TimeoutError):
            while True:
                text = await asyncio.wait_for(ws.recv(decode=True), until - time.monotonic())
                seen.take(text, known)


async def publish(nodes: int, team: int, seconds: int, events: dict[str, float]) -> None:
    """Send the fleet's frames, spread over each second, and a few events among them."""
    import redis.asyncio
    from django.conf import settings

    from portal.common.live import EVENTS, FRAMES, wire_name

    client = redis.asyncio.Redis.from_url(settings.REDIS_URL)
    begin = time.monotonic()
    for seq in range(seconds):
        for part in range(20):
            await asyncio.sleep(max(0.0, begin + seq + part / 20 - time.monotonic()))
            batch = frames_of(range(part, nodes, 20), team, seq, time.time())
            if batch:
                await client.publish(wire_name(FRAMES), "[" + ",".join(batch) + "]")
            if part % 2 and len(events) < EVENTS_SENT:
                name = f"req-{seq}-{part}"
                events[name] = time.monotonic()
                event = {
                    "event": "lease.active",
                    "lease": "",
                    "request": name,
                    "team": team,
                    "state": "active",
                }
                await client.publish(wire_name(EVENTS), json.dumps([event]))
    await client.aclose()


async def measure(url: str, pid: int, token: str, team: int, options: argparse.Namespace) -> dict[str, Any]:
    seen = FramesSeen()
    until = time.monotonic() + options.seconds + 3
    watching = [
        asyncio.create_task(browse(url, token, until, seen, options, reads=n % 10 == 0))
        for n in range(options.browsers)
    ]
    await asyncio.sleep(2)
    before, begin = cpu_s(pid), time.monotonic()
    await publish(options.nodes, team, options.seconds, seen.sent)
    used, wall = cpu_s(pid) - before, time.monotonic() - begin
    await asyncio.gather(*watching)
    deliveries = options.nodes * options.browsers * options.seconds
    late, old = sorted(seen.late), sorted(seen.frames_late)
    return {
        "topic": options.topic,
        "nodes": options.nodes,
        "browsers": options.browsers,
        "seconds": options.seconds,
        "deliveries": deliveries,
        "node_frames_shown": seen.node_frames,
        "mib_sent": round(seen.characters / 2**20, 1),
        "cpu_percent": round(100 * used / wall, 1),
        "cpu_us_per_delivery": round(1e6 * used / deliveries, 1),
        "frame_ms_p50": round(1000 * statistics.median(old), 1) if old else None,
        "frame_ms_p99": round(1000 * old[int(len(old) * 0.99)], 1) if old else None,
        "event_ms_p50": round(1000 * statistics.median(late), 2) if late else None,
        "event_ms_p99": round(1000 * late[int(len(late) * 0.99)], 2) if late else None,
        "rss_mib": round(rss_mib(pid), 1),
    }


def serve(port: int) -> subprocess.Popen[bytes]:
    """Start one web process as `make up` does and return once it answers."""
    options = f"--port {port} --loop uvloop --ws websockets-sansio --no-access-log --log-level warning"
    command = [sys.executable, "-m", "uvicorn", "portal.asgi:application", *options.split()]
    server = subprocess.Popen(command)
    for _ in range(300):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return server
        time.sleep(0.1)
    raise SystemExit("the web process did not start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--browsers", type=int, default=20)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--topic", default="fleet")
    parser.add_argument("--deflate", action="store_true", help="let the server compress, as browsers ask")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    own = engines.Engines() if engines._own_database or engines._own_broker else None
    server = None
    try:
        import django

        own_database()
        django.setup()
        token, team, _slug = prepare(options.nodes)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        server = serve(port)
        url = f"ws://127.0.0.1:{port}/ws/live/"
        found = asyncio.run(measure(url, server.pid, token, team, options))
    finally:
        if server is not None:
            server.terminate()
            server.wait()
        if own is not None:
            own.stop()
    if options.json:
        print(json.dumps(found))
    else:
        print("\n".join(f"{name:>20}  {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
