"""Places kept for the claims that leases were preempted for, until those claims start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import cast

from scheduler.engine.board import WHOLE_MILLI, Board
from scheduler.engine.calendar import Calendar
from scheduler.engine.events import held_by
from scheduler.engine.model import (
    SHARED_MODES,
    Claim,
    Grant,
    Held,
    Mode,
    PolicyRules,
    Running,
    Snapshot,
    TeamQuota,
)
from scheduler.engine.quota import Budget
from scheduler.engine.shape import shape_of
from scheduler.engine.state import EngineState


@dataclass(frozen=True, slots=True)
class KeptPlaces:
    """What the rest of the turn sees, who starts before it, and whose place is kept with the leases told.

    ``spared`` are leases that were told to go and help nobody any more. ``promised`` is what kept places will
    cost, by team: counted as used in ``seen``, though nobody uses it yet; ``parts`` is what is free of them.
    """

    seen: Snapshot
    grants: tuple[Grant, ...] = ()
    placed: tuple[tuple[Claim, tuple[Running, ...]], ...] = ()
    spared: tuple[int, ...] = ()
    promised: tuple[tuple[int, int], ...] = ()
    parts: tuple[Held, ...] = ()

    def release(self, room: EngineState) -> None:
        """Give back in a room that outlives the turn what was taken there for those who do not start yet."""
        for part in self.parts:
            board = room.board_of[part.device_id]
            board.drop(part)
            room.host_of(board).take(part, -1)
        if self.parts:
            room.look_again_at(self.parts)
        for team_id, cost in self.promised:
            room.budget.take(team_id, -cost)


def keep_places(snapshot: Snapshot, policy: PolicyRules, room: EngineState | None = None) -> KeptPlaces:
    """Serve those first who are owed a place; where it is not free yet, take it for them from everybody else.

    ``room`` is the room of the snapshot where the caller keeps one: what is done is done there.
    """
    told: dict[int, list[Running]] = {}
    for one in snapshot.running:
        if one.preempt_at is not None and one.preempted_for is not None:
            told.setdefault(one.preempted_for, []).append(one)
    owed = [claim for claim in snapshot.queue if claim.is_owed or claim.id in told]
    if not owed:
        return KeptPlaces(snapshot, spared=_spared(told, set(), snapshot))

    def must_be_gone(claim: Claim) -> tuple[bool, datetime]:
        ends = [one.preempt_at for one in told.get(claim.id, ()) if one.preempt_at is not None]
        return (True, min(ends)) if ends else (False, snapshot.taken_at)

    # The oldest promise first, and those before it of whom all are gone: who is freed for one must not start
    # another, who may count on somebody else.
    owed.sort(key=must_be_gone)
    keeper = _Keeper(snapshot, policy, told, room)
    for claim in owed:
        keeper.serve(claim)
    return keeper.result()


def with_used(quotas: Iterable[TeamQuota], budget: Budget) -> tuple[TeamQuota, ...]:
    """The quotas with what the budget counts as used."""
    return tuple(replace(q, used_milli=budget.used(q.team_id)) for q in quotas)


def _spared(told: dict[int, list[Running]], served: set[int], snapshot: Snapshot) -> tuple[int, ...]:
    """Leases whose end is still to come and whose claim will not have their place."""
    return tuple(
        one.lease_id
        for claim_id, leases in told.items()
        if claim_id not in served
        for one in leases
        if one.preempt_at is not None and one.preempt_at > snapshot.taken_at
    )


class _Keeper:
    """Two rooms side by side: as it is, and as it will be once those who were told are gone."""

    def __init__(
        self,
        snapshot: Snapshot,
        policy: PolicyRules,
        told: dict[int, list[Running]],
        room: EngineState | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.told = told
        leases = {one.lease_id for its in told.values() for one in its}
        self.leaving = [held for held in snapshot.held if held.lease_id in leases]
        self.room = EngineState.from_snapshot(snapshot, policy) if room is None else room
        # Where nobody is leaving, it will be as it is.
        self.then = self.room
        if self.leaving:
            self.then = self.room.twin()
            self.then.budget = Budget(snapshot.quotas)
            self.then.refill((held.device_id for held in self.leaving), _left(snapshot, leases))
        for held in self.leaving:
            board = self.then.board_of.get(held.device_id)
            if board is not None:
                self.then.budget.take(held.team_id, -board.cost_of(held))
        self.grants: list[Grant] = []
        self.held: list[Held] = []
        self.placed: list[tuple[Claim, tuple[Running, ...]]] = []
        self.promised: list[tuple[int, int]] = []
        self.parts: list[Held] = []

    def serve(self, claim: Claim) -> None:
        """Let the claim start, or keep its place, or leave it to the rest of the turn."""
        grant = self._ask(self.room, claim)
        if grant is not None:
            held = self.room.grant(grant, self.room.now)
            if self.leaving:
                self.then.grant(grant, self.room.now)
            self.grants.append(grant)
            self.held += held
            return
        grant = self._ask(self.then, claim) if self.leaving else None
        if grant is None:
            return
        self.then.grant(grant, self.room.now)
        told = tuple(self.told.get(claim.id, ()))
        self.placed.append((claim, told))
        until = max((one.preempt_at for one in told if one.preempt_at), default=self.room.now)
        self._take(grant, max(until, self.room.now + timedelta(seconds=1)))

    def _ask(self, room: EngineState, claim: Claim) -> Grant | None:
        """What the room would grant, with all that lies ahead of it."""
        shape = shape_of(claim, self.policy)
        answer = room.try_grant(claim, shape)
        if isinstance(answer, Grant) and (self.snapshot.bookings or self.snapshot.outages):
            ahead = replace(
                self.snapshot,
                queue=(claim,),
                held=tuple(held for board in room.boards for held in board.held),
                quotas=with_used(self.snapshot.quotas, room.budget),
            )
            answer = Calendar(ahead, self.policy).try_grant(claim, shape)
        return answer if isinstance(answer, Grant) else None

    def _take(self, grant: Grant, until: datetime) -> None:
        """Take what is free of the grant's place, and what it costs, from everybody else."""
        for held in held_by(grant, self.room.now):
            board = self.room.board_of[held.device_id]
            for part in _free_parts(board, replace(held, until=until)):
                board.put(part)
                self.room.host_of(board).take(part, 1)
                self.held.append(part)
                self.parts.append(part)
        self.room.look_again_at(self.held)
        self.room.budget.take(grant.team_id, grant.cost_milli)
        self.promised.append((grant.team_id, grant.cost_milli))

    def result(self) -> KeptPlaces:
        """What the rest of the turn goes on with."""
        served = {grant.claim_id for grant in self.grants} | {claim.id for claim, _ in self.placed}
        seen = replace(
            self.snapshot,
            queue=tuple(claim for claim in self.snapshot.queue if claim.id not in served),
            held=(*self.snapshot.held, *self.held),
            quotas=with_used(self.snapshot.quotas, self.room.budget),
        )
        return KeptPlaces(
            seen,
            tuple(self.grants),
            tuple(self.placed),
            _spared(self.told, served, self.snapshot),
            tuple(self.promised),
            tuple(self.parts),
        )


