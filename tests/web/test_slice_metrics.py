"""A slice whose card cannot tell its utilisation says so where the figure is missing."""

from __future__ import annotations

import pytest

from portal.fleet.models import DeviceModel
from portal.web.nodes.slice_metrics import reports_slices
from tests.portal.builders import H100, World
from tests.web.conftest import SignedIn

A100 = "NVIDIA A100-SXM4-40GB"
WHY = f"{A100} does not report the utilisation of single MIG slices"


@pytest.fixture
def ampere(world: World) -> World:
    """The world with A100 in place of H100."""
    DeviceModel.objects.filter(slug=H100).update(name=A100)
    return world


@pytest.mark.parametrize(
    ("name", "told"), [(A100, False), ("a100-80gb", False), ("NVIDIA H100 NVL", True), ("Card of 2031", None)]
)
def test_only_cards_of_the_table_are_judged(name: str, told: bool | None) -> None:
    assert reports_slices(DeviceModel(name=name, slug="x")) is told


def test_lease_and_node_page_say_why_utilisation_stays_unknown(ampere: World, signed_in: SignedIn) -> None:
    lease = ampere.active("bob", "h100-1g-10gb")
    bob = signed_in("bob")

    assert WHY in bob.get(f"/leases/{lease.uid}/").text
    assert WHY in bob.get("/cluster/gpu-01/").text


def test_whole_card_and_hopper_slice_give_no_excuse(world: World, signed_in: SignedIn) -> None:
    slice_of_hopper = world.active("bob", "h100-1g-10gb")
    text = signed_in("bob").get(f"/leases/{slice_of_hopper.uid}/").text
    whole = world.active("bob", "h100")
    DeviceModel.objects.filter(slug=H100).update(name=A100)

    assert "does not report" not in text
    assert "does not report" not in signed_in("bob").get(f"/leases/{whole.uid}/").text


def test_the_reason_is_said_in_chinese_too(ampere: World, signed_in: SignedIn) -> None:
    lease = ampere.active("bob", "h100-1g-10gb")

    text = signed_in("bob").get(f"/leases/{lease.uid}/", headers={"accept-language": "zh-hans"}).text

    assert f"{A100} 不报告单个 MIG 切片的利用率" in text
