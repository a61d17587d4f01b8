"""One time zone for each person, whatever the browser is in."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.visitor import Visitor

pytestmark = pytest.mark.deep


def test_times_are_in_the_zone_of_the_profile_not_of_the_browser(visit: Callable[..., Visitor]) -> None:
    charlie = visit("charlie", timezone_id="Asia/Shanghai")
    page = charlie.open("/profile/")
    before = page.locator("#id_time_zone").input_value()
    page.get_by_role("button", name="Take it").click()
    page.get_by_role("button", name="Save").click()
    page.get_by_text("Your profile is saved.").wait_for()

    charlie.go(page, "/requests/new/")
    assert page.locator("html").get_attribute("data-zone") == "Asia/Shanghai"
    assert "Asia/Shanghai" in page.locator("#id_starts_at_helptext").text_content()

    elsewhere = visit("charlie", timezone_id="America/New_York")
    other = elsewhere.open("/calendar/")
    assert "Time zone: Asia/Shanghai" in other.content()
    shown = other.evaluate(
        "async () => (await import(document.querySelector('script[type=module]').src.replace('main.js', 'i18n.js')))"
        ".moment(new Date('2030-01-01T20:00:00Z'))"
    )
    assert shown == "2 Jan 2030, 04:00"

    charlie.go(page, "/profile/")
    page.locator("#id_time_zone").select_option(before)
    page.get_by_role("button", name="Save").click()
    page.get_by_text("Your profile is saved.").wait_for()
