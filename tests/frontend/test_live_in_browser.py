"""The page's scripts in a real browser, with a socket and a server that the test plays itself."""

from __future__ import annotations

import json
import mimetypes
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import settings
from django.template import engines

from tests.browser import BROWSER

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no browser test")
ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on PATH: no browser test")
ORIGIN = "http://berth.test"
PAGE = """{% extends "base.html" %}{% block page_title %}Lease{% endblock %}{% block content %}
<section id="page-live" data-refresh-on="lease:L1" data-live-topic="lease:L1" hx-get="/page/"
 hx-trigger="live:refresh" hx-select="#page-live" hx-swap="outerMorph">
  <p id="drawn">drawn {{ times }}</p>
  <p id="state" data-say>{% if leads_to %}Active{% else %}Queued{% endif %}</p>
  {% if leads_to %}<div class="moment" data-go-to="{{ leads_to }}" data-go-to-text="Open it">Active</div>{% endif %}
  <p><b id="util" data-live-field="util">-</b></p>
  <label>Note <input id="note" name="note"></label>
  <details id="more"><summary>More</summary>text</details>
  {% include "includes/slice_bar.html" with grid=8 slots=slots topic="lease:L1" device="GPU-1" only %}
  {% include "includes/chart.html" with topic="lease:L1" title="Utilisation" only %}
</section>
<form id="ask" data-quote-url="/quote/" data-quote-target="#quote">
  <label>Hours <input name="hours" value="6"></label>
  <button type="button" data-fill="[name=hours]" data-value="24">24 h</button>
</form>
<div id="quote"></div>
{% include "web/parts/pauses.html" with pauses=pauses url="/nodes/" only %}
{{ map|json_script:"map-data" }}{% include "includes/map.html" with topic="fleet" only %}
<button type="button" data-open-dialog="sure">Release</button>
{% include "includes/confirm.html" with id="sure" title="Sure?" action="/release/" confirm="Release" %}
{% endblock %}"""

MAP = {
    "nodes": [
        {
            "name": "gpu-01", "state": "online", "state_text": "Online", "devices": [
                {
                    "uuid": "GPU-9", "index": 0, "model": "H100", "memory_mib": 81559, "grid": 8, "slots": [
                        {"lease": "L1", "start": 0, "size": 2, "label": "vision", "title": "vision"},
                        {"lease": "", "start": 2, "size": 1, "title": "Another team"},
                        {"start": 3, "size": 5, "kind": "stranded"},
                    ],
                }
            ],
        }
    ]
}  # fmt: skip


