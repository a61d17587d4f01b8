from __future__ import annotations

import itertools
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine import kernel
from scheduler.engine.columns import (
    COUNT,
    CPU,
    EXCLUSIVE,
    KIND,
    MEMORY,
    MILLI,
    SHARE,
    USE,
    WANT_FIELDS,
    WHOLE,
    Ints,
    columns,
)
from scheduler.engine.demand import Demand, Form, FreeCapacity
from scheduler.engine.learning.demand import priced
from scheduler.engine.place import prices, prr
from scheduler.engine.place.policy import Decider, policy_named
from scheduler.engine.place.shadow_prices import shadow_prices
from scheduler.replay import openb

SAMPLE = Path(__file__).parents[1] / "data" / "openb"
TRACES = Path(os.environ.get("TRACES", ""))
needs_traces = pytest.mark.skipif(
    not (TRACES / "openb_nodes_gpu.csv").is_file(), reason="TRACES names no folder with the full traces"
)
needs_compiler = pytest.mark.skipif(not kernel.can_compile(), reason="the compiler is not installed")

FORMS = (
    Form(3000, 4096, 810, 1, ""),
    Form(8000, 4096, 470, 1, ""),
    Form(4000, 2048, 320, 1, ""),
    Form(2000, 1024, 160, 1, "A"),
    Form(12000, 8192, 1000, 1, ""),
    Form(11000, 8192, 1000, 1, "B"),
    Form(24000, 16384, 1000, 2, ""),
    Form(60000, 65536, 1000, 4, "A|B"),
    Form(16000, 4096, 0, 0, ""),
)
LISTED = dict.fromkeys(FORMS, 3)
MODELS = ("A", "B")
SHARED = 3


def demand_of(listed: dict[Form, int], boards: int) -> Demand:
    """The demand with its prices on an idle fleet of so many boards."""
    left = FreeCapacity(((WHOLE, boards),), 0, WHOLE * boards)
    return priced(Demand(1, tuple(listed.items())), left)


class Fleet:
    """A few nodes, and the wants of ``FORMS`` as rows."""

    def __init__(self, nodes: list[tuple[int, int, int]], name: str, *, is_compiled: bool = False) -> None:
        specs = sorted({form.models for form in FORMS})
        self.boards = [boards for _, boards, _ in nodes]
        self.at = columns(
            [cpu for cpu, _, _ in nodes], [131072] * len(nodes), [m for _, _, m in nodes], self.boards,
            kinds=len(specs),
        )  # fmt: skip
        for kind, spec in enumerate(specs):
            if spec:
                self.at.serves[kind] &= np.array([MODELS[m] in spec.split("|") for *_, m in nodes])[:, None]
        self.wants = np.zeros((len(FORMS), WANT_FIELDS), np.int64)
        for row, form in enumerate(FORMS):
            self.wants[row, [CPU, MEMORY, MILLI, COUNT]] = form.cpu, form.memory, form.milli, form.boards
            self.wants[row, [KIND, SHARE]] = specs.index(form.models), form.milli
            self.wants[row, USE] = EXCLUSIVE if form.milli == WHOLE else SHARED
        rule = policy_named(name)
        tables = rule.tables(demand_of(LISTED, sum(self.boards)), MODELS, self.at)
        self.decider = Decider(rule, self.at, self.wants, tables, is_compiled=is_compiled)

    def has_room(self, row: int) -> bool:
        """Brute force: any node, any choice of boards."""
        form = FORMS[row]
        for node, boards in enumerate(self.boards):
            fits_host = self.at.cpu[node] >= form.cpu and self.at.memory[node] >= form.memory
            model = MODELS[self.at.model[node]]
            if not fits_host or (form.models and model not in form.models.split("|")):
                continue
            for chosen in itertools.combinations(range(boards), form.boards):
                if all(self.at.free[node, board] >= form.milli for board in chosen):
                    return True
        return False

    def is_sound(self) -> bool:
        """Nothing is given away that was not there."""
        return bool((self.at.cpu >= 0).all() and (self.at.memory >= 0).all() and (self.at.free >= -1).all())


