from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.db import transaction

from portal.billing.electricity import count_electricity
from portal.billing.metering import meter_all
from portal.billing.models import EnergyFactor, LeaseEnergy
from portal.billing.periods import period_of
from portal.common.sql import execute
from portal.telemetry.models import MinuteRollup
from tests.emptying import PAST_TRIGGERS
from tests.portal.builders import World


def used(world: World) -> str:
    lease = world.ended("bob", seconds=60, at=world.now - timedelta(seconds=90))
    period_of(world.now)
    LeaseEnergy.objects.create(
        lease=lease, begins=lease.activated_at.replace(minute=0, second=0, microsecond=0),
        measured_s=0, measured_mj=0, estimated_s=60, estimated_mj=3_600_000_000,
    )  # fmt: skip
    return str(lease.uid)


def test_energy_of_a_lease_and_a_month_says_what_it_is_worth(world: World, berth: Any) -> None:
    uid = used(world)

    lease = berth("energy", "lease", uid).stdout
    month = berth("energy", "month", "--by", "person").stdout

    assert "1.000 kWh, estimated" in lease
    assert "carbon" in lease
    assert "unknown" in lease
    assert "bob" in month.lower()
    assert "1.000" in month
    assert "1.000 kWh, estimated" in berth("receipt", uid).stdout
    assert json.loads(berth("energy", "lease", uid, "--json").stdout)["carbon_g"] is None
    assert berth("energy", "lease", uid, who="charlie").exit_code != 0


def test_electricity_that_is_not_on_the_books_says_when_it_was_counted(world: World, berth: Any) -> None:
    used(world)
    period = period_of(world.now)
    with transaction.atomic():
        execute(PAST_TRIGGERS)
        EnergyFactor.objects.create(
            kind="price",
            value_milli=250_000,
            source="x",
            valid=(period.starts_at, None),
            created_at=world.now,
        )
        execute("SET LOCAL session_replication_role = origin")
    assert "KWH CHARGED" not in berth("energy", "month").stdout, "nothing is metered yet"
    meter_all(now=world.now)

    count_electricity(period, now=world.now)

    told = berth("energy", "month").stdout
    assert "KWH CHARGED" in told
    assert f"Electricity was counted at {world.now.day} {world.now:%b}" in " ".join(told.split())


def test_factors_are_set_imported_and_ended(world: World, berth: Any, tmp_path: Path) -> None:
    uid = used(world)
    file = tmp_path / "factors.csv"
    file.write_text("kind,site,from,until,value,source\npue,,2020-01-01T00:00:00Z,,1.5,measured\n")

    refused = berth("energy", "set", "carbon", "400", "--source", "grid")
    assert refused.exit_code != 0
    done = berth(
        "energy", "set", "carbon", "400", "--source", "grid", "--from", "2020-01-01T00:00Z", who="finance"
    )
    assert done.exit_code == 0, done.stderr
    assert "1 factors would be added" in berth("energy", "import", str(file), "--trial", who="finance").stderr
    assert EnergyFactor.objects.count() == 1
    assert berth("energy", "import", str(file), who="operator").exit_code == 0

    assert "600.0 g CO2e" in berth("energy", "lease", uid).stdout
    listed = berth("energy", "factors").stdout
    assert "400.000" in listed
    assert "everywhere else" in listed
    for factor in EnergyFactor.objects.all():
        assert berth("energy", "end", str(factor.pk), who="finance").exit_code == 0
    assert all(one.valid.upper is not None for one in EnergyFactor.objects.all())
    assert berth("energy", "import", str(tmp_path), who="finance").exit_code == 2


def test_operators_list_counters_that_could_not_be_true(world: World, berth: Any) -> None:
    device = world.nodes["gpu-01"].devices.first()
    MinuteRollup.objects.create(
        device_id=device.pk, minute=world.now - timedelta(hours=1), samples=60, energy_refused=7
    )

    assert "gpu-01" in berth("energy", "refused", who="operator").stdout
    assert berth("energy", "refused").exit_code != 0