class Stage:
    """Server and socket of one page, and what was asked of them."""

    def __init__(self, page: Any) -> None:
        self.page, self.sockets, self.said, self.quotes, self.times = page, [], [], [], 0
        self.refused: list[str] = []
        self.leads_to = ""
        page.on("console", lambda m: self.refused.append(m.text) if "Content Security" in m.text else None)
        page.on("pageerror", lambda error: self.refused.append(str(error)))
        page.route("**/*", self._answer)
        page.route_web_socket(re.compile(r"/ws/live/$"), self._meet)

    def _meet(self, socket: Any) -> None:
        self.sockets.append(socket)
        socket.on_message(lambda text: self.said.append(json.loads(text)))

    def _answer(self, route: Any) -> None:
        path = route.request.url.removeprefix(ORIGIN).partition("?")[0]
        headers = {
            "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; connect-src 'self' ws:"
        }
        if path.startswith(settings.STATIC_URL):
            file = ROOT / "static" / path.removeprefix(settings.STATIC_URL)
            kind = mimetypes.guess_type(file.name)[0] or "text/plain"
            route.fulfill(body=file.read_bytes(), content_type=kind, headers=headers)
        elif path == "/quote/":
            self.quotes.append(route.request.url.partition("?")[2])
            route.fulfill(body=f"<b>quote {len(self.quotes)}</b>", content_type="text/html", headers=headers)
        elif path == "/announcements/now/":
            part = engines["django"].get_template("includes/announcements.html")
            user, rows = SimpleNamespace(is_authenticated=True), [{"uid": "ann-1", "text": "Down at noon"}]
            shown = {"user": user, "announcements": {"rows": rows, "changes_in_s": ""}}
            route.fulfill(body=part.render(shown), content_type="text/html; charset=utf-8", headers=headers)
        elif path == "/nodes/":
            part = engines["django"].get_template("web/parts/pauses.html")
            shown = {"url": "/nodes/", "pauses": ["gpu-07: until noon"]}
            route.fulfill(body=part.render(shown), content_type="text/html; charset=utf-8", headers=headers)
        elif path == "/page/":
            route.fulfill(body=self._page(), content_type="text/html; charset=utf-8", headers=headers)
        else:
            route.fulfill(body="", content_type="text/javascript", headers=headers)

    def _page(self) -> str:
        self.times += 1
        slot = {"start": 2, "size": 2, "label": "vision", "tone": 1}
        user = SimpleNamespace(is_authenticated=True, get_username="alice", get_full_name="")
        context: dict[str, Any] = {
            "map": MAP,
            "user": user,
            "times": self.times,
            "leads_to": self.leads_to,
            "slots": [slot],
            "live_url": "/ws/live/",
        }
        return str(engines["django"].from_string(PAGE).render(context))

    def open(self) -> None:
        """Load the page and wait until its socket is there and has subscribed."""
        self.page.goto(f"{ORIGIN}/page/")
        self.until(lambda: bool(self.said))

    def until(self, is_true: Any) -> None:
        """Let the browser work until something holds; at most half a minute."""
        for _ in range(1500):
            if is_true():
                return
            self.page.wait_for_timeout(20)
        raise AssertionError("did not happen within half a minute")

    def say(self, **message: Any) -> None:
        """Send one message down the newest socket."""
        self.sockets[-1].send(json.dumps(message))

    def subscribed(self) -> None:
        """Say that every event reaches the page from now on, as the server answers a subscription."""
        self.say(type="snapshot", topic="me", seq=0, at="2026-11-21T10:00:00.000Z", data={})

    def activate(self) -> None:
        """Say that the lease on the page has become active."""
        self.say(
            type="event",
            topic="me",
            event="lease.active",
            lease="L1",
            request="R1",
            team="vision",
            state="active",
        )

    def frame(self, seq: int, util: float | None, kind: str = "frame") -> None:
        """Send figures of the lease."""
        slots = [{"device": "GPU-1", "start": 2, "util": util, "memory_used_mib": None}]
        data = {"util": util, "memory_used_mib": None, "memory_mib": 100, "slots": slots}
        self.say(type=kind, topic="lease:L1", seq=seq, at="2026-11-21T10:00:00.000Z", data=data)

    def text(self, selector: str) -> str:
        """Return what an element shows."""
        return str(self.page.locator(selector).inner_text())


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with api.sync_playwright() as play:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        yield play.chromium.launch(executable_path=BROWSER, args=flags)


@pytest.fixture
def stage(browser: Any) -> Iterator[Stage]:
    page = browser.new_page()
    made = Stage(page)
    made.open()
    yield made
    page.close()
    assert made.refused == []


def test_page_subscribes_to_what_it_shows_and_draws_its_figures(stage):
    stage.frame(1, 37.4, kind="snapshot")

    stage.until(lambda: stage.text("#util") == "37 %")
    assert stage.said[0]["op"] == "subscribe"
    assert set(stage.said[0]["topics"]) == {"me", "lease:L1", "fleet"}
    stage.until(
        lambda: stage.page.locator("#page-live .slice-level").evaluate("e => e.style.height") == "37.4px"
    )


def test_unknown_is_said_and_an_overtaken_frame_is_dropped(stage):
    stage.frame(5, 80, kind="snapshot")
    stage.frame(4, 10)
    stage.until(lambda: stage.text("#util") == "80 %")

    stage.frame(6, None)

    stage.until(lambda: stage.text("#util") == "unknown")


def test_event_of_the_object_fetches_the_page_again_and_leaves_the_chart_alone(stage):
    stage.until(lambda: stage.page.locator(".u-wrap").count() == 1)

    stage.activate()

    stage.until(lambda: stage.text("#drawn") == "drawn 2")
    assert stage.page.locator(".u-wrap").count() == 1
    stage.frame(9, 12, kind="snapshot")
    stage.until(lambda: stage.text("#util") == "12 %")