some_nodes = st.lists(
    st.tuples(st.sampled_from([24000, 64000, 96000]), st.integers(1, 4), st.integers(0, 1)),
    min_size=1,
    max_size=5,
)
some_rows = st.lists(st.integers(0, len(FORMS) - 1), min_size=1, max_size=40)


def in_and_out(rows: list[int]) -> Ints:
    """Every third request ends when the next but four arrives."""
    events: list[int] = []
    for request in range(len(rows)):
        if request >= 5 and (request - 5) % 3 == 0:
            events.append(-(request - 5) - 1)
        events.append(request)
    return np.array(events, np.int64)


@settings(max_examples=40, deadline=None)
@given(nodes=some_nodes, rows=some_rows, name=st.sampled_from(["prr", "fgd", "best_fit"]))
def test_a_request_is_refused_only_when_no_node_has_room(
    nodes: list[tuple[int, int, int]], rows: list[int], name: str
) -> None:
    fleet = Fleet(nodes, name)

    for at, row in enumerate(rows):
        had_room = fleet.has_room(row)
        placed, _ = fleet.decider.play(np.array(rows), np.array([at]))
        assert (placed[at] >= 0) == had_room
        assert fleet.is_sound()


@settings(max_examples=25, deadline=None)
@given(nodes=some_nodes, rows=some_rows)
def test_what_ends_gives_back_what_it_took_and_the_same_input_gives_the_same_plan(
    nodes: list[tuple[int, int, int]], rows: list[int]
) -> None:
    one, other = Fleet(nodes, "prr"), Fleet(nodes, "prr")
    idle = [one.at.cpu.copy(), one.at.free.copy()]
    events = in_and_out(rows)

    first, second = one.decider.play(np.array(rows), events), other.decider.play(np.array(rows), events)

    assert [part.tolist() for part in first] == [part.tolist() for part in second]
    assert one.is_sound()
    left = sorted(set(range(len(rows))) - {-event - 1 for event in events.tolist() if event < 0})
    _give_back(one, np.array(rows), left, *first)
    assert (one.at.cpu == idle[0]).all()
    assert (one.at.free == idle[1]).all()


def _give_back(fleet: Fleet, rows: Ints, requests: list[int], nodes: Ints, boards: Ints) -> None:
    ends = np.array([-request - 1 for request in requests], np.int64)
    fleet.decider.replay(rows, ends, nodes, boards)


@settings(max_examples=25, deadline=None)
@given(nodes=some_nodes, rows=some_rows, name=st.sampled_from(["prr", "fgd", "best_fit"]))
def test_what_is_kept_of_nodes_between_decisions_is_what_a_new_look_finds(
    nodes: list[tuple[int, int, int]], rows: list[int], name: str
) -> None:
    fleet = Fleet(nodes, name)
    fleet.decider.play(np.array(rows), in_and_out(rows))
    fresh = Decider(policy_named(name), fleet.at, fleet.wants, fleet.decider.tables)

    for row in range(len(FORMS)):
        assert fleet.decider.decide(row) == fresh.decide(row)
        assert fleet.decider.index.cost[row].tolist() == fresh.index.cost[row].tolist()
    assert fleet.decider.memo.nodes.tolist() == fresh.memo.nodes.tolist()
    assert fleet.decider.memo.figures.tolist() == fresh.memo.figures.tolist()


def test_models_that_the_same_requests_may_use_share_a_table() -> None:
    free = {form._replace(models=""): number for form, number in LISTED.items()}
    at = columns([96000] * 3, [131072] * 3, [0, 1, 2], [4] * 3)
    models = (*MODELS, "another")
    bound = f"{MODELS[0]}|another"

    one = policy_named("prr").tables(demand_of(free, 12), models, at)
    two = policy_named("prr").tables(demand_of({**free, Form(1000, 0, 500, 1, bound): 500}, 12), models, at)

    assert one.alike.tolist() == [0, 0, 0]
    assert len(one.fits_one) == len(one.fits_many) == 1
    assert two.alike.tolist() == [0, 1, 0]
    assert two.fits_one[0, -1, 500] > two.fits_one[1, -1, 500]


