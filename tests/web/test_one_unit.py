"""One unit and one format: what a number means stands beside it, and two pages that name it agree."""

from __future__ import annotations

from decimal import Decimal
from types import SimpleNamespace

import pytest
from django.test import Client
from django.utils import timezone, translation

from portal.catalog.speed import speeds_of
from portal.cli import formatting
from portal.common.moments import span
from portal.common.templatetags.readable import amount
from portal.fleet.models import DeviceModel
from portal.leases import forecasting
from portal.leases.reasons import sentence
from portal.quotas.models import Quota
from portal.web.quota_bars import quota_bar
from portal.web.requests.rows import request_rows
from tests.portal.builders import H100, World
from tests.web.conftest import Publish, SignedIn


def test_sizes_with_equal_memory_differ_in_speed(world: World) -> None:
    DeviceModel.objects.filter(slug=H100).update(weight_milli=2000)
    flavors = list(type(world.flavors["h100"]).objects.select_related("device_model"))

    speeds = {flavor.slug: speeds_of(flavors)[flavor.pk] for flavor in flavors}

    assert speeds["h100"] == 2000
    assert speeds["h100-1g-10gb"] == round(2000 * 16 / 132)
    assert speeds["h100-3g-40gb"] == round(2000 * 60 / 132)


def test_the_form_says_what_a_reference_gpu_is(world: World, signed_in: SignedIn) -> None:
    DeviceModel.objects.filter(slug=H100).update(weight_milli=2000)

    page = signed_in("bob").get("/requests/new/").text

    assert "counted in reference GPUs" in page
    assert "H100 80GB HBM3 counts 2" in page or "counts 2" in page
    assert "quota 0.25" in page


def test_a_ceiling_is_told_by_what_is_free_as_beside_it() -> None:
    said = sentence(
        {
            "code": "quota_ceiling",
            "name": "Vision",
            "used_milli": 6500,
            "ceiling_milli": 20000,
            "short_milli": 2500,
        }
    )

    assert said.startswith(
        "It takes 16 reference GPUs, and 13.5 of the 20 of Vision are free: 2.5 are missing."
    )


@pytest.mark.parametrize(
    ("fit", "said"), [(1, "Only 1 of 2 nodes has 8 free"), (0, "Only 0 of 3 nodes have")]
)
def test_one_node_has_and_two_nodes_have(fit: int, said: str) -> None:
    nodes = 2 if fit else 3
    assert sentence({"code": "gang_incomplete", "nodes": nodes, "nodes_fit": fit, "wanted": 8}).startswith(
        said
    )


def test_only_a_team_of_a_cohort_borrows() -> None:
    alone = Quota(used_milli=6000, guaranteed_milli=4000, ceiling_milli=None)
    among = Quota(used_milli=6000, guaranteed_milli=4000, ceiling_milli=None, cohort_id=1)

    assert [quota_bar("a", alone).borrowed, quota_bar("b", among).borrowed] == [0, 2000]


def test_the_place_on_a_page_is_the_place_of_the_quote(world: World, publish: Publish) -> None:
    now = timezone.now()
    for _n in range(20):
        world.submit("charlie", "h100", count=8, duration_s=86_400, at=now)
    mine = world.submit("bob", "h100", count=8, duration_s=86_400, at=now)
    publish(now)

    quoted = forecasting.places([mine])[mine.pk]

    assert request_rows([mine])[0].position == quoted
    headers = {"Authorization": f"Bearer {world.token('bob')}"}
    assert Client().get(f"/api/v1/requests/{mine.uid}/", headers=headers).json()["position"] == quoted


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(59, "59 s"), (3584, "59 min 44 s"), (108_000, "1 d 6 h"), (0, "0 s"), (90_061, "1 d 1 h")],
)
def test_pages_and_command_line_write_lengths_alike(seconds: int, said: str) -> None:
    assert [span(seconds), formatting.span(seconds)] == [said, said]


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        ("8.7", "", "8.70"), ("0.725", "", "0.73"), ("0.725", "price", "0.725"), ("0.002013", "", "0.0020"),
        ("0.002013", "price", "0.002013"), ("1260.83", "", "1,260.83"), ("-0.000001", "", "-0.000001"),
        ("0", "", "0.00"),
        ("12", "price", "12.00"),
    ],
)  # fmt: skip
def test_a_price_is_never_rounded_to_another_and_an_amount_reads_short(
    value: str, kind: str, said: str
) -> None:
    with translation.override("en"):
        assert amount(Decimal(value), kind) == said
    write = formatting.price if kind else formatting.money
    assert write({"amount": value, "currency": "EUR"}) == f"{said} EUR"


def test_a_quote_needs_no_team_but_names_it_and_a_request_does(world: World) -> None:
    bob = world.user("bob")
    bob.memberships.create(team=world.team("language"), role="researcher", created_at=timezone.now())
    headers = {"Authorization": f"Bearer {world.token('bob')}"}
    ask = SimpleNamespace(
        body={"flavor": "h100-1g-10gb", "duration_s": 3600}, content_type="application/json"
    )

    quoted = Client().post("/api/v1/quote/", ask.body, content_type=ask.content_type, headers=headers)
    asked = Client().post("/api/v1/requests/", ask.body, content_type=ask.content_type, headers=headers)

    assert (quoted.status_code, quoted.json()["team"]) == (200, "language")
    assert asked.status_code == 422
    assert "language, perception" in asked.text or "perception, language" in asked.text
