"""Calendar, form and engine read one timeline: what one refuses the other shows, with what would be free."""

from __future__ import annotations

import re
from datetime import timedelta

from django.utils import timezone

from tests.portal.builders import World
from tests.portal.upkeep import plan
from tests.web.conftest import Publish, SignedIn

HOUR = timedelta(hours=1)


def asked(world: World, hours: int) -> dict[str, str]:
    at = timezone.localtime(world.now + hours * HOUR)
    return {
        "team": "perception", "flavor": "h100", "count": "8", "duration": "1 h",
        "starts_at": f"{at:%Y-%m-%dT%H:%M}",
    }  # fmt: skip


def test_a_start_that_is_promised_stands_on_the_calendar_and_is_refused_in_the_quote(
    world: World, signed_in: SignedIn, publish: Publish
) -> None:
    world.active("charlie", "h100", count=8, duration_s=7200)
    waits = world.submit("bob", "h100", count=8, duration_s=7200, at=world.now - HOUR)
    world.turn()
    publish(world.now)

    page = signed_in("bob").get("/calendar/").text
    strange = signed_in("charlie").get("/calendar/").text
    quote = signed_in("bob").get("/requests/quote/", asked(world, 3)).text

    assert "is-own is-promise" in page
    assert f"/requests/{waits.uid}/" in page
    assert waits.uid not in strange
    assert "is-busy is-promise" in strange
    assert "Not then" in quote
    assert 'data-fill="#id_starts_at"' in quote


def test_a_booking_over_maintenance_says_so_and_its_devices_do_not_look_free(
    world: World, signed_in: SignedIn, publish: Publish
) -> None:
    plan(world, start=3 * HOUR, length=2 * HOUR)
    publish(world.now)

    quote = signed_in("bob").get("/requests/quote/", asked(world, 4)).text
    page = signed_in("bob").get("/calendar/").text

    assert "maintenance is planned then on gpu-01" in quote
    assert page.count("is-maintenance") > 8  # the node and each of its devices


def test_the_calendar_says_when_each_size_is_free_and_leads_to_the_form(
    world: World, signed_in: SignedIn, publish: Publish
) -> None:
    unknown = signed_in("bob").get("/calendar/").text
    world.active("charlie", "h100", count=8, duration_s=7200)
    publish(world.now)

    page = signed_in("bob").get("/calendar/").text
    of_node = signed_in("bob").get("/calendar/?node=gpu-01").text
    long_ago = signed_in("bob").get("/calendar/?on=2020-01-01").text
    links = re.findall(r'class="cal-free [^"]*" href="([^"]+)"', page)

    assert "Free units by size" in page
    assert any("flavor=h100&amp;starts_at=" in link for link in links)
    assert signed_in("bob").get(links[0].replace("&amp;", "&")).status_code == 200
    assert not any("Free units by size" in text for text in (unknown, of_node, long_ago))
