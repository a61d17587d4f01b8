from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.template import Context, Template
from django.test import Client
from django.utils import translation
from django.utils.formats import date_format

from portal.billing.metering import meter_all
from portal.billing.selectors import period_of
from portal.catalog.models import Flavor
from portal.leases.models import Lease, LeaseRequest
from portal.teams.models import Team
from tests.i18n.visible import visible, words
from tests.portal.builders import World
from tests.web.conftest import Publish, SignedIn

# Names of products, units and protocols that Chinese texts keep.
KEPT = {
    "Berth",
    "GPU",
    "MIG",
    "MPS",
    "API",
    "SSH",
    "CSV",
    "PDF",
    "XLSX",
    "FOCUS",
    "UTC",
    "EUR",
    "NVIDIA",
    "GB",
    "GiB",
    "min",
    "berth",
    "simulated",
    "Ctrl",
    # What an example of tags is made of: they are written in Latin letters.
    "paper",
    "iclr",
    "grant",
    "EU",
}
# What people of the test world are called; not texts of ours.
NAMES = {"CC", "Northwind", "Labs", "Vision", "Perception", "Segmentation", "Language", "Speech", "Robotics"}
PEOPLE = {"alice", "bob", "charlie", "approver", "finance", "operator"}
NAMES |= PEOPLE | {name.title() for name in PEOPLE}
PAGES = {
    "alice": ("/teams/", "/teams/vision/", "/teams/perception/quota/"),
    "approver": ("/approvals/",),
    "bob": (
        "/",
        "/requests/new/",
        "/requests/new/?flavor=h100&count=2&duration=6+h",
        "/requests/quote/?team=perception&flavor=h100&count=2&duration=6+h",
        "/requests/",
        "/leases/",
        "/cluster/",
        "/notifications/",
        "/tokens/",
        "/sessions/",
    ),
    "finance": ("/", "/invoices/", "/finance/months/", "/finance/prices/"),
    "operator": ("/", "/cluster/gpu-01/", "/operations/nodes/", "/operations/audit/"),
}
CHINESE = {"h100": "整张 H100", "h100-1g-10gb": "H100 切片 10 GB", "h100-3g-40gb": "H100 切片 40 GB"}


@pytest.fixture
def busy(world: World, publish: Publish) -> World:
    """Leases that run and ended, a request that waits for quota, and one that waits for approval."""
    for flavor in Flavor.objects.all():
        Flavor.objects.filter(pk=flavor.pk).update(name_zh=CHINESE.get(flavor.slug, "L40S 四分之一"))
    world.ended("bob", "h100-1g-10gb", seconds=617, at=world.now - timedelta(seconds=700))
    world.active("bob", "h100", count=7)
    world.submit("bob", "h100", count=2)
    Team.objects.filter(slug="perception").update(approval_above_gpu_seconds=3600)
    world.team("perception").refresh_from_db()
    world.submit("bob", "h100-3g-40gb", duration_s=80_000)
    world.turn()
    meter_all(now=world.now)
    publish(world.now)
    return world


def in_chinese(client: Client) -> Client:
    client.cookies["django_language"] = "zh-hans"
    return client


def english(html: str) -> list[str]:
    return [text for text in visible(html) if set(words(text)) - KEPT - NAMES]


@pytest.mark.parametrize("name", sorted(PAGES))
def test_the_pages_of_a_person_leave_no_english(busy: World, signed_in: SignedIn, name: str) -> None:
    browser = in_chinese(signed_in(name))

    answers = {path: browser.get(path) for path in PAGES[name]}

    assert {path: answer.status_code for path, answer in answers.items() if answer.status_code != 200} == {}
    assert all("<html" not in a.text or '<html lang="zh-Hans"' in a.text for a in answers.values())
    assert {path: found for path, answer in answers.items() if (found := english(answer.text))} == {}


def test_the_pages_of_a_lease_a_request_and_an_invoice_leave_no_english(
    busy: World, signed_in: SignedIn
) -> None:
    month = f"{period_of(busy.now).starts_at:%Y-%m}"
    bob = in_chinese(signed_in("bob"))
    leases = [f"/leases/{lease.uid}/" for lease in Lease.objects.all()]
    requests = [f"/requests/{row.uid}/?show=request" for row in LeaseRequest.objects.all()]

    answers = [bob.get(path) for path in [*leases, *requests, f"/invoices/perception/{month}/"]]

    assert {answer.status_code for answer in answers} == {200}
    assert [text for answer in answers for text in english(answer.text)] == []
    assert any("H100 切片 10 GB" in text for text in visible(answers[-1].text))


def test_refusals_and_missing_pages_are_chinese(busy: World, signed_in: SignedIn) -> None:
    bob = in_chinese(signed_in("bob"))

    refused = bob.post("/requests/new/", {"flavor": "h100", "count": "1", "duration": "soon"})
    missing = bob.get("/leases/lse-0000000000000000/")
    forbidden = bob.get("/operations/nodes/")

    assert [refused.status_code, missing.status_code, forbidden.status_code] == [422, 404, 403]
    assert [english(answer.text) for answer in (refused, missing, forbidden)] == [[], [], []]


def test_the_sign_in_page_is_chinese(world: World) -> None:
    answer = in_chinese(Client()).get("/sign-in/")

    assert english(answer.text) == []


def test_money_is_grouped_by_thousands_and_a_month_is_written_the_chinese_way() -> None:
    with translation.override("zh-hans"):
        amount = Template("{{ amount|floatformat:'2g' }}").render(Context({"amount": Decimal("12846.6")}))
        month = date_format(datetime(2026, 11, 21, tzinfo=UTC), "YEAR_MONTH_FORMAT")

    assert (amount, month) == ("12,846.60", "2026年11月")


def test_the_browser_gets_its_words_in_chinese(world: World, signed_in: SignedIn) -> None:
    catalogue = in_chinese(signed_in("bob")).get("/jsi18n/").text

    assert "正在重新连接" in re.sub(r"\\u([0-9a-fA-F]{4})", lambda m: chr(int(m[1], 16)), catalogue)


def test_the_api_answers_in_the_language_asked_for(world: World) -> None:
    token = world.token("bob")

    answer = Client().get(
        "/api/v1/leases/lse-0000000000000000/",
        headers={"Authorization": f"Bearer {token}", "Accept-Language": "zh-hans"},
    )

    assert answer.status_code == 404
    assert english(str(answer.json()["title"])) == []


def test_an_english_word_on_a_page_is_noticed() -> None:
    assert english('<p>您好</p><p title="Time left">剩余 3 GPU</p><code>berth login</code>') == ["Time left"]
