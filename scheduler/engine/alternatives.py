"""What would fit now and is nearest to what was asked; each alternative is tried on the state, none is guessed.

How far another claim is from the one that was asked, in thousandths: what is missing of its memory, of its
part of a device and of its number of units counts in full; what is beyond counts a twentieth, because it
costs more and harms nobody; another model counts a tenth of a unit, because a program may need rebuilding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from scheduler.engine.board import WHOLE_MILLI, Board
from scheduler.engine.model import SHARED_MODES, Claim, Grant
from scheduler.engine.occupancy import Occupancy
from scheduler.engine.shape import Shape, shape_of
from scheduler.engine.state import EngineState

ChangeKind = Literal["fewer", "smaller", "shorter", "other", "later"]
MOST_CHANGES = 5
MOST_TRIED = 64
OTHER_MODEL = 100
BEYOND = 20

Size = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Alternative:
    """Something else to ask for: ``claim`` would start at ``starts_at``; ``far`` is its distance (see above).

    ``kind`` says what differs: fewer units, smaller ones, a shorter time, another model, mode or larger
    size (other), or nothing but the start (later).
    """

    kind: ChangeKind
    claim: Claim
    starts_at: datetime
    far: int = 0


def nearest(
    state: EngineState,
    claim: Claim,
    candidates: Iterable[Claim] | None = None,
    *,
    starts_at: datetime | None = None,
    most: int = MOST_CHANGES,
) -> tuple[Alternative, ...]:
    """The candidates that the state would grant now, the nearest first, quota kept; changes nothing.

    Without candidates the engine makes them up (see ``variants``). ``starts_at`` is when the claim itself
    would start, as a forecast says: it becomes the last change, "later". At most ``most`` changes, the
    nearest of every kind and model before a second one of any.
    """
    tried = ranked(state, claim, variants(state, claim) if candidates is None else candidates)
    fitting = [
        one
        for one in tried[:MOST_TRIED]
        if isinstance(state.try_grant(one.claim, shape_of(one.claim, state.policy)), Grant)
    ]
    later = () if starts_at is None else (Alternative("later", claim, starts_at),)
    return (*varied(fitting, most - len(later)), *later)


def ranked(room: Occupancy, claim: Claim, candidates: Iterable[Claim]) -> list[Alternative]:
    """All candidates as changes at ``room.now``, the nearest first; equally near ones as they came.

    What is no change at all and what no board of the fleet offers is left out.
    """
    asked = size_of(room, claim)
    changes = []
    for other in candidates:
        size = size_of(room, other)
        if size is not None and replace(other, id=claim.id) != claim:
            kind = _kind(claim, other, asked, size)
            changes.append(Alternative(kind, other, room.now, _distance(claim, other, asked, size)))
    return sorted(changes, key=lambda change: change.far)


def varied(changes: Iterable[Alternative], most: int = MOST_CHANGES) -> tuple[Alternative, ...]:
    """At most so many of the changes: the first of every kind and models before a second one of any."""
    first: list[Alternative] = []
    rest: list[Alternative] = []
    seen = set()
    for change in changes:
        key = (change.kind, change.claim.models)
        (rest if key in seen else first).append(change)
        seen.add(key)
    chosen = (first + rest)[: max(most, 0)]
    return tuple(sorted(chosen, key=lambda change: change.far))


def size_of(room: Occupancy, claim: Claim) -> Size | None:
    """What one unit surely has: thousandths of a reference device and MiB; None when no board offers it."""
    shape = shape_of(claim, room.policy)
    kinds = {
        (b.device.model, b.device.memory_mib, b.device.weight_milli, id(b.geometry)): b
        for b in room.matching(shape.kind)
    }
    sizes = [_unit(board, shape) for board in kinds.values()]
    return (min(part for part, _ in sizes), min(memory for _, memory in sizes)) if sizes else None


def variants(room: Occupancy, claim: Claim) -> Iterator[Claim]:
    """What the fleet could be asked for instead: fewer units, smaller ones, the same on other models."""
    for count in range(claim.count - 1, 0, -1):
        yield replace(claim, count=count)
    if claim.mode in SHARED_MODES:
        yield from _lesser_shares(room, claim)
    else:
        yield from _profiles(room, claim, claim.models)
    for model in sorted({board.device.model for board in room.boards} - claim.models if claim.models else ()):
        elsewhere = replace(claim, models=frozenset({model}))
        if claim.mode != "mig":
            yield elsewhere
        yield from _profiles(room, elsewhere, elsewhere.models)


def _profiles(room: Occupancy, claim: Claim, models: frozenset[str]) -> Iterator[Claim]:
    """The claim as a slice of every profile that these models (empty: all) offer."""
    if claim.mode in SHARED_MODES:
        return
    boards = [b for b in room.boards if "mig" in b.device.modes and (not models or b.device.model in models)]
    for name in sorted({name for board in boards for name, spans in board.geometry.spans.items() if spans}):
        yield replace(claim, mode="mig", profile=name)


def _lesser_shares(room: Occupancy, claim: Claim) -> Iterator[Claim]:
    """The claim with as much of share and memory as one board or another has left."""
    left = set()
    for board in room.matching(shape_of(claim, room.policy).kind):
        if board.blocked or board.clients >= board.device.max_clients or board.use not in ("", claim.mode):
            continue
        share = min(claim.share_milli, WHOLE_MILLI - board.share_used)
        memory = min(claim.memory_mib, board.memory_left_mib, board.device.memory_mib)
        if (share > 0 or not claim.share_milli) and (memory > 0 or not claim.memory_mib):
            left.add((share, memory))
    for share, memory in sorted(left, reverse=True):
        yield replace(claim, share_milli=share, memory_mib=memory)


def _unit(board: Board, shape: Shape) -> Size:
    device = board.device
    if shape.kind.mode == "mig":
        profile = board.geometry.profiles[shape.kind.profile]
        return board.unit_cost(shape), profile.memory_mib
    if not shape.is_shared:
        return board.unit_cost(shape), device.memory_mib
    # A share that bounds one side only still takes of the other: the larger side counts.
    part = max(shape.share_milli, shape.memory_mib * WHOLE_MILLI // max(device.memory_mib, 1))
    return part * device.weight_milli // WHOLE_MILLI, shape.memory_mib


def _kind(claim: Claim, other: Claim, asked: Size | None, size: Size) -> ChangeKind:
    if other.models != claim.models or asked is None:
        return "other"
    if size != asked:
        return "smaller" if size[0] <= asked[0] and size[1] <= asked[1] else "other"
    if (other.mode, other.profile) != (claim.mode, claim.profile):
        return "other"
    if other.count != claim.count:
        return "fewer" if other.count < claim.count else "other"
    return "shorter" if other.duration_s < claim.duration_s else "other"


def _distance(claim: Claim, other: Claim, asked: Size | None, size: Size) -> int:
    far = _apart(claim.count, other.count) + _apart(claim.duration_s, other.duration_s)
    if asked is not None:
        far += sum(_apart(wanted, offered) for wanted, offered in zip(asked, size, strict=True))
    return far + OTHER_MODEL * (other.models != claim.models)


def _apart(wanted: int, offered: int) -> int:
    """Thousandths of what was wanted that are missing, or a twentieth of those that are beyond."""
    if not wanted:
        return 0
    apart = (wanted - offered) * WHOLE_MILLI // wanted
    return apart if apart >= 0 else -apart // BEYOND
