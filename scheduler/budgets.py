"""Requests that a budget keeps from starting are left out of a turn, so that they keep no place from others."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from portal.common.rows import Rows
from portal.leases.budget_gate import judge, limited_teams, stopping
from portal.leases.models import LeaseRequest
from portal.leases.requests import expense_of
from scheduler.engine.model import Reason, Snapshot, Wait

_REQUESTS = Rows(LeaseRequest, "team")


def hold_back(seen: Snapshot, *, now: datetime) -> tuple[Snapshot, list[Wait]]:
    """Return the snapshot without the requests that a budget stops, and why these wait.

    Each is looked at by itself; that several together are too much is found as they are stored
    (``commit.grants``), with the budgets held.
    """
    teams = limited_teams()
    places = {claim.id: place for place, claim in enumerate(seen.queue, start=1) if claim.team_id in teams}
    if not places:
        return seen, []
    requests = _REQUESTS.where("it.id = ANY(%s) ORDER BY it.id", [list(places)])
    expenses = [expense_of(request, now=now) for request in requests]
    answers = judge(expenses, now=now, with_waiting=False, together=False)
    kept = []
    for request, expense, reached in zip(requests, expenses, answers, strict=True):
        stop = stopping(reached, expense.is_preemptible)
        if stop is not None:
            kept.append(Wait(request.pk, places[request.pk], (Reason("budget_reached", stop.figures()),)))
    stopped = {wait.claim_id for wait in kept}
    queue = tuple(claim for claim in seen.queue if claim.id not in stopped)
    return (replace(seen, queue=queue) if stopped else seen), kept
