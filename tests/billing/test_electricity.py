"""Electricity by dated prices: kWh of leases, within what their devices may draw, on lines of their own."""

from __future__ import annotations

import csv
import io
import json
import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import Client
from django.urls import reverse
from django.utils.html import strip_tags

from portal.billing import electricity
from portal.billing.books import verify_books
from portal.billing.charges import charges_of
from portal.billing.checklist import CloseItem, close_items
from portal.billing.closing import close_period
from portal.billing.electricity import (
    ElectricityRow,
    electricity_by_team,
    electricity_of_lease,
    electricity_of_month,
    expected_electricity,
    is_posted,
    post_due_electricity,
    post_electricity,
)
from portal.billing.energy import KWH_MJ, roll_up_energy
from portal.billing.energy_factors import add_factor, import_factors
from portal.billing.external_lines import mean_micro_per_kwh
from portal.billing.external_usage import undo_usage
from portal.billing.focus import write_focus
from portal.billing.metering import meter_all
from portal.billing.models import (
    BillingPeriod,
    EnergyFactor,
    ExternalUsage,
    FinanceImport,
    InvoiceLine,
    InvoiceNote,
    LeaseEnergy,
    UsageRecord,
)  # fmt: skip
from portal.billing.notes import approve_note, propose_note
from portal.billing.periods import BOOKS_LOCK, period_of
from portal.billing.rehearsal import rehearse_close
from portal.billing.selectors import invoice_view
from portal.budgets.models import MovementKind, WalletMovement
from portal.budgets.wallets import open_wallet
from portal.catalog.models import Flavor
from portal.common.errors import Conflict, Invalid
from portal.common.invariants import broken
from portal.common.sql import execute, fetch
from portal.leases.models import Lease
from portal.teams.models import Role, Team
from portal.teams.services import add_member
from portal.web.invoices.csv_file import invoice_csv
from tests.portal.builders import World, build_world

AT = datetime(2026, 2, 5, 9, tzinfo=UTC)
HOUR = timedelta(hours=1)
LATER = datetime(2026, 3, 10, 9, tzinfo=UTC)
KWH_PRICE = 250_000  # 0.25 for a kWh, 250 for a MWh
H100_W = 700


@pytest.fixture
def world(db: None) -> World:
    return build_world(now=LATER)


