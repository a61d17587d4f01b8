"""From a notification to a message elsewhere: what is due, when it may go, how it went."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core import mail

from portal.accounts.models import User
from portal.notifications import delivering
from portal.notifications.contact_points import (
    add_contact_point,
    change_contact_point,
    confirm_contact_point,
)
from portal.notifications.contact_points import (
    test_contact_point as send_test,
)
from portal.notifications.delivering import AGAIN_AFTER, deliver_due, forget_deliveries
from portal.notifications.hours import may_go_at
from portal.notifications.models import ContactPoint, Delivery, Notification
from portal.notifications.outgoing import Undeliverable
from portal.notifications.services import notify
from portal.web.notifications.rows import words_of
from tests.portal.builders import World

pytestmark = pytest.mark.django_db
HOOK = "https://hooks.example.org/berth"
SHANGHAI = ZoneInfo("Asia/Shanghai")


class Outside:
    """The other end: keeps what was posted, answers as told."""

    def __init__(self) -> None:
        self.posted: list[Any] = []
        self.answer: tuple[int, bytes] | Exception = (200, b"ok")

    async def post(self, message: Any, _threads: Any) -> tuple[int, bytes]:
        self.posted.append(message)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Outside:
    there = Outside()
    monkeypatch.setattr(delivering, "post", there.post)
    return there


def contact(
    user: User, now: datetime, *, kind: str = "webhook", address: str = HOOK, **changes: Any
) -> ContactPoint:
    row = add_contact_point(user=user, kind=kind, address=address, origin="https://berth.test/", now=now).row
    return change_contact_point(user=user, contact_id=row.pk, now=now, **changes) if changes else row


def tell(
    user: User, at: datetime, *, target: str = "lse-1", kind: str = "lease.ends_soon", **more: Any
) -> None:
    notify([user], kind, target=target, at=at, **more)


def test_news_goes_once_to_each_contact_point_that_wants_its_topic(world: World, outside: Outside) -> None:
    bob, now = world.user("bob"), world.now
    contact(bob, now, name="all")
    contact(bob, now, name="jobs alone", muted=["leases"])
    contact(bob, now, name="off", is_on=False)
    contact(world.user("alice"), now)

    tell(bob, now)
    tell(bob, now + timedelta(seconds=1))

    assert deliver_due(words_of, now=now + timedelta(seconds=2)) == 1
    assert deliver_due(words_of, now=now + timedelta(seconds=3)) == 0
    assert len(outside.posted) == 1
    assert Delivery.objects.get().state == "sent"


def test_news_told_anew_is_sent_anew(world: World, outside: Outside) -> None:
    bob, now = world.user("bob"), world.now
    contact(bob, now)

    for second in range(2):
        tell(bob, now + timedelta(seconds=second), kind="lease.preempted", is_news=True)

    deliver_due(words_of, now=now + timedelta(seconds=5))
    assert len(outside.posted) == 2


def test_what_fails_is_tried_again_later_and_given_up_in_the_end(world: World, outside: Outside) -> None:
    bob, now = world.user("bob"), world.now
    contact(bob, now)
    tell(bob, now)
    outside.answer = Undeliverable("no answer within 8 seconds")

    for nth, pause in enumerate(AGAIN_AFTER):
        assert deliver_due(words_of, now=now) == 1
        assert deliver_due(words_of, now=now + pause - timedelta(seconds=1)) == 0
        assert Delivery.objects.get().attempts == nth + 1
        now += pause
    outside.answer = (500, b"")
    deliver_due(words_of, now=now)

    row = Delivery.objects.get()
    assert (row.state, row.error) == ("failed", "answered 500")
    assert len({message.headers["webhook-id"] for message in outside.posted}) == 1


def test_a_worker_that_died_while_sending_leaves_it_to_the_next(world: World, outside: Outside) -> None:
    bob, now = world.user("bob"), world.now
    contact(bob, now)
    tell(bob, now)
    Delivery.objects.update(claimed_until=now + delivering.CLAIM)

    assert deliver_due(words_of, now=now + timedelta(seconds=1)) == 0
    assert deliver_due(words_of, now=now + delivering.CLAIM) == 1


def test_a_chat_gets_what_piled_up_in_quiet_hours_as_one_message(world: World, outside: Outside) -> None:
    bob = world.user("bob")
    User.objects.filter(pk=bob.pk).update(time_zone="Asia/Shanghai", language="zh-hans")
    night = datetime(2026, 3, 2, 23, 30, tzinfo=SHANGHAI)
    address = "https://open.feishu.cn/open-apis/bot/v2/hook/1"
    contact(bob, night, kind="feishu", address=address, quiet_from=22 * 60, quiet_until=7 * 60)
    outside.answer = (200, b'{"code": 0}')

    tell(bob, night, target="lse-1")
    tell(bob, night, target="lse-2")

    assert deliver_due(words_of, now=night + timedelta(minutes=1)) == 0
    assert deliver_due(words_of, now=night + timedelta(hours=7, minutes=29)) == 0
    assert deliver_due(words_of, now=night + timedelta(hours=7, minutes=30)) == 1
    said = outside.posted[0].body.decode()
    assert said.count("https://berth.test/leases/lse-") == 2
    assert "租约" in said


@pytest.mark.parametrize(
    ("digest", "quiet", "at", "goes"),
    [
        (None, (None, None), "2026-03-02T23:30", "2026-03-02T23:30"),
        (None, (22 * 60, 7 * 60), "2026-03-02T06:59", "2026-03-02T07:00"),
        (None, (22 * 60, 7 * 60), "2026-03-02T07:00", "2026-03-02T07:00"),
        (None, (12 * 60, 13 * 60), "2026-03-02T12:00", "2026-03-02T13:00"),
        (8 * 60, (None, None), "2026-03-02T08:01", "2026-03-03T08:00"),
        (8 * 60, (None, None), "2026-03-02T07:00", "2026-03-02T08:00"),
        # Summer time begins in Berlin on 29 March at two: half past two is half past three.
        (150, (None, None), "2026-03-29T00:00", "2026-03-29T03:30"),
    ],
)
def test_hours_are_those_of_the_wall(
    digest: int | None, quiet: tuple[int | None, int | None], at: str, goes: str
) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    row = ContactPoint(digest_at=digest, quiet_from=quiet[0], quiet_until=quiet[1])

    found = may_go_at(row, datetime.fromisoformat(at).replace(tzinfo=berlin).astimezone(UTC), berlin)

    assert found == datetime.fromisoformat(goes).replace(tzinfo=berlin).astimezone(UTC)


def test_a_mailbox_is_written_to_once_its_owner_followed_the_link(world: World, settings: Any) -> None:
    settings.HAS_MAIL = True
    bob, now = world.user("bob"), world.now
    row = contact(bob, now, kind="email", address="bob@example.org")

    tell(bob, now)
    assert deliver_due(words_of, now=now) == 1
    (letter,) = mail.outbox
    assert letter.to == ["bob@example.org"]
    _text, _link, rest = letter.body.partition("https://berth.test/contact-points/confirm/")
    signed = rest.partition("/")[0]

    assert confirm_contact_point(user=bob, signed=signed, now=now).pk == row.pk
    tell(bob, now, target="lse-2")
    deliver_due(words_of, now=now)
    assert "ends soon" in mail.outbox[1].body


def test_a_test_tells_that_it_works(world: World, outside: Outside) -> None:
    bob, now = world.user("bob"), world.now
    row = contact(bob, now)

    send_test(user=bob, contact_id=row.pk, now=now)
    deliver_due(words_of, now=now)

    assert b"contact.test" in outside.posted[0].body
    assert forget_deliveries(now=now + delivering.KEPT) == 0
    assert forget_deliveries(now=now + delivering.KEPT + timedelta(seconds=1)) == 1


def test_one_message_that_breaks_leaves_the_others_alone(world: World, outside: Outside) -> None:
    bob, now = world.user("bob"), world.now
    for name in ("one", "two"):
        contact(bob, now, name=name)
    tell(bob, now)
    outside.answer = RecursionError("too deep")

    assert deliver_due(words_of, now=now) == 2
    assert {row.attempts for row in Delivery.objects.all()} == {1}


def test_nobody_waits_long_for_a_mail_server(
    world: World, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that sends cannot grant: the whole run has an end, whatever threads still wait for."""
    settings.HAS_MAIL = True
    let_go = threading.Event()
    monkeypatch.setattr(delivering, "mail", lambda *_words: let_go.wait(20))
    monkeypatch.setattr(delivering, "ALL_WITHIN_S", 0.05)
    contact(world.user("bob"), world.now, kind="email", address="bob@example.org")

    assert deliver_due(words_of, now=world.now) == 1

    let_go.set()
    row = Delivery.objects.get()
    assert (row.state, row.attempts, row.error) == ("waiting", 1, "no answer within 0.05 seconds")


def test_an_account_that_is_switched_off_is_told_nothing(world: World, outside: Outside) -> None:
    bob, now = world.user("bob"), world.now
    contact(bob, now)
    tell(bob, now)
    User.objects.filter(pk=bob.pk).update(is_active=False)

    assert deliver_due(words_of, now=now) == 0
    assert outside.posted == []


def test_news_that_cannot_be_worded_keeps_nobody_elses_back(world: World, outside: Outside) -> None:
    bob, alice, now = world.user("bob"), world.user("alice"), world.now
    contact(bob, now)
    contact(alice, now)
    tell(bob, now, target="lse-broken")
    tell(alice, now)

    def read(news: list[Notification]) -> list[tuple[str, str, str]]:
        if any(one.target == "lse-broken" for one in news):
            raise TypeError("figures of another version")
        return words_of(news)

    assert deliver_due(read, now=now) == 1
    assert dict(Delivery.objects.values_list("contact__user__username", "state")) == {
        "bob": "failed",
        "alice": "sent",
    }
