"""What a request that waits for an approval would do to those who wait already, by the engine on the last picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from portal.fleet.sizes import size_names
from portal.leases.models import LeaseRequest
from portal.leases.offers import as_chosen, claim_for
from portal.leases.published_snapshot import HORIZON_S, Picture, picture
from portal.policies.selectors import active_policy
from scheduler.engine import forecast
from scheduler.engine.forecaster import Forecaster
from scheduler.engine.model import PolicyRules

# The future is played once more for each request: only where that is quick, and for the first few.
MOST_ASKED, MOST_QUEUED, CHEAP_S = 5, 300, 0.2
A_DELAY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class QueueEffect:
    """How many of those who wait would start later, by how much at most, and when it would start itself.

    ``longest_s`` is None where somebody would not start any more as far as the future is played; ``starts_at`` is
    None where that cannot be told, ``is_now`` says that it would start at once.
    """

    delayed: int
    longest_s: int | None
    starts_at: datetime | None
    is_now: bool


def effects_on_queue(requests: Sequence[LeaseRequest]) -> dict[int, QueueEffect]:
    """Return by id what approving each of these requests alone would do; those are left out that cannot be told."""
    seen = picture() if requests else None
    if seen is None or len(seen.book.queue) > MOST_QUEUED:
        return {}
    policy = active_policy()
    seen.play(policy)
    if seen.cost_s > CHEAP_S:
        return {}
    return {request.pk: _effect(request, seen, policy) for request in requests[:MOST_ASKED]}


def _effect(request: LeaseRequest, seen: Picture, policy: PolicyRules) -> QueueEffect:
    before = seen.expected
    wanted = claim_for(
        -1,
        request.team,
        request.flavor,
        request.count,
        request.duration_s,
        request.priority,
        before,
        size_names(),
        request.author_id,
    )
    claim = as_chosen(wanted, request)
    queued = [one for one in before.queue if one.id != request.pk]
    then = Forecaster(replace(before, queue=(*queued, claim)), policy, HORIZON_S).ask(
        [*queued, claim], HORIZON_S
    )
    now = forecast(before, policy, queued, horizon_s=HORIZON_S)
    delays: list[timedelta | None] = []
    for one in queued:
        was, is_then = now[one.id].starts_at, then[one.id].starts_at
        if was is not None and (is_then is None or is_then - was >= A_DELAY):
            delays.append(None if is_then is None else is_then - was)
    known = [delay for delay in delays if delay is not None]
    longest = None if len(known) < len(delays) else int(max(known, default=timedelta()).total_seconds())
    starts_at = then[claim.id].starts_at
    return QueueEffect(
        len(delays), longest, starts_at, is_now=starts_at is not None and starts_at <= before.taken_at
    )
