"""What a lab plays: the requests of a period as they came, how long they truly ran, and the fleet; and what-if changes.

A history is plain values and has one text: the same history is the same bytes, so that a run can be repeated.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from scheduler.engine.codec import snapshot_from_json, snapshot_to_json
from scheduler.engine.model import Claim, DeviceInfo, Grant, NodeInfo, PolicyRules, Snapshot, TeamQuota
from scheduler.engine.state import EngineState
from scheduler.replay.jobs import Jobs
from scheduler.replay.trace_files import TraceFault
from scheduler.replay.turns import ZERO, Cluster, Scene, equal_nodes

MOST_REQUESTS = 100_000
MOST_NODES = 2_000
MOST_KINDS = 20  # of nodes, and of teams, that one run changes
MOST_TEAMS = 10  # like one that is there
LEAST_FACTOR, MOST_FACTOR = 0.1, 5.0


@dataclass(frozen=True, slots=True)
class History:
    """Requests by the instant they came. Claim ids count from 1 in this order, team ids are places in ``teams`` from 1.

    ``ran_s`` is how long each truly ran, ``price_micro`` what an hour of it costs (None: unknown), ``watts`` what all
    its units draw together (None: unknown; empty: nobody knows any). Those that came before ``since`` fill the fleet
    as it was and are not counted. ``currency`` is "" without prices.
    """

    zero: datetime
    since: datetime
    until: datetime
    teams: tuple[str, ...]
    nodes: tuple[NodeInfo, ...]
    devices: tuple[DeviceInfo, ...]
    quotas: tuple[TeamQuota, ...]
    claims: tuple[Claim, ...]
    ran_s: tuple[int, ...]
    names: tuple[str, ...]
    price_micro: tuple[int | None, ...]
    currency: str = ""
    watts: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class HistoryChanges:
    """What is other than it was: demand times ``demand``, more or fewer nodes, and more teams.

    ``nodes`` pairs the name of a node that stands for its kind with how many more or fewer of that kind, ``teams`` the
    name of a team with how many more like it.
    """

    demand: float = 1.0
    nodes: tuple[tuple[str, int], ...] = ()
    teams: tuple[tuple[str, int], ...] = ()


def history_to_json(history: History) -> bytes:
    """The history as compact JSON; instants must carry a time zone."""
    snapshot = Snapshot(history.zero, history.nodes, history.devices, (), history.claims, history.quotas)
    document = {
        "v": 1,
        "since": history.since.isoformat(),
        "until": history.until.isoformat(),
        "teams": history.teams,
        "ran_s": history.ran_s,
        "names": history.names,
        "price_micro": history.price_micro,
        "currency": history.currency,
        "watts": history.watts,
        "installation": json.loads(snapshot_to_json(snapshot)),
    }
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def history_from_json(data: bytes) -> History:
    """The history that ``history_to_json`` wrote."""
    document = json.loads(data)
    snapshot = snapshot_from_json(json.dumps(document["installation"]).encode())
    return History(
        snapshot.taken_at,
        datetime.fromisoformat(document["since"]),
        datetime.fromisoformat(document["until"]),
        tuple(document["teams"]),
        snapshot.nodes,
        snapshot.devices,
        snapshot.quotas,
        snapshot.queue,
        tuple(document["ran_s"]),
        tuple(document["names"]),
        tuple(document["price_micro"]),
        document["currency"],
        tuple(document.get("watts", ())),  # not in histories that were stored before there was energy
    )


def history_of_trace(jobs: Jobs, cluster: Cluster) -> History:
    """The jobs of a trace file on equal nodes: all agree to be preempted and ask for twice what they need."""
    scene = equal_nodes(jobs, cluster, is_told=True, is_preemptible=True)
    claims = tuple(
        replace(claim, duration_s=max(2 * claim.duration_s, 60), predicted_s=int(estimate))
        for claim, estimate in zip(
            map(scene.request, range(len(jobs.submit))),
            jobs.estimate or [0.0] * len(jobs.submit),
            strict=True,
        )
    )
    end = ZERO + timedelta(seconds=jobs.submit[-1] + 1)
    return History(
        ZERO, ZERO, end, jobs.teams, scene.nodes, scene.devices, scene.quotas, claims, tuple(jobs.duration),
        tuple(f"#{n}" for n in range(1, len(claims) + 1)), (None,) * len(claims),
    )  # fmt: skip


def changed(history: History, what_if: HistoryChanges, seed: int) -> History:
    """The history as it would be with these changes; the same seed gives the same one.

    A team more has the quota of its model and copies of its requests. More demand copies requests drawn at random,
    less leaves some out. Copies come a little later than their models, so that not all come at once. Raises
    TraceFault for a node or team that is not there, or when none would be left.
    """
    if not LEAST_FACTOR <= what_if.demand <= MOST_FACTOR:
        raise TraceFault("bad_demand", least=LEAST_FACTOR, most=MOST_FACTOR)
    draw = random.Random(seed)  # noqa: S311 - a repeatable draw
    found = history
    for name, more in what_if.nodes:
        found = _with_nodes(found, name, more)
    for name, more in what_if.teams:
        found = _with_teams(found, name, more, draw)
    count = round(len(found.claims) * what_if.demand)
    if count > MOST_REQUESTS:
        raise TraceFault("too_many", count=count, most=MOST_REQUESTS)
    if what_if.demand == 1.0:
        return found
    rows: list[tuple[datetime, int, str, int]] = []
    for row, claim in enumerate(found.claims):
        whole, part = divmod(what_if.demand, 1.0)
        times = int(whole) + (draw.random() < part)
        for copy in range(times):
            later_s = draw.randint(1, 3600) if copy else 0
            at = claim.queued_at + timedelta(seconds=later_s)
            rows.append((at, row, f"+{copy}" if copy else "", claim.team_id or 0))
    return _of_rows(found, rows)


def _of_rows(history: History, rows: list[tuple[datetime, int, str, int]]) -> History:
    """The requests that rows name, in order of time: when each comes, its model, what its name gets, its team."""
    rows.sort()
    return replace(
        history,
        claims=tuple(
            replace(history.claims[row], id=n, queued_at=at, team_id=team_id)
            for n, (at, row, _, team_id) in enumerate(rows, 1)
        ),
        ran_s=tuple(history.ran_s[row] for _, row, *_ in rows),
        names=tuple(history.names[row] + added for _, row, added, _ in rows),
        price_micro=tuple(history.price_micro[row] for _, row, *_ in rows),
        watts=tuple(history.watts[row] for _, row, *_ in rows) if history.watts else (),
    )


def _with_teams(history: History, name: str, more: int, draw: random.Random) -> History:
    if name not in history.teams:
        raise TraceFault("no_team", name=name)
    model_id, known = history.teams.index(name) + 1, len(history.teams)
    names = [f"{name}+{n}" for n in range(1, more + 1)]
    quota = next(one for one in history.quotas if one.team_id == model_id)
    rows = [(claim.queued_at, row, "", claim.team_id or 0) for row, claim in enumerate(history.claims)]
    own = [row for row, claim in enumerate(history.claims) if claim.team_id == model_id]
    if len(rows) + more * len(own) > MOST_REQUESTS:
        raise TraceFault("too_many", count=len(rows) + more * len(own), most=MOST_REQUESTS)
    for number in range(1, more + 1):
        for row in own:
            at = history.claims[row].queued_at
            # What ran when the period began fills the fleet from its beginning on.
            later_s = draw.randint(1, 3600) if at >= history.since else 0
            rows.append((at + timedelta(seconds=later_s), row, f"@{number}", known + number))
    added = (replace(quota, team_id=known + n, name=team) for n, team in enumerate(names, 1))
    return _of_rows(replace(history, teams=(*history.teams, *names), quotas=(*history.quotas, *added)), rows)


def _with_nodes(history: History, name: str, more: int) -> History:
    model = next((node for node in history.nodes if node.name == name), None)
    if model is None:
        raise TraceFault("no_node", name=name)
    boards = [one for one in history.devices if one.node_id == model.id]
    if more >= 0:
        if len(history.nodes) + more > MOST_NODES:
            raise TraceFault("too_many_nodes", nodes=len(history.nodes) + more, most=MOST_NODES)
        node_id = max(one.id for one in history.nodes)
        device_id = max((one.id for one in history.devices), default=0)
        nodes, devices = list(history.nodes), list(history.devices)
        for number in range(1, more + 1):
            nodes.append(replace(model, id=node_id + number, name=f"{name}+{number}"))
            for board in boards:
                device_id += 1
                devices.append(replace(board, id=device_id, node_id=node_id + number))
        return replace(history, nodes=tuple(nodes), devices=tuple(devices))
    # Nodes of the same kind go, last name first.
    kind = sorted((one.model, one.grid) for one in boards)
    kinds: dict[int, list[tuple[str, int]]] = {node.id: [] for node in history.nodes}
    for one in history.devices:
        kinds[one.node_id].append((one.model, one.grid))
    alike = [node for node in history.nodes if sorted(kinds[node.id]) == kind]
    if len(alike) < -more:
        raise TraceFault("too_few_alike", alike=len(alike), name=name, fewer=-more)
    gone = {node.id for node in sorted(alike, key=lambda node: node.name)[more:]}
    if len(gone) == len(history.nodes):
        raise TraceFault("no_node_left")
    return replace(
        history,
        nodes=tuple(node for node in history.nodes if node.id not in gone),
        devices=tuple(one for one in history.devices if one.node_id not in gone),
    )


def scene_of(history: History, policy: PolicyRules) -> tuple[Jobs, Scene, list[int]]:
    """The history as it is played: jobs, the installation, and which rows it has, without those that never fit.

    A request that the empty fleet under this policy refuses would wait for ever: its row is left out.
    """
    empty = Snapshot(history.zero, history.nodes, history.devices, (), (), history.quotas)
    room = EngineState.from_snapshot(empty, policy)
    fits: dict[Claim, bool] = {}
    kept = []
    for row, claim in enumerate(history.claims):
        form = replace(claim, id=0, queued_at=history.zero, predicted_s=0, duration_s=60, user_id=0)
        if form not in fits:
            fits[form] = isinstance(room.decide(form), Grant)
        if fits[form]:
            kept.append(row)
    claims = [replace(history.claims[row], id=place) for place, row in enumerate(kept, 1)]
    jobs = Jobs(
        [int((claim.queued_at - history.zero).total_seconds()) for claim in claims],
        [history.ran_s[row] for row in kept],
        [claim.count * max(claim.nodes, 1) for claim in claims],
        [claim.team_id - 1 for claim in claims],
        None,
        history.teams,
    )
    return jobs, Scene(history.nodes, history.devices, history.quotas, claims.__getitem__, history.zero), kept


def what_if_from(body: Any) -> HistoryChanges:
    """The changes that a decoded JSON object names. Raises TraceFault."""
    if not isinstance(body, dict) or body.keys() - {"demand", "nodes", "teams"}:
        raise TraceFault("bad_changes")
    demand, nodes, teams = body.get("demand", 1.0), body.get("nodes", {}), body.get("teams", {})
    if (
        isinstance(demand, bool)
        or not isinstance(demand, (int, float))
        or not LEAST_FACTOR <= demand <= MOST_FACTOR
    ):
        raise TraceFault("bad_demand", least=LEAST_FACTOR, most=MOST_FACTOR)
    if not isinstance(nodes, dict) or len(nodes) > MOST_KINDS:
        raise TraceFault("bad_nodes", most=MOST_KINDS)
    for name, more in nodes.items():
        if isinstance(more, bool) or not isinstance(more, int) or not -MOST_NODES <= more <= MOST_NODES:
            raise TraceFault("bad_count", name=name, least=-MOST_NODES, most=MOST_NODES)
    if not isinstance(teams, dict) or len(teams) > MOST_KINDS:
        raise TraceFault("bad_teams", most=MOST_KINDS)
    for name, more in teams.items():
        if isinstance(more, bool) or not isinstance(more, int) or not 1 <= more <= MOST_TEAMS:
            raise TraceFault("bad_count", name=name, least=1, most=MOST_TEAMS)
    return HistoryChanges(float(demand), tuple(sorted(nodes.items())), tuple(sorted(teams.items())))


def units_of(claims: Sequence[Claim]) -> list[int]:
    """How many units each asks for, all nodes of a gang together."""
    return [claim.count * max(claim.nodes, 1) for claim in claims]