def _left(snapshot: Snapshot, leases: set[int]) -> list[Held]:
    """What is held without what these leases hold; a host placement goes with its last share."""
    left = [held for held in snapshot.held if held.lease_id not in leases]
    shared = {h.device_id for h in snapshot.held if h.mode in SHARED_MODES and not h.is_host}
    still = {h.device_id for h in left if h.mode in SHARED_MODES and not h.is_host}
    closed = shared - still
    return [held for held in left if not (held.is_host and held.device_id in closed)]


def _free_parts(board: Board, wanted: Held) -> Sequence[Held]:
    """What of a place is free now, as placements that keep others out: all of it where nobody is in the way."""
    is_share = wanted.mode in SHARED_MODES
    if not board.use or (
        board.use == wanted.mode and (is_share or not board.mask & ((1 << wanted.size) - 1) << wanted.start)
    ):
        return [wanted]
    if board.use in SHARED_MODES:
        rest = max(0, WHOLE_MILLI - board.share_used)
        left = max(0, board.memory_left_mib)
        full = replace(
            wanted, mode=cast(Mode, board.use), start=0, size=0, share_milli=rest, memory_mib=left, profile=""
        )
        return [replace(full, lease_id=None)]
    if board.use == "exclusive":
        return []
    bits = board.full if wanted.mode != "mig" else ((1 << wanted.size) - 1) << wanted.start
    free = [at for at in range(board.device.grid) if bits >> at & 1 and not board.mask >> at & 1]
    return [
        replace(wanted, mode="mig", start=at, size=1, share_milli=0, memory_mib=0, profile="", lease_id=None,
                cpu_milli=0, host_memory_mib=0)
        for at in free
    ]  # fmt: skip