@pytest.mark.deep
@needs_compiler
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["prr", "fgd"])
def test_compiled_and_plain_kernels_decide_the_same(name: str, seed: int) -> None:
    draw = np.random.default_rng(seed)
    nodes = [
        (int(draw.choice([24000, 64000, 96000])), int(draw.integers(1, 5)), int(draw.integers(0, 2)))
        for _ in range(12)
    ]
    rows = draw.integers(0, len(FORMS), 120)
    events = in_and_out(rows.tolist())

    plain = Fleet(nodes, name).decider.play(rows, events)
    fast = Fleet(nodes, name, is_compiled=True).decider.play(rows, events)

    assert [part.tolist() for part in plain] == [part.tolist() for part in fast]


def sample() -> openb.Trace:
    files = (SAMPLE / "nodes.csv", SAMPLE / "pods.csv", SAMPLE / "order.txt", SAMPLE / "rank.csv")
    return openb.read(*files)


def allocated(trace: openb.Trace, name: str, *, knows: bool = False) -> int:
    return int(openb.play(trace, openb.ReplayRules(name, knows)).figures["allocated_milli"])


@pytest.mark.parametrize(("name", "milli"), [("fgd", 115_330), ("best_fit", 114_210)])
def test_the_published_rules_place_the_sample_as_measured(name: str, milli: int) -> None:
    assert allocated(sample(), name, knows=True) == milli


def test_ours_places_more_of_the_sample_than_the_published_rules() -> None:
    assert allocated(sample(), "prr") >= 118_500  # of 127,000, knowing nothing at the start
    assert allocated(sample(), "prr", knows=True) >= 120_500


@pytest.mark.deep
def test_ours_serves_more_of_the_sample_when_requests_end() -> None:
    ours, published = (
        openb.play_departures(sample(), openb.ReplayRules(name, knows=name == "fgd")).figures[
            "served_percent"
        ]
        for name in ("prr", "fgd")
    )

    assert ours > published


def test_a_piece_is_worth_what_fits_in_it() -> None:
    values = prices.piece_values(((400, 1.0), (600, 1.0)))

    assert values[399] == 0
    assert values[400] + values[600] == pytest.approx(values[1000]) == pytest.approx(1)
    assert (np.diff(values) >= 0).all()


def test_room_beyond_what_is_still_asked_for_is_worth_nothing() -> None:
    scarce = shadow_prices([300, 1000], [50.0, 50.0], {1000: 40, 300: 10})
    plenty = shadow_prices([300, 1000], [5.0, 50.0], {1000: 40, 300: 10})

    assert scarce is not None
    assert plenty is not None
    assert scarce.values[300] > 0
    assert plenty.values[300] == 0


def test_without_room_or_sizes_there_are_no_prices() -> None:
    assert shadow_prices([300], [5.0], {200: 3}) is None
    assert shadow_prices([], [], {1000: 3}) is None


def test_churn_is_the_share_of_demand_that_is_over() -> None:
    fleet = Fleet([(96000, 4, 0)], "prr")
    rows = np.array([4, 4, 4, 4])

    fleet.decider.play(rows, np.array([0, 1, 2, -1, -2, -3, 3]))
    settled = prr.heeding_churn(fleet.decider.tables, fleet.at)

    assert fleet.at.totals.tolist() == [1000, 4000, 3000]
    assert settled.churn[0] == pytest.approx(0.75)


FULL = {
    "default": (96.3, 96.0),
    "gpushare40": (94.95, 94.7),
    "multigpu20": (96.75, 96.5),
    "gpuspec20": (96.2, 27.5),
}


@needs_traces
@needs_compiler
@pytest.mark.parametrize("workload", FULL)
def test_the_full_trace_is_placed_better_than_by_the_published_rule(workload: str) -> None:
    least, first = FULL[workload]
    trace = openb.read(
        TRACES / "openb_nodes_gpu.csv",
        TRACES / f"openb_pods_{workload}.csv.gz",
        TRACES / f"openb_order/{workload}_seed43.txt.gz",
        TRACES / f"openb_node_rank/{workload}_seed43.csv.gz",
    )

    ours = openb.play(trace, openb.ReplayRules("prr")).figures
    published = openb.play(trace, openb.ReplayRules("fgd", knows=True)).figures

    assert ours["allocated_percent"] >= least
    assert ours["allocated_percent"] > published["allocated_percent"] + 0.8
    assert ours["first_refusal_at_percent"] >= max(first, published["first_refusal_at_percent"])


