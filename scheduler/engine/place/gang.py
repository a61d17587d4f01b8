"""Gangs over several nodes, all or nothing: the tightest racks first, then what the policy rates cheapest.

A gang wants either so many nodes with equally many boards each, or so many boards on as few nodes as
possible. Nodes whose rack nobody knows stand in a rack of their own; nodes whose zone nobody knows count
as one zone. Every pass over the nodes takes the rack (or node) that serves most of what is still wanted;
of equals the cheapest by the policy's rating, then the one that leaves least behind, then the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from scheduler.engine import kernel
from scheduler.engine.columns import COUNT, CPU, MEMORY, WANT_FIELDS, Columns, Floats, Ints, fits_board
from scheduler.engine.place.node_ratings import NEVER, SAME, Memo, NodeRatings, whole_boards, with_wishes
from scheduler.engine.place.policy import Decider, PlacePolicy, kernels_of

ANY_ZONE = -1
KERNELS = ("zone_for", "cheapest_of", "best_rack", "choose_equal", "best_node", "choose_free")


class Places(NamedTuple):
    """Where nodes stand, and room to work in. Kernels allocate nothing, so every array is made here.

    ``order`` lists the nodes rack by rack, ``starts`` where each rack begins in it (and the end), ``zone``
    the zone of each rack. ``nodes``, ``sizes`` and ``boards`` are the answer: node, number of boards and
    the boards as bits of each part. ``near`` and ``costs`` hold the cheapest nodes of one rack, ``room``
    what is left in each rack, ``zone_room`` in each zone, ``have`` what each node could give,
    ``part`` a want of one part.
    """

    order: Ints
    starts: Ints
    zone: Ints
    zone_room: Ints
    nodes: Ints
    sizes: Ints
    boards: Ints
    near: Ints
    costs: Floats
    room: Ints
    have: Ints
    part: Ints


def places(racks: Sequence[str], zones: Sequence[str]) -> Places:
    """The places of nodes in row order, from the names of their racks and zones ("" is unknown)."""
    names = [(zone, rack or f"\0{row}") for row, (zone, rack) in enumerate(zip(zones, racks, strict=True))]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    zone_numbers = {name: number for number, name in enumerate(dict.fromkeys(zones))}
    rack_of = np.array([numbers[name] for name in names], np.int64)
    count, most = len(names), len(numbers)
    return Places(
        order=np.argsort(rack_of, kind="stable").astype(np.int64),
        starts=np.concatenate([[0], np.cumsum(np.bincount(rack_of, minlength=most))]).astype(np.int64),
        zone=np.array([zone_numbers[zone] for zone, _ in numbers], np.int64),
        zone_room=np.zeros(len(zone_numbers), np.int64),
        nodes=np.zeros(count, np.int64),
        sizes=np.zeros(count, np.int64),
        boards=np.zeros(count, np.int64),
        near=np.zeros(count, np.int64),
        costs=np.zeros(count),
        room=np.zeros(most, np.int64),
        have=np.zeros(count, np.int64),
        part=np.zeros(WANT_FIELDS, np.int64),
    )


def rate(at: Columns, want: Ints, node: int, tables: Any, memo: Memo) -> tuple[float, int, int]:
    """Stands for the policy's kernel: cost, board (-1 for whole boards) and marks of a placement."""
    raise NotImplementedError


def catch_up(at: Columns, index: NodeRatings, want: Ints, row: int, tables: Any, memo: Memo) -> None:
    """Stands for the index's kernel: rates what changed since the want was last asked for."""
    raise NotImplementedError


def weigh(at: Columns, want: Ints, tables: Any, memo: Memo) -> None:
    """Stands for the policy's kernel: sets what each set of marks costs in this decision."""
    raise NotImplementedError