def test_page_is_fetched_once_when_its_socket_has_opened(stage):
    stage.subscribed()

    stage.until(lambda: stage.text("#drawn") == "drawn 2")
    stage.frame(1, 5, kind="snapshot")
    stage.until(lambda: stage.text("#util") == "5 %")
    stage.page.wait_for_timeout(1300)
    assert stage.times == 2


def test_an_announcement_is_read_in_a_page_that_is_open(stage):
    stage.subscribed()
    stage.page.wait_for_timeout(150)
    assert not stage.page.locator("#announcements").is_visible()

    stage.say(type="event", topic="me", event="announcement.changed", lease="", request="", team="", state="")

    stage.page.locator("#announcements").get_by_text("Down at noon").wait_for()
    assert stage.times <= 2, "only the strip is fetched for it"


def test_a_pause_of_intake_is_read_on_a_page_that_is_open_when_it_begins(stage):
    stage.subscribed()
    stage.page.wait_for_timeout(150)
    assert not stage.page.locator("#pauses").is_visible()

    stage.say(type="event", topic="me", event="intake.changed", lease="", request="", team="", state="")

    stage.page.locator("#pauses").get_by_text("gpu-07: until noon").wait_for()
    assert stage.times <= 2, "only the note is fetched for it"


def test_a_refresh_takes_nothing_from_whoever_types_reads_or_looks(stage):
    page = stage.page
    stage.frame(1, 37, kind="snapshot")
    page.locator("#more summary").click()
    page.locator("#note").press_sequentially("half a sent")
    page.evaluate("scrollTo(0, 120)")
    page.evaluate(
        "(function look() { window.blinked ||= document.querySelector('#util').textContent === '-';"
        " requestAnimationFrame(look) })()"
    )
    stage.subscribed()
    stage.until(lambda: stage.text("#drawn") == "drawn 2")

    page.keyboard.type("ence")

    assert page.locator("#note").input_value() == "half a sentence"
    assert page.evaluate("document.activeElement.id") == "note"
    assert page.evaluate("scrollY") == 120
    assert page.locator("#more").get_attribute("open") is not None
    assert stage.text("#util") == "37 %"
    assert not page.evaluate("Boolean(window.blinked)")


@pytest.mark.deep
def test_a_subscription_that_could_not_be_looked_up_is_made_again(stage):
    stage.say(type="error", code="unavailable", detail="The database does not answer.")

    stage.until(lambda: len([one for one in stage.said if one["op"] == "subscribe"]) == 2)
    assert set(stage.said[-1]["topics"]) == {"me", "lease:L1", "fleet"}


@pytest.mark.deep
def test_a_page_whose_object_lives_elsewhere_now_says_so_and_moves_on(stage):
    stage.leads_to = "/quote/"

    stage.subscribed()

    stage.until(lambda: stage.page.locator(".moment").is_visible())
    assert stage.page.locator("#announcer").text_content() == "Active"
    stage.until(lambda: stage.page.url == f"{ORIGIN}/quote/")


@pytest.mark.deep
def test_a_page_that_is_in_use_stays_and_offers_the_way_on(stage):
    stage.leads_to = "/quote/"
    stage.page.locator("#note").press_sequentially("why")

    stage.subscribed()

    stage.until(lambda: stage.page.locator(".toast-note a").count() == 1)
    assert stage.page.locator(".toast-note a").get_attribute("href") == "/quote/"
    stage.page.wait_for_timeout(2300)
    assert stage.page.url == f"{ORIGIN}/page/"
    assert stage.page.locator("#note").input_value() == "why"


@pytest.mark.deep
def test_a_touch_during_the_moment_keeps_the_page(stage):
    stage.leads_to = "/quote/"
    stage.subscribed()
    stage.until(lambda: stage.page.locator(".moment.is-leaving").count() == 1)

    stage.page.mouse.wheel(0, 40)

    stage.until(lambda: stage.page.locator(".toast-note a").count() == 1)
    stage.page.wait_for_timeout(2300)
    assert stage.page.url == f"{ORIGIN}/page/"