def test_tiers_stand_where_some_requests_fit_only_on_the_larger_nodes() -> None:
    wanted = [(64_000, 40.0), (88_000, 50.0), (120_000, 10.0)]

    assert prr.tiers(wanted, np.array([96_000] * 9 + [128_000])) == (88_000, 120_000)
    assert prr.tiers(wanted, np.array([128_000] * 10)) == (88_000, 88_000)
    assert prr.tiers([], np.array([96_000])) == (0, 0)


def test_of_several_edges_the_one_that_divides_the_nodes_most_evenly_counts() -> None:
    wanted = [(8_000, 1.0), (60_000, 1.0), (120_000, 1.0)]

    assert prr.tiers(wanted, np.array([16_000, *[96_000] * 4, *[128_000] * 5])) == (60_000, 120_000)


def test_one_request_more_than_were_counted_is_expected_of_each_size() -> None:
    """Of a hundred requests one wanted eight boards, and none what only the largest node has CPU for."""
    forms = (Form(8_000, 0, 1000, 1, ""), 99), (Form(88_000, 0, 1000, 8, ""), 1)
    at = columns([128_000, *[96_000] * 9], [1] * 10, [0] * 10, [8] * 10)
    boards = 99 + 8

    counted = prr.prices(Demand(1, forms, requests=100), ("A",), at, prr.Weights())
    known = prr.prices(Demand(1, forms), ("A",), at, prr.Weights())

    assert counted.reserve_cpu[:2].tolist() == [88_000, 128_000]
    assert counted.rates[:2] * boards == pytest.approx([2, 1])
    assert known.reserve_cpu[:2].tolist() == [88_000, 88_000]
    assert known.rates[:2] * boards == pytest.approx([1, 0])


@pytest.mark.parametrize("rank", [0, 11])
@pytest.mark.parametrize("others", [57, 1])
def test_a_request_that_nobody_made_before_finds_the_only_node_that_has_room_for_it(
    rank: int, others: int
) -> None:
    """Twelve nodes of which the first or the last is large. Small requests come before it, or one for eight boards
    when nothing is known at all.
    """
    hosts = tuple(
        openb.ReplayedNode(f"n{at}", 128_000 if at == rank else 96_000, 1 << 20, 8, "A", at)
        for at in range(12)
    )
    large = Form(120_000, 1024, 1000, 8, "")
    other = Form(16_000, 1024, 1000, 1, "") if others > 1 else Form(88_000, 1024, 1000, 8, "")
    arrivals = (*[other] * others, large)
    trace = openb.Trace(
        hosts, tuple(map(str, range(len(arrivals)))), arrivals, (None,) * len(arrivals), Counter(arrivals)
    )

    placed = openb.play(trace, openb.ReplayRules()).nodes >= 0

    assert placed.all()


@pytest.mark.parametrize("large", [0.1, 0.5])
def test_requests_for_whole_nodes_find_them_while_there_are_enough(large: float) -> None:
    """Forty nodes, so many of them large: whole-node requests for part of either kind come last."""
    count = 40
    big = int(large * count)
    hosts = tuple(
        openb.ReplayedNode(f"n{at}", 128_000 if at < big else 96_000, 1 << 20, 8, "A", at)
        for at in range(count)
    )
    small = (Form(8_000, 1024, 1000, 1, ""),) * (count * 8 // 2)
    whole = tuple(Form(120_000 if at < big // 2 else 88_000, 1024, 1000, 8, "") for at in range(count // 2))
    arrivals = (*small, *whole)
    trace = openb.Trace(
        hosts, tuple(map(str, range(len(arrivals)))), arrivals, (None,) * len(arrivals), Counter(arrivals)
    )

    placed = openb.play(trace, openb.ReplayRules(knows=True)).nodes >= 0

    assert placed[len(small) :].all()
