"""The pages, calls and commands of imports: finance previews, applies and undoes; others see nothing."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from portal.billing.imports import text_digest
from portal.billing.models import ExternalUsage, FinanceImport
from portal.billing.periods import period_of
from portal.budgets.models import Wallet
from portal.budgets.wallets import open_wallet
from tests.cli.conftest import Berth, berth, home, one_connection  # noqa: F401
from tests.portal.builders import World
from tests.web.conftest import SignedIn

pytestmark = pytest.mark.django_db
PAGE = "/finance/imports/balances/"


@pytest.fixture
def good(world: World) -> str:
    """A file that can be applied."""
    open_wallet(
        team=world.team("vision"), actor=world.user("finance"), rights=world.rights("finance"), at_zero="block",
        now=world.now,
    )  # fmt: skip
    return f"team,balance,used,currency,as_of\nvision,6000,10,EUR,{world.now:%Y-%m-%d}\n"


def test_finance_previews_applies_and_undoes_by_pages(signed_in: SignedIn, good: str) -> None:
    finance = signed_in("finance")

    empty = finance.get("/finance/imports/")
    looked = finance.post(PAGE, {"csv": good, "action": "preview"})
    other = finance.post(
        PAGE, {"csv": good.replace("6000", "6001"), "digest": text_digest(good), "action": "apply"}
    )
    applied = finance.post(PAGE, {"csv": good, "digest": looked.context["found"].digest, "action": "apply"})
    again = finance.post(PAGE, {"csv": good, "digest": text_digest(good), "action": "apply"})
    shown = finance.get(applied["Location"])
    undone = finance.post(f"{applied['Location']}undo/")
    listed = finance.get("/finance/imports/")

    assert "Nothing was imported yet" in empty.text
    assert "Import 1 row" in looked.text
    assert text_digest(good) in looked.text
    assert (other.status_code, applied.status_code, again.status_code, undone.status_code) == (
        422,
        302,
        422,
        302,
    )
    assert "not the file that was previewed" in other.text
    assert "This file was imported already" in again.text
    assert "Undo this import" in shown.text
    assert Wallet.objects.get().balance_micro == 0
    assert "Undone by" in listed.text
    assert "Undo this import" not in finance.get(applied["Location"]).text


def test_a_faulty_row_is_shown_harmlessly_and_offers_no_way_to_apply(signed_in: SignedIn, good: str) -> None:
    text = good + "=<script>alert(1)</script>,1,,EUR,soon\n"

    page = signed_in("finance").post(PAGE, {"csv": text, "digest": text_digest(text), "action": "apply"})

    assert page.status_code == 422
    assert "<script>alert(1)" not in page.text
    assert "team: There is no such team." in page.text
    assert 'value="apply"' not in page.text
    assert not FinanceImport.objects.exists()


def test_a_large_file_is_shown_in_part(signed_in: SignedIn, good: str) -> None:
    text = good + "".join(f"nobody-{n},1,,EUR,2026-01-01\n" for n in range(9_999))

    page = signed_in("finance").post(PAGE, {"csv": text, "action": "preview"})

    assert page.status_code == 422
    assert "200 of 10000 rows are shown" in page.text


def test_others_find_nothing(signed_in: SignedIn, good: str) -> None:
    signed_in("finance").post(PAGE, {"csv": good, "digest": text_digest(good), "action": "apply"})
    uid = FinanceImport.objects.get().uid

    for name in ("alice", "bob", "operator"):
        person = signed_in(name)
        assert person.get("/finance/imports/").status_code == 403
        assert person.post(PAGE, {"csv": good}).status_code == 403
        assert person.get(f"/finance/imports/{uid}/").status_code == 404
        assert person.post(f"/finance/imports/{uid}/undo/").status_code == 404
    assert signed_in("finance").get("/finance/imports/imp-0000000000000000/").status_code == 404


def test_the_command_line_previews_applies_lists_and_undoes(
    world: World,
    berth: Berth,  # noqa: F811
    tmp_path: Path,
    good: str,
) -> None:
    file, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    file.write_bytes(b"\xef\xbb\xbf" + good.replace("\n", "\r\n").encode())
    bad.write_text(good + "nobody,1,,EUR,2026-01-01\n")

    looked = berth("import", "balances", str(file), who="finance")
    refused = berth("import", "balances", str(bad), who="finance")
    forbidden = berth("import", "balances", str(file), who="alice")
    applied = berth("import", "balances", str(file), "--apply", text_digest(good), who="finance")
    listed = berth("import", "list", who="finance")
    undone = berth("import", "undo", FinanceImport.objects.get().uid, who="finance")

    assert looked.exit_code == 0
    assert f"--apply {text_digest(good)}" in looked.stdout + looked.stderr
    assert refused.exit_code == 1
    assert "There is no such team" in refused.stdout
    assert forbidden.exit_code != 0
    assert applied.exit_code == 0
    assert "imported" in listed.stdout
    assert undone.exit_code == 0
    assert "is undone by imp-" in undone.stdout + undone.stderr


ELSEWHERE = "source,external_id,team,person,description,start,end,gpus,price,currency\n"


def _elsewhere(world: World, what: str) -> str:
    since = world.now.replace(microsecond=0) - timedelta(hours=2)
    until = since + timedelta(minutes=1)
    return f"{ELSEWHERE}cloud-a,i-1,vision,bob,{what},{since.isoformat()},{until.isoformat()},60,2.50,EUR\n"


def test_finance_bills_what_was_used_elsewhere_and_teams_see_it(world: World, signed_in: SignedIn) -> None:
    text, finance = _elsewhere(world, "=A100"), signed_in("finance")
    month = f"{period_of(world.now - timedelta(hours=2))}"

    empty = finance.get("/finance/imports/usage/")
    looked = finance.post("/finance/imports/usage/", {"csv": text, "action": "preview"})
    faulty = finance.post(
        "/finance/imports/usage/", {"csv": text.replace("vision", "nobody"), "action": "apply"}
    )
    applied = finance.post(
        "/finance/imports/usage/", {"csv": text, "digest": text_digest(text), "action": "apply"}
    )
    shown = finance.get(applied["Location"])
    invoice = signed_in("alice").get(f"/invoices/vision/{month}/")
    capacity = finance.get(f"/finance/months/{month}/capacity/")

    assert empty.status_code == 200
    assert looked.context["amount"] == Decimal("2.50")
    assert faulty.status_code == 422
    assert 'value="apply"' not in faulty.text
    assert applied.status_code == 302
    assert "cloud-a · i-1" in shown.text
    assert "Undo this import" in shown.text
    assert "=A100" in invoice.text
    assert "External usage · cloud-a · i-1" in " ".join(invoice.text.split())
    assert "in none of this" in capacity.text
    assert signed_in("alice").get("/finance/imports/usage/").status_code == 403
    assert finance.post(f"{applied['Location']}undo/").status_code == 302
    assert not ExternalUsage.objects.filter(is_live=True).exists()


def test_the_command_line_bills_what_was_used_elsewhere(
    world: World,
    berth: Berth,  # noqa: F811
    tmp_path: Path,
) -> None:
    file = tmp_path / "usage.csv"
    file.write_text(_elsewhere(world, "A100"))

    looked = berth("import", "usage", str(file), who="finance")
    applied = berth("import", "usage", str(file), "--apply", text_digest(file.read_text()), who="finance")

    assert looked.exit_code == 0
    assert "2.50" in looked.stdout
    assert applied.exit_code == 0
    assert ExternalUsage.objects.get().amount_micro == 2_500_000
