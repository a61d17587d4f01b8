"""The cluster map with 10,000 GPUs in Chromium while each node tells of itself once a second.

``python -m tools.bench.cluster_map`` starts the servers of the tests, one web process as ``make up`` does, and Debian's
Chromium without a window. Everything shares the machine: the figures of an empty page in the same browser, with the
same frames on their way to nobody, stand beside them as the most that can be had.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

NODES, SECONDS = {"a100-80gb": 1000, "h100-80gb": 250}, 10
# Frames that the browser draws in so many seconds, and the longest it was busy at one piece.
_WATCH = """seconds => new Promise(done => {
  let frames = 0, longest = 0, last = performance.now();
  const end = last + 1000 * seconds;
  requestAnimationFrame(function next(now) {
    frames += 1; longest = Math.max(longest, now - last); last = now;
    if (now < end) requestAnimationFrame(next); else done([frames, longest]);
  });
})"""


def measure() -> dict[str, Any]:
    from tests.browser import BROWSER
    from tools.bench.stack import NOT_INHERITED, ROOT

    if BROWSER is None or find_spec("playwright") is None:
        return {"map of 10,000 GPUs": "not measured: there is no Chromium, or no Playwright"}
    env = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    command = [sys.executable, "-m", "tools.bench.cluster_map"]
    made = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(made.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    import django

    from tests import engines
    from tools.bench_live import (
        own_database,
        serve,
    )  # fixes the addresses of the servers before settings are read

    own = engines.Engines() if engines._own_database or engines._own_broker else None
    server = None
    try:
        own_database()
        django.setup()
        key, fleet = _prepare()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        server = serve(port)
        found = _look(f"http://127.0.0.1:{port}", key, fleet)
    finally:
        if server is not None:
            server.terminate()
            server.wait()
        if own is not None:
            own.stop()
    print(json.dumps(found))


def _prepare() -> tuple[str, dict[str, Any]]:
    """Make a full fleet; returns the session of an operator, and by node its devices and what is held on them."""
    from django.conf import settings
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
    from django.core.management import call_command

    from portal.accounts.models import User
    from portal.accounts.sessions import SessionStore
    from portal.common.clock import db_now
    from portal.fleet.models import Device, Node
    from portal.leases.models import Placement
    from portal.teams.models import Membership, Role, Team
    from tools.bench import cycle

    call_command("migrate", verbosity=0)
    now = db_now()
    cycle.fill_fleet(cycle.make_fleet(now, NODES), cycle.make_teams(now), 0, now)
    # No agent speaks here, and nodes that fall silent would have the map fetched anew.
    Node.objects.update(last_seen_at=now + timedelta(hours=1))
    operator = User.objects.create(username="operator")
    Membership.objects.create(
        user=operator, team=Team.objects.get(parent=None), role=Role.OPERATOR, created_at=now
    )
    session = SessionStore()
    session[SESSION_KEY] = str(operator.pk)
    session[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
    session[HASH_SESSION_KEY] = operator.get_session_auth_hash()
    session.create()
    fleet: dict[str, Any] = defaultdict(lambda: ([], []))
    for name, uuid in Device.objects.order_by("node", "index").values_list("node__name", "uuid"):
        fleet[name][0].append(uuid)
    held = Placement.objects.filter(is_live=True).order_by("pk")
    for name, *place in held.values_list(
        "device__node__name", "lease__uid", "team_id", "device__uuid", "start", "size"
    ):
        fleet[name][1].append(tuple(place))
    return str(session.session_key), dict(fleet)


def _look(url: str, key: str, fleet: dict[str, Any]) -> dict[str, Any]:
    """Open the map, wait for the first frames, and count."""
    from django.conf import settings
    from playwright.sync_api import sync_playwright

    from tests.browser import BROWSER

    told = threading.Event()
    teller = threading.Thread(target=lambda: asyncio.run(_tell(fleet, told)), daemon=True)
    teller.start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(120_000)
        most, _pause = page.evaluate(_WATCH, SECONDS)
        page.context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": key, "url": url}])
        began = time.monotonic()
        answer = page.goto(f"{url}/cluster/")
        assert answer is not None
        page.wait_for_function(
            "n => document.querySelectorAll('.map-device').length === n", arg=sum(NODES.values()) * 8
        )
        drawn = time.monotonic() - began
        page.wait_for_function("() => /%/.test(document.querySelector('.map-device .now').textContent)")
        live = time.monotonic() - began
        page.wait_for_timeout(3000)
        metrics = page.context.new_cdp_session(page)
        metrics.send("Performance.enable")
        before = _busy(metrics)
        frames, pause = page.evaluate(_WATCH, SECONDS)
        busy = _busy(metrics) - before
        page.evaluate("() => scrollTo(0, document.body.scrollHeight / 2)")
        scrolled, scroll_pause = page.evaluate(_WATCH, SECONDS)
        size = len(answer.body())
        browser.close()
    told.set()
    teller.join()
    return {
        "devices drawn": f"{sum(NODES.values()) * 8:,} on {sum(NODES.values()):,} nodes",
        "page": f"{size / 2**20:.1f} MiB, drawn after {drawn:.1f} s, live after {live:.1f} s",
        "frames/s (must 20, aim 60)": round(frames / SECONDS, 1),
        "frames/s half way down": round(scrolled / SECONDS, 1),
        "frames/s of an empty page": round(most / SECONDS, 1),
        "main thread ms per frame (aim 4)": round(1000 * busy / max(1, frames), 1),
        "longest pause ms": f"{pause:.0f}, half way down {scroll_pause:.0f}",
    }


def _busy(metrics: Any) -> float:
    """Return for how many seconds the main thread has been at work."""
    found = {one["name"]: one["value"] for one in metrics.send("Performance.getMetrics")["metrics"]}
    return float(found["TaskDuration"])


async def _tell(fleet: dict[str, Any], stop: threading.Event) -> None:
    """Publish a frame of every node each second, spread over it, until told to stop."""
    import redis.asyncio
    from django.conf import settings

    from portal.common.live import FRAMES, wire_name
    from portal.telemetry.frames import DeviceNow, Frame, SlotNow, pack

    client, nodes, seq = redis.asyncio.Redis.from_url(settings.REDIS_URL), list(fleet.items()), 0
    begin = time.monotonic()
    while not stop.is_set():
        for part in range(20):
            await asyncio.sleep(max(0.0, begin + seq + part / 20 - time.monotonic()))
            made = []
            for name, (devices, held) in nodes[part::20]:
                measured = tuple(
                    DeviceNow(uuid, (seq * 7 + at) % 100 + 0.5, 40_000, 81_559, 350.1, 61.0, "nvml")
                    for at, uuid in enumerate(devices)
                )
                slots = tuple(
                    SlotNow(lease, team, uuid, start, size, False, (seq * 3 + at) % 100 + 0.5, 20_000, 40_192, "gpm")
                    for at, (lease, team, uuid, start, size) in enumerate(held)
                )  # fmt: skip
                made.append(pack(Frame(name, time.time(), "boot", seq, measured, slots)))
            await client.publish(wire_name(FRAMES), "[" + ",".join(made) + "]")
        seq += 1
    await client.aclose()


if __name__ == "__main__":
    main()
