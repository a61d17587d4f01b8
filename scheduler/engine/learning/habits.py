"""What earlier requests say about one like them: how long people, teams and names usually ran, as features.

Averages of the logarithm of the length per group, from wide to narrow: everybody, the team, the team at this
size, the person, the person with this flavor, the person with this name. Each is kept over all ends and over
the recent ones. A narrow group with few ends leans on the wider one before it (m-estimate, Micci-Barreca,
SIGKDD Explorations 2001); the narrowest is the *habit* of a request. Digits in names are left out: "run 12"
is "run 13" again.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

LEAN = 3.0  # so many imagined ends of the wider group
PEAKS = 20  # so many memory peaks of a group are remembered
LEAST_PEAKS = 3
RECENT = 0.05  # what a new end weighs in the recent average
ENOUGH = 20.0  # more ends than this do not make a recent average surer
FEATURES = 6 + 5 * 6
_DIGITS = re.compile(r"\d+")
_UNKNOWN = math.log(3600.0)


@dataclass(frozen=True, slots=True)
class SubmittedRequest:
    """What is known of a request when it is made; ids in any numbering, ``person`` and ``asked_s`` 0 are unknown.

    ``size_milli`` is what it takes of a quota, ``hour`` and ``weekday`` (0 is Monday) when it was made.
    """

    team: int
    person: int = 0
    flavor: int = 0
    name: str = ""
    work: int = 0
    size_milli: int = 1000
    asked_s: int = 0
    hour: int = 0
    weekday: int = 0


@dataclass(slots=True)
class Habits:
    """Averages by group, brought up to date one end after another."""

    groups: dict[str, list[float]] = field(default_factory=dict)
    peaks: dict[str, list[int]] = field(default_factory=dict)

    def note(self, kind: SubmittedRequest, ran_s: float, peak_mib: int | None = None) -> None:
        """Remember that such a request ran so long, with this peak of memory (None: not measured)."""
        log = math.log(max(ran_s, 1.0))
        for key in filter(None, _keys(kind)):
            count, mean, recent, _, off = self.groups.get(key, (0.0, 0.0, log, log, 1.0))
            step = max(RECENT, 1.0 / (count + 1.0))
            self.groups[key] = [
                count + 1.0,
                mean + (log - mean) / (count + 1.0),
                recent + step * (log - recent),
                log,
                off + max(RECENT, 1.0 / (count + 2.0)) * (abs(log - recent) - off),
            ]
        if peak_mib is not None:
            for key in _memory_keys(kind):
                self.peaks[key] = [*deque(self.peaks.get(key, []), PEAKS - 1), peak_mib]

    def features(self, kind: SubmittedRequest) -> tuple[float, list[float]]:
        """The habit (logarithm of seconds), and what a model of its error looks at: FEATURES, none unknown.

        Lengths among them are told against the habit, so that they mean the same tomorrow.
        """
        levels = []
        mean = recent = _UNKNOWN
        for key in _keys(kind):
            count, own, own_recent, last, off = self.groups.get(key, (0.0, 0.0, 0.0, 0.0, 1.0))
            mean = (count * own + LEAN * mean) / (count + LEAN)
            sure = min(count, ENOUGH)
            recent = (sure * own_recent + LEAN * mean) / (sure + LEAN)
            levels.append((math.log1p(count), mean, recent, last if count else recent, off))
        habit = recent
        asked = math.log(kind.asked_s) - habit if kind.asked_s > 0 else 0.0
        size = math.log2(max(kind.size_milli, 1) / 1000)
        row = [size, float(kind.hour), float(kind.weekday), float(kind.work), asked, float(kind.asked_s > 0)]
        for count, mean, recent, last, off in levels:
            row += [count, mean - habit, recent - habit, last - habit, off]
        return habit, row

    def team_average(self, kind: SubmittedRequest) -> float | None:
        """Geometric mean of the seconds that the team's requests ran; None when none has ended."""
        count, mean, *_ = self.groups.get(_keys(kind)[1], (0.0, 0.0))
        return math.exp(mean) if count else None

    def memory_mib(self, kind: SubmittedRequest) -> int | None:
        """What nine of ten earlier requests like it stayed below; None with fewer than LEAST_PEAKS measured."""
        for key in _memory_keys(kind):
            known = sorted(self.peaks.get(key, []))
            if len(known) >= LEAST_PEAKS:
                return known[min(math.ceil(0.9 * len(known)), len(known)) - 1]
        return None

    def body(self) -> dict[str, Any]:
        """The habits as plain values."""
        return {"groups": self.groups, "peaks": self.peaks}


def habits_from(body: dict[str, Any]) -> Habits:
    """The habits that ``body`` gave."""
    return Habits(
        {str(key): [float(v) for v in row] for key, row in body["groups"].items()},
        {str(key): [int(v) for v in row] for key, row in body["peaks"].items()},
    )


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """An ended request: made and over at (seconds on one clock), how long it ran, and its memory's peak."""

    kind: SubmittedRequest
    made_s: float
    over_s: float
    ran_s: float
    peak_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """An ended request with what was known when it was made; ``team_s`` is its team's average, None without."""

    past: EndedRequest
    habit: float
    row: list[float]
    team_s: float | None


def walked(past: Iterable[EndedRequest], habits: Habits) -> list[Known]:
    """Each request in the order it was made, with what was known then. ``habits`` knows all of them afterwards."""
    ended = deque(sorted(past, key=lambda one: one.over_s))
    found = []
    for one in sorted(ended, key=lambda one: one.made_s):
        while ended and ended[0].over_s <= one.made_s:
            done = ended.popleft()
            habits.note(done.kind, done.ran_s, done.peak_mib)
        found.append(Known(one, *habits.features(one.kind), habits.team_average(one.kind)))
    for done in ended:
        habits.note(done.kind, done.ran_s, done.peak_mib)
    return found


def _keys(kind: SubmittedRequest) -> tuple[str, ...]:
    """The groups from wide to narrow; "" where nobody knows whose it is."""
    size = round(math.log2(max(kind.size_milli, 1) / 125))
    wide = ("*", f"t{kind.team}", f"t{kind.team}s{size}")
    if not kind.person:
        return (*wide, "", "", "")
    own = f"p{kind.person}"
    return (*wide, own, f"{own}f{kind.flavor}", f"{own}n{_plain(kind.name)}")


def _memory_keys(kind: SubmittedRequest) -> tuple[str, str]:
    own = f"p{kind.person}f{kind.flavor}"
    return f"{own}n{_plain(kind.name)}", own


def _plain(name: str) -> str:
    return _DIGITS.sub("#", name.strip().lower())
