"""What another policy, or another quota, would change: one turn on the last published picture, played with each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from portal.leases.budget_gate import HoursShortfall, MemoryShortfall, judge
from portal.leases.forecasting import published_snapshot
from portal.leases.models import Lease, LeaseRequest
from portal.leases.requests import expense_of
from portal.leases.states import RequestState
from portal.policies.selectors import active_policy
from portal.quotas.models import Quota
from portal.teams.selectors import Rights, visible_teams
from scheduler.engine import plan
from scheduler.engine.model import PolicyRules, Snapshot
from scheduler.engine.policy_body import policy_from

# So many of the waiting are looked at, from the head of the queue: with 1,000 devices two turns of 1,000 take
# about a second on two shared cores (docs/policies.md).
MOST_WAITING = 1000
MOST_ROWS = 25
NOW = 0
QUOTA_REASONS = frozenset({"quota_ceiling", "booking_above_quota"})


@dataclass(frozen=True, slots=True)
class MovedRequest:
    """A waiting request whose lot would change; positions count from 1, 0 is a start now."""

    uid: str
    name: str
    team: str
    was: int
    now: int


@dataclass(slots=True)
class TeamEffect:
    """How many of a team's waiting requests would start, no longer start, move up and move down, and be blocked."""

    team: str
    starts: int = 0
    stays: int = 0
    sooner: int = 0
    later: int = 0
    blocked: int = 0


@dataclass(frozen=True, slots=True)
class LeaseToldToGo:
    """A live lease that only the other policy would preempt."""

    uid: str
    name: str
    team: str


@dataclass(frozen=True, slots=True)
class PolicyTrial:
    """The two turns compared; ``starts`` to ``later`` hold the first rows, counts all of them.

    ``blocked`` would wait for quota or could never start, and now do not; where their lot changes they are among the
    others, too. ``teams``: every team with a request whose lot would change, those with most of them first.
    ``preempted``: the first of the leases that would be told to go and are not with the active rules.
    """

    taken_at: datetime
    looked_at: int
    waiting: int
    starts: list[MovedRequest]
    stays: list[MovedRequest]
    sooner: list[MovedRequest]
    later: list[MovedRequest]
    blocked: list[MovedRequest]
    counts: Mapping[str, int]
    teams: list[TeamEffect]
    preempted: list[LeaseToldToGo]
    preempted_was: int
    preempted_now: int

    @property
    def is_same(self) -> bool:
        """Say whether nothing would change in this turn."""
        changed = any(self.counts.values()) or bool(self.preempted)
        return not changed and self.preempted_was == self.preempted_now


def try_body(body: Mapping[str, Any]) -> PolicyTrial | None:
    """Compare a checked body with what is in force; None when there is no picture to try it on."""
    return compare(active_policy(), policy_from(body))


def try_quota(quota: Quota, rights: Rights) -> PolicyTrial | None:
    """Compare a quota that is not stored with what holds; None when there is no picture to try it on.

    Who is told only of teams in their sight: what others would gain or lose is left out.
    """
    snapshot = published_snapshot()
    if snapshot is None:
        return None
    changed = tuple(
        replace(
            team, ceiling_milli=quota.ceiling_milli, guaranteed_milli=quota.guaranteed_milli,
            lending_milli=quota.lending_milli, cohort_id=quota.cohort_id,
        )
        if team.team_id == quota.team_id
        else team
        for team in snapshot.quotas
    )  # fmt: skip
    sees = set(visible_teams(rights).values_list("pk", flat=True))
    policy, now = active_policy(), timezone.now()
    claims = [claim.id for claim in snapshot.queue[:MOST_WAITING]]
    waiting = LeaseRequest.objects.filter(
        pk__in=claims, state=RequestState.QUEUED, team__lineage__contains=[quota.team_id]
    )
    requests = list(waiting.select_related("team", "flavor"))
    stopped_was = _stopped_by_limits(requests, now)
    with transaction.atomic():
        limits = {
            "gpu_seconds_a_month": quota.gpu_seconds_a_month,
            "most_memory_mib": quota.most_memory_mib,
        }
        Quota.objects.update_or_create(team_id=quota.team_id, defaults=limits)
        stopped_now = _stopped_by_limits(requests, now)
        transaction.set_rollback(True)
    after = replace(snapshot, quotas=changed)
    return _compared(snapshot, policy, after, policy, sees, stopped=(stopped_was, stopped_now))


def _stopped_by_limits(requests: Sequence[LeaseRequest], now: datetime) -> frozenset[int]:
    """Return which waiting requests would find too few GPU-hours or too little memory, each by itself."""
    expenses = [expense_of(request, now=now) for request in requests]
    answers = judge(expenses, now=now, with_waiting=False, together=False) if expenses else []
    kinds = (HoursShortfall, MemoryShortfall)
    return frozenset(
        request.pk
        for request, reached in zip(requests, answers, strict=True)
        if any(isinstance(one, kinds) for one in reached)
    )


