"""Who is told when a month is closed, where the news leads, and what programs get of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client

from portal.billing.closing import close_period
from portal.billing.models import Invoice
from portal.billing.selectors import period_of
from portal.common.errors import Conflict, PeriodClosed
from portal.notifications.models import Notification
from portal.teams.models import Role
from portal.teams.services import add_member
from portal.web.notifications.rows import notification_rows
from tests.portal.builders import build_world

pytestmark = pytest.mark.django_db
FEBRUARY = datetime(2026, 2, 5, 9, tzinfo=UTC)


def test_finance_and_the_team_s_admins_are_told_once_of_a_closed_month(client: Client) -> None:
    world = build_world(now=datetime(2026, 3, 10, 9, tzinfo=UTC))
    world.ended("bob", "h100", seconds=1800, at=FEBRUARY)
    with pytest.raises(Conflict):
        close_period(period=period_of(FEBRUARY), actor=None, now=FEBRUARY + timedelta(hours=1))
    assert not Notification.objects.filter(kind__in=("invoice.issued", "report.ready")).exists()

    add_member(team=world.team("perception"), user=world.user("bob"), role=Role.ADMIN, now=world.now)
    add_member(team=world.team("speech"), user=world.user("charlie"), role=Role.ADMIN, now=world.now)
    close_period(period=period_of(FEBRUARY), actor=None, now=world.now)

    with pytest.raises(PeriodClosed):
        close_period(period=period_of(FEBRUARY), actor=None, now=world.now)
    invoice = Invoice.objects.get()
    ready = list(Notification.objects.filter(kind="report.ready").select_related("user"))
    assert [row.user.username for row in ready] == ["finance"]
    (row,) = notification_rows(ready)
    amount = f"{invoice.total_micro / 1_000_000:.2f} EUR"
    assert "2026-02 is closed" in row.text
    assert amount in row.text
    assert row.url == "/reports/?month=2026-02"

    issued = list(Notification.objects.filter(kind="invoice.issued").select_related("user"))
    assert [row.user.username for row in issued] == ["bob"]
    for news, shown in zip(issued, notification_rows(issued), strict=True):
        client.force_login(news.user)
        assert (invoice.number or "") in shown.text
        assert amount in shown.text
        assert client.get(shown.url).status_code == 200
