from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.browser import BROWSER
from tests.e2e.running import RunningStack
from tests.e2e.visitor import Visitor

HERE = Path(__file__).parent
# These start a stack without the demo.
EMPTY = "test_first_start.py"
FLAGS = [
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1440, "height": 900}


def _missing() -> str:
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "no browser test: playwright is not installed (make e2e brings it)"
    return "" if BROWSER else "no browser test: no Chromium on PATH (apt-get install chromium-headless-shell)"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark everything here as a browser test, and take pictures only when they are asked for."""
    missing = _missing()
    if not {"e2e", "shots"} & set(re.findall(r"\w+", config.option.markexpr)):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("shots")])
        items[:] = [item for item in items if not item.get_closest_marker("shots")]
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.e2e)
        if missing:
            item.add_marker(pytest.mark.skip(reason=missing))


class SchedulingByStack(LoadScopeScheduling):
    """All tests of the demo's stack go to one worker, those of an empty one to the other: each stack starts once.

    pytest-xdist's own groups do not: from pytest 9.1 on it writes their names where nobody reads them.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "empty" if EMPTY in nodeid else "demo"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SchedulingByStack | None:
    """Deal out browser tests by their stack where they run by themselves."""
    return SchedulingByStack(config, log) if config.args == ["tests/e2e"] else None


@pytest.fixture(scope="session")
def stack() -> Iterator[RunningStack]:
    """The stack of this session, in a folder that goes away with it."""
    with tempfile.TemporaryDirectory(prefix="berth-e2e-") as room:
        Path(room).chmod(0o755)
        running = RunningStack(Path(room) / "data")
        try:
            running.wait_until_up()
            yield running
        finally:
            running.stop()


@pytest.fixture(scope="session")
def url(request: pytest.FixtureRequest) -> str:
    """Where Berth answers; BERTH_E2E_URL visits a demo stack that runs already."""
    return os.environ.get("BERTH_E2E_URL") or str(request.getfixturevalue("stack").url)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, one for all tests: a thread can hold only one loop of Playwright."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=15_000)

    flags = [*FLAGS, "--no-sandbox"] if os.geteuid() == 0 else FLAGS
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=BROWSER, args=flags)
        yield started
        started.close()


@pytest.fixture(scope="session")
def signed_in(browser: Any, url: str) -> Callable[[str], Any]:
    """Return the cookies of a demo person, who signs in once for the whole session."""
    known: dict[str, Any] = {"": None}

    def state(username: str) -> Any:
        if username not in known:
            context = browser.new_context()
            page = context.new_page()
            page.goto(f"{url}/sign-in/")
            page.locator(f"button[name=demo][value={username}]").click()
            page.wait_for_url(f"{url}/")
            known[username] = context.storage_state()
            context.close()
        return known[username]

    return state


@pytest.fixture
def visit(browser: Any, url: str, signed_in: Callable[[str], Any]) -> Iterator[Callable[..., Visitor]]:
    """Return a person with a browser; at the end nothing may have gone wrong on any page they saw."""
    visitors: list[Visitor] = []

    def make(username: str, *, phone: bool = False, **options: Any) -> Visitor:
        context = browser.new_context(
            storage_state=signed_in(username),
            viewport=PHONE if phone else DESK,
            locale="en-GB",
            reduced_motion="reduce",
            **{"timezone_id": "UTC", **options},
        )
        visitors.append(Visitor(context, url))
        return visitors[-1]

    yield make
    for visitor in visitors:
        visitor.context.close()
    assert [trouble for visitor in visitors for trouble in visitor.troubles] == []