def compare(old: PolicyRules, new: PolicyRules) -> PolicyTrial | None:
    """Return who of the waiting would start or move by ``new``; None when there is no picture. Changes nothing."""
    snapshot = published_snapshot()
    return None if snapshot is None else _compared(snapshot, old, snapshot, new, None)


def _compared(
    before: Snapshot,
    old: PolicyRules,
    after: Snapshot,
    new: PolicyRules,
    sees: set[int] | None,
    stopped: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset()),
) -> PolicyTrial:
    """Play a turn on each picture of the same queue; ``sees`` are the teams to tell of, None: all.

    ``stopped`` are claims that a limit beside devices keeps out of the turn, before and after.
    """
    waiting = len(before.queue)
    queue = before.queue[:MOST_WAITING]
    was, go_was, blocked_was = _lots(replace(before, queue=queue), old, stopped[0])
    now, go_now, blocked_now = _lots(replace(after, queue=queue), new, stopped[1])
    if sees is not None:
        shown_claims = {claim.id for claim in queue if claim.team_id in sees}
        was = {claim: lot for claim, lot in was.items() if claim in shown_claims}
        blocked_now &= shown_claims
    both = [(claim, was[claim], now[claim]) for claim in was if claim in now and was[claim] != now[claim]]
    kinds = {
        "starts": [row for row in both if row[2] == NOW],
        "stays": [row for row in both if row[1] == NOW],
        "sooner": [row for row in both if NOW < row[2] < row[1]],
        "later": [row for row in both if NOW < row[1] < row[2]],
        "blocked": [
            (claim, was.get(claim, NOW), now.get(claim, NOW)) for claim in sorted(blocked_now - blocked_was)
        ],
    }
    shown = {kind: sorted(rows, key=lambda row: row[2])[:MOST_ROWS] for kind, rows in kinds.items()}
    names = _names([claim for rows in kinds.values() for claim, *_ in rows])
    told_to_go = _told_to_go(go_now - go_was, sees)
    return PolicyTrial(
        taken_at=before.taken_at,
        looked_at=len(queue),
        waiting=waiting,
        counts={kind: len(rows) for kind, rows in kinds.items()},
        teams=_teams(kinds, names),
        preempted=told_to_go,
        preempted_was=len(go_was) if sees is None else 0,
        preempted_now=len(go_now) if sees is None else len(told_to_go),
        **{
            kind: [MovedRequest(*names[claim], a, b) for claim, a, b in rows if claim in names]
            for kind, rows in shown.items()
        },
    )


def _lots(
    snapshot: Snapshot, policy: PolicyRules, stopped: frozenset[int]
) -> tuple[dict[int, int], set[int], set[int]]:
    """Return by claim its position, 0 for a start now, the leases that would be told to go, and who is blocked.

    Blocked is who waits for quota in the first place, or can never start. The stopped take no part and keep their place
    in the queue.
    """
    lots = {claim.id: place for place, claim in enumerate(snapshot.queue, start=1) if claim.id in stopped}
    turn = plan(replace(snapshot, queue=tuple(c for c in snapshot.queue if c.id not in stopped)), policy)
    lots.update((wait.claim_id, wait.position) for wait in turn.waits)
    lots.update((grant.claim_id, NOW) for grant in turn.grants if grant.starts_at is None)
    blocked = {
        wait.claim_id
        for wait in turn.waits
        if wait.is_impossible or (wait.reasons and wait.reasons[0].code in QUOTA_REASONS)
    }
    return lots, {one.lease_id for one in turn.preemptions}, blocked | lots.keys() & stopped


def _teams(
    kinds: Mapping[str, list[tuple[int, int, int]]], names: Mapping[int, tuple[str, str, str]]
) -> list[TeamEffect]:
    found: dict[str, TeamEffect] = {}
    for kind, rows in kinds.items():
        for claim, _was, _now in rows:
            if claim in names:
                team = names[claim][2]
                effect = found.setdefault(team, TeamEffect(team))
                setattr(effect, kind, getattr(effect, kind) + 1)
    return sorted(
        found.values(), key=lambda e: (-(e.starts + e.stays + e.sooner + e.later + e.blocked), e.team)
    )


def _told_to_go(leases: set[int], sees: set[int] | None) -> list[LeaseToldToGo]:
    rows = Lease.objects.filter(pk__in=leases).select_related("team", "request").order_by("pk")
    rows = rows if sees is None else rows.filter(team_id__in=sees)
    return [LeaseToldToGo(row.uid, row.request.name, row.team.name) for row in rows[:MOST_ROWS]]


def _names(claims: list[int]) -> dict[int, tuple[str, str, str]]:
    rows = LeaseRequest.objects.filter(pk__in=claims).select_related("team")
    return {row.pk: (row.uid, row.name, row.team.name) for row in rows}