def choose_equal(
    at: Columns, index: NodeRatings, wants: Ints, row: int, tables: Any, memo: Memo, where: Places, parts: int
) -> int:
    """``parts`` nodes that each have room for the want of the row, or 0 when there are too few (kernel)."""
    catch_up(at, index, wants[row], row, tables, memo)
    weigh(at, wants[row], tables, memo)
    racks, total = where.room.shape[0], 0
    for rack in range(racks):
        where.room[rack] = 0
        for place in range(where.starts[rack], where.starts[rack + 1]):
            where.room[rack] += index.cost[row, where.order[place]] < NEVER
        total += where.room[rack]
    if total < parts:
        return 0
    zone, done = zone_for(where, parts), 0
    while done < parts:
        rack = best_rack(index, row, memo, where, zone, parts - done)
        size = min(parts - done, where.room[rack])
        cheapest_of(index, row, memo, where, rack, size)
        for near in range(size):
            node = where.near[near]
            where.nodes[done], where.sizes[done] = node, wants[row, COUNT]
            where.boards[done] = whole_boards(at, wants[row], node)
            done += 1
        where.room[rack] = 0
    return parts


def zone_for(where: Places, wanted: int) -> int:
    """The zone to keep to: of those with room for all the one with the roomiest rack, else any (kernel)."""
    where.zone_room[:] = 0
    for rack in range(where.room.shape[0]):
        where.zone_room[where.zone[rack]] += where.room[rack]
    found, biggest = ANY_ZONE, 0
    for rack in range(where.room.shape[0]):
        if where.room[rack] > biggest and where.zone_room[where.zone[rack]] >= wanted:
            found, biggest = where.zone[rack], where.room[rack]
    return found


def best_rack(index: NodeRatings, row: int, memo: Memo, where: Places, zone: int, need: int) -> int:
    """The rack that serves most of the need; then the cheapest, then the one with least room (kernel)."""
    found, most, least = -1, 0, NEVER
    for rack in range(where.room.shape[0]):
        size = min(need, where.room[rack])
        if size == 0 or size < most or (zone != ANY_ZONE and where.zone[rack] != zone):
            continue
        cost = cheapest_of(index, row, memo, where, rack, size)
        is_tighter = found >= 0 and cost < least + SAME and where.room[rack] < where.room[found]
        if size > most or cost < least - SAME or is_tighter:
            found, most, least = rack, size, cost
    return found


def cheapest_of(index: NodeRatings, row: int, memo: Memo, where: Places, rack: int, size: int) -> float:
    """The cost of the ``size`` cheapest nodes of a rack, which are left in ``near`` (kernel)."""
    held = 0
    for place in range(where.starts[rack], where.starts[rack + 1]):
        node = where.order[place]
        cost = index.cost[row, node]
        if cost == NEVER:
            continue
        cost += memo.price[index.pick[row, node] >> 8]
        if held == size and cost >= where.costs[held - 1] - SAME:
            continue
        at = held if held < size else held - 1
        while at > 0 and cost < where.costs[at - 1] - SAME:
            where.costs[at], where.near[at] = where.costs[at - 1], where.near[at - 1]
            at -= 1
        where.costs[at], where.near[at] = cost, node
        held = min(held + 1, size)
    total = 0.0
    for near in range(held):
        total += where.costs[near]
    return total


def choose_free(at: Columns, want: Ints, tables: Any, memo: Memo, where: Places) -> int:
    """The want's boards on as few nodes as possible: how many nodes, 0 when there are too few boards (kernel).

    CPU and memory of the want are shared out by boards, rounded up.
    """
    racks, total = where.room.shape[0], 0
    for rack in range(racks):
        where.room[rack] = 0
        for place in range(where.starts[rack], where.starts[rack + 1]):
            node = where.order[place]
            where.have[node] = most_boards(at, want, node)
            where.room[rack] += where.have[node]
        total += where.room[rack]
    if total < want[COUNT]:
        return 0
    rack = rack_with(where, want[COUNT])
    zone = where.zone[rack] if rack >= 0 else zone_for(where, want[COUNT])
    need, parts = want[COUNT], 0
    while need > 0:
        node = best_node(at, want, tables, memo, where, rack, zone, need)
        size = min(need, where.have[node])
        part_of(where.part, want, size)
        where.nodes[parts], where.sizes[parts] = node, size
        where.boards[parts] = whole_boards(at, where.part, node)
        where.have[node] = 0
        need -= size
        parts += 1
    return parts


