"""Reports by mail on pages: set by those who may, with what became of each."""

from __future__ import annotations

from portal.billing.models import ReportMailing
from portal.notifications.models import Notification
from tests.portal.builders import World
from tests.web.conftest import SignedIn

PAGE = "/finance/mailings/"
GIVEN = {
    "team": "vision",
    "day": "3",
    "recipients": "alice, finance",
    "formats": ["pdf"],
    "language": "en",
    "is_on": "on",
}


def test_an_admin_has_a_report_sent_changes_and_removes_it(world: World, signed_in: SignedIn) -> None:
    alice, bob, finance = signed_in("alice"), signed_in("bob"), signed_in("finance")
    assert bob.get(PAGE).status_code == 403
    for wrong in ({"recipients": "charlie"}, {"formats": []}, {"team": "language"}, {"day": "29"}):
        assert alice.post(PAGE, GIVEN | wrong).status_code == 422
    assert alice.post(PAGE, GIVEN).status_code == 302
    made = ReportMailing.objects.get()
    assert made.day == 3
    assert "on day 3" in finance.get(PAGE).text

    one = f"{PAGE}{made.pk}/"
    assert bob.get(one).status_code == 404
    assert alice.post(one, GIVEN | {"day": "", "is_on": ""}).status_code == 302
    made.refresh_from_db()
    assert (made.day, made.is_on) == (None, False)

    assert alice.post(f"{one}send/", {"month": "this"}).status_code == 302
    assert Notification.objects.filter(kind="report.mailed").count() == 2
    assert "as a draft" in finance.get("/notifications/").text
    assert alice.post(f"{one}remove/").status_code == 302
    assert not ReportMailing.objects.exists()
