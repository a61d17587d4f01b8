"""The whole way in a browser: from a request to the line on the bill."""

from __future__ import annotations

import re
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no browser test")
expect = sync_api.expect

NAME = "First light"
FLAVOR = "H100 slice 1g.10gb"
UTILISATION = re.compile(r"^\d+ %$")


def _mark(page: Any) -> None:
    """Leave something in the page that a reload would take away."""
    page.evaluate("() => { window.wasNeverLeft = true }")


def _was_never_left(page: Any) -> bool:
    return bool(page.evaluate("() => window.wasNeverLeft === true"))


def _is_live(page: Any) -> None:
    expect(page.locator(".rail .link-state")).to_have_text("Live")


def _ask(page: Any, *, flavor: str, name: str, duration: str = "1 h", count: int = 1) -> None:
    page.get_by_role("radio", name=flavor).first.check()
    page.get_by_label("For how long").fill(duration)
    page.get_by_label("How many", exact=True).fill(str(count))
    page.get_by_label("Name").fill(name)


def test_request_becomes_a_lease_that_moves_and_ends_as_a_line_on_the_bill(visit):
    bob = visit("bob")
    home = bob.open("/")
    _is_live(home)
    _mark(home)

    form = bob.open("/requests/new/")
    _ask(form, flavor=FLAVOR, name=NAME)
    form.get_by_label("Simulated load").select_option("steady")
    expect(form.locator("#quote")).to_contain_text("Right away")
    form.get_by_role("button", name="Send the request").click()
    form.wait_for_url(re.compile(r"/(leases|requests)/"))
    # It would go on to the lease by itself, and there show what the other tab is told of its extension.
    form.close()

    # The tab that was open all the time hears of it by the socket.
    card = home.locator("article", has=home.get_by_role("link", name=NAME))
    expect(card).to_contain_text("Active")
    shown = card.locator("[data-live-field=util]")
    expect(shown).to_have_text(UTILISATION)
    before = shown.inner_text()
    expect(shown).not_to_have_text(before)
    assert _was_never_left(home)

    lease = home
    card.get_by_role("link", name=NAME).click()
    expect(lease.get_by_text("CUDA_VISIBLE_DEVICES")).to_contain_text("MIG-")
    expect(lease.locator(".u-wrap")).to_be_visible()
    uid = lease.url.rstrip("/").rpartition("/")[2]

    end = lease.locator("time.countdown").first
    ends_at = end.get_attribute("datetime")
    lease.get_by_role("button", name="Extend").click()
    lease.locator("dialog#extend button[name=extra]").first.click()
    expect(lease.get_by_text(re.compile("^Extended by"))).to_be_visible()
    expect(end).not_to_have_attribute("datetime", ends_at)
    assert end.get_attribute("datetime") > ends_at

    lease.get_by_role("button", name="Release").click()
    dialog = lease.get_by_role("dialog")
    expect(dialog).to_contain_text("Release this lease now?")
    dialog.get_by_role("button", name="Release").click()
    expect(lease.get_by_text("Ended", exact=True).first).to_be_visible()
    receipt = lease.get_by_role("region", name="Receipt")
    expect(receipt).to_contain_text("Billed seconds")
    seconds = receipt.get_by_text("Billed seconds").locator("xpath=following-sibling::dd[1]").inner_text()
    assert int(seconds) >= 1

    finance = visit("finance").open("/invoices/?team=Perception")
    finance.locator("main a[href*='/invoices/perception/']").first.click()
    row = finance.locator("tbody tr", has_text=FLAVOR).filter(has_text="Bob")
    row.first.get_by_role("link").first.click()
    usage = finance.locator("tbody tr", has=finance.get_by_role("link", name=uid))
    expect(usage.locator("[data-label=Seconds]")).to_have_text(seconds)
    events = usage.locator("xpath=following-sibling::tr[1]")
    events.locator("summary").click()
    expect(events.locator(".timeline li").first).to_be_visible()
    usage.get_by_role("link", name=uid).click()
    expect(finance.get_by_role("heading", level=1)).to_have_text(NAME)


def test_the_tab_that_sent_a_request_goes_on_to_its_active_lease_by_itself(visit):
    page = visit("bob").open("/requests/new/")
    _ask(page, flavor=FLAVOR, name="This very tab")

    page.get_by_role("button", name="Send the request").click()
    page.wait_for_url(re.compile(r"/leases/lse-"))

    expect(page.locator("main .state").first).to_have_text("Active")
    expect(page.get_by_role("heading", level=1)).to_have_text("This very tab")
    page.get_by_role("button", name="Release").click()
    page.get_by_role("dialog").get_by_role("button", name="Release").click()
    expect(page.get_by_text("Ended", exact=True).first).to_be_visible()


