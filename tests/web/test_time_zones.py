"""One time zone for each person: shown, typed and said in it, whatever zone the portal or the browser is in."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django import forms
from django.test import Client
from django.utils import timezone, translation

from portal.accounts.models import User
from portal.accounts.zones import set_profile
from portal.common.errors import Invalid
from portal.common.moments import moment, month
from portal.web.fields import MomentField
from tests.portal.builders import PASSWORD, World

SignedIn = Callable[[str], Client]


class OneMoment(forms.Form):
    """A form with a time."""

    at = MomentField(label="At", hint="When.")


def test_the_browsers_zone_is_taken_at_the_first_sign_in_and_said(world: World) -> None:
    client, form = Client(), {"username": "bob", "password": PASSWORD, "zone": "Asia/Shanghai"}

    page = client.post("/sign-in/", form, follow=True)

    assert User.objects.get(username="bob").time_zone == "Asia/Shanghai"
    assert "Times are shown in Asia/Shanghai" in page.text
    assert 'data-zone="Asia/Shanghai"' in page.text


@pytest.mark.parametrize("sent", ["America/New_York", "Mars/Olympus", "../etc/passwd", ""])
def test_a_later_sign_in_from_elsewhere_changes_nothing(world: World, sent: str) -> None:
    set_profile(user=world.user("bob"), time_zone="Europe/Berlin")

    Client().post("/sign-in/", {"username": "bob", "password": PASSWORD, "zone": sent})

    assert User.objects.get(username="bob").time_zone == "Europe/Berlin"


def test_what_is_typed_is_meant_and_shown_in_ones_own_zone(world: World, signed_in: SignedIn) -> None:
    set_profile(user=world.user("bob"), time_zone="Asia/Shanghai")
    nine = (timezone.now().astimezone(UTC) + timedelta(days=2)).replace(hour=1, minute=0)
    form = {
        "team": "perception", "flavor": "h100-1g-10gb", "count": "1", "duration": "1 h",
        "starts_at": f"{nine:%Y-%m-%d}T09:00",
    }  # fmt: skip

    page = signed_in("bob").post("/requests/new/", form, follow=True)

    asked = world.user("bob").requests.get()
    assert asked.starts_at == nine.replace(second=0, microsecond=0)
    assert "09:00" in page.text


def test_every_form_that_asks_for_a_time_names_its_zone(world: World, signed_in: SignedIn) -> None:
    for name in ("bob", "alice"):
        set_profile(user=world.user(name), time_zone="Asia/Shanghai")

    for name, path in (
        ("bob", "/requests/new/"),
        ("bob", "/reservations/"),
        ("alice", "/teams/vision/quota/"),
        ("alice", "/maintenance/"),
        ("alice", "/finance/prices/"),
    ):
        page = signed_in(name).get(path)
        if "datetime-local" in page.text:
            assert "Asia/Shanghai" in page.text.partition("datetime-local")[2], path


def test_a_time_that_clocks_skip_is_refused_with_what_to_choose() -> None:
    with timezone.override("Europe/Berlin"), translation.override("en"):
        form = OneMoment({"at": "2027-03-28T02:30"})

        assert form.errors["at"] == [
            "02:30 does not exist on 28 Mar 2027 in Europe/Berlin: clocks are put forward then. "
            "Choose 03:30 or another time."
        ]


def test_of_a_time_that_comes_twice_it_is_the_first() -> None:
    with timezone.override("Europe/Berlin"):
        form = OneMoment({"at": "2026-10-25T02:30"})

        assert form.is_valid()
        assert form.cleaned_data["at"] == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)


@pytest.mark.parametrize("text", ["0001-01-01T00:00", "9999-12-31T23:59", "tomorrow", "2026-13-01T00:00"])
def test_a_time_beyond_the_calendar_is_refused(text: str) -> None:
    for zone in ("Pacific/Kiritimati", "Pacific/Niue"):
        with timezone.override(zone):
            OneMoment({"at": text}).is_valid()  # raises nothing


def test_months_of_bills_are_those_of_utc_wherever_one_is() -> None:
    begins = datetime(2026, 11, 1, tzinfo=UTC)
    with timezone.override("America/New_York"), translation.override("en"):
        assert month(begins) == "November 2026"
        assert moment(begins, now=begins) == "31 Oct, 20:00"


def test_one_format_of_moments_in_both_languages() -> None:
    at = datetime(2026, 11, 22, 10, 30, tzinfo=UTC)
    with timezone.override("UTC"):
        with translation.override("en"):
            assert [moment(at, now=at), moment(at, now=at + timedelta(days=60))] == [
                "22 Nov, 10:30", "22 Nov 2026, 10:30",
            ]  # fmt: skip
        with translation.override("zh-hans"):
            assert moment(at, now=at) == "11月22日 10:30"


def test_sentences_of_the_api_are_in_the_zone_that_is_named_and_times_in_utc(world: World) -> None:
    set_profile(user=world.user("bob"), time_zone="Asia/Shanghai")
    headers = {"Authorization": f"Bearer {world.token('bob')}"}
    told = Client().get("/api/v1/me/", headers=headers).json()
    assert told["time_zone"] == "Asia/Shanghai"

    answer = Client().put(
        "/api/v1/me/", {"time_zone": "Europe/Berlin"}, content_type="application/json", headers=headers
    )

    assert answer.json()["time_zone"] == "Europe/Berlin"
    refused = Client().put(
        "/api/v1/me/", {"time_zone": "Mars/Olympus"}, content_type="application/json", headers=headers
    )
    assert refused.status_code == 422
    assert "Europe/Berlin" in refused.text


def test_a_zone_or_language_that_does_not_exist_is_refused(world: World) -> None:
    with pytest.raises(Invalid) as error:
        set_profile(user=world.user("bob"), time_zone="Mars/Olympus", language="tlh")
    assert set(error.value.fields) == {"time_zone", "language"}


def test_the_profile_keeps_zone_and_language(world: World, signed_in: SignedIn) -> None:
    bob = signed_in("bob")
    assert "chosen none yet" in bob.get("/profile/").text

    page = bob.post("/profile/", {"time_zone": "Asia/Shanghai", "language": "zh-hans"}, follow=True)

    kept = User.objects.get(username="bob")
    assert (kept.time_zone, kept.language) == ("Asia/Shanghai", "zh-hans")
    assert 'lang="zh-Hans"' in page.text
    assert bob.post("/profile/", {"time_zone": "Mars", "language": "en"}).status_code == 422


def test_the_switch_of_languages_is_kept_for_the_next_browser(world: World, signed_in: SignedIn) -> None:
    signed_in("bob").post("/language/", {"language": "zh-hans", "next": "/"})

    page = Client().post("/sign-in/", {"username": "bob", "password": PASSWORD}, follow=True)

    assert 'lang="zh-Hans"' in page.text
