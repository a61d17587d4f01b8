"""What was written down of a board says the same of what fits as the board itself, alone and beside what comes."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from scheduler.engine import EngineState
from scheduler.engine.blocks import fill_beside
from scheduler.engine.board_history import BoardState
from scheduler.engine.events import held_by
from scheduler.engine.forecaster import Forecaster, forecaster_of
from scheduler.engine.plan import plan
from scheduler.engine.shape import shape_of
from tests.engine.builder import NOON, Cluster
from tests.engine.test_properties import clusters, few, second_half


@few
@given(clusters(), st.data())
def test_a_state_has_the_room_of_its_board_alone_and_beside_blocks(
    cluster: Cluster, data: st.DataObject
) -> None:
    snapshot = second_half(cluster)
    room = EngineState.from_snapshot(snapshot, cluster.policy)
    shapes = [shape_of(claim, cluster.policy) for claim in cluster.queue]
    later = {
        held.device_id: [held]
        for grant in plan(cluster.snapshot(), cluster.policy).grants
        for held in held_by(grant, NOON + timedelta(hours=1))
    }

    for board in room.boards:
        state, device = BoardState.of(board), board.device
        blocks = later.get(device.id, []) if data.draw(st.booleans()) else []
        if blocks:
            twin = board.twin()
            fill_beside(twin, board.held, blocks, cluster.policy)
            beside = state.beside(blocks, cluster.policy)
        else:
            twin, beside = board, state
        for shape in shapes:
            if not board.serves(shape.kind):
                continue
            said = 0 if beside is None else beside.room(shape, device.memory_mib, device.max_clients)
            assert said == twin.room(shape)


def test_a_twin_is_like_its_board_and_shares_nothing_with_it(cluster: Cluster) -> None:
    cluster.node("a").hold(0, "3g.40gb", 0)
    room = EngineState.from_snapshot(cluster.snapshot(), cluster.policy)
    (board,) = room.twin().boards

    board.drop(board.held[0])

    assert (board.use, room.boards[0].use) == ("", "mig")
    assert board.blocked == room.boards[0].blocked


def test_the_future_of_one_picture_is_played_once(cluster: Cluster) -> None:
    cluster.node("a").hold(0)
    snapshot = cluster.snapshot()

    first = forecaster_of(snapshot, cluster.policy, 3600)

    assert forecaster_of(snapshot, cluster.policy, 3600) is first
    assert forecaster_of(snapshot, cluster.policy, 7200) is not first
    assert forecaster_of(cluster.snapshot(), cluster.policy, 3600) is not first


def test_asking_changes_no_answer(cluster: Cluster) -> None:
    cluster.node("a", devices=2).hold(0, hours=2).hold(1, "3g.40gb", hours=5)
    cluster.request("waits", count=2, hours=3)
    forecaster = Forecaster(cluster.snapshot(), cluster.policy)
    asked = [cluster.claim(-1), cluster.claim(-2, "3g.40gb"), cluster.claim(-3, count=2, hours=9)]

    first = forecaster.ask(asked)

    assert forecaster.ask(reversed(asked)) == first
    assert {i: one.starts_at for i, one in first.items()} == {
        i: one.starts_at
        for claim in asked
        for i, one in Forecaster(cluster.snapshot(), cluster.policy).ask([claim]).items()
    }
