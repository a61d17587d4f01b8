"""A passkey made and used by a real browser with a virtual security key; the pages are those of the portal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.test import Client
from django.utils import timezone

from portal.accounts.sessions import end_sessions
from portal.second_factor.models import Passkey
from portal.second_factor.services import renew_codes
from tests.browser import BROWSER
from tests.portal.builders import PASSWORD, World
from tests.portal.conftest import world  # noqa: F401
from tests.web.test_second_factor import turned_on

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no browser test")
pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on PATH: no browser test"),
    pytest.mark.django_db,
]
ORIGIN = "http://localhost"


@pytest.fixture
def in_django(world: World) -> Iterator[Callable[..., Any]]:  # noqa: F811
    """Run something of Django's beside Playwright's loop, in the transaction of the test."""
    shared = connections["default"]
    shared.inc_thread_sharing()
    with ThreadPoolExecutor(1) as aside:
        aside.submit(connections.__setitem__, "default", shared).result()
        yield lambda act, *given, **named: aside.submit(act, *given, **named).result()
        aside.submit(connections.__delitem__, "default").result()
    shared.dec_thread_sharing()


@pytest.fixture
def page(in_django: Callable[..., Any], settings: Any) -> Iterator[Any]:
    """A page whose requests Django's test client answers, and whose security key is always touched."""
    settings.PASSKEY_ORIGIN = ORIGIN
    client = Client(SERVER_NAME="localhost")

    def answer(route: Any) -> None:
        asked = route.request
        said = in_django(
            client.generic, asked.method, asked.url.removeprefix(ORIGIN), asked.post_data or "",
            content_type=asked.headers.get("content-type", ""),
        )  # fmt: skip
        body = b"".join(said.streaming_content) if said.streaming else said.content
        headers = {
            name: value for name, value in said.items() if name not in ("Set-Cookie", "Content-Length")
        }
        if said.status_code == 302:  # what a redirect leads to would go past this route
            body = f'<meta http-equiv="refresh" content="0;url={said["Location"]}">'.encode()
            route.fulfill(status=200, content_type="text/html", body=body)
            return
        route.fulfill(status=said.status_code, headers=headers, body=body)

    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        found = browser.new_page()
        found.route(f"{ORIGIN}/**", answer)
        devices = found.context.new_cdp_session(found)
        devices.send("WebAuthn.enable")
        device = {
            "protocol": "ctap2", "transport": "usb", "hasResidentKey": False, "hasUserVerification": False,
            "automaticPresenceSimulation": True,
        }  # fmt: skip
        devices.send("WebAuthn.addVirtualAuthenticator", {"options": device})
        yield found
        browser.close()


def test_a_browser_makes_a_passkey_and_signs_in_with_it(
    world: World,  # noqa: F811
    in_django: Callable[..., Any],
    page: Any,
) -> None:
    bob = world.user("bob")
    in_django(turned_on, bob, timezone.now() - timedelta(hours=1))
    code = in_django(renew_codes, bob, now=timezone.now())[0]

    def type_password() -> None:
        page.goto(f"{ORIGIN}/sign-in/?next=/second-factor/")
        page.locator("#id_username").fill("bob")
        page.locator("#id_password").fill(PASSWORD)
        page.locator("#id_password").press("Enter")
        page.wait_for_url(f"{ORIGIN}/second-step/")

    type_password()
    page.locator("#id_code").fill(code)
    page.locator("#id_code").press("Enter")
    page.locator("#passkey-name").fill("ring")
    page.locator("#passkey-password").fill(PASSWORD)
    page.locator("#passkey-password").press("Enter")
    page.locator("[data-passkey-ask]").click()
    page.get_by_text("The passkey is kept.").wait_for()
    in_django(end_sessions, bob, now=timezone.now())
    type_password()
    page.locator("[data-passkey-ask]").click()
    page.wait_for_url(f"{ORIGIN}/second-factor/")

    row = in_django(Passkey.objects.get)
    assert row.last_used_at is not None
    assert row.sign_count > 0
