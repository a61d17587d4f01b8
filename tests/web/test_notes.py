from __future__ import annotations

from datetime import UTC, datetime

from portal.billing.closing import close_period
from portal.billing.models import InvoiceNote
from portal.billing.selectors import period_of
from portal.teams.models import Role
from portal.teams.services import add_member
from tests.portal.builders import World
from tests.web.conftest import SignedIn

MARCH = datetime(2026, 3, 10, 9, 0, tzinfo=UTC)
LINE = "/invoices/perception/2026-03/lines/1/"


def test_two_people_of_finance_correct_a_line_and_its_team_sees_it(world: World, signed_in: SignedIn) -> None:
    add_member(team=world.team("northwind"), user=world.user("alice"), role=Role.FINANCE, now=world.now)
    lease = world.ended("bob", "h100", seconds=7200, at=MARCH)
    close_period(period=period_of(MARCH), actor=None, now=world.now)
    finance, alice, bob, charlie = map(signed_in, ("finance", "alice", "bob", "charlie"))

    assert f"{LINE}correct/?lease={lease.uid}" in finance.get(LINE).text
    assert "correct/" not in bob.get(LINE).text
    given = {"kind": "credit", "amount": "1.00", "reason": "The fan was broken", "lease": lease.uid}
    wrong = finance.post(f"{LINE}correct/", given | {"amount": "9999.00"})
    assert (wrong.status_code, InvoiceNote.objects.count()) == (422, 0)
    assert "can be credited" in wrong.text
    finance.post(f"{LINE}correct/", given)
    note = InvoiceNote.objects.get()
    url = f"/finance/notes/{note.uid}/"
    for stranger, status in ((bob, 403), (charlie, 404)):
        assert stranger.get(url).status_code == 404
        assert stranger.get(f"{LINE}correct/").status_code == status
        assert stranger.get("/finance/notes/").status_code == 403
        assert stranger.post(f"{url}decide/", {"decision": "approve"}).status_code == 403
    assert "decision" not in finance.get(url).text
    finance.post(f"{url}decide/", {"decision": "approve"})
    note.refresh_from_db()
    assert note.state == "proposed"
    assert "proposes to correct invoice" in alice.get("/notifications/").text

    alice.post(f"{url}decide/", {"decision": "approve"})

    note.refresh_from_db()
    draft = f"/invoices/perception/{note.period}/"
    assert f'href="{url}"' in bob.get(draft).text
    assert "The fan was broken" in bob.get(url).text
    assert charlie.get(url).status_code == 404
    assert note.uid in finance.get("/finance/notes/").text
