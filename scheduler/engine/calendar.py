"""One turn's view of time: what is free now, and for how long before something else begins.

A claim that starts now must keep clear of every block that begins before it ends. So there is one room
per distinct instant at which blocks begin, in which they all count as taken already: an ordinary room, so
that whole boards, slices, shares and the nodes' CPU are placed in it by the same rules as ever. A claim
looks into the last room whose instant comes before its end. Without blocks there is only the room of now,
which costs nothing. Instants beyond a bound are merged, the later into the earlier: that is the safe side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from scheduler.engine.blocks import Block, fill_beside, known_blocks, promised
from scheduler.engine.earliest_start import StartSearch
from scheduler.engine.model import Claim, Grant, Held, Reason, Snapshot
from scheduler.engine.policy import PolicyRules
from scheduler.engine.shape import LONGEST_S, Shape
from scheduler.engine.state import EngineState, Refusal

MOST_INSTANTS = 8
MOST_NODES = 8
CODES = {"maintenance": "maintenance_ahead", "booking": "booked_ahead", "waiting": "reserved_for_waiting"}
# Of several things that begin together, the one that somebody can do something about is named.
FIRST_NAMED = ("maintenance", "booking", "waiting")


class Layer:
    """The room of now with everything in it that begins until ``at``; built when first asked."""

    def __init__(self, at: datetime, blocks: Iterable[Block]) -> None:
        self.at = at
        self.new = list(blocks)  # what begins here, and not in a layer before
        self.later: dict[int, list[Held]] = {}
        self._room: EngineState | None = None

    def room(self, base: EngineState) -> EngineState:
        """The room itself, made from the room of now."""
        if self._room is None:
            self._room = room = base.twin()
            for device_id, later in self.later.items():
                self._fill(base, room, device_id)
                for one in later:
                    room.host_of(room.board_of[device_id]).take(one, 1)
            room.look_again(room.board_of[device_id] for device_id in self.later)
        return self._room

    def add(self, blocks: Iterable[Block], base: EngineState) -> None:
        """Count these blocks as taken."""
        held = [block.held for block in blocks]
        for one in held:
            self.later.setdefault(one.device_id, []).append(one)
        room = self._room
        if room is not None:
            for one in held:
                self._fill(base, room, one.device_id)
                room.host_of(room.board_of[one.device_id]).take(one, 1)
            room.look_again_at(held)

    def take(self, held: Sequence[Held], base: EngineState) -> None:
        """Hear that these were put into the room of now."""
        room = self._room
        if room is None:
            return
        for one in held:
            board = room.board_of[one.device_id]
            if self.later.get(one.device_id):
                self._fill(base, room, one.device_id)
            else:
                board.put(one)
            room.host_of(board).take(one, 1)
        room.look_again_at(held)

    def _fill(self, base: EngineState, room: EngineState, device_id: int) -> None:
        board, held = room.board_of[device_id], base.board_of[device_id].held
        fill_beside(board, held, self.later[device_id], room.policy)


class Calendar:
    """What may start now, and what is promised for later, within one turn.

    ``room`` is the room of now. Grants go through ``grant``, so that all rooms hear of them; all spend from
    one budget. Blocks that begin after the longest claim of the queue would end are left out.
    """

    def __init__(self, snapshot: Snapshot, policy: PolicyRules, room: EngineState | None = None) -> None:
        """``room``: the room of the snapshot, where the caller keeps one."""
        self.now = snapshot.taken_at
        self._seen = _closed_now(snapshot)
        self.room = EngineState.from_snapshot(self._seen, policy) if room is None else room
        self.blocks = known_blocks(snapshot)
        self._known = tuple(self.blocks)
        self._reached = self.now
        self.layers: list[Layer] = []
        self._layer_of: dict[int, int] = {}
        self.reach(max((claim.duration_s for claim in (*snapshot.queue, *snapshot.growing)), default=0))

    def reach(self, duration_s: int) -> None:
        """Heed what begins before the end of a claim as long as this, too."""
        until = self._end_of(duration_s)
        if not self._known:
            self._reached = max(self._reached, until)
        elif until > self._reached:
            ahead = [
                b for b in self._known if b.starts_at > self.now and self._reached <= b.starts_at < until
            ]
            self._layer(merged(ahead))
            self._reached = until

    def began(self) -> EngineState:
        """The room of now as it was before anything was granted, on a budget of its own."""
        return EngineState.from_snapshot(self._seen, self.room.policy)

    def layer_of(self, duration_s: int) -> int:
        """The number of the room for a claim of this duration: 0 is now, then one per layer."""
        if not self.layers:
            return 0
        known = self._layer_of.get(duration_s)
        if known is None:
            ends_at = self._end_of(duration_s)
            known = self._layer_of[duration_s] = sum(1 for layer in self.layers if layer.at < ends_at)
        return known

    def _end_of(self, duration_s: int) -> datetime:
        # What is longer than any claim may be would run past the end of the calendar.
        return self.now + timedelta(seconds=min(max(duration_s, 0), LONGEST_S))

    def room_at(self, number: int) -> EngineState:
        """The room of that number."""
        return self.layers[number - 1].room(self.room) if number else self.room

    def try_grant(self, claim: Claim, shape: Shape) -> Grant | Refusal:
        """A grant for the claim from now on, whole or cut as short as it allows, or what refuses it."""
        number = self.layer_of(claim.duration_s) if shape.wanted else 0
        answer = self.room_at(number).try_grant(claim, shape)
        if answer is not Refusal.CAPACITY or not claim.least_duration_s or not number:
            return answer
        return self._cut(claim, shape, number) or answer

    def _cut(self, claim: Claim, shape: Shape, number: int) -> Grant | None:
        for shorter in range(number - 1, -1, -1):
            layer = self.layers[shorter]
            left_s = int((layer.at - self.now).total_seconds())
            if left_s < claim.least_duration_s:
                return None
            answer = self.room_at(shorter).try_grant(claim, shape)
            if isinstance(answer, Grant):
                return replace(answer, duration_s=left_s, cut_by=_cause(layer.new))
        return None

    def grant(self, grant: Grant) -> tuple[Held, ...]:
        """Take a grant's slots and quota, or for one that begins later keep its slots."""
        if grant.starts_at is not None:
            self.add([Block(b.starts_at, b.held, "booking") for b in promised(grant, grant.starts_at)])
            return ()
        held = self.room.grant(grant, self.now)
        for layer in self.layers:
            layer.take(held, self.room)
        return held

    def promise(self, claim: Claim, shape: Shape) -> datetime | None:
        """Keep the earliest place that the known ends leave for the claim; when that is, None if never."""
        search = StartSearch(self.room, self.blocks, shape, claim.duration_s)
        found = search.earliest()
        if found is None:
            return None
        starts_at, spots = found
        self.add(promised(self.room.granted(claim, shape, spots), starts_at))
        return starts_at

    def add(self, blocks: Sequence[Block]) -> None:
        """Let something begin later that was not known before; a layer for each new instant."""
        self.blocks += blocks
        self._layer(blocks)

    def _layer(self, blocks: Sequence[Block]) -> None:
        self._layer_of = {}
        for at in sorted({block.starts_at for block in blocks}):
            if all(layer.at != at for layer in self.layers):
                layer = Layer(at, ())
                before = [one for one in self.layers if one.at < at]
                self.layers.insert(len(before), layer)
                for other in before:
                    layer.add(other.new, self.room)
        for layer in self.layers:
            layer.add([one for one in blocks if one.starts_at <= layer.at], self.room)
            layer.new += [one for one in blocks if one.starts_at == layer.at]

    def ahead(self, claim: Claim, shape: Shape, positions: dict[int, int]) -> Reason | None:
        """What begins too soon for a claim that there is room for now; None where there is none.

        ``positions`` says where those stand in the queue who were promised something.
        """
        own = self.layer_of(claim.duration_s) if shape.wanted else 0
        if (
            not own
            or not self.room.can_pay(claim.team_id, shape)
            or self.room_at(own).spots(shape) is not None
        ):
            return None
        for number in range(own - 1, -1, -1):
            if self.room_at(number).spots(shape) is not None:
                return self._named(self.layers[number], positions)
        return None

    def _named(self, layer: Layer, positions: dict[int, int]) -> Reason:
        cause = _cause(layer.new)
        begins = [block for block in layer.new if block.cause == cause]
        figures: dict[str, Any] = {
            "starts_at": layer.at.isoformat(),
            "longest_s": int((layer.at - self.now).total_seconds()),
        }
        if cause == "maintenance":
            figures["nodes"] = sorted({block.node for block in begins})[:MOST_NODES]
        if cause == "waiting":
            whose = next((block.claim_id for block in begins if block.claim_id), None)
            figures["position"] = positions.get(whose) if whose else None
        return Reason(CODES[cause], figures)


def _cause(blocks: Sequence[Block]) -> str:
    causes = {block.cause for block in blocks}
    return next((cause for cause in FIRST_NAMED if cause in causes), "booking")


def merged(blocks: Sequence[Block]) -> list[Block]:
    """The blocks with so few instants at which any begins as there may be: some begin earlier."""
    instants = sorted({block.starts_at for block in blocks})
    share = max(-(-len(instants) // MOST_INSTANTS), 1)
    at = {instant: instants[number - number % share] for number, instant in enumerate(instants)}
    return [replace(block, starts_at=at[block.starts_at]) for block in blocks]


def _closed_now(snapshot: Snapshot) -> Snapshot:
    """The snapshot with nodes closed whose maintenance is on."""
    closed = {one.node_id for one in snapshot.outages if one.starts_at <= snapshot.taken_at < one.until}
    if not closed:
        return snapshot
    nodes = (
        replace(node, blocked=node.blocked or "maintenance") if node.id in closed else node
        for node in snapshot.nodes
    )
    return replace(snapshot, nodes=tuple(nodes))
