"""One scheduling turn: snapshot, plan, commit. Any number may run at once; the database keeps them honest."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from django.db import connection, transaction
from redis.exceptions import RedisError

from portal.common import outbox
from portal.common.clock import db_now
from portal.common.failpoints import failpoint
from portal.common.live import redis_client
from portal.common.retry import with_retries
from portal.fleet.models import Node
from portal.leases.elastic import is_anything_growing
from portal.leases.forecasting import SNAPSHOT_KEY
from portal.leases.selectors import is_anybody_waiting
from portal.policies import cycles
from portal.policies.selectors import active_policy
from scheduler import budgets, commit, snapshot
from scheduler.commit_preemptions import preemptions
from scheduler.engine.codec import TableTexts, snapshot_to_json
from scheduler.engine.model import Plan, PolicyRules, Snapshot, Wait
from scheduler.engine.place.policy import COMPILE_FROM
from scheduler.engine.plan import plan
from scheduler.engine.state import EngineState

log = logging.getLogger(__name__)
CYCLE_LOCK = 0x42657274  # turns wait for each other for efficiency only: constraints make them safe
WAITS_EVERY_MS = 1000
GROW_EVERY_MS = 5000
WAITS_MS_EACH = 10  # a long queue is told less often: each telling writes every row of it
LEAST_REST_S, MOST_REST_S = 0.02, 0.05
NOTHING, USUAL = Plan(), PolicyRules()


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn did: how many it granted and left waiting, and by which plan and policy.

    ``seen`` is how many waited when it looked at ``at``, ``steps_ms`` how long each step of ``cycles.STEPS`` took;
    a turn that found nothing to do has neither.
    """

    granted: int
    waiting: int
    decided: Plan = NOTHING
    policy: PolicyRules = USUAL
    at: datetime | None = None
    seen: int = 0
    steps_ms: dict[str, float] = field(default_factory=dict)


def run() -> Turn:
    """Take a turn now. Safe to repeat and to run in parallel; opens its own transaction."""
    _PACE.rest()
    _WARM_UP.prepare()
    covered, began = outbox.begin(outbox.RUN_CYCLE), time.monotonic()
    with uncollected():
        turn = with_retries(_turn)
    failpoint("turn.committed")
    watch = Stopwatch(turn.steps_ms)
    if turn.decided.preemptions or turn.decided.spared:
        # 6. Preempt, in a transaction of its own: leases are locked before nodes, which the grants have touched.
        with_retries(lambda: preemptions(turn.decided, turn.policy, now=db_now()))
    watch.lap("preempt")
    _record(turn)
    outbox.done(outbox.RUN_CYCLE, covered)
    _PACE.note(began, is_busy=turn.granted > 0 and turn.waiting > 0)
    return turn


class Stopwatch:
    """Writes down how many milliseconds each step took since the one before it."""

    def __init__(self, into: dict[str, float]) -> None:
        self._into, self._since = into, time.monotonic()

    def lap(self, step: str) -> None:
        """The step is over."""
        now = time.monotonic()
        self._into[step] = (now - self._since) * 1000
        self._since = now


def _record(turn: Turn) -> None:
    if turn.at is None:
        return
    never = sum(wait.is_impossible for wait in turn.decided.waits)
    cycles.keep(
        cycles.CycleRecord(
            at=turn.at,
            policy=turn.policy.name,
            policy_version=turn.policy.version,
            seen=turn.seen,
            granted=turn.granted,
            waiting=turn.waiting - never,
            impossible=never,
            preempted=len(turn.decided.preemptions),
            steps_ms=turn.steps_ms,
        )
    )


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the collector of reference cycles away: a turn makes many values and no cycles.

    On a large fleet it would walk all of them several times, for two fifths of the turn.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Pace:
    """While more wait than fit, a pause as long as the last turn took, or a bit longer: what becomes free
    meanwhile shares a turn.

    Nobody who could start at once waits for it: then the queue was empty or nothing could be granted.
    """

    def __init__(self) -> None:
        self._until = 0.0

    def rest(self) -> None:
        """Wait out the pause, at most ``MOST_REST_S``."""
        time.sleep(max(0.0, min(MOST_REST_S, self._until - time.monotonic())))

    def note(self, began: float, *, is_busy: bool) -> None:
        """Set the pause after a turn."""
        now = time.monotonic()
        self._until = now + max(LEAST_REST_S, now - began) if is_busy else 0.0


