"""Apps of a lease in Chromium: whose cookies go where, and JupyterLab drawn and used through the gateway."""

from __future__ import annotations

import base64
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.pages import LEASE
from tests.e2e.test_terminal import OPEN, type_line

PORT = 18_777
pytestmark = pytest.mark.deep
# A lease's program that tries to set cookies for the portal, and shows those that it was sent.
EVIL = """
import http.server as h
class H(h.BaseHTTPRequestHandler):
    def do_GET(s):
        s.send_response(200); s.send_header('Content-Type', 'text/html')
        for c in ('sessionid=evil; Path=/', 'sessionid=evil; Path=/; Domain=localhost', 'csrftoken=evil; Path=/',
                  'toss=1; Path=/; Domain=localhost', 'own=1; Path=/'):
            s.send_header('Set-Cookie', c)
        s.end_headers(); s.wfile.write(('<pre>' + (s.headers.get('Cookie') or '-') + '</pre>').encode())
h.HTTPServer(('127.0.0.1', %d), H).serve_forever()
"""


@pytest.fixture
def bob(browser: Any, url: str) -> Any:
    """Bob's browser, signed in at ``localhost``: the host that is nearest to those of the apps."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    portal = url.replace("127.0.0.1", "localhost")
    page.goto(f"{portal}/sign-in/")
    page.fill("[name=username]", "bob")
    page.fill("[name=password]", "berth-demo")
    page.press("[name=password]", "Enter")
    page.wait_for_url(f"{portal}/")
    yield page, portal
    context.close()


def a_lease(page: Any, portal: str) -> str:
    """Return the address of an active lease of bob's; the stack may only just have begun to make it."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        page.goto(f"{portal}/leases/?whose=mine&state=active")
        if found := re.search(LEASE, page.content()):
            return f"{portal}{found[0]}"
        time.sleep(0.5)
    raise AssertionError("bob has no active lease")


def test_lease_is_sent_no_cookie_of_the_portal_and_can_set_none(bob: Any) -> None:
    page, portal = bob
    lease = a_lease(page, portal)
    program = base64.b64encode((EVIL % PORT).encode()).decode()
    page.goto(f"{lease}terminal/")
    page.locator(OPEN).wait_for()
    type_line(page, f"echo {program} | base64 -d > evil.py; python3 evil.py 2>/dev/null &")
    before = {one["name"]: one["value"] for one in page.context.cookies(portal)}
    assert "sessionid" in before

    page.goto(lease)
    page.fill("#open-port", str(PORT))
    with page.context.expect_page() as opened:
        page.locator("#open").get_by_role("button", name="Open", exact=True).click()
    tab = opened.value
    end = time.monotonic() + 20
    while tab.locator("pre").count() == 0 and time.monotonic() < end:  # the program may only just be starting
        tab.wait_for_timeout(300)
        tab.reload()
    tab.reload()

    assert tab.locator("pre").inner_text() == "own=1"
    assert "t=" not in tab.url
    tried = tab.evaluate(
        """async portal => {
          document.cookie = "sessionid=evil; Domain=localhost; Path=/";
          document.cookie = "csrftoken=evil; Domain=localhost; Path=/";
          const asked = fetch(portal + "/api/v1/me/", {credentials: "include"});
          return {read: await asked.then(() => true, () => false), opener: window.opener !== null};
        }""",
        portal,
    )
    assert tried == {"read": False, "opener": False}
    after = {one["name"]: one["value"] for one in page.context.cookies(portal)}
    assert after == before
    page.goto(f"{portal}/leases/")
    assert page.url == f"{portal}/leases/"


def test_one_request_leads_to_a_cell_on_the_slice_and_a_receipt(bob: Any) -> None:
    where = os.environ.get("BERTH_NOTEBOOK", "")
    if not where or not (Path(where) / "bin" / "jupyter-lab").exists():
        pytest.skip("no notebook: run make notebook, and name its folder in BERTH_NOTEBOOK")
    page, portal = bob
    page.goto(f"{portal}/requests/new/")
    page.locator("label.opening", has_text="JupyterLab").click()
    page.locator("input[name=flavor][value=h100-1g]").check()
    page.locator("#id_duration").fill("15 min")
    page.get_by_role("button", name="Send the request").click()

    # The page that waits gets the button by itself.
    page.get_by_role("button", name="Open JupyterLab").first.wait_for(timeout=30_000)
    with page.context.expect_page() as opened:
        page.get_by_role("button", name="Open JupyterLab").first.click()
    tab = opened.value
    tab.set_default_timeout(60_000)
    tab.locator(".jp-LauncherCard[data-category=Notebook]").first.click()
    # A cell that is run before its kernel is there is not run.
    tab.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for()
    tab.locator(".jp-Notebook .cm-content").first.click()
    tab.keyboard.type("import os; print(os.environ['BERTH_LEASE'], os.environ['CUDA_VISIBLE_DEVICES'])")
    tab.keyboard.press("Shift+Enter")
    lease, uuid = tab.locator(".jp-OutputArea-output pre").first.inner_text().split()

    assert "token" not in tab.evaluate("document.cookie + location.href")
    page.goto(f"{portal}/leases/{lease}/")
    assert uuid.startswith("MIG-")
    assert uuid in page.locator("#connect").inner_text()
    page.get_by_role("button", name="Release", exact=True).click()
    page.locator("dialog[open]").get_by_role("button", name="Release").click()
    page.locator("table.receipt").wait_for(timeout=30_000)
    assert page.get_by_role("link", name="Ask again").is_visible()
