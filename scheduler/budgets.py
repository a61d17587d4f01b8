"""Requests that a budget, a wallet or a quota stops are left out of a turn, so that they keep no place from others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from portal.budgets.wallets import paying_wallets
from portal.common.rows import Rows
from portal.common.sql import fetch
from portal.leases.budget_gate import Expense, judge, limited_teams, stopping
from portal.leases.models import LeaseRequest
from portal.leases.requests import expense_of
from portal.leases.states import RequestState
from portal.leases.wallet_holds import priced_for_wallets
from portal.quotas.selectors import use_limits
from portal.teams.models import Team
from scheduler.engine.model import Reason, Snapshot, Wait

_REQUESTS = Rows(LeaseRequest, "team", "flavor")
_DEAREST = (
    "SELECT team_id, max(quote_micro) FROM leases_leaserequest"  # noqa: S608 (our own state)
    f" WHERE state = '{RequestState.QUEUED}' AND team_id = ANY(%s) GROUP BY 1"
)


def hold_back(seen: Snapshot, *, now: datetime) -> tuple[Snapshot, list[Wait]]:
    """Return the snapshot without the requests that a budget stops, and why these wait.

    Each is looked at by itself, where not even the dearest of its team would fit into what is left now. That several
    together are too much, or one is for the months to come, is found as they are stored (``commit.grants``), with
    the budgets held.
    """
    limited = limited_teams() & {claim.team_id for claim in seen.queue}
    if not limited:
        return seen, []
    tight = _tight_teams(limited, now=now)
    places = {claim.id: place for place, claim in enumerate(seen.queue, start=1)}
    wanted = [claim.id for claim in seen.queue if claim.team_id in tight]
    requests = _REQUESTS.where("it.id = ANY(%s) ORDER BY it.id", [wanted])
    expenses = priced_for_wallets([expense_of(request, now=now) for request in requests], requests)
    answers = judge(expenses, now=now, with_waiting=False, together=False)
    kept = []
    for request, expense, reached in zip(requests, expenses, answers, strict=True):
        stop = stopping(reached, expense.is_preemptible)
        if stop is not None:
            kept.append(Wait(request.pk, places[request.pk], (Reason("budget_reached", stop.figures()),)))
    stopped = {wait.claim_id for wait in kept}
    queue = tuple(claim for claim in seen.queue if claim.id not in stopped)
    return (replace(seen, queue=queue) if stopped else seen), kept


def _tight_teams(team_ids: Iterable[int], *, now: datetime) -> frozenset[int]:
    """Return the teams of which even the dearest request might be stopped: the others need no look at each.

    Quotes are as old as the requests, and a wallet holds by the prices of now: each of its requests is looked at. So is
    each where a quota limits GPU-hours or memory, of which the dearest need not take the most.
    """
    dearest: dict[int, int] = dict(fetch(_DEAREST, [list(team_ids)]))
    teams = list(Team.objects.filter(pk__in=dearest))
    expenses = [Expense(team, dearest[team.pk], now, now + timedelta(seconds=1)) for team in teams]
    answers = judge(expenses, now=now, with_waiting=False, together=False)
    tight = {team.pk for team, reached in zip(teams, answers, strict=True) if stopping(reached, False)}
    limits = use_limits({pk for team in teams for pk in team.lineage})
    by_quota = {team.pk for team in teams if not limits.keys().isdisjoint(team.lineage)}
    return frozenset(tight | by_quota | paying_wallets(teams).keys())
