"""Every board's states in order while the queue is played forward: written once, asked many times.

A record says that from one moment on a board holds something else. A moment is a step (an instant at
which something ends or begins) and, within it, the rank of the claim that was served: a claim of rank r
sees of a step all that ended, and what was served to lower ranks. States are few and records are many, so
what fits is asked once per state and then looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scheduler.engine.blocks import teams_of
from scheduler.engine.board import SEVERAL, Board, room_on
from scheduler.engine.columns import PLENTY, Flags, Ints
from scheduler.engine.geometry import Geometry
from scheduler.engine.host import Host
from scheduler.engine.model import SHARED_MODES, Held, PolicyRules
from scheduler.engine.shape import Shape

AT_FIRST = -1  # the rank of what is there, or ends, before anybody is served


class BoardState(NamedTuple):
    """What a board holds, as far as it decides what else fits; see ``Board``."""

    geometry: Geometry
    use: str
    mask: int
    profiles: tuple[tuple[str, int], ...]
    share_used: int
    memory_left_mib: int
    clients: int
    team_id: int

    @classmethod
    def of(cls, board: Board) -> BoardState:
        """The board's state now."""
        counts = tuple(sorted(board.counts.items())) if board.use == "mig" else ()
        return cls(
            board.geometry, board.use, board.mask, counts,
            board.share_used, board.memory_left_mib, board.clients, board.team_id,
        )  # fmt: skip

    def room(self, shape: Shape, memory_mib: int, max_clients: int) -> int:
        """How many units of one claim fit, see ``room_on``."""
        return room_on(self, shape, memory_mib, max_clients)

    @property
    def counts(self) -> dict[str, int]:
        """How many slices of each profile there are."""
        return dict(self.profiles)

    def beside(self, later: Sequence[Held], policy: PolicyRules) -> BoardState | None:
        """The state with what begins later in it, too; None where nothing is free beside (``fill_beside``)."""
        use = self.use or later[0].mode
        is_of_team = use in SHARED_MODES and not policy.may_mix(use)
        teams = teams_of(later)
        if self.use and (self.clients or use != "mps"):
            teams.add(self.team_id)
        is_mixed = any(one.mode != use for one in later) or (is_of_team and len(teams) > 1)
        if use == "exclusive" or is_mixed:
            return None
        if use != "mig":
            shares = [one for one in later if not one.is_host]
            return self._replace(
                use=use,
                team_id=teams.pop() if len(teams) == 1 else SEVERAL,
                share_used=self.share_used + sum(one.share_milli for one in shares),
                memory_left_mib=self.memory_left_mib - sum(one.memory_mib for one in shares),
                clients=self.clients + len(shares),
            )
        counts, mask = self.counts, self.mask
        for one in later:
            mask |= ((1 << one.size) - 1) << one.start
            counts[one.profile] = counts.get(one.profile, 0) + 1
        return self._replace(use=use, mask=mask, profiles=tuple(sorted(counts.items())))


