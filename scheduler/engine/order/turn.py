"""One pass over the queue: order, place, else preempt, else skip. The same for replay and live decisions."""

from __future__ import annotations

from typing import NamedTuple

from scheduler.engine.columns import Floats, Ints
from scheduler.engine.consolidate import place
from scheduler.engine.line import (
    FREE,
    NOBODY,
    PROTECTED,
    QUEUED,
    SORTED,
    Floor,
    Line,
    begin,
    waited_by,
)
from scheduler.engine.preempt import Guard, Scratch, Teams, make_room

PROTECTED_SCORE = 1e-6
NEVER = 1 << 60


class Care(NamedTuple):
    """What keeps waiting bounded, and what is kept free.

    The *pressure* is what the queue asks over what the floor has. A score is divided by
    (1 + waited / ageing_s)^(ageing_power / (1 + ``relief`` x pressure)). Who has waited ``protect_s`` becomes
    protected while all protected together have at most ``protect_part`` / (1 + relief x pressure) of the
    boards. A score above
    ``long_from`` starts only if ``long_spare`` of all boards stay free, above ``huge_from`` ``huge_spare``; who
    could then never start is exempt. ``blocks``: nobody overtakes.
    """

    blocks: bool = False
    preempts: bool = True
    ageing_s: float = 600.0
    ageing_power: float = 0.0
    relief: float = 0.0
    protect_s: int = NEVER
    protect_part: float = 0.1
    long_from: float = 1e300
    long_spare: float = 0.0
    huge_from: float = 1e300
    huge_spare: float = 0.0


class Rule(NamedTuple):
    """What a pass goes by; ``table`` holds a learned curve per form; ``is_static``: a score never changes."""

    care: Care
    guard: Guard
    table: Floats
    boards: int
    is_static: bool


class Outcome(NamedTuple):
    """Rows that began and rows that were preempted in one pass, in order; no row is in both."""

    began: Ints
    evicted: Ints


def rate(line: Line, row: int, now: int, table: Floats) -> float:
    """Stands for the policy's own index (kernel)."""
    return float(line.since[row])


def score(line: Line, row: int, now: int, rule: Rule, power: float) -> float:
    """The score of a request, low first: the policy's index x weight, less the longer it waited (kernel)."""
    waited = waited_by(line, row, now)
    if line.protected[row]:
        return PROTECTED_SCORE * (1.0 + 1.0 / (1.0 + waited))
    worth: float = rate(line, row, now, rule.table) * line.weight[row]
    if power > 0.0:
        worth /= (1.0 + waited / rule.care.ageing_s) ** power
    return worth


def protect_longest(line: Line, rule: Rule, now: int, pressure: float) -> None:
    """Protect who has waited long enough, the longest first, up to the protected part, less under pressure (kernel)."""
    most = rule.care.protect_part * rule.boards / (1.0 + rule.care.relief * pressure)
    while True:
        best, longest = NOBODY, rule.care.protect_s - 1
        for at in range(line.sums[QUEUED]):
            row = line.queue[at]
            if line.protected[row] or line.sums[PROTECTED] + line.gpus[row] > most:
                continue
            waited = waited_by(line, row, now)
            if waited > longest or (waited == longest and best != NOBODY and row < best):
                best, longest = row, waited
        if best == NOBODY:
            return
        line.protected[best] = True
        line.sums[PROTECTED] += line.gpus[best]


def pressure_on(line: Line, rule: Rule) -> float:
    """What the queue asks over what the floor has; 0 where nobody needs to know (kernel)."""
    if rule.care.relief == 0.0:
        return 0.0
    asked = 0
    for at in range(line.sums[QUEUED]):
        asked += line.gpus[line.queue[at]]
    return asked / rule.boards


def is_before(line: Line, one: int, other: int) -> bool:
    """Whether one waiting row goes before the other: group, score, row (kernel)."""
    if line.group[one] != line.group[other]:
        return bool(line.group[one] < line.group[other])
    if line.score[one] != line.score[other]:
        return bool(line.score[one] < line.score[other])
    return one < other


