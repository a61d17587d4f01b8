"""What people see when a node falls silent, the portal goes away, or they look where they may not."""

from __future__ import annotations

import os
import re

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no browser test")
expect = sync_api.expect

needs_own_stack = pytest.mark.skipif("BERTH_E2E_URL" in os.environ, reason="stops parts of the stack")


def test_cordon_is_seen_by_everybody_and_lifted_again(visit):
    operator = visit("operator").open("/cluster/gpu-04/")

    operator.get_by_role("button", name="Cordon").click()
    dialog = operator.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("Fans are changed")
    dialog.get_by_role("button", name="Cordon").click()

    expect(operator.get_by_text("This node takes no new work")).to_be_visible()
    bob = visit("bob").open("/cluster/gpu-04/")
    expect(bob.locator("main")).to_contain_text("Fans are changed")
    operator.get_by_role("button", name="Uncordon").click()
    expect(operator.get_by_text("This node takes no new work")).not_to_be_visible()


@pytest.mark.parametrize("kind", ["leases", "requests"])
def test_other_teams_page_answers_like_a_missing_one(kind, visit):
    bob, charlie = visit("bob"), visit("charlie")
    prefix = {"leases": "lse", "requests": "req"}[kind]
    foreign = bob.link(f"/{kind}/", rf"/{kind}/{prefix}-[^/\"]+/")
    missing = f"/{kind}/{prefix}-0000000000000000/"

    seen = [charlie.open(path, status=404) for path in (foreign, missing)]

    texts = [re.sub(r"[0-9a-f]{8,}", "", page.locator("body").inner_text()) for page in seen]
    assert texts[0] == texts[1]


def test_page_of_another_role_says_whose_it_is(visit):
    page = visit("bob").open("/operations/nodes/", status=403)

    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.get_by_role("link", name="Go home")).to_be_visible()


# Waits out real silence and the page's own patience: too long for the quick look, so only `make e2e` runs it.
@pytest.mark.shots
@needs_own_stack
def test_silent_node_is_shown_as_silent_until_it_speaks_again(visit, stack):
    page = visit("bob").open("/cluster/gpu-03/")
    picture, lead = page.locator("[data-map]"), page.locator("#node-state")
    expect(picture).to_contain_text("Online")
    expect(page.locator(".rail .link-state")).to_have_text("Live", timeout=20_000)

    with stack.silenced("gpu-03"):
        expect(picture).to_contain_text("Silent", timeout=40_000)
        expect(lead).to_contain_text("Silent")
        expect(page.get_by_text("This node is silent")).to_be_visible()

    expect(picture).to_contain_text("Online", timeout=20_000)
    expect(lead).to_contain_text("Online")
    expect(page.get_by_text("This node is silent")).not_to_be_visible()


@needs_own_stack
def test_portal_that_goes_away_is_said_and_the_page_heals(visit, stack):
    bob = visit("bob")
    bob.expect(r"WebSocket connection|ERR_(CONNECTION|EMPTY|ABORTED)|failed: ")
    page = bob.open("/")
    expect(page.locator(".rail .link-state")).to_have_text("Live")
    page.evaluate("() => { window.wasNeverLeft = true }")

    with stack.silenced("web"):
        stack.kill("web")
    expect(page.locator(".rail .link-state")).to_have_text("Reconnecting…")

    expect(page.locator(".rail .link-state")).to_have_text("Live", timeout=30_000)
    assert page.evaluate("() => window.wasNeverLeft")
