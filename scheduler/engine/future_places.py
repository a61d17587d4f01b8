"""Where a claim finds room while the queue is played forward, beside what begins before its end.

The first node with room is taken, and of it the fullest boards, which is simpler than the placement policy; as in a
turn, those that cost least where these are above the team's headroom. Where long requests are kept apart from short
ones (``length_groups``) the policy says which node: it is what decides when a node falls free as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from scheduler.engine.blocks import Ahead, fill_beside
from scheduler.engine.board import Board
from scheduler.engine.gang_capacity import lightest, parts_now
from scheduler.engine.length_groups import ANY
from scheduler.engine.model import Claim, Held
from scheduler.engine.occupancy import Occupancy
from scheduler.engine.place.fill import Groups, Spot, cheapest, fill, node_room, spots_cost
from scheduler.engine.shape import Shape
from scheduler.engine.waiting_lines import Line


class FuturePlaces:
    """Places in a room as it is now. ``later`` says by device what begins there, ``boards_of`` what a node has."""

    def __init__(
        self,
        room: Occupancy,
        later: Mapping[int, Sequence[Ahead]],
        boards_of: Mapping[int, Sequence[Board]],
    ) -> None:
        self._room = room
        self._later = later
        self._boards_of = boards_of
        self._twins: dict[Board, Board] = {}

    def find(self, line: Line, nodes: list[int] | None, rank: int, claim: Claim) -> list[Spot] | str:
        """Spots on one of the nodes (None: any), or why not: "quota", "later" (something begins), "full"."""
        shape, refused = line.shape, "full"
        ends_at = self._room.now + timedelta(seconds=claim.duration_s)
        groups = self._room.groups(shape.kind)
        if shape.is_spread:
            beside = [[self._beside(b, ends_at, rank, claim.id) for b in group] for group in groups]
            spots = lightest(shape, parts_now(shape, beside, self._room.host_of))
            return self._payable(line, spots, ()) if spots else "later" if self._later else "full"
        for group in self._roomy(groups, claim, shape, nodes):
            boards = [self._beside(board, ends_at, rank, claim.id) for board in group]
            fullest = sorted(boards, key=lambda board: -board.load)
            spots = fill([(board, board.room(shape)) for board in fullest], shape)
            if spots is None or not self._has_cpu(group[0], shape, ends_at, rank):
                # Another team may pay for what this one cannot, so that "quota" says more than "later".
                refused = refused if refused == "quota" else "later"
                continue
            payable = self._payable(line, spots, boards)
            if isinstance(payable, list):
                return payable
            refused = payable
        return refused

    def _roomy(
        self, groups: Groups, claim: Claim, shape: Shape, nodes: list[int] | None
    ) -> Iterable[Sequence[Board]]:
        """The boards of each of the nodes (None: any) that has room now, in the order in which they are tried."""
        found = (
            group
            for group in groups
            if (nodes is None or group[0].node.id in nodes)
            and node_room(group, shape) >= shape.wanted
            and self._room.host_of(group[0]).has_room(shape)
        )
        length = self._room.lengths.of(claim)
        if length == ANY:
            return found
        several = list(found)
        if len(several) < 2:
            return several
        costs = self._room.fleet.costs(shape, length)
        return sorted(several, key=lambda group: costs[group[0].node.id])

    def _payable(self, line: Line, spots: list[Spot], boards: Sequence[Board]) -> list[Spot] | str:
        """The spots, or the cheapest on these boards where the team cannot pay for them, or "quota"."""
        shape, allows = line.shape, self._room.budget.allows
        if allows(line.team_id, spots_cost(spots, shape)):
            return spots
        if len({board.unit_cost(shape) for board in boards}) > 1:
            lighter = cheapest(shape, [boards])
            if lighter and allows(line.team_id, spots_cost(lighter, shape)):
                return lighter
        return "quota"

    def _in_the_way(self, board: Board, ends_at: datetime, rank: int, claim_id: int = 0) -> list[Held]:
        return [
            one.block.held
            for one in self._later.get(board.device.id, ())
            if one.block.starts_at < ends_at and one.rank < rank and one.block.claim_id != claim_id
        ]

    def _beside(self, board: Board, ends_at: datetime, rank: int, claim_id: int) -> Board:
        """The board, or where something begins before the end a twin in which that has begun."""
        later = self._in_the_way(board, ends_at, rank, claim_id)
        if not later:
            return board
        twin = self._twins.get(board)
        if twin is None:
            twin = self._twins[board] = board.twin()
        fill_beside(twin, board.held, later, self._room.policy)
        return twin

    def _has_cpu(self, board: Board, shape: Shape, ends_at: datetime, rank: int) -> bool:
        host = self._room.host_of(board)
        if not shape.wants_host or not host.is_limited:
            return True
        here = self._boards_of[board.node.id]
        later = [held for one in here for held in self._in_the_way(one, ends_at, rank)]
        for held in later:
            host.take(held, 1)
        has_room = host.has_room(shape)
        for held in later:
            host.take(held, -1)
        return has_room
