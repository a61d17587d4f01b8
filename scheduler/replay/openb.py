"""Placement on the openb cluster: requests arrive in a given order, and every turn is decided by ``plan``.

What no turn has room for is withdrawn; nothing moves, and nothing ends unless asked for. The installation begins
without knowing any request and learns what they look like as the product does: every five minutes it looks at the
last ones (``scheduler.engine.demand.relearned``). With ``--knows`` it knows the whole pod list instead, as the
published rules do. Pods without GPU are no requests of the product; the policy gives them their node, and they
take CPU and memory of it.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from scheduler.engine.columns import WHOLE, Ints
from scheduler.engine.demand import UNKNOWN_DEMAND, Demand, Form
from scheduler.engine.events import Ended, held_by
from scheduler.engine.learning.demand import MOST, priced, relearned
from scheduler.engine.model import Claim, DeviceInfo, Grant, Held, NodeInfo, PolicyRules, Snapshot
from scheduler.engine.place.policy import policy_named
from scheduler.engine.plan import plan
from scheduler.engine.shape import Shape, ShapeKind
from scheduler.engine.state import EngineState
from scheduler.replay.trace_files import BadTrace, Row, rows, words

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
CLONE = "-tuned-"
MOST_BOARDS = 62
LOAD = 1.3
ROUNDS = 10
ZERO = datetime(2023, 10, 1, tzinfo=UTC)
LEARN_EVERY_S = 300  # as the product's schedule says
GAP_S = 30.0  # between two arrivals, where nothing ends
FOREVER_S = 3600 * 86_400
BOARD_MIB = 80_000  # the trace knows no memory of boards, and nobody asks for any


@dataclass(frozen=True, slots=True)
class ReplayedNode:
    """A node of the cluster, with its place in the order that settles ties."""

    name: str
    cpu: int
    memory: int
    boards: int
    model: str
    rank: int


@dataclass(frozen=True, slots=True)
class Trace:
    """What is replayed: hosts by rank, the form and life (seconds, None unknown) of each arrival."""

    hosts: tuple[ReplayedNode, ...]
    names: tuple[str, ...]
    arrivals: tuple[Form, ...]
    lives: tuple[float | None, ...]
    listed: Counter[Form]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this experiment."""
    parser.add_argument("--nodes", type=Path, required=True, help="CSV: sn,cpu_milli,memory_mib,gpu,model")
    parser.add_argument("--pods", type=Path, required=True, help="CSV: name,cpu_milli,memory_mib,num_gpu,…")
    parser.add_argument("--order", type=Path, required=True, help="one pod name per line, as they arrive")
    parser.add_argument("--rank", type=Path, required=True, help="CSV: sn,rank; lower rank wins ties")
    parser.add_argument("--policy", default="default", help="placement policy (default: default)")
    parser.add_argument("--scale", type=int, default=1, help="so many copies of nodes and arrivals")
    parser.add_argument("--knows", action="store_true", help="the policy knows the pod list from the start")
    parser.add_argument("--together", type=int, default=1, help="so many arrivals per turn (default: 1)")
    parser.add_argument(
        "--gap", type=float, default=GAP_S, help=f"seconds between arrivals (default: {GAP_S:g})"
    )
    parser.add_argument("--departures", action="store_true", help="pods end; GPU-time served is measured")
    parser.add_argument("--placements", type=Path, help="write the node of every pod to this CSV file")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Replay and measure. Raises BadTrace (bad files) and UnknownPolicy."""
    began = time.perf_counter()
    policy_named(options.policy)
    for name, value, least in (("--scale", options.scale, 1), ("--together", options.together, 1)):
        if value < least:
            raise BadTrace(f"{name} {value}: at least {least} is needed.")
    if not options.gap > 0:
        raise BadTrace(f"--gap {options.gap:g}: more than 0 is needed.")
    trace = scaled(read(options.nodes, options.pods, options.order, options.rank), options.scale)
    rules = ReplayRules(options.policy, options.knows, options.together, options.gap)
    played = (play_departures if options.departures else play)(trace, rules)
    if options.placements:
        _write(options.placements, trace, played)
    return {
        "policy": options.policy,
        "knows": options.knows,
        "together": options.together,
        "class": "nobody refused while there is room, nothing moves"
        + (", with departures" if options.departures else ""),
        "scale": options.scale,
        **played.figures,
        "decisions_per_second": round(played.decisions / played.seconds),
        "decision_s": round(played.seconds, 4),
        "wall_s": round(time.perf_counter() - began, 3),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def read(nodes: Path, pods: Path, order: Path, rank: Path) -> Trace:
    """The trace of four files. Raises BadTrace."""
    ranks = {row.text("sn"): row.integer("rank") for row in rows(rank, ("sn", "rank"))}
    hosts = sorted((_host(row, ranks) for row in rows(nodes, NODE_COLUMNS)), key=lambda host: host.rank)
    if not hosts:
        raise BadTrace(f"{nodes}: no node.")
    forms: dict[str, tuple[Form, float | None]] = {}
    for row in rows(pods, POD_COLUMNS):
        forms[row.text("name")] = _form(row), _life(row)
    names, arrivals, lives = [], [], []
    for line, name in words(order):
        known = forms.get(name.split(CLONE)[0])
        if known is None:
            raise BadTrace(f"{order}, line {line}, column 1: {name[:80]!r} is not in {pods}.")
        names.append(name)
        arrivals.append(known[0])
        lives.append(known[1])
    listed = Counter(form for form, _ in forms.values())
    return Trace(tuple(hosts), tuple(names), tuple(arrivals), tuple(lives), listed)


def _host(row: Row, ranks: dict[str, int]) -> ReplayedNode:
    name = row.text("sn")
    if name not in ranks:
        raise row.refusal("sn", f"is {name!r}, which has no rank")
    boards = row.integer("gpu")
    if boards > MOST_BOARDS:
        raise row.refusal("gpu", f"is {boards}; a node has at most {MOST_BOARDS} boards")
    model = row.text("model") if boards else row.optional("model")
    return ReplayedNode(name, row.integer("cpu_milli"), row.integer("memory_mib"), boards, model, ranks[name])


def _form(row: Row) -> Form:
    boards = row.integer("num_gpu")
    if boards > MOST_BOARDS:
        raise row.refusal("num_gpu", f"is {boards}; a node has at most {MOST_BOARDS} boards")
    milli = min(row.integer("gpu_milli"), WHOLE) if boards else 0
    if boards > 1 and milli < WHOLE:
        raise row.refusal("gpu_milli", f"is {milli} for {boards} boards; parts are for one board only")
    spec = row.optional("gpu_spec") if boards else ""
    return Form(row.integer("cpu_milli"), row.integer("memory_mib"), milli, boards, spec)


def _life(row: Row) -> float | None:
    if not row.optional("creation_time") or not row.optional("deletion_time"):
        return None
    created, deleted = row.number("creation_time"), row.number("deletion_time")
    if deleted < created:
        raise row.refusal("deletion_time", "is before creation_time")
    return deleted - created


def scaled(trace: Trace, copies: int) -> Trace:
    """Nodes and arrivals ``copies`` times, copies of a pod next to each other, copy i ranked behind i - 1."""
    if copies == 1:
        return trace
    count = len(trace.hosts)
    return replace(
        trace,
        hosts=tuple(
            replace(host, name=f"{host.name}/{copy}", rank=host.rank + copy * count)
            for copy in range(copies)
            for host in trace.hosts
        ),
        names=tuple(f"{name}/{copy}" for name in trace.names for copy in range(copies)),
        arrivals=tuple(form for form in trace.arrivals for _ in range(copies)),
        lives=tuple(life for life in trace.lives for _ in range(copies)),
    )


@dataclass(frozen=True, slots=True)
class ReplayRules:
    """How a replay goes: the placement policy, whether it knows the pod list, arrivals per turn, seconds between."""

    policy: str = "default"
    knows: bool = False
    together: int = 1
    gap_s: float = GAP_S


@dataclass(slots=True)
class PlayedPlacement:
    """What a replay did: the node of each arrival (-1 refused), its figures, and the CPU seconds that turns took.

    What is learned between turns is not counted, as no turn of the product learns.
    """

    nodes: Ints
    figures: dict[str, Any]
    decisions: int
    seconds: float


class ReplayedInstallation:
    """The trace's cluster as the product has it: a room kept between turns, and what it has learned so far.

    ``versions`` are the demand tables that were learned, by the second of the turn that first went by each.
    ``told``: the versions of the same trace, so that turns hear of them, as in the product, where others learn.
    """

    def __init__(self, trace: Trace, rules: ReplayRules, told: Mapping[float, Demand] | None = None) -> None:
        self.trace = trace
        self.rules = rules
        plain = {form: form._replace(memory=0) for form in set(trace.arrivals)}
        self._forms = [plain[form] for form in trace.arrivals]  # what is learned heeds no memory of the host
        self.policy = PolicyRules(place=rules.policy, backfill="none", share_across_teams=True)
        self.gpu = np.array([form.gpu for form in trace.arrivals], np.int64)
        self.capacity = WHOLE * sum(host.boards for host in trace.hosts)
        self.placed = np.full(len(trace.arrivals), -1, np.int64)
        self.seconds = 0.0
        self.demand = UNKNOWN_DEMAND
        self._nodes = tuple(
            NodeInfo(number, host.name, "", host.cpu, host.memory) for number, host in enumerate(trace.hosts)
        )
        self._devices = tuple(
            DeviceInfo(
                number * (MOST_BOARDS + 1) + at, number, host.model, 1, BOARD_MIB, WHOLE,
                frozenset({"exclusive", "timeslice"}), index=at,
            )
            for number, host in enumerate(trace.hosts)
            for at in range(host.boards)
        )  # fmt: skip
        self._room = EngineState.from_snapshot(self._snapshot(ZERO, ()), self.policy)
        _ = self._room.fleet  # laying out an idle fleet is no decision: no clock runs yet
        if rules.knows:
            self.demand = known(trace, self._room)
        self._held: dict[int, tuple[Held, ...]] = {}
        self._hosted: dict[int, Held] = {}
        self._last: deque[int] = deque()
        self._seen: Counter[tuple[Form, bool]] = Counter()
        self._over: set[int] = set()
        self._looked_at = 0.0
        self.versions: dict[float, Demand] = {}
        self._told = told

    @contextmanager
    def clocked(self) -> Iterator[None]:
        """Count the CPU seconds of the turns inside, learning aside."""
        began = time.thread_time()
        yield
        self.seconds += time.thread_time() - began

    def turn(self, arrivals: Sequence[int], now_s: float) -> None:
        """Let these arrive and be decided in one turn."""
        self._learn(now_s)
        now = ZERO + timedelta(seconds=now_s)
        forms = self.trace.arrivals
        for number in arrivals:
            if not forms[number].boards:
                self._host(number)
        queue = tuple(self._claim(number, now) for number in arrivals if forms[number].boards)
        found = plan(self._snapshot(now, queue), self.policy, self._room, explains=False) if queue else None
        for grant in found.grants if found else ():
            self._start(grant, now)
        for claim in queue:
            self._remember(claim.id - 1)

    def end(self, number: int) -> None:
        """Let an arrival that was placed be over."""
        if number in self._held:
            self._room.end(Ended(self._held.pop(number)))
            self._over.add(number)
            if self._last and number >= self._last[0]:
                form = self._forms[number]
                self._seen[form, False] -= 1
                self._seen[form, True] += 1
        elif number in self._hosted:
            self._take(int(self.placed[number]), self._hosted.pop(number), -1)

    def _learn(self, now_s: float) -> None:
        if self._told is not None:
            self.demand = self._told.get(now_s, self.demand)
            return
        if self.rules.knows or now_s - self._looked_at < LEARN_EVERY_S:
            return
        self._looked_at = now_s
        began = time.thread_time()
        requests = +self._seen
        found = relearned(self.demand, self.demand.version + 1, requests, self._room.fleet.left())
        if found is not None:
            self.demand = self.versions[now_s] = found
        self.seconds -= time.thread_time() - began

    def _remember(self, number: int) -> None:
        """Count one of the last requests; the oldest is forgotten."""
        self._last.append(number)
        self._seen[self._forms[number], False] += 1
        if len(self._last) > MOST:
            oldest = self._last.popleft()
            self._seen[self._forms[oldest], oldest in self._over] -= 1

    def _snapshot(self, now: datetime, queue: tuple[Claim, ...]) -> Snapshot:
        return Snapshot(now, self._nodes, self._devices, (), queue, (), demand=self.demand)

    def _claim(self, number: int, now: datetime) -> Claim:
        form = self.trace.arrivals[number]
        return Claim(
            number + 1, 1, "exclusive" if form.milli == WHOLE else "timeslice", form.boards, FOREVER_S, 0, now,
            models=models_of(form), share_milli=form.milli, cpu_milli=form.cpu, host_memory_mib=form.memory,
        )  # fmt: skip

    def _start(self, grant: Grant, now: datetime) -> None:
        number = grant.claim_id - 1
        self.placed[number] = grant.node_id
        self._held[number] = held_by(grant, now)

    def _host(self, number: int) -> None:
        """Give a pod without GPU its node, if any has room."""
        form = self.trace.arrivals[number]
        self._room.heed(self.demand)
        shape = Shape(ShapeKind("exclusive", frozenset(), ""), 0, 0, 0, 0, False, form.cpu, form.memory)
        boards = self._room.fleet.node_for(shape)
        if boards is None:
            return
        node = boards[0].node.id
        taken = Held(
            boards[0].device.id,
            0,
            0,
            "exclusive",
            0,
            None,
            ZERO,
            cpu_milli=form.cpu,
            host_memory_mib=form.memory,
        )
        self._take(node, taken, 1)
        self._hosted[number] = taken
        self.placed[number] = node

    def _take(self, node: int, taken: Held, sign: int) -> None:
        self._room.hosts[node].take(taken, sign)
        self._room.look_again_at([taken])


def models_of(form: Form) -> frozenset[str]:
    """The models that a form may use; empty: any."""
    return frozenset(filter(None, form.models.split("|")))


def known(trace: Trace, room: EngineState) -> Demand:
    """The whole pod list as what was learned, nothing of it over."""
    forms = tuple((form._replace(memory=0), number) for form, number in trace.listed.items())
    return priced(Demand(1, forms, churn_milli=0), room.fleet.left())


PLAIN = ReplayRules()


def play(trace: Trace, rules: ReplayRules = PLAIN) -> PlayedPlacement:
    """Arrivals only: the published experiment."""
    here = ReplayedInstallation(trace, rules)
    with here.clocked():
        for number, arrivals in enumerate(batched(range(len(trace.arrivals)), rules.together)):
            here.turn(arrivals, number * rules.together * rules.gap_s)
    return PlayedPlacement(here.placed, figures(here), len(trace.arrivals), here.seconds)


def batched(numbers: Iterable[int], size: int) -> Iterator[list[int]]:
    """The numbers, so many at a time."""
    left = iter(numbers)
    while part := list(islice(left, size)):
        yield part


def figures(here: ReplayedInstallation) -> dict[str, Any]:
    """What was allocated, and when boards were refused first."""
    nodes, capacity = here.placed, here.capacity
    placed = nodes >= 0
    arrived, used = np.cumsum(here.gpu), np.cumsum(np.where(placed, here.gpu, 0))
    refused = np.flatnonzero(~placed & (here.gpu > 0))
    return {
        "allocated_percent_at_100": percent_at(arrived, used, capacity, 100),
        "allocated_percent_at_130": percent_at(arrived, used, capacity, 130),
        "allocated_percent": round(100 * int(used[-1]) / capacity, 4) if len(used) else 0.0,
        "allocated_milli": int(used[-1]) if len(used) else 0,
        "first_refusal_at_percent": round(100 * int(arrived[refused[0]]) / capacity, 2)
        if len(refused)
        else None,
        "placed": int(placed.sum()),
        "refused": int((~placed).sum()),
        "demand_versions": here.demand.version,
        "gpus": capacity // WHOLE,
    }


def percent_at(arrived: Ints, used: Ints, capacity: int, percent: int) -> float | None:
    """Allocated percent when arrived demand, rounded to a whole percent, was last at most ``percent``.

    None when so much demand never arrived.
    """
    whole = np.rint(100 * arrived / capacity)
    if not len(whole) or whole[-1] < percent:
        return None
    found = np.flatnonzero(whole <= percent)
    return round(100 * int(used[found[-1]]) / capacity, 4) if len(found) else 0.0


def play_departures(trace: Trace, rules: ReplayRules = PLAIN) -> PlayedPlacement:
    """Arrivals and ends: the order is repeated ten times, evenly spread over a span chosen so that the
    GPU-time offered inside the span is 130 % of the supply; served is what was placed, inside the span.
    """
    if any(life is None for life in trace.lives):
        raise BadTrace("--departures: the pod list has no creation_time and deletion_time for every pod.")
    long = replace(trace, arrivals=trace.arrivals * ROUNDS, names=trace.names * ROUNDS)
    here = ReplayedInstallation(long, rules)
    lives = np.array(trace.lives * ROUNDS, np.float64)
    span = _span(lives, here.gpu, here.capacity)
    starts = np.arange(len(lives)) * span / len(lives)
    ends = np.minimum(starts + lives, span)
    with here.clocked():
        for event in _events(starts, starts + lives).tolist():
            if event < 0:
                here.end(-event - 1)
            else:
                here.turn([event], float(starts[event]))
    time_of = here.gpu * (ends - starts)
    placed = here.placed >= 0
    found = {
        "served_percent": round(100 * float(time_of[placed].sum()) / (here.capacity * span), 4),
        "offered_percent": round(100 * float(time_of.sum()) / (here.capacity * span), 4),
        "gpu_hours_served": round(float(time_of[placed].sum()) / WHOLE / 3600, 1),
        "span_hours": round(span / 3600, 3),
        "placed": int(placed.sum()),
        "refused": int((~placed).sum()),
        "demand_versions": here.demand.version,
        "gpus": here.capacity // WHOLE,
    }
    return PlayedPlacement(here.placed, found, len(lives), here.seconds)


def _span(lives: Any, gpu: Ints, supply: int) -> float:
    """Seconds over which arrivals are spread so that they offer LOAD times the supply (bisection)."""
    share = 1 - np.arange(len(lives)) / len(lives)
    low, high = 1e-3, float(lives.sum()) + 1.0
    for _ in range(200):
        middle = (low * high) ** 0.5
        offered = float((gpu * np.minimum(lives, share * middle)).sum()) / (supply * middle)
        low, high = (middle, high) if offered > LOAD else (low, middle)
    return high


def _events(starts: Any, ends: Any) -> Ints:
    """Arrivals (number) and ends (minus number, minus 1) in time order; ends go before arrivals."""
    count = len(starts)
    numbers = np.concatenate([-np.arange(count) - 1, np.arange(count)])
    order = np.lexsort((np.repeat([0, 1], count), np.concatenate([ends, starts])))
    return numbers[order].astype(np.int64)


def _write(path: Path, trace: Trace, played: PlayedPlacement) -> None:
    with path.open("w", encoding="utf-8") as out:
        out.write("seq,pod,node\n")
        for at, node in enumerate(played.nodes):
            name = trace.hosts[node].name if node >= 0 else ""
            out.write(f"{at},{trace.names[at % len(trace.names)]},{name}\n")
