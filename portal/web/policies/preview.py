"""What another policy would change: one turn on the last published picture, played with each of the two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from portal.leases.forecasting import published_snapshot
from portal.leases.models import LeaseRequest
from portal.policies.selectors import active_policy
from scheduler.engine import plan
from scheduler.engine.model import PolicyRules, Snapshot
from scheduler.engine.policy_body import policy_from

# So many of the waiting are looked at, from the head of the queue: with 1,000 devices two turns of 1,000 take
# about a second on two shared cores (docs/policies.md).
MOST_WAITING = 1000
MOST_ROWS = 25
NOW = 0


@dataclass(frozen=True, slots=True)
class MovedRequest:
    """A waiting request whose lot would change; positions count from 1, 0 is a start now."""

    uid: str
    name: str
    team: str
    was: int
    now: int


@dataclass(frozen=True, slots=True)
class PolicyTrial:
    """The two turns compared; lists hold the first rows, counts all of them."""

    taken_at: datetime
    looked_at: int
    waiting: int
    starts: list[MovedRequest]
    stays: list[MovedRequest]
    sooner: list[MovedRequest]
    later: list[MovedRequest]
    counts: Mapping[str, int]
    preempted_was: int
    preempted_now: int

    @property
    def is_same(self) -> bool:
        """Say whether nothing would change in this turn."""
        return not any(self.counts.values()) and self.preempted_was == self.preempted_now


def try_body(body: Mapping[str, Any]) -> PolicyTrial | None:
    """Compare a checked body with what is in force; None when there is no picture to try it on."""
    return compare(active_policy(), policy_from(body))


def compare(old: PolicyRules, new: PolicyRules) -> PolicyTrial | None:
    """Return who of the waiting would start or move by ``new``; None when there is no picture. Changes nothing."""
    snapshot = published_snapshot()
    if snapshot is None:
        return None
    waiting = len(snapshot.queue)
    seen = replace(snapshot, queue=snapshot.queue[:MOST_WAITING])
    was, preempted_was = _lots(seen, old)
    now, preempted_now = _lots(seen, new)
    both = [(claim, was[claim], now[claim]) for claim in was if claim in now and was[claim] != now[claim]]
    kinds = {
        "starts": [row for row in both if row[2] == NOW],
        "stays": [row for row in both if row[1] == NOW],
        "sooner": [row for row in both if NOW < row[2] < row[1]],
        "later": [row for row in both if NOW < row[1] < row[2]],
    }
    shown = {kind: sorted(rows, key=lambda row: row[2])[:MOST_ROWS] for kind, rows in kinds.items()}
    names = _names([claim for rows in shown.values() for claim, *_ in rows])
    return PolicyTrial(
        taken_at=snapshot.taken_at,
        looked_at=len(seen.queue),
        waiting=waiting,
        counts={kind: len(rows) for kind, rows in kinds.items()},
        preempted_was=preempted_was,
        preempted_now=preempted_now,
        **{
            kind: [MovedRequest(*names[claim], a, b) for claim, a, b in rows if claim in names]
            for kind, rows in shown.items()
        },
    )


def _lots(snapshot: Snapshot, policy: PolicyRules) -> tuple[dict[int, int], int]:
    """Return by claim its position, 0 for a start now, and how many leases would be told to go."""
    turn = plan(snapshot, policy)
    lots = {wait.claim_id: wait.position for wait in turn.waits}
    lots.update((grant.claim_id, NOW) for grant in turn.grants if grant.starts_at is None)
    return lots, len(turn.preemptions)


def _names(claims: list[int]) -> dict[int, tuple[str, str, str]]:
    rows = LeaseRequest.objects.filter(pk__in=claims).select_related("team")
    return {row.pk: (row.uid, row.name, row.team.name) for row in rows}
