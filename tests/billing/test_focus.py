"""FOCUS 1.2: the columns that the specification wants, in its forms, and a billed cost that adds up to the invoice."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg import sql

from portal.billing.charges import charges_of
from portal.billing.closing import close_period
from portal.billing.focus import COLUMNS, write_focus
from portal.billing.metering import meter_all
from portal.billing.models import Invoice
from portal.billing.selectors import invoice_view, period_of
from portal.teams.models import Team
from tests.portal.builders import World, build_world

FEBRUARY = datetime(2026, 2, 5, 9, tzinfo=UTC)
# Always present: FOCUS 1.2, section "Columns", feature level mandatory (https://focus.finops.org/focus-specification/v1-2/).
MANDATORY = {
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd",
    "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd",
    "ChargePeriodStart", "ContractedCost", "EffectiveCost", "InvoiceIssuerName", "ListCost", "PricingQuantity",
    "PricingUnit", "ProviderName", "PublisherName", "ServiceCategory", "ServiceName",
}  # fmt: skip
# Present because of what Berth has: sub accounts, unit prices, usage, resources, tags (same section, conditional).
CONDITIONAL = {
    "BillingAccountType", "ConsumedQuantity", "ConsumedUnit", "ContractedUnitPrice", "ListUnitPrice",
    "PricingCategory", "ResourceId", "ResourceName", "ResourceType", "SkuId", "SkuPriceId", "SubAccountId",
    "SubAccountName", "SubAccountType", "Tags",
}  # fmt: skip
OWN = {"x_CarbonGrams", "x_EnergyBasis", "x_EnergyKwh"}  # begin with x_, as the specification wants of such
RECOMMENDED = {"ChargeFrequency", "InvoiceId", "ServiceSubcategory"}
NEVER_EMPTY = MANDATORY - {"ChargeClass"}
TIMES = {"BillingPeriodEnd", "BillingPeriodStart", "ChargePeriodEnd", "ChargePeriodStart"}
DECIMALS = {
    "BilledCost", "ConsumedQuantity", "ContractedCost", "ContractedUnitPrice", "EffectiveCost", "ListCost",
    "ListUnitPrice", "PricingQuantity",
}  # fmt: skip
ALLOWED = {
    "ChargeCategory": {"Usage"},
    "ChargeClass": {"", "Correction"},
    "ChargeFrequency": {"Usage-Based"},
    "PricingCategory": {"Standard", "Other"},
    "ServiceCategory": {"Compute"},
    "ServiceSubcategory": {"Other (Compute)"},
}


@pytest.fixture
def world(db: None) -> World:
    world = build_world(now=datetime(2026, 3, 10, 9, tzinfo=UTC))
    for day in (1, 2, 3):
        world.ended("bob", seconds=3607, at=FEBRUARY.replace(day=day), duration_s=7200)
        world.ended("charlie", "h100-3g-40gb", seconds=1234, at=FEBRUARY.replace(day=day), duration_s=7200)
    meter_all(now=world.now)
    return world


def rows(world: World) -> list[dict[str, str]]:
    file = io.BytesIO()
    period = period_of(FEBRUARY)
    write_focus(file, period, charges_of(period, Team.objects.all()))
    return list(csv.DictReader(io.StringIO(file.getvalue().decode())))


def test_the_columns_are_those_of_the_specification(world: World) -> None:
    assert set(COLUMNS) == MANDATORY | CONDITIONAL | RECOMMENDED | OWN
    found = rows(world)
    assert len(found) == 6
    for row in found:
        assert list(row) == list(COLUMNS)
        assert [name for name in NEVER_EMPTY if not row[name]] == []
        assert [name for name in DECIMALS if "." not in row[name]] == []
        assert all(datetime.fromisoformat(row[name]).tzinfo and row[name].endswith("Z") for name in TIMES)
        assert {name for name, values in ALLOWED.items() if row[name] not in values} == set()
        quantity, price = Decimal(row["PricingQuantity"]), Decimal(row["ContractedUnitPrice"])
        assert abs(Decimal(row["ContractedCost"]) - quantity * price) < Decimal("0.000001")


@pytest.mark.parametrize("is_closed", [False, True])
def test_the_billed_cost_adds_up_to_each_invoice_to_the_micro_unit(world: World, *, is_closed: bool) -> None:
    period = period_of(FEBRUARY)
    if is_closed:
        close_period(period=period, actor=None, now=world.now)
    billed: dict[str, Decimal] = {}
    for row in rows(world):
        billed[row["SubAccountId"]] = billed.get(row["SubAccountId"], Decimal(0)) + Decimal(row["BilledCost"])

    teams = {team.slug: invoice_view(team, period, now=world.now) for team in Team.objects.all()}
    assert billed == {slug: Decimal(v.total_micro) / 1_000_000 for slug, v in teams.items() if v.lines}
    if is_closed:
        assert {row["InvoiceId"] for row in rows(world)} == set(
            Invoice.objects.values_list("number", flat=True)
        )


def test_a_name_that_a_spreadsheet_would_run_is_text(world: World) -> None:
    Team.objects.filter(slug="perception").update(name="=cmd|' /C calc'!A0")

    names: set[Any] = {row["SubAccountName"] for row in rows(world)}

    assert "'=cmd|' /C calc'!A0" in names


def test_no_row_reads_the_month_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nested loops the energy of a month was summed once for each record: minutes for 6,000 leases."""
    plans: list[str] = []
    copy = psycopg.Cursor.copy

    def explained(self: psycopg.Cursor[Any], statement: sql.Composed, *args: Any) -> Any:
        query = statement.as_string(self).partition("COPY (")[2].rpartition(") TO STDOUT")[0]
        with self.connection.cursor() as cursor:
            plans.append("\n".join(line for (line,) in cursor.execute("EXPLAIN " + query)))
        return copy(self, statement, *args)

    monkeypatch.setattr(psycopg.Cursor, "copy", explained)
    assert rows(world)

    assert len(plans) == 3
    assert [plan for plan in plans if "Nested Loop" in plan] == []
