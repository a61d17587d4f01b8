"""What the last scheduling cycles did and how long each of their steps took.

Kept in Redis, as it is watched and never counted on: a ring of the last cycles and one of the last that decided
something, for the page, and counts per bucket for Prometheus. A Redis that is flushed or away costs the record and
nothing else.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime

from redis.exceptions import RedisError

from portal.common.live import redis_client

log = logging.getLogger(__name__)
KEPT = 200
# In the order in which a cycle takes them.
STEPS = ("lock", "snapshot", "plan", "commit", "waits", "preempt")
BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
COUNTED = ("granted", "preempted", "impossible")
_RING, _DECIDED, _SUMS = "berth:cycles", "berth:cycles_decided", "berth:cycle_sums"


@dataclass(frozen=True, slots=True)
class CycleRecord:
    """One cycle: when it looked, what it saw and decided, and the milliseconds of each step of ``STEPS``.

    ``seen`` requests waited when it looked, ``waiting`` were left. ``impossible`` were told that they can never
    start, ``preempted`` leases were told to go.
    """

    at: datetime
    policy: str
    policy_version: int
    seen: int
    granted: int
    waiting: int
    impossible: int
    preempted: int
    steps_ms: Mapping[str, float]

    @property
    def has_decided(self) -> bool:
        """Whether anybody got something, was told that it never will, or has to go."""
        return bool(self.granted or self.preempted or self.impossible)

    @property
    def total_ms(self) -> float:
        """How long the whole cycle took, in milliseconds."""
        return sum(self.steps_ms.values())

    def __str__(self) -> str:
        steps = ", ".join(f"{n} {name} {self.steps_ms.get(name, 0):.1f}" for n, name in enumerate(STEPS, 1))
        return (
            f"cycle of {self.policy} v{self.policy_version}: {self.seen} seen, {self.granted} granted,"
            f" {self.waiting} waiting, {self.impossible} impossible, {self.preempted} preempted"
            f" in {self.total_ms:.1f} ms ({steps})"
        )


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many cycles took at most so many milliseconds in one step, and all together; counts are cumulative."""

    step: str
    counts: tuple[tuple[float, int], ...]
    total: int
    sum_ms: float


def keep(record: CycleRecord) -> None:
    """Add a cycle to the rings and to the counts, in one round trip."""
    log.log(logging.INFO if record.has_decided else logging.DEBUG, "%s", record)
    told = json.dumps(asdict(record) | {"at": record.at.isoformat()}, separators=(",", ":"))
    try:
        pipe = redis_client().pipeline(transaction=False)
        for ring in (_RING, _DECIDED) if record.has_decided else (_RING,):
            pipe.lpush(ring, told)
            pipe.ltrim(ring, 0, KEPT - 1)
        for step, took in record.steps_ms.items():
            bucket = next((most for most in BUCKETS_MS if took <= most), "more")
            pipe.hincrby(_SUMS, f"{step}:{bucket}", 1)
            pipe.hincrbyfloat(_SUMS, f"{step}:sum_ms", round(took, 3))
        pipe.hincrby(_SUMS, "seen", record.seen)
        for name in COUNTED:
            pipe.hincrby(_SUMS, name, getattr(record, name))
        pipe.execute()
    except RedisError as error:
        log.warning("cycle not recorded: %s", error)


def last_cycles(*, decided: bool = False) -> list[CycleRecord] | None:
    """Return the last cycles, or the last that decided something, newest first; None where Redis does not answer."""
    try:
        rows = redis_client().lrange(_DECIDED if decided else _RING, 0, KEPT - 1)
    except RedisError:
        return None
    found = [json.loads(row) for row in rows]
    return [CycleRecord(**(row | {"at": datetime.fromisoformat(row["at"])})) for row in found]


def last_cycle_at() -> datetime | None:
    """Return when the last cycle that is kept was taken; None where Redis does not answer or there was none."""
    try:
        newest = redis_client().lindex(_RING, 0)
    except RedisError:
        return None
    return datetime.fromisoformat(json.loads(str(newest))["at"]) if newest else None


def histograms() -> tuple[list[Histogram], dict[str, int]]:
    """Return how long each step took since Redis was empty, and how many requests and leases were counted.

    Both are empty where Redis does not answer: unknown, not zero.
    """
    try:
        kept: dict[str, str] = redis_client().hgetall(_SUMS)  # type: ignore[assignment]
    except RedisError:
        return [], {}
    found = []
    for step in STEPS:
        below, counts = 0, []
        for most in BUCKETS_MS:
            below += int(kept.get(f"{step}:{most}", 0))
            counts.append((float(most), below))
        total = below + int(kept.get(f"{step}:more", 0))
        found.append(Histogram(step, tuple(counts), total, float(kept.get(f"{step}:sum_ms", 0.0))))
    return found, {name: int(kept.get(name, 0)) for name in ("seen", *COUNTED)}
