"""The rules a turn goes by, as plain values: which version, in which order, where, and what may be taken back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Work = Literal["interactive", "training", "inference"]
WORKS: tuple[Work, ...] = ("interactive", "training", "inference")
Backfill = Literal["none", "easy", "conservative"]
Part = tuple[Work, int]


@dataclass(frozen=True, slots=True)
class PoolTime:
    """When other parts hold: on these days (0 is Monday) from one minute of the day until before another."""

    days: tuple[int, ...]
    from_minute: int
    to_minute: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Pools:
    """Which part of the fleet each kind of work is entitled to, in any unit; idle parts may be used by others.

    ``parts`` empty: no pools. ``zone`` is the time zone that the times are meant in.
    """

    parts: tuple[Part, ...] = ()
    times: tuple[PoolTime, ...] = ()
    zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class SleepTime:
    """When idle nodes may sleep, but for ``awake`` of them that stay ready."""

    days: tuple[int, ...]
    from_minute: int
    to_minute: int
    awake: int = 1


@dataclass(frozen=True, slots=True)
class Sleep:
    """Idle nodes are put to sleep in these times once they have idled for ``after_s``; none: never."""

    times: tuple[SleepTime, ...] = ()
    after_s: int = 900
    zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class Preempting:
    """What may be taken back: leases that said so (``preemptible``), and what is borrowed of others' guarantees.

    A lease has ``grace_s`` from the notice to its end, and is left alone for its first ``least_run_s`` and
    after ``most_evictions``. With ``by_score`` a lease that said so also goes for a request of equal or higher
    priority whose score, by an order that gives one, times ``factor`` is still below its own; leases for
    interactive work only where ``interactive`` says so, too.
    """

    preemptible: bool = True
    borrowed: bool = True
    by_score: bool = False
    interactive: bool = False
    factor: float = 1.2
    least_run_s: int = 600
    grace_s: int = 120
    most_evictions: int = 20


class ClaimOrLease(Protocol):
    """A claim or a lease."""

    @property
    def is_preemptible(self) -> bool:
        """Whether it said that it may be preempted."""

    @property
    def work(self) -> Work:
        """What kind of work it does."""


def heeds_scores(one: ClaimOrLease, rules: Preempting) -> bool:
    """Whether it goes, once it runs, for what has a clearly better score."""
    return rules.by_score and one.is_preemptible and (rules.interactive or one.work != "interactive")


@dataclass(frozen=True, slots=True)
class PolicyRules:
    """Which rules decide: names of the order and placement policies, and the version they come from.

    ``keep_better`` (0 to 1) is what it costs to use a board that is better than needed, as a part of an
    idle board's worth: 0 looks at room only, more keeps large and fast boards for those who need them.
    ``memory_factors`` pairs models with thousandths of a board's memory that its shares may be promised
    together: 1000, no oversubscription, for a model that is not named. A board in use keeps what it was
    opened with. MPS is one fault domain: its shares stay with one team also where ``share_across_teams`` lets
    others meet, unless ``mps_across_teams`` is set too. ``repartition`` lets idle boards change a pinned MIG
    layout. ``keep_empty`` is what it costs, in idle boards' worth, to be the first on a wholly idle node: more
    leaves whole nodes idle, which can then save energy. ``keep_short`` (0 to 1) is the part of the fleet that
    very long requests leave free for shorter ones where they cannot be stopped and many wait (see
    ``engine.short_reserve``). ``keep_apart`` is what it costs, in idle boards' worth for each board that a long
    request holds, to put a short one on its node where neither can be stopped (see ``engine.length_groups``).

    ``half_life_s`` is how fast used time is forgotten, ``penalty_s`` how much a grant counts as used at once.
    With ``backfill`` the first ``depth`` claims that do not fit and have waited ``reserve_after_s`` get a
    start in the future that nobody behind them may delay (easy: one). ``promise_p90`` decides nothing in a cycle: the
    first instant that nine of ten keep, told to a request that waits, is a promise.
    """

    name: str = "default"
    version: int = 0
    order: str = "priority_fifo"
    place: str = "default"
    share_across_teams: bool = False
    mps_across_teams: bool = False
    memory_factors: tuple[tuple[str, int], ...] = ()
    repartition: bool = False
    keep_better: float = 0.0
    keep_empty: float = 0.0
    keep_short: float = 0.0
    keep_apart: float = 0.0
    pools: Pools = Pools()
    half_life_s: int = 7 * 86_400
    penalty_s: int = 3_600
    ageing_s: int = 300
    backfill: Backfill = "easy"
    depth: int = 1
    reserve_after_s: int = 600
    promise_p90: bool = False
    preempting: Preempting = Preempting()
    sleep: Sleep = Sleep()

    def may_mix(self, mode: str) -> bool:
        """Whether shares of several teams may meet on one board in this mode."""
        return self.share_across_teams and (mode != "mps" or self.mps_across_teams)