_PACE = Pace()


class WarmUp:
    """A trial decision before the first real turn of a process, outside any transaction.

    On a large fleet it compiles the kernels, once per version, which takes longer than a transaction may stay idle.
    """

    def __init__(self) -> None:
        self._is_done = False

    def prepare(self) -> None:
        """Get ready, once; a fleet that needs no compiler costs one count."""
        if self._is_done or not is_anybody_waiting():
            return
        self._is_done = True
        if Node.objects.count() >= COMPILE_FROM:
            plan(snapshot.take(now=db_now()), active_policy())


_WARM_UP = WarmUp()


class KeptRoom:
    """The room of this process's last turn, so that the next one pays for what changed since.

    It may hold grants that were never stored: what the rows say counts (``Occupancy.renewed``). One turn at a time
    has it, and one that fails loses it.
    """

    def __init__(self) -> None:
        self._room: EngineState | None = None

    def of(self, seen: Snapshot, policy: PolicyRules) -> EngineState:
        """The room of the snapshot."""
        room, self._room = self._room, None
        if room is None or room.policy != policy or not room.renewed(seen):
            room = EngineState.from_snapshot(seen, policy)
        return room

    def keep(self, room: EngineState) -> None:
        """Keep it for the next turn."""
        self._room = room


_ROOM = KeptRoom()


@transaction.atomic
def _turn() -> Turn:
    steps: dict[str, float] = {}
    watch = Stopwatch(steps)
    # 1. Wait for a turn that is under way.
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [CYCLE_LOCK])
    now = db_now()
    if not is_anybody_waiting() and not is_anything_growing(now=now):
        return Turn(0, 0)
    watch.lap("lock")
    # 2. Read everything that the decision may look at.
    policy = active_policy()
    seen, kept_back = budgets.hold_back(snapshot.take(now=now), now=now)
    watch.lap("snapshot")
    # 3. Decide.
    room = _ROOM.of(seen, policy)
    decided = plan(seen, policy, room)
    _ROOM.keep(room)
    watch.lap("plan")
    # 4. Store. What was seen as free may have been given back after ``now``: grants begin after the looking, or
    # the periods of two holders would overlap on paper.
    commit.repartitions(decided.repartitions, now=now)
    made = commit.grants(decided.grants, policy_version=policy.version, now=db_now(), snapshot=seen)
    made += commit.growth(decided.growth, policy_version=policy.version, now=db_now(), snapshot=seen)
    commit.impossible(decided.waits, now=now)
    watch.lap("commit")
    # 5. Tell those who wait why.
    _tell_waits([*(wait for wait in decided.waits if not wait.is_impossible), *kept_back])
    watch.lap("waits")
    failpoint("turn.before_commit")
    waiting = len(decided.waits) + len(kept_back)
    return Turn(len(made), waiting, decided, policy, now, len(seen.queue) + len(kept_back), steps)


def _tell_waits(found: Sequence[Wait]) -> None:
    """Store why requests wait: at once for a short queue, in a long one newcomers first, then now and then all."""
    every_ms = max(WAITS_EVERY_MS, WAITS_MS_EACH * len(found))
    if len(found) <= 50 or _first_in("waits", every_ms):
        commit.waits(found)
    elif _first_in("first_waits", WAITS_EVERY_MS):
        commit.waits(found, only_first=True)


_WRITTEN = TableTexts()


def is_due(*, now: datetime) -> bool:
    """Say whether a turn has something to do: somebody waits, or now and then, something may grow."""
    return is_anybody_waiting() or (is_anything_growing(now=now) and _first_in("growth", GROW_EVERY_MS))


def publish_snapshot(*, now: datetime) -> None:
    """Publish the present picture for forms and pages; a Redis that is away costs a log line."""
    try:
        redis_client().set(SNAPSHOT_KEY, snapshot_to_json(snapshot.take(now=now), _WRITTEN), ex=60)
    except RedisError as error:
        log.warning("snapshot not published: %s", error)


def _first_in(name: str, period_ms: int) -> bool:
    try:
        return bool(redis_client().set(f"berth:once:{name}", 1, nx=True, px=period_ms))
    except RedisError:
        return True
