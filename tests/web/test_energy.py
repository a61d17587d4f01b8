"""Pages of energy: figures with what they are worth, factors by finance and operators, unknown never as zero."""

from __future__ import annotations

from datetime import timedelta

import pytest

from portal.billing.models import EnergyFactor, LeaseEnergy
from portal.billing.periods import period_of
from portal.telemetry.models import MinuteRollup
from portal.web import energy
from tests.portal.builders import World
from tests.web.conftest import SignedIn

FACTORS = "/finance/energy-factors/"


def used(world: World, *, measured_mj: int = 0, estimated_mj: int = 0) -> str:
    lease = world.ended("bob", seconds=60, at=world.now - timedelta(seconds=90))
    period_of(world.now)
    LeaseEnergy.objects.create(
        lease=lease, begins=lease.activated_at.replace(minute=0, second=0, microsecond=0),
        measured_s=60 * bool(measured_mj), measured_mj=measured_mj,
        estimated_s=60 * bool(estimated_mj), estimated_mj=estimated_mj,
    )  # fmt: skip
    return str(lease.uid)


def test_a_month_shows_energy_of_teams_in_sight_and_says_what_it_is_worth(
    world: World, signed_in: SignedIn
) -> None:
    used(world, estimated_mj=7_200_000_000)

    text = signed_in("alice").get("/reports/energy/").text

    assert "2.00 kWh" in text
    assert "estimated" in text
    assert "Perception" in text
    assert "2.00 kWh" in signed_in("finance").get("/reports/").text
    assert "Perception" not in signed_in("charlie").get("/reports/energy/?team=perception").text
    assert "2.00 kWh" not in signed_in("charlie").get("/reports/energy/").text


def test_a_list_shows_those_that_used_most_and_says_how_many_more_there_are(
    world: World, signed_in: SignedIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    used(world, estimated_mj=7_200_000_000)
    world.ended("charlie", seconds=60, at=world.now - timedelta(seconds=90))
    assert "in the files of the report" not in signed_in("finance").get("/reports/energy/").text

    monkeypatch.setattr(energy, "MOST_ROWS", 1)
    text = signed_in("finance").get("/reports/energy/").text

    assert text.count("One more that used less is in the files of the report.") == 2
    assert "Perception" in text


def test_a_receipt_has_energy_and_carbon_once_there_are_factors(world: World, signed_in: SignedIn) -> None:
    uid = used(world, measured_mj=3_600_000_000)
    assert "1.00 kWh" in signed_in("bob").get(f"/leases/{uid}/").text
    for kind, value in (("carbon", "400"), ("pue", "1.5")):
        given = {
            "kind": kind,
            "value": value,
            "source": "grid",
            "starts_at": "2020-01-01 00:00",
            "ends_at": "",
        }
        assert signed_in("operator").post(FACTORS, given).status_code == 302

    text = signed_in("bob").get(f"/leases/{uid}/").text

    assert "1.00 kWh" in text
    assert "measured" in text
    assert "600 g CO₂e" in text


def test_what_nobody_measured_is_unknown(world: World, signed_in: SignedIn) -> None:
    lease = world.ended("bob", seconds=60, at=world.now - timedelta(seconds=90))

    assert "0.000 kWh" not in signed_in("bob").get(f"/leases/{lease.uid}/").text
    text = signed_in("bob").get("/reports/energy/").text
    assert "unknown" in text
    assert "kWh<" not in text


@pytest.mark.parametrize("path", ["", "import/", "1/end/"])
def test_only_finance_and_operators_set_factors(world: World, signed_in: SignedIn, path: str) -> None:
    page = signed_in("charlie")

    assert page.get(FACTORS).status_code == 200
    assert page.post(FACTORS + path, {"csv": "x"}).status_code == 403
    assert not EnergyFactor.objects.exists()


def test_a_file_is_tried_then_added_and_a_wrong_line_is_named(world: World, signed_in: SignedIn) -> None:
    page = signed_in("finance")
    good = "kind,site,from,until,value,source\ncarbon,,2099-01-01T00:00:00Z,,212.5,grid\n"

    wrong = page.post(FACTORS + "import/", {"csv": good + "pue,,2099-01-01T00:00:00Z,,0.5,x\n"})
    assert wrong.status_code == 422
    assert "line 3" in wrong.text
    tried = page.post(FACTORS + "import/", {"csv": good, "trial": "1"})
    assert "One factor would be added" in tried.text
    assert not EnergyFactor.objects.exists()
    assert page.post(FACTORS + "import/", {"csv": good}).status_code == 302
    (made,) = EnergyFactor.objects.all()
    assert "212.5" in page.get(FACTORS).text
    assert page.post(f"{FACTORS}{made.pk}/end/").status_code == 302
    assert not EnergyFactor.objects.exists()


@pytest.mark.parametrize("value", ["", "x", "NaN", "1e9", "-1", "0.00001"])
def test_a_value_that_is_none_comes_back_on_the_form(world: World, signed_in: SignedIn, value: str) -> None:
    given = {"kind": "carbon", "value": value, "source": "grid", "starts_at": "", "ends_at": ""}

    assert signed_in("finance").post(FACTORS, given).status_code == 422
    assert not EnergyFactor.objects.exists()


def test_operators_see_counters_that_could_not_be_true(world: World, signed_in: SignedIn) -> None:
    device = world.nodes["gpu-01"].devices.first()
    MinuteRollup.objects.create(
        device_id=device.pk, minute=world.now - timedelta(hours=1), samples=60, energy_refused=7
    )

    assert "Counters that could not be true" in signed_in("operator").get(FACTORS).text
    assert "Counters that could not be true" not in signed_in("finance").get(FACTORS).text
