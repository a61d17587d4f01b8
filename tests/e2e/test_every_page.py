from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.urls import get_resolver

from tests.e2e.pages import PAGES
from tests.e2e.visitor import barriers, overflow

SCREENSHOTS = Path(__file__).resolve().parents[2] / "screenshots"
WIDTHS = (1440, 390, 2560)
# What the theme switch does; pages outside the shell have none.
WEAR = """theme => {
  document.documentElement.setAttribute("data-bs-theme", theme);
  document.dispatchEvent(new CustomEvent("theme:change"));
}"""
# These change something or are parts of a page; a person never opens them as one.
NOT_PAGES = {
    # People of the demo have no second factor: tests/web/test_second_factor.py asks for these pages.
    "oauth_device", "oauth_token",
    "second_step", "second_factor_begin", "second_factor_confirm", "second_factor_codes", "second_factor_off",
    "second_factor_reset", "passkey_begin", "passkey_add", "passkey_remove",
    "sso_begin", "sso_back", "sso_leave", "single_sign_on_remove",
    "sign_out", "request_quote", "request_withdraw", "request_decide", "lease_extend", "lease_release",
    "notifications_read", "member_add", "member_remove", "invoice_csv", "token_revoke", "period_close",
    "ssh_key_remove", "terminal_share", "terminal_unshare", "watch_ticket", "template_remove",
    "job_log", "job_raw", "job_cancel", "job_retry",
    "job_artifact", "contact_point_test", "contact_point_remove", "contact_point_confirm",
    "node_cordon", "node_uncordon", "node_revoke", "node_wake", "node_sleep", "device_clear", "request_growth",
    "node_quarantine", "node_health_clear", "node_rotate", "node_accept", "lease_processes", "lease_ticket",
    "lease_port",
    # Somebody else has to share their terminal first: test_terminal.py looks at this one.
    "lease_watch",
    "sessions_end_others", "session_end", "password", "reservation_decide", "extension_withdraw", "extension_decide",
    "calendar_mine", "reservation_cancel", "window_change", "window_cancel",
    "announcements_now", "announcement_dismiss", "announcement_withdraw",
    "policy_activate", "policy_roll_back", "cohort_rename", "cohort_remove", "priority_give", "priority_revoke",
    "currency", "flavors_standard", "person_link", "join", "invitation", "team_invitation_revoke", "month_zone",
    "report_file", "rate_withdraw", "rate_move", "invoice_pdf", "note_decide", "note_withdraw", "refund_withdraw",
    "mailing_send", "mailing_remove",
    "energy_factor_end", "energy_factor_import",
    "import_undo",
    "discount_end", "deputy_end", "see_as_end", "person_close", "person_reopen",
    "idle_rule_remove", "idle_snooze", "advice_dismiss", "advice_restore", "lab_stop", "lab_trace",
    "alert_acknowledge", "alert_resume", "alert_rule_switch", "alert_rule_remove", "silence_make", "silence_end",
    "team_budget_end",
    "workshop_add", "workshop_remove", "workshop_decide", "workshop_cancel", "workshop_repeat", "workshop_start",
    "team_wallet_move", "team_wallet_set", "team_wallet_close", "team_wallet_csv",
}  # fmt: skip


def _unroll(shown: Any, width: int) -> None:
    """Make the window as tall as the page, so that bars stay at its ends, and wait until it has settled."""
    shown.set_viewport_size({"width": width, "height": 900})
    shown.wait_for_load_state("networkidle")
    shown.evaluate("() => document.fonts.ready")
    tall = int(shown.evaluate("() => document.documentElement.scrollHeight"))
    shown.set_viewport_size({"width": width, "height": min(max(tall, 900), 8000)})


def test_every_page_is_looked_at():
    routes = {p.name for p in get_resolver("portal.web.urls").url_patterns}

    listed = {page.route for page in PAGES}

    assert routes - NOT_PAGES == listed


# The quick look at a phone; the pictures below look at everybody's pages, on a phone too.
@pytest.mark.parametrize("who", ["bob", "operator"])
def test_pages_are_sound_on_a_phone(who, visit):
    visitor = visit(who, phone=True)
    visitor.look("dark", "zh")
    tab, found = visitor.context.new_page(), []

    for page in (page for page in PAGES if page.who == who):
        page.visit(visitor, tab)
        found += [f"{page.name}: {text}" for text in overflow(tab)]

    assert not found, "\n".join(found)


@pytest.mark.shots
@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_shuts_nobody_out_and_leaves_its_picture(page, language, visit):
    SCREENSHOTS.mkdir(exist_ok=True)
    visitor = visit(page.who)
    visitor.look("light", language)
    shown = page.visit(visitor)
    found = []

    for theme in ("light", "dark"):
        shown.evaluate(WEAR, theme)
        for width in WIDTHS:
            _unroll(shown, width)
            shown.screenshot(path=SCREENSHOTS / f"{page.name}-{width}-{theme}-{language}.png")
            found += [f"{width} {theme}: {text}" for text in (*overflow(shown), *barriers(shown))]

    assert not found, "\n".join(found)