@pytest.mark.deep
def test_what_one_approver_decides_leaves_the_open_pages_of_the_other(visit):
    bob = visit("bob")
    form = bob.open("/requests/new/?team=segmentation")
    _ask(form, flavor="Whole A100", name="For two approvers", duration="71 h", count=4)
    form.get_by_role("button", name="Send the request").click()
    form.wait_for_url(re.compile(r"/requests/req-"))
    expect(form.locator("main")).to_contain_text("Awaiting approval")
    path = form.url.removeprefix(bob.url)
    alice = visit("alice")
    inbox, detail = alice.open("/approvals/"), alice.open(path)
    card = inbox.locator("section.card", has=inbox.get_by_role("link", name="For two approvers"))
    expect(card).to_be_visible()
    expect(detail.get_by_role("button", name="Reject")).to_be_visible()
    for page in (inbox, detail):
        _is_live(page)
        _mark(page)

    approver = visit("approver").open(path)
    approver.get_by_label("Note").first.fill("Not this week")
    approver.get_by_role("button", name="Reject").click()

    expect(approver.get_by_text(re.compile("^Rejected"))).to_be_visible()
    expect(card).to_have_count(0)
    expect(detail.locator("main .state").first).to_have_text("Rejected")
    expect(detail.get_by_role("button", name="Reject")).to_have_count(0)
    assert _was_never_left(inbox)
    assert _was_never_left(detail)


def test_waiting_request_says_why_and_when_and_what_would_start_sooner(visit):
    charlie = visit("charlie")
    page = charlie.open(charlie.link("/requests/?state=queued&q=Long-context", r"/requests/req-[^/\"]+/"))

    expect(page.get_by_role("heading", name="Why it waits")).to_be_visible()
    expect(page.locator("main")).to_contain_text(re.compile(r"Number \d+ in the queue"))
    expect(page.get_by_text("Likely start").first).to_be_visible()
    expect(page.locator("a.offer").first).to_contain_text("right away")


def test_approval_reaches_the_asker_by_the_socket(visit):
    bob = visit("bob")
    request = bob.open(bob.link("/requests/?state=awaiting_approval", r"/requests/req-[^/\"]+/"))
    _is_live(request)
    _mark(request)
    approver = visit("approver").open("/approvals/")

    approver.get_by_label("Note").first.fill("Go ahead")
    approver.get_by_role("button", name="Approve", exact=True).first.click()

    expect(approver.get_by_text("Approved. It is in the queue now.")).to_be_visible()
    expect(request.locator("main")).not_to_contain_text("Awaiting approval")
    expect(request.locator("main")).to_contain_text(re.compile("In the queue|Active|Preparing"))


def test_token_is_shown_once(visit):
    page = visit("bob").open("/tokens/")

    page.get_by_label("Name").fill("notebook")
    page.get_by_role("button", name="Make a token").click()

    secret = page.locator(".snippet code").first.inner_text()
    assert len(secret) > 20
    page.goto(page.url)
    expect(page.get_by_role("cell", name="notebook").first).to_be_visible()
    assert secret not in page.content()


def test_request_is_sent_by_keyboard_alone(visit):
    page = visit("bob").open("/requests/new/")
    expect(page.locator("#quote")).to_have_attribute("aria-live", "polite")

    def tab_to(selector: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("selector => document.activeElement.matches(selector)", selector):
                return
        raise AssertionError(f"Tab never reaches {selector}")

    tab_to("a.skip")
    page.keyboard.press("Enter")
    tab_to("input[name=flavor]")
    page.keyboard.press("Space")
    page.keyboard.press("ArrowDown")
    tab_to("#id_name")
    page.keyboard.type("By keyboard")
    expect(page.locator("#quote .stat-value")).to_be_visible()
    page.keyboard.press("Enter")

    page.wait_for_url(re.compile(r"/(leases/lse|requests/req)-"))
    expect(page.get_by_role("heading", level=1)).to_have_text("By keyboard")


def test_language_and_theme_are_remembered(visit):
    page = visit("alice").open("/teams/")

    page.locator(".rail .me").click()
    page.locator("#menu-me").get_by_role("button", name="Dark").click()
    expect(page.locator("html")).to_have_attribute("data-bs-theme", "dark")
    page.locator("#menu-me").get_by_role("button", name="中文").click()

    expect(page.locator("html")).to_have_attribute("lang", "zh-Hans")
    expect(page.locator("html")).to_have_attribute("data-bs-theme", "dark")
    expect(page.get_by_role("heading", level=1)).to_have_text("团队")
