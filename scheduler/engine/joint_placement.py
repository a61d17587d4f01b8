"""Placing a turn's claims together, where one after another leaves some out that would fit.

Served one after another, a claim that may go anywhere can take the only board that the next one needs.
So when claims are left over that had room as the turn began, the turn's claims are tried again in other
sequences. Equal claims (same team, same shape) form one line, always served from its front. A sequence is
taken only when every line gets at least what it got in queue order and some line gets more: nobody loses,
and nothing that already runs is touched.

The first sequence puts the most constrained claims first; each next one puts first what went wrong in the
last (squeaky wheel optimisation, Joslin and Clements, JAIR 10, 1999). Work is bounded by counts, never by
time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from scheduler.engine.events import Ended, held_by
from scheduler.engine.model import SHARED_MODES, Claim, Grant
from scheduler.engine.refused_shapes import RefusedShapes
from scheduler.engine.shape import Shape, shape_of
from scheduler.engine.state import EngineState, Refusal

MOST_PASSES = 8
# Passes in a row that bring nothing better before the search gives up.
PATIENCE = 4
MOST_GRANTS = 200
MOST_CANDIDATES = 16
# Boards looked at to tell how constrained a shape is.
MOST_LOOKS = 64

Want = tuple[int, Shape]
Served = tuple[list[Grant], list[tuple[Claim, Want]]]


def serve_in_order(state: EngineState, queue: Iterable[Claim]) -> Served:
    """Grant in order what can be granted, and apply it; within a turn room and headroom only shrink.

    So what failed once fails for every equal claim behind it, without another look.
    """
    grants: list[Grant] = []
    waiting: list[tuple[Claim, Want]] = []
    failed: set[Want] = set()
    refused = RefusedShapes()
    for claim in queue:
        want = (claim.team_id, shape_of(claim, state.policy))
        if want not in failed and not refused.covers(want[1]):
            answer = state.try_grant(claim, want[1])
            if isinstance(answer, Grant):
                state.grant(answer, state.now)
                grants.append(answer)
                continue
            failed.add(want)
            if answer is Refusal.CAPACITY:
                refused.add(want[1])
        waiting.append((claim, want))
    return grants, waiting


def serve_together(state: EngineState, queue: Sequence[Claim], served: Served) -> Served:
    """``served``, what serving in order granted of the queue, and more where placing together serves more.

    The state has its grants applied, before and after. Grants come in queue order. No line of equal claims
    gets less than it had.
    """
    grants, waiting = served
    better = place_together(state, queue, grants, waiting)
    if better is None:
        return grants, waiting
    found = {grant.claim_id: grant for grant in better}
    more, waiting = serve_in_order(state, [claim for claim in queue if claim.id not in found])
    found.update((grant.claim_id, grant) for grant in more)
    return [found[claim.id] for claim in queue if claim.id in found], waiting


def place_together(
    state: EngineState, queue: Sequence[Claim], grants: Sequence[Grant], waiting: Sequence[tuple[Claim, Want]]
) -> list[Grant] | None:
    """Grants that serve all that ``grants`` serve and more, applied instead of them; None when none is found.

    ``state`` has ``grants`` applied at ``state.now``; ``waiting`` are the claims left, in queue order.
    """
    if not 0 < len(grants) <= MOST_GRANTS:
        return None
    hopeful = _payable(state, waiting)
    if not hopeful or _is_on_lone_host(state, grants):
        return None
    _take_back(state, grants)
    lines = _line_up(state, queue, grants, hopeful)
    best = _search(state, lines)
    for grant in best or grants:
        state.grant(grant, state.now)
    return best


def fitting_without(
    state: EngineState, grants: Sequence[Grant], shapes: Iterable[Shape]
) -> set[Shape] | None:
    """The shapes that would have room had these grants not been made; ``state`` has them applied, before and after.

    None where a grant cannot be taken back for the look.
    """
    if _is_on_lone_host(state, grants):
        return None
    _take_back(state, grants)
    found = {shape for shape in shapes if state.spots(shape) is not None}
    for grant in grants:
        state.grant(grant, state.now)
    return found


@dataclass(eq=False, slots=True)
class _Line:
    """Equal claims in queue order; the first ``due`` of them are served anyway, the others may gain."""

    want: Want
    places: int
    cost: int
    claims: list[Claim] = field(default_factory=list)
    due: int = 0

    @property
    def scarcity(self) -> tuple[int, int]:
        """How few units have a place, then how big they are: smaller goes first."""
        return self.places // self.want[1].wanted, -self.cost

    @property
    def has_choice(self) -> bool:
        """Whether what is due could stand elsewhere; slices have a choice of positions too."""
        shape = self.want[1]
        return bool(self.due) and (shape.kind.mode == "mig" or self.places > self.due * shape.wanted)


def _payable(state: EngineState, waiting: Sequence[tuple[Claim, Want]]) -> list[tuple[Claim, Want]]:
    """The waiting claims that room alone keeps out: their teams could pay after all the grants."""
    can_pay = {want: bool(want[1].wanted) and state.can_pay(*want) for want in {want for _, want in waiting}}
    return [(claim, want) for claim, want in waiting if can_pay[want]]


def _line_up(
    state: EngineState, queue: Sequence[Claim], grants: Sequence[Grant], hopeful: Sequence[tuple[Claim, Want]]
) -> list[_Line]:
    """Lines of what was granted and of what had room before it, the most constrained line first."""
    granted = {grant.claim_id for grant in grants}
    served = [
        (claim, (claim.team_id, shape_of(claim, state.policy))) for claim in queue if claim.id in granted
    ]
    had_room = {shape: state.spots(shape) is not None for shape in dict.fromkeys(w[1] for _, w in hopeful)}
    gaining = islice((one for one in hopeful if had_room[one[1][1]]), MOST_CANDIDATES)
    lines: dict[Want, _Line] = {}
    for claim, want in (*served, *gaining):
        line = lines.get(want)
        if line is None:
            shape = want[1]
            able = (1 for board in state.matching(shape.kind) if not board.blocked and board.room(shape))
            line = lines[want] = _Line(want, sum(islice(able, MOST_LOOKS)), state.least_cost(shape))
        line.claims.append(claim)
        line.due += claim.id in granted
    return sorted(lines.values(), key=lambda line: line.scarcity)


def _search(state: EngineState, lines: Sequence[_Line]) -> list[Grant] | None:
    """The best of a bounded number of sequences; ``state`` is left as it was. None when none serves more."""
    most = sum(line.due for line in lines)
    sequence = [line for line in lines for _ in line.claims]
    has_choice = any(line.has_choice for line in lines) and len({line.want[1] for line in lines}) > 1
    if len(sequence) == most or not has_choice:
        return None
    best: list[Grant] | None = None
    in_vain = 0
    for _ in range(MOST_PASSES):
        grants, got = _try(state, sequence)
        _take_back(state, grants)
        owed = Counter({line: line.due - got[line] for line in lines if got[line] < line.due})
        if not owed and len(grants) > most:
            best, most, in_vain = grants, len(grants), 0
        else:
            in_vain += 1
        if len(grants) == len(sequence) or in_vain == PATIENCE:
            break
        missed = Counter({line: len(line.claims) - got[line] for line in lines})
        sequence = _to_front(sequence, owed or missed)
    return best


def _try(state: EngineState, sequence: Iterable[_Line]) -> tuple[list[Grant], Counter[_Line]]:
    """Serve the lines' claims in this sequence; the grants, which stay applied, and how many each line got."""
    grants: list[Grant] = []
    got: Counter[_Line] = Counter()
    refused = RefusedShapes()
    stuck: set[_Line] = set()
    for line in sequence:
        if line in stuck or refused.covers(line.want[1]):
            continue
        answer = state.try_grant(line.claims[got[line]], line.want[1])
        if isinstance(answer, Grant):
            state.grant(answer, state.now)
            grants.append(answer)
            got[line] += 1
            continue
        stuck.add(line)
        if answer is Refusal.CAPACITY:
            refused.add(line.want[1])
    return grants, got


def _to_front(sequence: Sequence[_Line], blamed: Counter[_Line]) -> list[_Line]:
    """The sequence with so many entries of each blamed line moved to its front, in the order they had."""
    left = Counter(blamed)
    front: list[_Line] = []
    rest: list[_Line] = []
    for line in reversed(sequence):
        (front if left[line] > 0 else rest).append(line)
        left[line] -= 1
    return front[::-1] + rest[::-1]


def _take_back(state: EngineState, grants: Sequence[Grant]) -> None:
    for grant in reversed(grants):
        state.end(Ended(held_by(grant, state.now)))


def _is_on_lone_host(state: EngineState, grants: Sequence[Grant]) -> bool:
    """Whether a grant's share is alone in a host placement that was there before: its end would close that."""
    taken = Counter(s.device_id for grant in grants for s in grant.slots if s.mode in SHARED_MODES)
    boards = ((state.board_of[device_id], shares) for device_id, shares in taken.items())
    return any(board.clients == shares and any(h.is_host for h in board.held) for board, shares in boards)
