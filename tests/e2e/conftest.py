from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import RunningStack
from tests.e2e.visitor import Visitor

HERE = Path(__file__).parent
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
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
    return "" if BROWSER else "no browser test: no Chromium on PATH (apt-get install chromium)"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark everything here as a browser test; those of one stack stay with one worker, an empty one beside them.

    First, because a worker of pytest-xdist reads the groups at this hook.
    """
    missing = _missing()
    if not {"e2e", "shots"} & set(re.findall(r"\w+", config.option.markexpr)):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("shots")])
        items[:] = [item for item in items if not item.get_closest_marker("shots")]
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.e2e)
        item.add_marker(pytest.mark.xdist_group("empty" if "empty" in item.fixturenames else "e2e"))
        if missing:
            item.add_marker(pytest.mark.skip(reason=missing))


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
    """Debian's Chromium, one for all tests: a thread can hold only one loop of Playwright."""
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
            timezone_id="UTC",
            reduced_motion="reduce",
            **options,
        )
        visitors.append(Visitor(context, url))
        return visitors[-1]

    yield make
    for visitor in visitors:
        visitor.context.close()
    assert [trouble for visitor in visitors for trouble in visitor.troubles] == []