def most_boards(at: Columns, want: Ints, node: int) -> int:
    """How many of the want's boards the node can give now, CPU and memory shared out by boards (kernel)."""
    have = 0
    for board in range(at.free.shape[1]):
        if fits_board(at, want, node, board):
            have += 1
    have = min(have, int(want[COUNT]))
    while have > 0 and (
        -(-want[CPU] * have // want[COUNT]) > at.cpu[node]
        or -(-want[MEMORY] * have // want[COUNT]) > at.memory[node]
    ):
        have -= 1
    return have


def part_of(part: Ints, want: Ints, size: int) -> None:
    """Make ``part`` the want of ``size`` of its boards (kernel)."""
    for field in range(want.shape[0]):
        part[field] = want[field]
    part[COUNT] = size
    part[CPU] = -(-want[CPU] * size // want[COUNT])
    part[MEMORY] = -(-want[MEMORY] * size // want[COUNT])


def rack_with(where: Places, wanted: int) -> int:
    """The rack that holds all boards on the fewest nodes, then with least left over; -1 when none (kernel)."""
    found, fewest, least = -1, 0, 0
    for rack in range(where.room.shape[0]):
        room = where.room[rack]
        if room < wanted:
            continue
        nodes = nodes_for(where, rack, wanted)
        if found < 0 or nodes < fewest or (nodes == fewest and room < least):
            found, fewest, least = rack, nodes, room
    return found


def nodes_for(where: Places, rack: int, wanted: int) -> int:
    """How many nodes of the rack hold that many boards, those with most first (kernel)."""
    nodes, size = 0, wanted
    for place in range(where.starts[rack], where.starts[rack + 1]):
        size = max(size, where.have[where.order[place]])
    while wanted > 0 and size > 0:
        following = 0
        for place in range(where.starts[rack], where.starts[rack + 1]):
            have = where.have[where.order[place]]
            if have == size and wanted > 0:
                wanted -= have
                nodes += 1
            elif following < have < size:
                following = have
        size = following
    return nodes


def best_node(
    at: Columns, want: Ints, tables: Any, memo: Memo, where: Places, rack: int, zone: int, need: int
) -> int:
    """The node that gives most of the need, the cheapest of equals, within the rack or zone (kernel)."""
    found, most, least = -1, 0, NEVER
    first, end = (0, where.room.shape[0]) if rack < 0 else (rack, rack + 1)
    for here in range(first, end):
        if zone != ANY_ZONE and where.zone[here] != zone:
            continue
        for place in range(where.starts[here], where.starts[here + 1]):
            node = where.order[place]
            size = min(need, where.have[node])
            if size == 0 or size < most:
                continue
            part_of(where.part, want, size)
            cost, board, _ = rate(at, where.part, node, tables, memo)
            cost = with_wishes(at, where.part, node, cost, board)
            if size > most or cost < least - SAME:
                found, most, least = node, size, cost
    return found


@cache
def kernels(policy: PlacePolicy, is_compiled: bool) -> dict[str, Callable[..., Any]]:
    """This module's kernels with the policy's rules and the index put in, compiled or plain."""
    if is_compiled:
        return {name: kernel.compiled(function) for name, function in kernels(policy, False).items()}
    made = dict(kernels_of(policy, False))
    for name in KERNELS:
        made[name] = kernel.specialise(globals()[name], f"{name}_{policy.name}", **made)
    return made


class GangDecider:
    """Places gangs over the columns of a decider. Answers are (node, boards as bits) per part, empty for none."""

    def __init__(self, decider: Decider, policy: PlacePolicy, where: Places) -> None:
        self._decider = decider
        self._where = where
        self._kernels = kernels(policy, decider.is_compiled)

    def equal(self, row: int, parts: int) -> list[tuple[int, int]]:
        """The want of the row on each of ``parts`` nodes."""
        one = self._decider
        found = self._kernels["choose_equal"](
            one.at, one.index, one.wants, row, one.tables, one.memo, self._where, parts
        )
        return self._answer(found)

    def free(self, row: int) -> list[tuple[int, int]]:
        """The boards of the row's want in all, on as few nodes as possible."""
        one = self._decider
        found = self._kernels["choose_free"](one.at, one.wants[row], one.tables, one.memo, self._where)
        return self._answer(found)

    def _answer(self, parts: int) -> list[tuple[int, int]]:
        where = self._where
        return [(int(where.nodes[part]), int(where.boards[part])) for part in range(parts)]
