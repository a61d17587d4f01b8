"""What somebody typed outlives whatever happens to the page."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.e2e.visitor import Visitor

pytestmark = pytest.mark.deep

FORM = "/requests/new/"


def test_what_was_typed_comes_back_after_reload_language_and_sign_in(visit: Callable[..., Visitor]) -> None:
    bob = visit("bob")
    page = bob.open(FORM)
    note, duration = page.locator("[data-draft]"), page.locator("#id_duration")
    as_offered = duration.input_value()
    assert note.is_hidden()

    duration.fill("7h")
    page.locator("input[name=flavor]:enabled").last.check(force=True)
    chosen = page.locator("input[name=flavor]:checked").input_value()
    page.reload()
    note.wait_for()
    assert duration.input_value() == "7h"
    assert page.locator("input[name=flavor]:checked").input_value() == chosen

    page.context.add_cookies([{"name": "django_language", "value": "zh-hans", "url": bob.url}])
    page.reload()
    note.get_by_role("button", name="重新填写").wait_for()
    assert duration.input_value() == "7h"
    page.context.clear_cookies(name="django_language")

    page.context.clear_cookies(name="sessionid")
    page.locator("#request-form button[type=submit].btn-primary").click()
    page.locator("button[name=demo][value=bob]").click()
    page.wait_for_url(f"{bob.url}{FORM}")
    note.wait_for()
    assert duration.input_value() == "7h"

    note.get_by_role("button", name="Start over").click()
    assert duration.input_value() == as_offered
    page.reload()
    assert note.is_hidden()


def test_sign_in_page_whose_scripts_never_ran_keeps_what_was_typed(visit: Callable[..., Visitor]) -> None:
    bob = visit("bob")
    page = bob.open(FORM)
    page.locator("#id_duration").fill("7h")
    page.context.clear_cookies(name="sessionid")
    page.route("**/js/main.js", lambda route: route.fulfill(content_type="text/javascript", body=""))
    page.locator("#request-form button[type=submit].btn-primary").click()
    someone = page.locator("button[name=demo][value=bob]")
    someone.wait_for()
    page.unroute("**/js/main.js")
    someone.click()
    page.wait_for_url(f"{bob.url}{FORM}")
    page.locator("[data-draft]").wait_for()
    assert page.locator("#id_duration").input_value() == "7h"


def test_form_that_was_taken_leaves_no_draft(visit: Callable[..., Visitor]) -> None:
    bob = visit("bob")
    page = bob.open(FORM)
    page.locator("#id_duration").fill("7h")
    page.locator("input[name=flavor]:enabled").first.check(force=True)
    page.locator("#quote .money").first.wait_for()
    page.locator("#request-form button[type=submit].btn-primary").click()
    page.wait_for_url(re.compile("/(requests/req|leases/lse)-"))  # a free slice is there at once

    bob.go(page, FORM)
    assert page.locator("[data-draft]").is_hidden()
    assert page.locator("#id_duration").input_value() != "7h"