def priced(*rows: tuple[str, str, int, datetime, datetime | None]) -> None:
    """Set factors as if somebody had in their time: (kind, site, thousandths, from, until)."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        for kind, site, value, begins, ends in rows:
            EnergyFactor.objects.create(
                kind=kind,
                site=site,
                value_milli=value,
                source="the contract",
                valid=(begins, ends),
                created_at=AT,
            )
        cursor.execute("SET LOCAL session_replication_role = origin")


def month_priced(pue: int | None = 1500) -> None:
    begin = datetime(2026, 2, 1, tzinfo=UTC)
    priced(("price", "", KWH_PRICE, begin, None))
    if pue:
        priced(("pue", "", pue, begin, None))


def hour(lease: Lease, *, measured: int = 0, estimated: int = 0, at: datetime = AT) -> LeaseEnergy:
    """Write what an hour of a lease used, in watt-hours."""
    period_of(at)
    return LeaseEnergy.objects.create(
        lease=lease, begins=at, measured_s=3600 if measured else 0, measured_mj=measured * 3_600_000,
        estimated_s=3600 if estimated else 0, estimated_mj=estimated * 3_600_000,
    )  # fmt: skip


def used(
    world: World, who: str = "bob", flavor: str = "h100", at: datetime = AT, seconds: int = 3600
) -> Lease:
    return world.ended(who, flavor, seconds=seconds, at=at, duration_s=seconds)


def test_nothing_is_charged_until_electricity_has_a_price(world: World) -> None:
    hour(used(world), measured=600)
    meter_all(now=LATER)

    assert electricity_of_month(period_of(AT)) == []
    assert not post_electricity(period_of(AT), now=LATER)
    close_period(period=period_of(AT), actor=None, now=LATER)
    assert not FinanceImport.objects.exists()


def test_a_lease_pays_its_kwh_with_the_pue_and_says_whether_they_were_measured(world: World) -> None:
    whole, part = used(world), used(world, flavor="h100-3g-40gb", at=AT + 2 * HOUR)
    hour(whole, measured=600)
    hour(part, estimated=200, at=AT + 2 * HOUR)
    month_priced()
    meter_all(now=LATER)

    rows = electricity_of_month(period_of(AT))

    assert [(row.basis, row.energy_mj, int(row.exact)) for row in rows] == [
        ("estimated", 300 * 3_600_000, 75_000), ("measured", 900 * 3_600_000, 225_000),
    ]  # fmt: skip
    assert sum(row.amount_micro for row in rows) == 300_000
    assert electricity_by_team(period_of(AT), now=LATER).by_team == {
        whole.team_id: (1200 * 3_600_000, 300_000)
    }
    assert [int(row.exact) for row in electricity_of_lease(whole)] == [225_000]
    unmeasured = used(world, at=AT + 5 * HOUR)
    meter_all(now=LATER)
    assert electricity_of_lease(unmeasured) == [], "what nobody measured is not charged"


def test_no_node_can_charge_more_than_its_device_may_draw_in_the_time_that_is_billed(world: World) -> None:
    lying, short = used(world), used(world, at=AT + 2 * HOUR, seconds=900)
    hour(lying, measured=5000, estimated=4000)
    hour(short, measured=600, at=AT + 2 * HOUR)
    never = world.ended("charlie", "h100", seconds=0, at=AT + 4 * HOUR, duration_s=3600)
    hour(never, measured=600, at=AT + 4 * HOUR)
    month_priced(pue=None)
    meter_all(now=LATER)

    (row,) = electricity_of_month(period_of(AT))

    assert row.energy_mj == (H100_W * 3600 + H100_W * 900) * 1000


def test_an_hour_has_the_price_of_its_begin_and_of_its_site(world: World) -> None:
    lease = used(world, seconds=3 * 3600)
    for n, site in enumerate(("", "Hall A", "Hall B")):
        hour(lease, measured=600, at=AT + n * HOUR)
        LeaseEnergy.objects.filter(begins=AT + n * HOUR).update(site=site)
    half = AT + timedelta(minutes=30)
    priced(
        ("price", "", 100_000, AT - HOUR, half), ("price", "", 900_000, half, None),
        ("price", "Hall A", 300_000, AT, None),
    )  # fmt: skip
    meter_all(now=LATER)

    (row,) = electricity_of_month(period_of(AT))

    assert row.exact == Fraction(6, 10) * (100_000 + 300_000 + 900_000)


def test_lines_carry_it_and_a_closed_month_comes_to_the_same_again(world: World, client: Client) -> None:
    lease = used(world)
    hour(lease, measured=600)
    hour(used(world, "charlie", at=AT + 2 * HOUR), measured=500, at=AT + 2 * HOUR)
    month_priced()
    meter_all(now=LATER)
    period, team = period_of(AT), world.team("perception")
    assert post_due_electricity(now=LATER) == 1
    assert post_due_electricity(now=LATER.replace(minute=20)) == 0, "as it stands"
    seen = rehearse_close(period, now=LATER)
    draft = invoice_view(team, period, now=LATER)

    close_period(period=period, actor=None, seen=seen.seen, now=LATER)

    issued = invoice_view(team, period, now=LATER)
    assert [line.amount_micro for line in issued.lines] == [line.amount_micro for line in draft.lines]
    (line,) = (line for line in issued.lines if line.external)
    assert (line.flavor, line.amount_micro) == ("Electricity, 0.900 kWh measured at 0.250000", 230_000)
    assert InvoiceLine.objects.filter(external__isnull=False).count() == 2
    period.refresh_from_db()
    assert [check for check in verify_books(period, now=LATER) if check.wrong] == []
    assert broken() == []
    assert is_posted(period)

    client.force_login(world.user("bob"))
    page = client.get(reverse("web:invoice", args=[team.slug, "2026-02"])).content.decode()
    assert "Electricity, 0.900 kWh measured" in page
    assert "0.25 EUR" in " ".join(strip_tags(page).split()), "0.225 for 0.9 kWh, not the 0.23 of the line"
    shown = client.get(f"/api/v1/invoices/{team.slug}/2026-02/").json()["lines"][-1]
    assert (shown["electricity"]["kwh"], shown["electricity"]["basis"]) == ("0.900000", "measured")
    assert shown["electricity"]["price_per_kwh"]["amount"] == "0.25"
    assert shown["external"] is None
    receipt = client.get(reverse("web:lease", args=[lease.uid])).content.decode()
    assert "on a line of its own" in receipt
    energy = client.get(f"/api/v1/leases/{lease.uid}/energy/").json()["electricity"]
    assert (energy["kwh"], energy["amount"]["amount"]) == (0.9, "0.225")
    month = client.get("/api/v1/reports/2026-02/energy/").json()["electricity"]
    assert [(row["team"], row["kwh"]) for row in month] == [("perception", 0.9)]
    assert "as it is on the books" in client.get(reverse("web:energy") + "?month=2026-02").content.decode()
    rows = list(csv.DictReader(io.StringIO(invoice_csv(issued).lstrip("\ufeff"))))
    assert [row["note"] for row in rows] == ["", "electricity"]
    file = io.BytesIO()
    write_focus(file, period, charges_of(period, list(Team.objects.all())))
    focus = [r for r in csv.DictReader(io.StringIO(file.getvalue().decode())) if r["ConsumedUnit"] == "kWh"]
    assert sorted(Decimal(row["ConsumedQuantity"]) for row in focus) == [Decimal("0.75"), Decimal("0.9")]
    assert {row["ResourceType"] for row in focus} == {"Electricity"}
    assert {(Decimal(row["ContractedUnitPrice"]), row["PricingUnit"]) for row in focus} == {
        (Decimal("0.25"), "kWh")
    }
    assert sum(Decimal(row["ContractedCost"]) for row in focus) == Decimal("0.25") * Decimal("1.65")


def test_what_changes_before_the_close_is_written_anew_and_what_is_written_cannot_be_undone(
    world: World,
) -> None:
    first = hour(used(world), measured=600)
    month_priced(pue=None)
    meter_all(now=LATER)
    period = period_of(AT)
    assert post_electricity(period, now=LATER)
    book = FinanceImport.objects.get(is_live=True)
    with pytest.raises(Conflict):
        undo_usage(book, rights=world.rights("finance"), now=LATER)

    row = ExternalUsage.objects.get(is_live=True)
    LeaseEnergy.objects.filter(pk=first.pk).update(measured_mj=300 * 3_600_000)
    assert not is_posted(period)
    assert electricity_by_team(period, now=LATER).by_team == {row.team_id: (600 * 3_600_000, 150_000)}, (
        "as it is on the books"
    )
    assert [i.is_met for i in close_items(period, now=LATER) if i.code == "electricity"] == [False]
    close_period(period=period, actor=None, now=LATER)

    assert [row.amount_micro for row in ExternalUsage.objects.filter(is_live=True)] == [80_000]
    assert electricity_by_team(period, now=LATER).by_team == {row.team_id: (300 * 3_600_000, 80_000)}
    assert sum(ExternalUsage.objects.values_list("amount_micro", flat=True)) == 80_000
    assert broken() == []
    row = ExternalUsage.objects.get(is_live=True)
    with connection.cursor() as cursor:  # past every guard
        cursor.execute("SET LOCAL session_replication_role = replica")
        for column, by in (("energy_mj", 0), ("micro_per_kwh", 1), ("energy_mj", 1)):
            cursor.execute(f"UPDATE billing_externalusage SET {column} = {column} + {by}")
            wrong = {check.name for check in verify_books(period_of(AT), now=LATER) if check.wrong}
            assert wrong == ({"electricity_is_its_energy"} if by else set())
        cursor.execute("UPDATE billing_externalusage SET energy_mj = energy_mj - 1, micro_per_kwh = NULL")
        cursor.execute("SET LOCAL session_replication_role = origin")
    before_it_was_kept = ExternalUsage.objects.get(is_live=True)
    assert mean_micro_per_kwh(before_it_was_kept) == 266_667, "by the amount of the line"
    assert [check for check in verify_books(period_of(AT), now=LATER) if check.wrong] == []


def test_a_note_corrects_a_line_of_electricity_and_moves_no_wallet(world: World, client: Client) -> None:
    lease = used(world)
    hour(lease, measured=600)
    month_priced()
    meter_all(now=LATER)
    february, team = period_of(AT), world.team("perception")
    close_period(period=february, actor=None, now=LATER)
    line = InvoiceLine.objects.get(external__isnull=False)
    add_member(team=world.team("northwind"), user=world.user("alice"), role=Role.FINANCE, now=LATER)
    open_wallet(
        team=team, actor=world.user("finance"), rights=world.rights("finance"), at_zero="block", now=LATER
    )
    client.force_login(world.user("finance"))
    address = reverse("web:note_new", args=[team.slug, "2026-02", line.position])
    assert address in client.get(reverse("web:invoice", args=[team.slug, "2026-02"])).content.decode()
    assert "0.23 EUR" in " ".join(strip_tags(client.get(address).content.decode()).split())
    given: dict[str, Any] = {"line": line, "is_credit": True, "reason": "The meter was wrong", "now": LATER}
    for amount, about in ((240_000, None), (10_000, lease)):
        with pytest.raises(Invalid):
            propose_note(amount_micro=amount, lease=about, actor=world.user("finance"), **given)

    body = {"kind": "credit", "amount": "0.20", "reason": "The meter was wrong", "lease": ""}
    assert client.post(address, body).status_code == 302
    note = InvoiceNote.objects.get()
    approve_note(note=note, actor=world.user("alice"), now=LATER)

    assert not WalletMovement.objects.filter(kind=MovementKind.NOTE).exists()
    march = period_of(LATER)
    (charge,) = charges_of(march, [team])
    assert (charge.username, charge.amount_micro, charge.flavor_id) == ("bob", -200_000, 0)
    april = datetime(2026, 4, 2, 9, tzinfo=UTC)
    close_period(period=march, actor=None, now=april)
    march.refresh_from_db()
    assert [check for check in verify_books(march, now=april) if check.wrong] == []
    assert broken() == []
    for address in (
        reverse("web:invoice", args=[team.slug, "2026-03"]), reverse("web:reports") + "?month=2026-03&by=flavor",
        f"/api/v1/invoices/{team.slug}/2026-03/", f"/api/v1/notes/{note.uid}/", reverse("web:note", args=[note.uid]),
    ):  # fmt: skip
        assert client.get(address).status_code == 200
    file = io.BytesIO()
    write_focus(file, march, charges_of(march, [team]))
    (row,) = csv.DictReader(io.StringIO(file.getvalue().decode()))
    assert (row["BilledCost"], row["ChargeClass"]) == ("-0.200000", "Correction")
    assert json.loads(row["Tags"])["person"] == "bob"
    assert client.get(reverse("web:invoice_pdf", args=[team.slug, "2026-03"])).status_code == 200


def test_the_checklist_names_hours_that_have_energy_and_no_price(world: World) -> None:
    period = period_of(AT)
    for n, site in enumerate(("", "Hall A", "Hall B")):
        hour(used(world, at=AT + 2 * n * HOUR), measured=600, at=AT + 2 * n * HOUR)
        LeaseEnergy.objects.filter(begins=AT + 2 * n * HOUR).update(site=site)
    meter_all(now=LATER)

    def item() -> CloseItem:
        return next(i for i in close_items(period, now=LATER) if i.code == "unpriced_electricity")

    assert item().is_met, "nothing is charged at all"
    priced(("price", "Hall A", KWH_PRICE, AT, None))
    live = item()
    post_electricity(period, now=LATER)

    assert item() == live
    assert (live.is_met, live.must, live.figure) == (False, False, 2)
    assert "1.200 kWh are charged to nobody (Hall B, without a site)" in live.sentence
    priced(("price", "", KWH_PRICE, period.starts_at, None))
    post_electricity(period, now=LATER)
    assert item().is_met


def test_a_month_that_runs_is_counted_every_ten_minutes_and_pages_read_the_count(
    world: World, client: Client
) -> None:
    period = period_of(AT)
    hour(used(world), measured=600)
    month_priced()
    meter_all(now=LATER)
    team, running = world.team("perception").pk, AT.replace(day=20, minute=3)
    live = electricity_by_team(period, now=running)
    assert (live.by_team, live.counted_at) == ({team: (900 * 3_600_000, 230_000)}, running), (
        "before any count"
    )
    assert post_due_electricity(now=running) == 0

    hour(used(world, at=AT + 2 * HOUR), measured=600, at=AT + 2 * HOUR)
    meter_all(now=LATER)
    assert electricity_by_team(period, now=running).by_team == live.by_team, "as it was counted"
    post_due_electricity(now=running.replace(minute=9))
    assert electricity_by_team(period, now=running).by_team == live.by_team, "not every minute"
    post_due_electricity(now=running.replace(minute=10))

    counted = electricity_by_team(period, now=running)
    assert (counted.by_team, counted.counted_at) == (
        {team: (1800 * 3_600_000, 450_000)}, running.replace(minute=10),
    )  # fmt: skip
    client.force_login(world.user("bob"))
    page = client.get(reverse("web:energy") + "?month=2026-02").content.decode()
    assert "Counted at 2026-02-20 09:10, and anew every ten minutes." in page
    month = client.get("/api/v1/reports/2026-02/energy/").json()
    assert month["electricity_counted_at"].startswith("2026-02-20T09:10")
    assert post_due_electricity(now=LATER) == 1, "what was counted is not on the books yet"
    booked = electricity_by_team(period, now=LATER)
    assert (booked.by_team, booked.counted_at) == (counted.by_team, None)
    page = client.get(reverse("web:energy") + "?month=2026-02").content.decode()
    assert "as it is on the books" in page
    assert client.get("/api/v1/reports/2026-02/energy/").json()["electricity_counted_at"] is None


def test_the_checklist_counts_hours_anew_only_where_something_has_changed_and_a_close_always(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    period = period_of(AT)
    first = hour(used(world), measured=600)
    month_priced()
    meter_all(now=LATER)
    post_electricity(period, now=LATER)
    made: list[BillingPeriod] = []

    def counting(month: BillingPeriod) -> list[ElectricityRow]:
        made.append(month)
        return electricity_of_month(month)

    monkeypatch.setattr(electricity, "electricity_of_month", counting)

    def is_met(*, is_closing: bool = False) -> bool:
        made.clear()
        items = close_items(period, now=LATER, is_closing=is_closing)
        return next(item.is_met for item in items if item.code == "electricity")

    assert (is_met(), len(made)) == (True, 0)
    assert (is_met(is_closing=True), len(made)) == (True, 1)
    with transaction.atomic():
        LeaseEnergy.objects.filter(pk=first.pk).update(measured_mj=300 * 3_600_000)
        assert (is_met(), len(made)) == (False, 1)
        transaction.set_rollback(True)
    with transaction.atomic():
        priced(("pue", "Hall A", 1_100, AT, None))
        assert (is_met(), len(made)) == (True, 1), "of a site that had no hour"
        transaction.set_rollback(True)
    later = used(world, at=AT + 4 * HOUR)
    meter_all(now=LATER)
    assert (is_met(), len(made)) == (True, 1), "metered, and of no known energy"
    assert post_due_electricity(now=LATER.replace(minute=1)) == 0
    assert (is_met(), len(made)) == (True, 0)
    hour(later, measured=100, at=AT + 4 * HOUR)
    assert (is_met(), len(made)) == (False, 1)
    assert post_due_electricity(now=LATER.replace(minute=1)) == 1
    assert (is_met(), len(made)) == (True, 0)


def test_a_month_with_priced_electricity_closes_when_its_energy_is_complete(world: World) -> None:
    hour(used(world), measured=600)
    month_priced()
    meter_all(now=LATER)
    period = period_of(AT)

    with pytest.raises(Conflict) as early:
        close_period(period=period, actor=None, now=period.ends_at + HOUR)
    assert early.value.facts["unmet"] == "electricity"
    close_period(period=period, actor=None, now=period.ends_at + 2 * HOUR)
    assert BillingPeriod.objects.get(pk=period.pk).state == "closed"


def _books_held() -> int:
    """Return how often this transaction holds the books against a close."""
    rows = fetch(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock' AND granted"
        " AND pid = pg_backend_pid() AND (classid::bigint << 32) + objid::bigint = %s",
        [BOOKS_LOCK],
    )
    return int(rows[0][0])


@pytest.mark.django_db(transaction=True)
def test_a_close_waits_for_hours_of_energy_that_are_being_written() -> None:
    with transaction.atomic():
        assert _books_held() == 0
        roll_up_energy(now=AT)
        assert _books_held() == 1
    with transaction.atomic():
        execute("DELETE FROM billing_leaseenergy")
        assert _books_held() == 1, "whoever writes them past that waits, too"


def test_prices_begin_now_or_later_and_leave_no_gap_in_a_file(world: World) -> None:
    given: dict[str, Any] = {"kind": "price", "site": "", "source": "x", "ends_at": None, "actor": None}
    for value, begins, field in (
        ("250", AT, "starts_at"), ("10001", None, "value"), ("-1", None, "value"), ("1.0001", None, "value"),
    ):  # fmt: skip
        with pytest.raises(Invalid) as refused:
            add_factor(**given, value=Decimal(value), starts_at=begins)
        assert field in refused.value.fields
    made = add_factor(**given, value=Decimal("250.125"), starts_at=None)
    assert made.value_milli == 250_125
    with pytest.raises(IntegrityError), transaction.atomic():
        EnergyFactor.objects.create(
            kind="price", site="Hall A", value_milli=1, source="x", valid=(AT, None), created_at=AT
        )
    planned = add_factor(
        **given | {"kind": "pue", "site": "Hall C"},
        value=Decimal("1.1"),
        starts_at=datetime(2099, 1, 1, tzinfo=UTC),
    )
    with pytest.raises(IntegrityError), transaction.atomic():
        EnergyFactor.objects.filter(pk=planned.pk).update(kind="price", valid=(AT, None))
    head = "kind,site,from,until,value,source\n"
    first = "price,Hall A,2099-01-01T00:00:00+01:00,2099-01-01T01:00:00+01:00,80.5,spot\n"
    for wrong in (
        "price,Hall A,2099-01-01T02:00:00+01:00,2099-01-01T03:00:00+01:00,90,spot\n",
        "price,Hall A,2099-01-01T00:30:00+01:00,,90,spot\n",
        "price,Hall A,2020-01-01T00:00:00Z,2020-01-01T01:00:00Z,90,spot\n",
    ):
        with pytest.raises(Invalid) as refused:
            import_factors(head + first + wrong, actor=None)
        assert len(refused.value.fields) >= 1
    found = import_factors(head + first + "price,Hall A,2099-01-01T01:00:00+01:00,,90,spot\n", actor=None)
    assert len(found) == 2


def test_a_quote_tells_the_electricity_that_is_expected(world: World) -> None:
    flavor = Flavor.objects.get(slug="h100")
    asked = {"count": 2, "duration_s": 7200, "starts_at": LATER, "now": LATER}
    assert expected_electricity(flavor, **asked) is None
    month_priced()

    unknown = expected_electricity(flavor, **asked)
    hour(used(world, at=LATER - 5 * HOUR), measured=400, at=LATER - 5 * HOUR)
    known = expected_electricity(flavor, **asked)

    assert unknown is not None
    assert (unknown.is_most, unknown.watt_hours) == (True, 2 * 2 * H100_W * 3 // 2)
    assert known is not None
    assert (known.is_most, known.watt_hours, known.amount_micro) == (False, 2400, 600_000)


@pytest.mark.parametrize("seed", range(6))
def test_lines_are_the_hours_at_their_prices_over_random_lives(world: World, seed: int) -> None:
    chance = random.Random(seed)
    period = period_of(AT)
    changes = sorted({period.starts_at, *(AT + chance.randint(-30, 60) * HOUR for _n in range(5))})
    for begin, end in zip(changes, [*changes[1:], None], strict=True):
        priced(("price", "", chance.randint(0, 900_001), begin, end))
        if chance.random() < 0.7:
            priced(("pue", "", chance.randint(1000, 2000), begin, end))
    at, hours = AT, []
    for _n in range(8):
        lease = used(
            world, chance.choice(("bob", "charlie")), chance.choice(("h100", "h100-3g-40gb")), at,
            chance.randint(1, 9000),
        )  # fmt: skip
        for n in range(3):
            if chance.random() < 0.8:
                hours.append(
                    hour(
                        lease,
                        measured=chance.randint(0, 900),
                        estimated=chance.randint(0, 900),
                        at=at + n * HOUR,
                    )
                )
        at += 5 * HOUR
    meter_all(now=LATER)

    due: dict[int, Fraction] = {}
    factors = list(EnergyFactor.objects.all())
    for one in hours:
        known = {
            f.kind: f.value_milli
            for f in factors
            if f.valid.lower <= one.begins and (f.valid.upper is None or one.begins < f.valid.upper)
        }
        most = sum(
            u.share_milli
            * max(0, (min(u.span.upper, one.begins + HOUR) - max(u.span.lower, one.begins)).total_seconds())
            for u in UsageRecord.objects.filter(lease=one.lease)
        )
        mj = min(one.measured_mj + one.estimated_mj, int(most) * H100_W)
        team = one.lease.team_id
        cost = Fraction(mj * known.get("pue", 1000) * known["price"], 1000 * KWH_MJ)
        due[team] = due.get(team, Fraction(0)) + cost
    exact: dict[int, Fraction] = {}
    for row in electricity_of_month(period):
        exact[row.team_id] = exact.get(row.team_id, Fraction(0)) + row.exact
    assert {team: cost for team, cost in exact.items() if cost} == {
        team: cost for team, cost in due.items() if cost
    }
    close_period(period=period, actor=None, now=LATER)
    period.refresh_from_db()
    assert [check for check in verify_books(period, now=LATER) if check.wrong] == []
    for team, cost in due.items():
        lines = ExternalUsage.objects.filter(team=team, is_live=True).values_list("amount_micro", flat=True)
        assert abs(sum(lines) - cost) <= 5000
