"""A shell in the page: typed into, found again after a reload and after its gateway died, and gone with its lease."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.e2e.pages import LEASE
from tests.e2e.visitor import barriers

OPEN = "[data-terminal][data-state=open]"


@pytest.fixture
def lease(visit: Any, stack: Any) -> str:
    """Return the address of an active lease of bob's; the stack may only just have begun to make it."""
    bob, listed = visit("bob"), "/leases/?whose=mine&state=active"
    stack.until(lambda: re.search(LEASE, bob.text(listed)), within_s=60)
    return bob.link(listed, LEASE)


def type_line(page: Any, text: str) -> None:
    page.locator(".terminal-pane:visible .xterm-helper-textarea").focus()
    page.keyboard.type(f"{text}\n")


def sees(page: Any, text: str) -> None:
    page.wait_for_function(
        "text => [...document.querySelectorAll('[data-terminal-watch] .xterm-rows > div')]"
        ".some(row => row.textContent.trim() === text)",
        arg=text,
    )


def shows(page: Any, text: str) -> None:
    page.wait_for_function(
        "text => [...document.querySelectorAll('.terminal-pane:not([hidden]) .xterm-rows > div')]"
        ".some(row => row.textContent.trim() === text)",
        arg=text,
    )


@pytest.mark.parametrize("phone", [False, True])
def test_shell_in_a_lease_answers(visit, lease, phone):
    bob = visit("bob", phone=phone)
    page = bob.open(lease)

    page.get_by_role("link", name="Terminal").click()
    page.locator(OPEN).wait_for()
    type_line(page, "echo $((6*7))-中文")

    shows(page, "42-中文")


@pytest.mark.deep
def test_shell_is_found_again_after_a_reload_and_after_its_gateway_died(visit, lease, stack):
    bob = visit("bob")
    bob.expect("WebSocket connection to .*failed")
    page = bob.open(lease + "terminal/")
    page.locator(OPEN).wait_for()
    type_line(page, "here=still-here")

    page.reload()
    page.locator(OPEN).wait_for()
    type_line(page, "echo $here-1")
    shows(page, "still-here-1")
    stack.kill("gateway")
    page.locator("[data-terminal][data-state=reconnecting]").wait_for()
    page.locator(OPEN).wait_for(timeout=60_000)
    type_line(page, "echo $here-2")

    shows(page, "still-here-2")


@pytest.mark.deep
def test_a_colleague_watches_and_types_nothing_until_it_is_taken_back(visit, lease):
    bob, alice = visit("bob"), visit("alice")
    page = bob.open(lease + "terminal/")
    page.locator(OPEN).wait_for()
    page.locator("#share summary").click()
    page.locator("#share-with").select_option("alice")
    page.get_by_role("button", name="Share").click()
    page.locator(OPEN).wait_for()

    watching = alice.open(lease)
    watching.get_by_role("link", name="Watch the terminal of Bob").click()
    watching.locator("[data-terminal-watch][data-state=open]").wait_for()
    type_line(page, "echo seen-$((6*7))")
    sees(watching, "seen-42")
    watching.locator(".terminal-panes").click()
    watching.keyboard.type("echo never-1\n")
    type_line(page, "echo seen-again")
    sees(watching, "seen-again")

    assert "never-1" not in page.locator(".xterm-rows").inner_text()
    assert barriers(watching) == []
    # The page asks once more whether it may, and is told that it may not.
    alice.expect(r"watch/ticket/|status of 403")
    page.get_by_role("button", name="Take back").click()
    watching.locator("[data-terminal-watch][data-state=over]").wait_for()


@pytest.mark.deep
def test_several_pasted_lines_are_asked_about_and_tabs_have_shells_of_their_own(visit, lease):
    bob = visit("bob")
    page = bob.open(lease + "terminal/")
    page.locator(OPEN).wait_for()
    paste = """text => {
      const data = new DataTransfer();
      data.setData("text/plain", text);
      document.querySelector(".terminal-pane:not([hidden]) .xterm-helper-textarea")
        .dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
    }"""

    # A shell that still starts would echo what is pasted before its first prompt.
    type_line(page, "echo ready-$((1+1))")
    shows(page, "ready-2")
    page.evaluate(paste, "echo one-1\necho two-2\n")
    page.locator("dialog[open]").get_by_role("button", name="Cancel").click()
    page.evaluate(paste, "echo one-1\necho two-2\n")
    page.locator("dialog[open]").get_by_role("button", name="Continue").click()
    # Enter that comes before the text, once the dialog has closed, would leave it waiting for another one.
    page.locator(".terminal-pane:visible .xterm-rows > div", has_text="echo two-2").first.wait_for()
    type_line(page, "")
    shows(page, "two-2")
    page.locator("[data-terminal-new]").click()
    page.get_by_role("tab", name="2").wait_for()
    page.locator(OPEN).wait_for()
    type_line(page, "echo fresh-$((1+1))")
    shows(page, "fresh-2")
    page.locator("[data-terminal-close]").click()

    shows(page, "two-2")
