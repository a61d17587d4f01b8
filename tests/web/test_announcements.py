from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.utils import timezone

from portal.audit.models import AuditEntry
from portal.common.errors import Forbidden, Invalid, NotFound
from portal.notifications.announcements import (
    announce_to_people,
    announcements_for,
    dismiss_announcement,
    withdraw_announcement,
)
from portal.notifications.models import Announcement
from tests.portal.builders import World
from tests.web.conftest import SignedIn

HOME = "/operations/announcements/"


def announce(world: World, text: str = "The lab moves on Friday.", **more: Any) -> Announcement:
    given: dict[str, Any] = {
        "level": "info", "text_zh": "", "team": None, "starts_at": None, "ends_at": None, "now": world.now,
        "rights": world.rights("operator"), **more,
    }  # fmt: skip
    return announce_to_people(text_en=text, **given)


def read_by(world: World, name: str = "", *, after_s: int = 0) -> list[str]:
    rights = world.rights(name) if name else None
    return [row.text_en for row in announcements_for(rights, now=world.now + timedelta(seconds=after_s)).rows]


def test_an_announcement_is_read_by_whom_it_is_for_in_its_time_only(world: World) -> None:
    hour, day = timedelta(hours=1), timedelta(days=1)
    announce(world, "for all", ends_at=world.now + day)
    announce(world, "for vision", team=world.team("vision"), level="critical")
    announce(world, "later", starts_at=world.now + hour, ends_at=world.now + 2 * hour, level="warning")

    assert read_by(world) == ["for all"], "who has not signed in sees what is for everybody"
    assert read_by(world, "alice") == read_by(world, "bob") == ["for vision", "for all"], "louder ones first"
    assert read_by(world, "charlie") == ["for all"], "another team's is not theirs to read"
    assert read_by(world, "bob", after_s=3600) == ["for vision", "later", "for all"]
    assert read_by(world, "bob", after_s=7200) == ["for vision", "for all"]
    assert read_by(world, "bob", after_s=86_400) == ["for vision"]
    assert announcements_for(world.rights("bob"), now=world.now).changes_at == world.now + hour


def test_a_person_dismisses_for_themselves_and_an_operator_withdraws_for_all(world: World) -> None:
    first, hidden = announce(world, "first"), announce(world, "hidden", team=world.team("language"))

    for _again in range(2):
        dismiss_announcement(uid=first.uid, rights=world.rights("bob"), now=world.now)
    with pytest.raises(NotFound):
        dismiss_announcement(uid=hidden.uid, rights=world.rights("bob"), now=world.now)
    assert (read_by(world, "bob"), read_by(world, "alice")) == ([], ["first"])
    with pytest.raises(Forbidden):
        withdraw_announcement(uid=first.uid, rights=world.rights("alice"), now=world.now)
    withdraw_announcement(uid=first.uid, rights=world.rights("operator"), now=world.now)

    assert read_by(world, "alice") == []
    actions = AuditEntry.objects.filter(target=first.uid).order_by("pk").values_list("action", flat=True)
    assert list(actions) == ["announcement.made", "announcement.withdrawn"]


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"text": "  "}, "text_en"), ({"text": "x" * 301}, "text_en"), ({"text": "two\nlines"}, "text_en"),
        ({"text_zh": "长" * 301}, "text_zh"), ({"level": "loud"}, "level"),
        ({"ends_at": timedelta(0)}, "ends_at"), ({"ends_at": timedelta(hours=-1)}, "ends_at"),
    ],
)  # fmt: skip
def test_what_cannot_be_said_is_refused_at_its_field(world: World, more: dict[str, Any], field: str) -> None:
    if "ends_at" in more:
        more = {**more, "ends_at": world.now + more["ends_at"]}

    with pytest.raises(Invalid) as refused:
        announce(world, **more)

    assert set(refused.value.fields) == {field}
    assert not Announcement.objects.exists()


def test_the_database_keeps_silent_and_backward_announcements_out(world: World) -> None:
    one = announce(world)
    for wrong in ({"text_en": ""}, {"level": "loud"}, {"ends_at": one.starts_at}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Announcement.objects.filter(pk=one.pk).update(**wrong)


def test_an_operator_announces_on_the_page_and_everybody_reads_it_in_their_language(
    world: World, signed_in: SignedIn
) -> None:
    operator, bob = signed_in("operator"), signed_in("bob")
    given = {"text_en": "Down <b>at noon</b>", "text_zh": "中午停机", "level": "warning"}

    assert bob.get(HOME).status_code == bob.post(HOME, given).status_code == 403
    assert operator.post(HOME, {**given, "text_en": ""}).status_code == 422
    assert operator.post(HOME, given).status_code == 302
    said = Announcement.objects.get()

    assert "Down &lt;b&gt;at noon&lt;/b&gt;" in bob.get("/").text
    assert "中午停机" in bob.get("/", headers={"Accept-Language": "zh-hans"}).text
    sign_in = Client().get("/sign-in/").text
    assert "Down &lt;b&gt;at noon" in sign_in
    assert "/dismiss/" not in sign_in
    at = f"/announcements/{said.uid}/dismiss/"
    assert bob.post(at, {"next": "/leases/"})["Location"] == "/leases/"
    assert "at noon" not in bob.get("/").text
    part = bob.get("/announcements/now/").text
    assert "hidden" in part
    assert "<html" not in part
    assert bob.post("/announcements/ann-0000000000000000/dismiss/").status_code == 404
    assert bob.post(f"{HOME}{said.uid}/withdraw/").status_code == 403
    assert operator.post(f"{HOME}{said.uid}/withdraw/").status_code == 302
    assert Announcement.objects.get().withdrawn_at <= timezone.now()
    assert "at noon" not in Client().get("/sign-in/").text