class BoardHistory:
    """Records while they are made; ``closed`` turns them into columns."""

    def __init__(self, boards: Sequence[Board]) -> None:
        self.boards = tuple(boards)
        self.states: list[BoardState] = []
        self._number_of: dict[BoardState, int] = {}
        self._row_of = {board: row for row, board in enumerate(boards)}
        self._steps: list[int] = []
        self._ranks: list[int] = []
        self._rows: list[int] = []
        self._found: list[int] = []
        self._cpu: list[int] = []
        self._memory: list[int] = []

    def note(self, step: int, rank: int, board: Board, host: Host) -> None:
        """The board, and its node's CPU, are now as they are."""
        row = self._row_of.get(board)
        if row is None:
            return
        state = BoardState.of(board)
        number = self._number_of.get(state)
        if number is None:
            number = self._number_of[state] = len(self.states)
            self.states.append(state)
        self._steps.append(step)
        self._ranks.append(rank)
        self._rows.append(row)
        self._found.append(number)
        self._cpu.append(host.cpu_free)
        self._memory.append(host.memory_free)

    def closed(self) -> HistoryColumns:
        """All records, those of a node together, each in the order they were made."""
        nodes = {n: at for at, n in enumerate(dict.fromkeys(b.node.id for b in self.boards))}
        node_of = np.array([nodes[board.node.id] for board in self.boards], np.int64)
        row = np.array(self._rows, np.int64)
        by_node = np.argsort(node_of[row], kind="stable") if len(row) else row
        row = row[by_node]
        return HistoryColumns(
            step=np.array(self._steps, np.int64)[by_node],
            rank=np.array(self._ranks, np.int64)[by_node],
            row=row,
            node=node_of[row],
            state=np.array(self._found, np.int64)[by_node],
            before=_before(row),
            cpu=np.array(self._cpu, np.int64)[by_node],
            memory=np.array(self._memory, np.int64)[by_node],
            first_on=np.searchsorted(node_of[row], np.arange(len(nodes) + 1)),
            by_row=(by_row := np.argsort(row, kind="stable")),
            first_of=np.searchsorted(row[by_row], np.arange(len(self.boards) + 1)),
        )


class HistoryColumns(NamedTuple):
    """Records as columns. ``before`` is the number of the record of the same board before it, -1 for none.

    ``first_on`` says where each node's records begin; ``by_row`` numbers the records board by board, and
    ``first_of`` says where each board begins there.
    """

    step: Ints
    rank: Ints
    row: Ints
    node: Ints
    state: Ints
    before: Ints
    cpu: Ints
    memory: Ints
    first_on: Ints
    by_row: Ints
    first_of: Ints

    def of_row(self, row: int) -> Ints:
        """The numbers of a board's records, in the order they were made."""
        return self.by_row[self.first_of[row] : self.first_of[row + 1]]

    def node_of(self, row: int) -> int:
        """The number of the node that a board is on."""
        return int(self.node[self.of_row(row)[0]])

    def seen_from(self, rank: int) -> tuple[Ints, Flags]:
        """From which step a claim of this rank sees each record, and whether it is the last of its node then."""
        seen = self.step + (self.rank >= rank)
        is_last = np.ones(len(seen), np.bool_)
        is_last[:-1] = (seen[1:] != seen[:-1]) | (self.node[1:] != self.node[:-1])
        return seen, is_last

    def on_node(self, units: Ints) -> Ints:
        """Units per record as units on its whole node from then on."""
        change = units - np.where(self.before >= 0, units[self.before], 0)
        total = np.cumsum(change)
        start = self.first_on[self.node]
        return np.asarray(total - np.where(start > 0, total[start - 1], 0), np.int64)

    def host_units(self, shape: Shape) -> Ints:
        """How often CPU and memory of the node suffice: for units of a gang of any parts, else for the claim."""
        if shape.nodes == 0:
            cpu = self.cpu * shape.wanted // max(shape.cpu_milli, 1) if shape.cpu_milli else PLENTY
            memory = (
                self.memory * shape.wanted // max(shape.host_memory_mib, 1)
                if shape.host_memory_mib
                else PLENTY
            )
            least: Ints = np.minimum(np.broadcast_to(cpu, self.cpu.shape), memory).astype(np.int64)
            return least
        is_enough: Flags = (self.cpu >= shape.cpu_milli) & (self.memory >= shape.host_memory_mib)
        enough: Ints = np.where(is_enough, PLENTY, 0).astype(np.int64)
        return enough


def _before(rows: Ints) -> Ints:
    """For each record the one of the same row before it, or -1."""
    order = np.argsort(rows, kind="stable")
    found = np.full(len(rows), -1, np.int64)
    if len(rows):
        same = rows[order][1:] == rows[order][:-1]
        found[order[1:][same]] = order[:-1][same]
    return found