def sort_queue(line: Line, known: int) -> None:
    """Put the queue in order, of which the first ``known`` are; it is nearly so, so insertion is quick (kernel)."""
    for at in range(max(known, 1), line.sums[QUEUED]):
        row, to = line.queue[at], at
        while to > 0 and is_before(line, row, line.queue[to - 1]):
            line.queue[to] = line.queue[to - 1]
            to -= 1
        line.queue[to] = row


def group_queue(line: Line, teams: Teams, known: int) -> None:
    """Set who is served in which group: by team, or inside its team's guarantee first (kernel).

    Guarantees are handed out in order of score, and what runs counts.
    """
    for at in range(known, line.sums[QUEUED]):
        line.group[line.queue[at]] = 0
    if teams.kind == 1:
        for at in range(line.sums[QUEUED]):
            row = line.queue[at]
            line.group[row] = teams.rank[line.team[row]]
    if teams.kind == 2:
        sort_queue(line, 0)
        for team in range(len(teams.used)):
            teams.promised[team] = teams.used[team]
        for at in range(line.sums[QUEUED]):
            row = line.queue[at]
            team = line.team[row]
            if teams.promised[team] + line.gpus[row] <= teams.guarantee[team]:
                teams.promised[team] += line.gpus[row]
            else:
                line.group[row] = 1


def keeps_spare(line: Line, row: int, rule: Rule) -> bool:
    """Whether enough boards stay free for shorter requests when this one starts (kernel)."""
    spare = 0.0
    if line.score[row] > rule.care.huge_from:
        spare = rule.care.huge_spare * rule.boards
    elif line.score[row] > rule.care.long_from:
        spare = rule.care.long_spare * rule.boards
    if line.gpus[row] + spare > rule.boards:
        return True
    return bool(line.sums[FREE] - line.gpus[row] >= spare)


def score_running(line: Line, floor: Floor, rule: Rule, now: int, power: float) -> None:
    """Give everybody who runs its score of this pass (kernel)."""
    last = NOBODY
    for node in range(len(floor.free)):
        for board in range(floor.boards[node]):
            row = floor.holder[node, board]
            if row != NOBODY and row != last:
                if line.since[row] != now:
                    line.score[row] = score(line, row, now, rule, power)
                last = row


def take_turn(
    line: Line, floor: Floor, rule: Rule, teams: Teams, scratch: Scratch, now: int, out: Outcome
) -> tuple[int, int]:
    """One pass: every waiting request in order begins, or preempts what it needs and begins, or waits on.

    Preempted requests wait for the next pass. Answers how many rows of ``out`` began and were preempted; the
    caller takes those that began off the queue (kernel).
    """
    pressure = pressure_on(line, rule)
    if rule.care.protect_s < NEVER:
        protect_longest(line, rule, now, pressure)
    power = rule.care.ageing_power / (1.0 + rule.care.relief * pressure)
    count = line.sums[QUEUED]
    known = line.sums[SORTED] if rule.is_static else 0
    for at in range(known, count):
        row = line.queue[at]
        line.score[row] = score(line, row, now, rule, power)
    group_queue(line, teams, known)
    sort_queue(line, known)
    line.sums[SORTED] = count
    began = evicted = 0
    is_scored = False
    for team in range(len(teams.stuck)):
        teams.stuck[team] = NEVER
    for at in range(count):
        row = line.queue[at]
        key = line.team[row] if teams.kind else 0
        if line.gpus[row] >= teams.stuck[key]:
            continue
        fits = keeps_spare(line, row, rule) and line.sums[FREE] >= line.gpus[row] and place(line, floor, row)
        if not fits and rule.care.preempts:
            if not is_scored:
                score_running(line, floor, rule, now, power)
                is_scored = True
            had = evicted
            evicted = make_room(line, floor, rule.guard, teams, scratch, row, now, out.evicted, evicted)
            if evicted > had:
                fits = place(line, floor, row)
                for team in range(len(teams.stuck)):
                    teams.stuck[team] = NEVER
        if fits:
            begin(line, row, now)
            teams.used[line.team[row]] += line.gpus[row]
            out.began[began] = row
            began += 1
        elif rule.care.blocks:
            break
        else:
            teams.stuck[key] = line.gpus[row]
    return began, evicted
