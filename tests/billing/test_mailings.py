"""Reports sent by themselves: a month once, to those who may read it, with files that they may open."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core import mail
from django.test import override_settings

from portal.billing import mailings
from portal.billing.closing import close_period
from portal.billing.mailings import MailingWish, deliveries_of, send_due_reports, set_mailing
from portal.billing.metering import meter_all
from portal.billing.models import ReportMailing, ReportSending
from portal.billing.periods import period_of
from portal.common.errors import Forbidden, Invalid
from portal.notifications import delivering
from portal.notifications.contact_points import add_contact_point
from portal.notifications.delivering import deliver_due
from portal.notifications.models import ContactPoint, DeliveryState, Notification
from portal.teams.models import Membership
from portal.web.notifications.rows import words_of
from portal.web.reports.mailing_files import files_of_news
from tests.portal.builders import World, build_world

FEBRUARY = datetime(2026, 2, 5, 9, tzinfo=UTC)
NOW = datetime(2026, 3, 3, 9, tzinfo=UTC)


@pytest.fixture
def world(db: None) -> World:
    world = build_world(now=NOW)
    world.ended("bob", seconds=3600, at=FEBRUARY, duration_s=7200)
    meter_all(now=NOW)
    return world


def mailing(world: World, team: str = "northwind", who: str = "finance", **more: Any) -> ReportMailing:
    given = {"day": None, "formats": ["pdf", "csv"], "language": "en", "recipients": ["finance"]} | more
    return set_mailing(team=world.team(team), wish=MailingWish(**given), rights=world.rights(who), now=NOW)


def close(world: World) -> None:
    close_period(period=period_of(FEBRUARY), actor=None, now=NOW + timedelta(minutes=1))


def told() -> list[tuple[str, str]]:
    rows = Notification.objects.filter(kind="report.mailed").order_by("user__username")
    return [(row.user.username, row.facts["month"]) for row in rows]


def test_a_closed_month_is_sent_once(world: World) -> None:
    mailing(world, recipients=["finance", "approver"])
    assert send_due_reports(now=NOW) == 0

    close(world)

    assert [send_due_reports(now=NOW + timedelta(minutes=n)) for n in (2, 3)] == [1, 0]
    assert told() == [("approver", "2026-02"), ("finance", "2026-02")]


def test_the_month_before_is_sent_on_its_day(world: World) -> None:
    mailing(world, day=5)
    mailing(world, day=2)  # this month's second day was before it was made
    day = datetime(2026, 3, 5, tzinfo=UTC)

    assert [
        send_due_reports(now=at) for at in (day - timedelta(seconds=1), day, day + timedelta(days=9))
    ] == [0, 1, 0]
    assert told() == [("finance", "2026-02")]
    assert send_due_reports(now=datetime(2026, 4, 6, tzinfo=UTC)) == 2
    assert ReportSending.objects.count() == 3


def test_who_lost_the_right_to_see_the_team_gets_nothing(world: World) -> None:
    mailing(world, "vision", "alice", recipients=["alice", "finance"])
    Membership.objects.filter(user=world.user("alice")).delete()
    close(world)

    send_due_reports(now=NOW + timedelta(minutes=2))

    assert told() == [("finance", "2026-02")]


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"day": 29}, "day"),
        ({"formats": []}, "formats"),
        ({"formats": ["doc"]}, "formats"),
        ({"language": "xx"}, "language"),
        ({"recipients": []}, "recipients"),
        ({"recipients": ["charlie"]}, "recipients"),
        ({"recipients": ["nobody"]}, "recipients"),
    ],
)
def test_what_cannot_be_sent_is_named(world: World, more: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        mailing(world, "vision", "alice", **({"recipients": ["alice"]} | more))
    assert set(refused.value.fields) == {field}


def test_only_admins_and_finance_have_reports_sent(world: World) -> None:
    with pytest.raises(Forbidden):
        mailing(world, "perception", "bob", recipients=["bob"])
    made = mailing(world, "vision", "alice", recipients=["alice"])
    assert list(mailings.mailings_of(world.rights("bob"))) == []
    assert list(mailings.mailings_of(world.rights("alice"))) == [made]


@override_settings(HAS_MAIL=True)
def test_a_mailbox_gets_the_files_and_a_webhook_their_addresses(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    posted: list[Any] = []

    async def post(message: Any, _threads: Any) -> tuple[int, bytes]:
        posted.append(message)
        return 200, b""

    monkeypatch.setattr(delivering, "post", post)
    for kind, address in (("email", "finance@example.org"), ("webhook", "https://hooks.example.org/x")):
        add_contact_point(
            user=world.user("finance"),
            kind=kind,
            address=address,
            origin="https://berth.example.org",
            now=NOW,
        )
    ContactPoint.objects.update(confirmed_at=NOW)
    made = mailing(world, formats=["csv", "xlsx"], language="zh-hans")
    close(world)
    send_due_reports(now=NOW + timedelta(minutes=2))

    deliver_due(words_of, files_of_news, now=NOW + timedelta(minutes=3))

    (sent,) = [one for one in mail.outbox if one.attachments]
    names = {name: content for name, content, _kind in sent.attachments}
    assert set(names) == {"berth-northwind-2026-02-lines.csv", "berth-northwind-2026-02-lines.xlsx"}
    assert "202602-0001" in str(names["berth-northwind-2026-02-lines.csv"])
    bodies = [json.loads(one.body) for one in posted]
    (body,) = [one for one in bodies if one["type"] == "report.mailed"]
    assert body["data"]["files"][0].startswith(
        "https://berth.example.org/api/v1/reports/2026-02/files/lines.xlsx/?team=northwind"
    )
    assert {one.state for one in deliveries_of(made, most=9)} == {DeliveryState.SENT}


@override_settings(HAS_MAIL=True)
def test_a_file_that_cannot_be_made_is_tried_again(world: World) -> None:
    add_contact_point(
        user=world.user("finance"), kind="email", address="f@example.org", origin="https://b.example", now=NOW
    )
    ContactPoint.objects.update(confirmed_at=NOW)
    made = mailing(world)
    close(world)
    send_due_reports(now=NOW + timedelta(minutes=2))

    def broken(_news: Notification) -> list[Any]:
        raise RuntimeError("no font")

    deliver_due(words_of, broken, now=NOW + timedelta(minutes=3))

    (row,) = deliveries_of(made, most=9)
    assert (row.state, row.attempts) == (DeliveryState.WAITING, 1)
    assert "no font" in row.error
