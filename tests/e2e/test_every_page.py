from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.urls import get_resolver

from tests.e2e.pages import PAGES, Page
from tests.e2e.visitor import Visitor, barriers, overflow

SCREENSHOTS = Path(__file__).resolve().parents[2] / "screenshots"
LOOKS = [(theme, language) for theme in ("light", "dark") for language in ("en", "zh")]
# These change something or are parts of a page; a person never opens them as one.
NOT_PAGES = {
    "sign_out", "request_quote", "request_withdraw", "request_decide", "lease_extend", "lease_release",
    "notifications_read", "member_add", "member_remove", "invoice_csv", "token_revoke", "period_close",
    "node_cordon", "node_uncordon", "node_revoke", "device_clear",
}  # fmt: skip


def _widths(page: Page, visit: Callable[..., Visitor]) -> list[tuple[int, Visitor]]:
    return [(390, visit(page.who, phone=True)), (1440, visit(page.who))]


def _show(page: Page, visitor: Visitor) -> Any:
    shown = page.visit(visitor)
    shown.wait_for_load_state("networkidle")
    shown.evaluate("() => document.fonts.ready")
    return shown


def test_every_page_is_looked_at():
    routes = {p.name for p in get_resolver("portal.web.urls").url_patterns}

    listed = {page.route for page in PAGES}

    assert routes - NOT_PAGES == listed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_is_sound_on_a_phone(page, visit):
    visitor = visit(page.who, phone=True)
    visitor.look("dark", "zh")

    shown = page.visit(visitor)

    assert overflow(shown) == []


@pytest.mark.shots
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_shuts_nobody_out_and_leaves_its_picture(page, visit):
    SCREENSHOTS.mkdir(exist_ok=True)
    found = []
    for width, visitor in _widths(page, visit):
        for theme, language in LOOKS:
            visitor.look(theme, language)
            shown = _show(page, visitor)
            shown.screenshot(path=SCREENSHOTS / f"{page.name}-{width}-{theme}-{language}.png", full_page=True)
            found += [f"{width} {theme} {language}: {text}" for text in (*overflow(shown), *barriers(shown))]
            shown.close()

    assert found == []
