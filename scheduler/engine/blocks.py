"""What is taken from a later instant on: bookings, maintenance, and starts promised to claims that wait.

A block is a placement with a beginning. Whoever wants a board from one instant to another must keep clear
of all blocks that begin before it ends and are not over when it begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from scheduler.engine.board import Board
from scheduler.engine.events import held_by
from scheduler.engine.model import SHARED_MODES, Grant, Held, PolicyRules, Snapshot

Cause = Literal["maintenance", "booking", "waiting"]


@dataclass(frozen=True, slots=True)
class Block:
    """A placement that is held from ``starts_at`` to ``held.until``, and why.

    ``claim_id`` says to whom it is promised, ``node`` which node's maintenance it is.
    """

    starts_at: datetime
    held: Held
    cause: Cause
    claim_id: int | None = None
    node: str = ""


@dataclass(slots=True)
class Ahead:
    """A block, and for whom it counts: claims behind ``rank``, from step ``since`` until before ``till``.

    It was made within that step when the claim of rank ``by`` was served.
    """

    block: Block
    rank: int
    since: int
    by: int
    till: int = 1 << 60


def known_blocks(snapshot: Snapshot) -> list[Block]:
    """Bookings and maintenance to come; maintenance that is on begins now."""
    if not snapshot.bookings and not snapshot.outages:
        return []
    known = {device.id for device in snapshot.devices}
    blocks = [
        Block(max(one.starts_at, snapshot.taken_at), one.held, "booking")
        for one in snapshot.bookings
        if one.held.device_id in known
    ]
    names = {node.id: node.name for node in snapshot.nodes}
    for outage in snapshot.outages:
        if outage.until <= snapshot.taken_at:
            continue
        starts_at = max(outage.starts_at, snapshot.taken_at)
        blocks += [
            Block(
                starts_at,
                Held(device.id, 0, device.grid, "exclusive", 0, None, outage.until),
                "maintenance",
                node=names.get(device.node_id, ""),
            )
            for device in snapshot.devices
            if device.node_id == outage.node_id
        ]
    return sorted(blocks, key=_in_time)


def promised(grant: Grant, starts_at: datetime) -> list[Block]:
    """The grant's slots as blocks from an instant on, for the whole time it was asked for."""
    return [Block(starts_at, held, "waiting", grant.claim_id) for held in held_by(grant, starts_at)]


def overlapping(blocks: Iterable[Block], starts_at: datetime, duration_s: int) -> list[Block]:
    """The blocks that a period runs into."""
    ends_at = starts_at + timedelta(seconds=duration_s)
    return [one for one in blocks if one.starts_at < ends_at and one.held.until > starts_at]


def fill_beside(board: Board, held: Sequence[Held], later: Sequence[Held], policy: PolicyRules) -> None:
    """Let the board hold both what it has and what comes: room beside them is room for the whole time.

    Where they cannot stand on one board together, being of different modes or teams, one comes after the
    other is gone; then nothing is free beside them.
    """
    board.refill((*held, *later))
    if not later:
        return
    first, everything = later[0], (*held, *later)
    is_of_team = first.mode in SHARED_MODES and not policy.may_mix(first.mode)
    is_mixed = (
        first.mode == "exclusive"
        or any(one.mode != first.mode for one in everything)
        or (is_of_team and len(teams_of(everything)) > 1)
    )
    if is_mixed:
        board.put(Held(board.device.id, 0, board.device.grid, "exclusive", 0, None, first.until))


def teams_of(held: Iterable[Held]) -> set[int]:
    """The teams that a shared board would be kept for; in mps those of its shares alone, whoever opened it."""
    return {one.team_id for one in held if not one.is_host or one.mode != "mps"}


def _in_time(block: Block) -> tuple[datetime, datetime, int, int, int]:
    held = block.held
    return block.starts_at, held.until, held.device_id, held.start, held.lease_id or 0
