"""From an empty database to a lease by the pages alone: no demo, no shell but the one command on the GPU host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import DESK, PHONE
from tests.e2e.running import NOT_INHERITED, ROOT, RunningStack
from tests.e2e.visitor import LANGUAGES, Visitor, barriers, overflow

PASSWORD = "a quiet harbour at night"
SHOTS = ROOT / "screenshots"


@pytest.fixture
def empty() -> Iterator[RunningStack]:
    """A stack without the demo, on an empty database."""
    with tempfile.TemporaryDirectory(prefix="berth-first-") as room:
        Path(room).chmod(0o755)
        running = RunningStack(Path(room) / "data", is_demo=False)
        try:
            running.wait_until_up(within_s=300)
            yield running
        finally:
            running.stop()


@pytest.fixture
def agent() -> Iterator[Callable[[str, Path], None]]:
    """Run the command of the enrolment page, with a simulated driver instead of a real host's."""
    with ExitStack() as ending:

        def start(command: str, state: Path) -> None:
            url, token, node = (
                re.search(rf"--{name}[ =]'?([^\s']+)", command)[1]  # type: ignore[index]
                for name in ("portal", "enrol-token", "node")
            )
            arguments = [
                f"--portal={url}", f"--node={node}", f"--enrol-token={token}", f"--state={state}",
                "--driver=simulated", "--board=h100-80gb", "--count=2", "--modes=mig,exclusive,timeslice",
            ]  # fmt: skip
            env = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
            started = subprocess.Popen([sys.executable, "-m", "nodeagent", *arguments], cwd=ROOT, env=env)
            ending.callback(started.wait, timeout=20)
            ending.callback(started.terminate)

        yield start


@pytest.mark.stack
def test_an_empty_installation_reaches_its_first_lease_by_the_pages(
    empty: RunningStack, agent: Callable[[str, Path], None], browser: Any
) -> None:
    alice = Visitor(browser.new_context(viewport=DESK, locale="en-GB", timezone_id="UTC"), empty.url)

    page = alice.open("/sign-in/")
    make_the_organisation(page, re.search(r"with the code (\S+)", empty.said)[1])  # type: ignore[index]
    link = make_team_and_bob(alice, page)
    enrol_a_node(alice, page, empty, agent)
    offer_and_price(alice, page)
    alice.go(page, "/setup/")
    page.get_by_text("People can ask for GPU time now.").wait_for()
    shoot(page, "setup-done")
    assert alice.troubles == []

    bob = Visitor(browser.new_context(viewport=DESK, locale="en-GB", timezone_id="UTC"), empty.url)
    join_and_ask(bob, link.removeprefix(empty.url), empty)
    assert bob.troubles == []


def make_the_organisation(page: Any, code: str) -> None:
    page.get_by_role("link", name="Set it up").click()
    shoot(page, "setup-first")
    fill(page, code=code, organisation="Harbour Institute", currency="CNY", username="alice", password=PASSWORD,
         again=PASSWORD)  # fmt: skip
    page.get_by_role("button", name="Make the organisation").click()
    page.wait_for_url("**/setup/")
    shoot(page, "setup")


def make_team_and_bob(alice: Visitor, page: Any) -> str:
    """Return the link with which bob sets his password."""
    page.get_by_role("link", name="Make a team").click()
    shoot(page, "team-new")
    fill(page, name="Vision Lab", cost_centre="C-7")
    page.get_by_role("button", name="Make the team").click()
    page.wait_for_url("**/teams/vision-lab/")
    page.get_by_role("link", name="New person").click()
    shoot(page, "person-new")
    fill(page, username="bob", display_name="Bob")
    page.get_by_role("button", name="Make the account").click()
    link: str = page.locator(".snippet code").inner_text()
    shoot(page, "person-link")
    alice.go(page, "/teams/vision-lab/settings/")
    shoot(page, "team-settings")
    fill(page, approval_above="100")
    page.get_by_role("button", name="Store the settings").click()
    page.get_by_text("Requests above 100 GPU-hours need an approval.").wait_for()
    return link


def enrol_a_node(alice: Visitor, page: Any, empty: RunningStack, agent: Callable[[str, Path], None]) -> None:
    alice.go(page, "/operations/nodes/")
    page.locator("#enrol [name=name]").fill("gpu-01")
    page.locator("#enrol button[type=submit]").click()
    agent(page.locator(".snippet code").first.inner_text(), empty.data / "first-agent")
    empty.until(lambda: "Accept" in alice.text("/cluster/gpu-01/"))
    alice.go(page, "/cluster/gpu-01/")
    page.get_by_role("button", name="Accept").first.click()
    confirm = page.locator("dialog[open] button[type=submit]")
    if confirm.count():
        confirm.click()
    empty.until(lambda: "standard flavor" in alice.text("/operations/flavors/"))


def offer_and_price(alice: Visitor, page: Any) -> None:
    alice.go(page, "/operations/flavors/")
    page.get_by_role("button", name=re.compile("standard flavors")).click()
    page.get_by_text("flavors are offered now").wait_for()
    page.locator("select[name=mode]").select_option("timeslice")
    fill(page, share_gib="20", share_percent="25", name="H100 quarter, time slice", slug="h100-slice")
    page.get_by_role("button", name="Offer it").click()
    page.get_by_text("H100 quarter, time slice can be asked for now.").wait_for()
    shoot(page, "flavors")
    alice.go(page, "/operations/flavors/h100-slice/")
    shoot(page, "flavor")
    alice.go(page, "/finance/prices/")
    shoot(page, "prices-first")
    fill(page, price="12.50")
    page.get_by_role("button", name="Set the price").click()
    page.get_by_text("The new price is set.").wait_for()


def join_and_ask(bob: Visitor, link: str, empty: RunningStack) -> None:
    page = bob.open(link)
    shoot(page, "join")
    fill(page, password=PASSWORD, again=PASSWORD)
    page.get_by_role("button", name="Set the password").click()
    fill(page, username="bob", password=PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{empty.url}/")
    bob.go(page, "/requests/new/")
    page.locator("input[name=flavor][value=h100-80gb-1g-10gb]").check(force=True)
    page.locator("#quote .money").first.wait_for()
    page.locator("#request-form button[type=submit].btn-primary").click()
    page.wait_for_url("**/leases/lse-*/", timeout=30_000)
    empty.until(lambda: "Active" in page.inner_text("body"))


def fill(page: Any, **values: str) -> None:
    """Type into the fields of the page's form."""
    for name, value in values.items():
        page.locator(f"main [name={name}]").first.fill(value)


def shoot(page: Any, name: str) -> None:
    """Look at the page as it is: nobody is kept out, nothing is wider than a phone; with BERTH_SHOTS keep pictures."""
    assert barriers(page) == [], name
    for width in (PHONE, DESK):
        page.set_viewport_size(width)
        assert overflow(page) == [], name
        if os.environ.get("BERTH_SHOTS"):
            SHOTS.mkdir(exist_ok=True)
            page.screenshot(path=SHOTS / f"first-{name}-{width['width']}.png", full_page=True)
    if os.environ.get("BERTH_SHOTS") and page.request.get(page.url).ok:
        other = page.context.new_page()
        cookie = {"name": "django_language", "url": page.url}
        page.context.add_cookies([{**cookie, "value": LANGUAGES["zh"]}])
        for width in (PHONE, DESK):
            other.set_viewport_size(width)
            other.goto(page.url)
            other.screenshot(path=SHOTS / f"first-{name}-zh-{width['width']}.png", full_page=True)
        page.context.add_cookies([{**cookie, "value": LANGUAGES["en"]}])
        other.close()
