"""From a request to JupyterLab drawn in Chromium, on a free slice: where the notebook and a browser are."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

from tools.bench.client import BenchClient

RUNS = 3
WITHIN_S = 120
DRAWN = ".jp-LauncherCard"


def environment() -> dict[str, str]:
    """Return what an agent has to be told so that its leases find the notebook's programs."""
    where = os.environ.get("BERTH_NOTEBOOK", "")
    return {"BERTH_APP_PATH": str(Path(where) / "bin")} if where else {}


async def measure(client: BenchClient) -> dict[str, Any]:
    """Return the seconds of some runs, the first with cold caches; "skipped" says why there are none."""
    program = Path(os.environ.get("BERTH_NOTEBOOK", "")) / "bin" / "jupyter-lab"
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        from playwright.async_api import async_playwright
    except ImportError:
        return {"skipped": "playwright is not installed: add --group e2e"}
    if browser is None or not os.environ.get("BERTH_NOTEBOOK") or not program.exists():
        return {"skipped": "it takes Chromium, and make notebook with its folder in BERTH_NOTEBOOK"}
    connection, runs = client.connections[0], []
    async with async_playwright() as play:
        chromium = await play.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for _ in range(RUNS):
            context = await chromium.new_context(viewport={"width": 1440, "height": 900})
            page = await context.new_page()
            request, sent = await client.submit(connection)
            await client.until(request, "lease.active")
            active, lease = time.monotonic(), client.leases[request]
            path = f"/api/v1/leases/{lease}/apps/jupyterlab/"
            told = (await connection.call("POST", path, token=client.token, body={})).body
            await page.goto(told["address"])
            # The gateway's own page asks until the app is ready, and then goes on to it.
            await page.locator("progress").wait_for(state="detached", timeout=WITHIN_S * 1000)
            ready = time.monotonic()
            await page.locator(DRAWN).first.wait_for(timeout=WITHIN_S * 1000)
            drawn = time.monotonic()
            runs.append(
                {
                    "active_s": round(active - sent, 2), "app_ready_s": round(ready - active, 2),
                    "drawn_s": round(drawn - ready, 2), "together_s": round(drawn - sent, 2),
                }
            )  # fmt: skip
            await context.close()
            await client.release(connection, lease)
        await chromium.close()
    return {"runs": runs}
