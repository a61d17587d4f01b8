"""Single sign-on in a real browser: its policy for forms reaches along every redirect, which no test client sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.e2e.visitor import Visitor
from tests.sso.provider import CLIENT, SECRET, FakeProvider

pytestmark = pytest.mark.deep

PAGE = "/operations/single-sign-on/"


@pytest.fixture
def lab() -> Iterator[FakeProvider]:
    """A provider at another origin, which sends people on to a third one."""
    server = FakeProvider()
    server.claims = {"sub": "7f3a", "preferred_username": "dana", "name": "Dana", "groups": ["ml people"]}
    yield server
    server.close()


def test_operator_sets_it_up_and_somebody_new_comes_in(
    visit: Callable[..., Visitor], lab: FakeProvider
) -> None:
    operator = visit("operator")
    page = operator.open(PAGE)
    page.locator(".page-actions a.btn-primary").click()
    fields = {
        "name": "The big lab",
        "slug": "biglab",
        "issuer": lab.issuer,
        "client_id": CLIENT,
        "secret": SECRET,
    }
    for name, value in {**fields, "rules": "researcher perception ml people"}.items():
        page.locator(f"#id_{name}").fill(value)
    page.locator("main form button[type=submit]").click()
    page.wait_for_url(operator.url + PAGE)
    try:
        dana = visit("")
        entry = dana.open("/sign-in/?next=/leases/")
        entry.get_by_role("button", name="Sign in with The big lab").click()
        entry.get_by_role("button", name="Log in").click()
        entry.wait_for_url(dana.url + "/leases/")
        assert "Perception" in entry.locator(".rail").inner_text()
    finally:
        page.locator("tr", has_text="The big lab").get_by_role("button", name="Remove").click()
        page.locator("dialog[open] .btn-primary").click()
        page.locator("tr", has_text="The big lab").wait_for(state="detached")
