"""The style sheet page shows every component; the documentation of the components is complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.template.loader import render_to_string
from django.test import Client

INCLUDES = Path(__file__).resolve().parents[2] / "templates" / "includes"
FRAME = {
    "icon", "language_switch", "link_state", "mark", "menu", "messages", "nav_list", "patterns", "rail",
    "state_pill", "tabbar", "theme_switch", "topbar", "unknown",
}  # fmt: skip


def test_style_sheet_renders_in_a_demo(settings, client: Client):
    settings.DEMO = True

    answer = client.get("/design/")

    assert answer.status_code == 200
    assert answer.content.count(b'class="flavor"') == 6


def test_style_sheet_does_not_exist_outside_a_demo(settings, client: Client):
    settings.DEMO = settings.DEBUG = False

    assert client.get("/design/").status_code == 404


@pytest.mark.parametrize(
    ("cookie", "drawn"),
    [("dark", 'data-bs-theme="dark"'), ("light", 'data-bs-theme="light"'), ('"><script>', None), ("", None)],
)
def test_theme_of_the_cookie_is_in_the_first_byte_sent(settings, client: Client, cookie, drawn):
    settings.DEMO = True
    client.cookies["berth_theme"] = cookie

    html = client.get("/design/").content.decode()
    root = re.search(r"<html[^>]*>", html)

    assert root is not None
    assert ("data-bs-theme" in root[0]) == (drawn is not None)
    assert drawn is None or drawn in root[0]


def test_every_component_is_described_for_page_authors():
    described = (INCLUDES / "README.md").read_text("utf-8")

    parts = {path.stem for path in INCLUDES.glob("*.html")} - FRAME

    assert {name for name in parts if f"includes/{name}.html" not in described} == set()


def test_unknown_figures_are_said_and_never_zero():
    stat = render_to_string("includes/stat.html", {"label": "Power", "value": None})
    money = render_to_string("includes/money.html", {"amount": None, "currency": "CNY"})

    assert "unknown" in stat
    assert "unknown" in money
    assert not re.search(r">\s*0", stat + money)


def test_text_of_people_is_escaped_in_every_place_it_is_shown():
    nasty = '<img src=x onerror="1">'
    slot = {"start": 0, "size": 1, "label": nasty, "title": nasty, "kind": "lease"}

    drawn = render_to_string("includes/slice_bar.html", {"grid": 8, "slots": [slot], "label": nasty})
    drawn += render_to_string("includes/copy.html", {"value": nasty})
    drawn += render_to_string("includes/timeline.html", {"events": [{"title": nasty, "text": nasty}]})

    assert "<img" not in drawn
    assert "&lt;img" in drawn
