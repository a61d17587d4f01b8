"""The pages of wallets: finance keeps them, the team reads them, the request form shows balance and hold."""

from __future__ import annotations

from portal.budgets.models import Wallet, WalletMovement
from tests.portal.builders import World
from tests.web.conftest import Publish, SignedIn


def test_finance_opens_tops_up_and_closes_by_pages_and_the_team_reads_it(
    world: World, signed_in: SignedIn, publish: Publish
) -> None:
    finance = signed_in("finance")
    empty = finance.get("/finance/wallets/")
    opened = finance.post("/finance/wallets/", {"team": "perception", "at_zero": "block"})
    top_up = {"kind": "top_up", "amount": "5.00", "reference": "=transfer 7"}
    moved = finance.post("/teams/perception/wallet/move/", top_up)
    again = finance.post("/teams/perception/wallet/move/", top_up)
    world.active("bob", "h100", duration_s=3600)
    publish(world.now)
    asked = {"team": "perception", "flavor": "h100", "count": "1", "duration": "1 h"}
    quoted = signed_in("bob").get("/requests/quote/", asked)
    shown = signed_in("alice").get("/teams/perception/wallet/")
    file = signed_in("alice").get("/teams/perception/wallet/csv/")
    changed = finance.post("/teams/perception/wallet/set/", {"at_zero": "preemptible"})
    closed = finance.post("/teams/perception/wallet/close/")

    assert "No wallet yet" in empty.text
    assert (opened.status_code, moved.status_code, again.status_code) == (302, 302, 422)
    assert "This reference was used in this wallet already." in again.text
    assert "Nothing starts that it does not cover" in quoted.text
    assert "of it is held when this starts" in quoted.text
    assert "Held for a lease" in shown.text
    assert "Top up or pay out" not in shown.text
    lines = file.text.splitlines()
    assert lines[1].split(",")[5:10] == ["'=transfer 7", "Finance", "", "5.000000", "5.000000"]
    assert lines[2].split(",")[8:] == ["-3.600000", "1.400000", "EUR"]
    assert (changed.status_code, closed.status_code) == (302, 302)
    wallet = Wallet.objects.get()
    assert (wallet.at_zero, wallet.is_open, wallet.version) == ("preemptible", False, 3)
    assert "is invoiced" in signed_in("finance").get("/teams/segmentation/wallet/").text


def test_others_may_not_keep_it_and_strangers_find_nothing(world: World, signed_in: SignedIn) -> None:
    finance = signed_in("finance")
    finance.post("/finance/wallets/", {"team": "vision", "at_zero": "block"})
    alice, charlie = signed_in("alice"), signed_in("charlie")

    assert alice.post("/finance/wallets/", {"team": "vision", "at_zero": "block"}).status_code == 403
    top_up = {"kind": "top_up", "amount": "5.00", "reference": "x"}
    assert alice.post("/teams/vision/wallet/move/", top_up).status_code == 403
    assert alice.post("/teams/vision/wallet/set/", {"at_zero": "block"}).status_code == 403
    assert alice.post("/teams/vision/wallet/close/").status_code == 403
    assert charlie.get("/teams/vision/wallet/").status_code == 404
    assert charlie.get("/teams/vision/wallet/csv/").status_code == 404
    assert charlie.post("/teams/vision/wallet/move/", top_up).status_code == 404
    assert "Vision" in alice.get("/teams/perception/wallet/").text  # paid from above
    assert not WalletMovement.objects.exists()
