"""Claims taken one by one, the next one first: sorted once, or a heap of lines whose worth falls as they are served."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import datetime
from heapq import heapify, heappop, heapreplace
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from scheduler.engine.columns import Floats
from scheduler.engine.model import Claim, Grant, PolicyRules, Running, Snapshot
from scheduler.engine.order.burden import waited_s

Tie = tuple[datetime, bool, int]


def tie(claim: Claim) -> Tie:
    """What settles equal claims: time queued, then id; a what-if (negative id) stands behind real ones."""
    return claim.queued_at, claim.id < 0, abs(claim.id)


class Ranking(Protocol):
    """The claims of one class, next one first."""

    def pop(self) -> Claim | None:
        """Take the claim that goes next; None when nobody is left."""

    def refresh(self) -> None:
        """A grant was noted: what comes next may have changed."""


class Order(Protocol):
    """An order policy for one turn. ``by_priority``: a higher priority always goes first. ``blocks``: nobody
    overtakes who waits for room.
    """

    by_priority: ClassVar[bool]
    blocks: ClassVar[bool]

    def __init__(self, snapshot: Snapshot, policy: PolicyRules) -> None: ...

    def ranking(self, claims: Sequence[Claim]) -> Ranking:
        """The claims of one class, ranked by what is known now."""

    def note(self, claim: Claim, grant: Grant) -> None:
        """Count what the claim was granted."""


class LeaseColumns:
    """What the scores of leases depend on, as columns: one row for leases that live and end together.

    Instants in seconds since 1970. ``units`` and ``cost_milli`` are of all of them, ``ran_s`` is what their
    request ran and ``waited_s`` what it waited before they began. ``sort`` numbers the pairs of team and units
    in ``sorts``, ``who`` the pairs of team and person in ``people``.
    """

    began, until, ran_s, waited_s, predicted_s, units, cost_milli, sort, who = range(9)
    FIELDS = 9

    def __init__(self) -> None:
        self.columns: Floats = np.zeros((self.FIELDS, 0))
        self.sorts: dict[tuple[int, int], int] = {}
        self.people: dict[tuple[int, int], int] = {}

    def change(self, kept: Sequence[int], new: Iterable[Sequence[Running]]) -> None:
        """Keep these rows, and add those of leases that live together."""
        rows = [self._row(leases) for leases in new]
        self.columns = self.columns[:, kept]
        if rows:
            self.columns = np.concatenate([self.columns, np.array(rows, float).T], axis=1)

    def _row(self, leases: Sequence[Running]) -> tuple[float, ...]:
        one = leases[0]
        began = one.started_at.timestamp()
        queued = began if one.queued_at is None else one.queued_at.timestamp()
        units = sum(lease.count for lease in leases)
        return (
            began,
            one.until.timestamp(),
            one.ran_s,
            waited_s(began, queued, one.ran_s),
            one.predicted_s,
            units,
            sum(lease.cost_milli for lease in leases),
            self.sorts.setdefault((one.team_id, units), len(self.sorts)),
            self.people.setdefault((one.team_id, one.user_id), len(self.people)),
        )


@runtime_checkable
class Scored(Protocol):
    """An order whose claims and leases can be compared: the lower score goes first."""

    def score(self, claim: Claim) -> float:
        """The score of a claim that waits."""

    def scores_of(self, lives: LeaseColumns) -> Floats:
        """The scores of leases that live, as if they could choose again; always above 0."""

    def later(self, now: datetime, claims: Sequence[Claim]) -> Scored:
        """The scores of leases, and of these claims, at a later instant."""


@runtime_checkable
class Burdened(Protocol):
    """An order that knows how long and large claims are, whatever they have waited.

    ``overload`` is how pressing it is that others wait, from 0 (nobody does) towards 1.
    """

    overload: float

    def burden(self, claim: Claim) -> float:
        """Expected seconds x size^0.8."""

    def length(self, claim: Claim) -> float | None:
        """Expected seconds; None of a claim that was not ranked."""

    def lengths_of(self, lives: LeaseColumns) -> Floats:
        """Seconds that leases which cannot be stopped were expected to run as they began, by what is known now."""


class Sorted:
    """An order that no grant changes."""

    def __init__(self, claims: Iterable[Claim], key: Callable[[Claim], Any]) -> None:
        self._claims = iter(sorted(claims, key=key))

    def pop(self) -> Claim | None:
        """Take the next claim."""
        return next(self._claims, None)

    def refresh(self) -> None:
        """Nothing moves."""


class _Line:
    """Claims that stand and fall together, best first by their own worth."""

    __slots__ = ("age", "claims", "of")

    def __init__(self, of: Any) -> None:
        self.of = of
        self.age = 0  # grants noted when its key was last reckoned
        self.claims: deque[tuple[Any, Tie, Claim]] = deque()


class Heaped:
    """Lines of claims, the line with the lowest key first.

    ``line_of`` says with whom a claim stands, ``worth`` sorts it within its line (low first), and ``key`` says
    where a line stands whose first claim has that worth. A grant may only raise keys: then a line whose key is
    old is found when it comes up, and nobody else has to be looked at. Equal keys go by ``tie``.
    """

    def __init__(
        self,
        claims: Iterable[Claim],
        line_of: Callable[[Claim], Hashable],
        worth: Callable[[Claim], Any],
        key: Callable[[Any, Any], Any],
    ) -> None:
        self._key = key
        self._age = 0
        self._lines: list[_Line] = []
        found: dict[Hashable, list[tuple[Any, Tie, Claim]]] = {}
        for claim in claims:
            found.setdefault(line_of(claim), []).append((worth(claim), tie(claim), claim))
        for of, rows in found.items():
            line = _Line(of)
            line.claims.extend(sorted(rows, key=lambda row: row[:2]))
            self._lines.append(line)
        self._heap = [self._entry(at) for at in range(len(self._lines))]
        heapify(self._heap)

    def _entry(self, at: int) -> tuple[Any, Tie, int]:
        line = self._lines[at]
        line.age = self._age
        worth, when, _ = line.claims[0]
        return self._key(line.of, worth), when, at

    def pop(self) -> Claim | None:
        """Take the next claim."""
        while self._heap:
            key, _, at = self._heap[0]
            line = self._lines[at]
            if line.age != self._age and (present := self._entry(at))[0] > key:
                heapreplace(self._heap, present)
                continue
            claim = line.claims.popleft()[2]
            if line.claims:
                heapreplace(self._heap, self._entry(at))
            else:
                heappop(self._heap)
            return claim
        return None

    def refresh(self) -> None:
        """Keys are old now; that is found when they come up."""
        self._age += 1
