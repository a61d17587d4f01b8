"""The pages of a team's budgets: how one runs down, who sets it, and what the request form says of it."""

from __future__ import annotations

from datetime import timedelta

from portal.billing.budgets import watch_budgets
from portal.billing.metering import meter_all
from portal.budgets.models import TeamBudget
from portal.budgets.periods import month_start
from tests.portal.builders import World
from tests.web.conftest import Publish, SignedIn


def test_finance_sets_a_budget_sees_it_run_down_and_the_form_says_what_it_stops(
    world: World, signed_in: SignedIn, publish: Publish
) -> None:
    finance, month = signed_in("finance"), f"{month_start(world.now):%Y-%m}"
    wanted = {
        "amount": "5",
        "kind": "each",
        "starts_on": month,
        "notify_actual": "50, 80",
        "block_actual": "100",
    }

    refused = finance.post("/teams/perception/budget/new/", {**wanted, "approval_actual": "120"})
    made = finance.post("/teams/perception/budget/new/", wanted)
    begin = max(world.now - timedelta(minutes=45), world.now.replace(day=1, hour=0, minute=0, second=0))
    world.ended("bob", "h100", seconds=max(1, int((world.now - begin).total_seconds())), at=begin)
    meter_all(now=world.now)
    watch_budgets(now=world.now)
    shown = signed_in("alice").get("/teams/perception/budget/")
    publish(world.now)
    asked = {"team": "perception", "flavor": "h100", "count": "1", "duration": "2 h"}
    quoted = signed_in("bob").get("/requests/quote/", asked)

    assert refused.status_code == 422
    assert "leaves nothing for" in refused.text
    assert made.status_code == 302
    budget = TeamBudget.objects.get()
    assert sorted(str(one) for one in budget.thresholds.all()) == [
        "100 % actual: block",
        "50 % actual: notify",
        "80 % actual: notify",
    ]
    assert "Budget of Perception" in shown.text
    assert "No forecast yet" in shown.text
    assert "Nothing new starts" in shown.text
    assert "From 100 % on nothing new starts" in quoted.text
    assert "Cannot start as asked" in quoted.text


def test_who_may_not_set_it_looks_only_and_strangers_find_nothing(world: World, signed_in: SignedIn) -> None:
    bob, charlie, alice = signed_in("bob"), signed_in("charlie"), signed_in("alice")
    row = TeamBudget.objects.create(
        team=world.team("perception"),
        amount_micro=10_000_000,
        starts_on=month_start(world.now),
        created_at=world.now,
    )

    assert bob.get("/teams/perception/budget/").status_code == 200
    assert bob.get("/teams/perception/budget/new/").status_code == 403
    assert bob.post(f"/teams/perception/budget/{row.pk}/end/").status_code == 403
    assert charlie.get("/teams/perception/budget/").status_code == 404
    assert alice.get("/teams/vision/budget/new/").status_code == 403  # her own
    assert alice.get(f"/teams/vision/budget/{row.pk}/").status_code == 403
    changed = alice.post(
        f"/teams/perception/budget/{row.pk}/",
        {"amount": "12.50", "kind": "each", "starts_on": f"{row.starts_on:%Y-%m}", "version": "1"},
    )
    stale = alice.post(
        f"/teams/perception/budget/{row.pk}/",
        {"amount": "13", "kind": "each", "starts_on": f"{row.starts_on:%Y-%m}", "version": "1"},
    )
    ended = alice.post(f"/teams/perception/budget/{row.pk}/end/")
    row.refresh_from_db()
    assert (changed.status_code, stale.status_code, ended.status_code) == (302, 422, 302)
    assert (row.amount_micro, row.ends_before is None) == (12_500_000, False)
