"""Whatever is desired, in whatever order, with crashes in between: no overlap, no live lease disturbed."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.protocol.boards import board
from nodeagent.protocol.messages import DesiredLease
from nodeagent.reconcile.goals import FenceError
from nodeagent.simulation.faults import SimulatedCrash
from tests.agent.builder import SimulatedNode, lease

SIZES = ("1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb")
PLACES = [(size, start) for size in SIZES for start in board("h100-80gb").profile(size).starts]
POINTS = [
    "gi.before",
    "gi.after",
    "ci.after",
    "attach.after",
    "unci.after",
    "ungi.before",
    "ungi.after",
    "mig.after",
]

wishes = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from([*PLACES, ("whole", 0)]), st.integers(1, 2)),
    max_size=5,
    unique_by=lambda wish: wish[0],
)
acts = st.one_of(
    st.tuples(st.just("desire"), wishes),
    st.tuples(st.just("desire and die"), wishes, st.sampled_from(POINTS)),
    st.tuples(st.just("wait"), st.integers(1, 200)),
    st.tuples(st.just("restart")),
    st.tuples(st.just("reboot")),
    st.tuples(st.just("acknowledge")),
    st.tuples(st.just("cling"), st.integers(1, 5)),
)


def leases_of(node: SimulatedNode, chosen) -> list[DesiredLease]:  # type: ignore[no-untyped-def]
    def slot(size: str, start: int):  # type: ignore[no-untyped-def]
        return node.whole() if size == "whole" else node.mig(size, start)

    return [lease(name, slot(*place), generation=g, remaining_s=300, grace_s=10) for name, place, g in chosen]


def act(node: SimulatedNode, step) -> None:  # type: ignore[no-untyped-def]
    match step:
        case ("desire", chosen):
            with contextlib.suppress(FenceError):  # a frame that overlaps itself is refused whole
                node.desire(*leases_of(node, chosen))
        case ("desire and die", chosen, point):
            node.faults.crash_at = {point}
            try:
                with contextlib.suppress(FenceError):
                    node.desire(*leases_of(node, chosen))
            except SimulatedCrash:
                node.faults.crash_at = set()
                node.start()
            node.faults.crash_at = set()
        case ("wait", seconds):
            node.pass_time(seconds)
        case ("restart",):
            node.start()
        case ("reboot",):
            node.faults.stubborn.clear()
            node.reboot()
        case ("acknowledge",):
            node.reports()
            node.acknowledge()
        case ("cling", looks):
            node.faults.stubborn.update({fact.uuid: looks for fact in node.standing()})


def ready(node: SimulatedNode) -> dict[tuple[str, int], str]:
    reports = node.reconciler.lease_reports(10_000)
    assert reports is not None
    return {(r.lease, r.generation): r.access[0].partition for r in reports if r.phase == "ready"}


def check_hardware(node: SimulatedNode) -> None:
    taken = [slot for fact in node.standing() for slot in range(fact.start, fact.start + fact.size)]
    held = ready(node)
    assert len(taken) == len(set(taken)), "two partitions overlap"
    assert len(set(held.values())) == len(held), "two leases hold one partition"
    assert set(held.values()) <= {fact.uuid for fact in node.standing()}, "a ready lease has no partition"


@settings(max_examples=120, deadline=None)
@given(st.lists(acts, max_size=10))
def test_random_goals_never_overlap_nor_disturb_and_all_is_clean_in_the_end(steps):
    with tempfile.TemporaryDirectory() as folder:
        node = SimulatedNode(Path(folder))
        for step in steps:
            before = ready(node)
            act(node, step)
            check_hardware(node)
            if step[0] in ("restart", "acknowledge", "cling"):
                assert ready(node) == before, "a live lease was disturbed"
            if step[0] == "desire":
                kept = {(name, generation) for name, _, generation in step[1]} & before.keys()
                assert {key: ready(node)[key] for key in kept} == {key: before[key] for key in kept}

        node.desire()
        node.pass_time(60)

        assert set(node.phases().values()) <= {"gone"}
        assert node.standing() == []