def test_event_of_another_object_is_a_short_note_with_a_link(stage):
    stage.say(
        type="event",
        topic="me",
        event="lease.failed",
        lease="L2",
        request="R2",
        team="vision",
        state="failed",
    )

    stage.until(lambda: stage.page.locator(".toast-note a").count() == 1)
    assert stage.page.locator(".toast-note a").get_attribute("href") == "/leases/L2/"
    assert stage.text("#drawn") == "drawn 1"


def test_lost_connection_is_said_and_healed_with_fresh_rows(stage):
    stage.until(lambda: stage.text(".rail .link-state") == "Live")

    stage.sockets[-1].close(code=1012)

    stage.until(lambda: stage.text(".rail .link-state") == "Reconnecting…")
    assert stage.page.locator("[data-live-banner]").is_visible()
    stage.until(lambda: len(stage.sockets) == 2)
    stage.subscribed()
    stage.until(lambda: stage.text("#drawn") == "drawn 2")
    assert not stage.page.locator("[data-live-banner]").is_visible()


def test_ended_session_asks_to_sign_in_and_does_not_knock_again(stage):
    stage.until(lambda: stage.text(".rail .link-state") == "Live")

    stage.sockets[-1].close(code=4401)

    stage.until(lambda: stage.text(".rail .link-state") == "Sign in again")
    stage.page.wait_for_timeout(700)
    assert len(stage.sockets) == 1


def test_nonsense_from_the_socket_changes_nothing(stage):
    for text in ("", "{", "[]", "null", '{"type":"frame"}', '{"type":"event"}'):
        stage.sockets[-1].send(text)

    stage.frame(1, 5, kind="snapshot")

    stage.until(lambda: stage.text("#util") == "5 %")


def test_quote_follows_the_form_once_per_pause(stage):
    stage.until(lambda: stage.text("#quote") == "quote 1")

    stage.page.locator("[name=hours]").press("End")
    stage.page.locator("[name=hours]").press_sequentially("00", delay=10)
    stage.until(lambda: stage.text("#quote") == "quote 2")
    stage.page.get_by_text("24 h").click()
    stage.until(lambda: stage.text("#quote") == "quote 3")

    assert stage.quotes == ["hours=6", "hours=600", "hours=24"]


def test_dialog_opens_and_closes_by_keyboard_and_a_refresh_leaves_it_open(stage):
    stage.page.get_by_role("button", name="Release").first.press("Enter")
    assert stage.page.locator("#sure").is_visible()

    stage.activate()
    stage.until(lambda: stage.text("#drawn") == "drawn 2")

    assert stage.page.locator("#sure").is_visible()
    stage.page.keyboard.press("Escape")
    assert not stage.page.locator("#sure").is_visible()


def test_theme_is_kept_in_a_cookie_that_the_server_can_read(stage):
    stage.page.evaluate("document.querySelector('[data-choose-theme=dark]').click()")

    assert stage.page.locator("html").get_attribute("data-bs-theme") == "dark"
    assert {c["name"]: c["value"] for c in stage.page.context.cookies(ORIGIN)}["berth_theme"] == "dark"


def test_map_moves_each_lease_in_its_place_and_asks_again_when_holders_change(stage):
    stage.page.evaluate("addEventListener('map:changed', () => { document.title = 'changed' })")
    stage.page.locator(".map-node").scroll_into_view_if_needed()

    def fleet(seq: int, *slots: list[Any]) -> None:
        device = {"util": None, "temp": 51, "power_w": None, "slots": slots}
        data = {"nodes": {"gpu-01": {"state": "online", "devices": {"GPU-9": device}}}}
        stage.say(type="frame", topic="fleet", seq=seq, at="2026-11-21T10:00:00.000Z", data=data)

    def levels() -> list[str]:
        found = stage.page.locator("[data-map] .slice-level")
        return [str(level) for level in found.evaluate_all("all => all.map((e) => e.style.height)")]

    fleet(1, ["other-a1", 2, 1, 25.0], ["L1", 0, 2, 60.0])
    stage.until(lambda: levels() == ["60px", "25px"])
    assert stage.text("[data-map] .now") == "unknown · 51 °C"
    assert stage.page.title() != "changed"

    fleet(2, ["L1", 0, 2, 61.0])

    stage.until(lambda: stage.page.title() == "changed")
