"""Snapshots as bytes: JSON arrays in field order, strict on the way in, the same bytes for equal ones.

``{"v": 3, "taken_at": microseconds, "boards": [...], "nodes": [[...]], ...}``; instants are integer
microseconds since 1970 UTC; a device names its profiles by their row in ``boards``, because a fleet
has hundreds of devices and few kinds of boards.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, get_args

from scheduler.engine.demand import MOST_CHURN_MILLI, Demand
from scheduler.engine.errors import BadSnapshot
from scheduler.engine.model import Claim, Device, Held, Mode, Node, Profile, Snapshot, TeamQuota
from scheduler.engine.place.statistics import Form

VERSION = 3
MODES = frozenset(get_args(Mode))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
TABLES = ("boards", "nodes", "devices", "held", "queue", "quotas")

T = TypeVar("T")
Row = list[Any]


def snapshot_to_json(snapshot: Snapshot) -> bytes:
    """The snapshot as compact JSON. Instants must carry a time zone."""
    boards: dict[tuple[Profile, ...], int] = {}
    devices = [_device_row(d, boards.setdefault(d.profiles, len(boards))) for d in snapshot.devices]
    document = {
        "v": VERSION,
        "taken_at": _us(snapshot.taken_at),
        "boards": [[_profile_row(p) for p in profiles] for profiles in boards],
        "nodes": [_node_row(n) for n in snapshot.nodes],
        "devices": devices,
        "held": [_held_row(h) for h in snapshot.held],
        "queue": [_claim_row(c) for c in snapshot.queue],
        "demand": _demand_row(snapshot.demand),
        "quotas": [[q.team_id, q.parent_id, q.ceiling_milli, q.used_milli, q.name] for q in snapshot.quotas],
    }
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def snapshot_from_json(data: bytes) -> Snapshot:
    """The snapshot that these bytes describe. Raises BadSnapshot for anything else."""
    document = _document(data)
    boards = _rows(document, "boards", lambda row: tuple(_profile(_list(p)) for p in row))
    return Snapshot(
        taken_at=_taken_at(document),
        nodes=_rows(document, "nodes", _node),
        devices=_rows(document, "devices", lambda row: _device(row, boards)),
        held=_rows(document, "held", _held),
        queue=_rows(document, "queue", _claim),
        quotas=_rows(document, "quotas", _quota),
        demand=_demand(document),
    )


def _document(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadSnapshot("snapshot", f"not JSON ({error})") from None
    if not isinstance(document, dict) or document.get("v") != VERSION:
        raise BadSnapshot("snapshot", f"not version {VERSION}")
    if document.keys() != {"v", "taken_at", "demand", *TABLES}:
        raise BadSnapshot("snapshot", "fields are missing or unknown")
    return document


def _taken_at(document: dict[str, Any]) -> datetime:
    try:
        return _instant(document["taken_at"])
    except ValueError as error:
        raise BadSnapshot("taken_at", str(error)) from None


def _rows(document: dict[str, Any], table: str, read: Callable[[Row], T]) -> tuple[T, ...]:
    rows = []
    if not isinstance(document[table], list):
        raise BadSnapshot(table, "not a list")
    for at, row in enumerate(document[table]):
        try:
            rows.append(read(_list(row)))
        except (ValueError, TypeError, IndexError, OverflowError) as error:
            raise BadSnapshot(f"{table}[{at}]", str(error)) from None
    return tuple(rows)


def _demand_row(demand: Demand) -> Row | None:
    if not demand.version:
        return None
    return [
        demand.version,
        [[*form, number] for form, number in demand.forms],
        demand.prices,
        demand.churn_milli,
    ]


def _demand(document: dict[str, Any]) -> Demand:
    if document["demand"] is None:
        return Demand()
    try:
        version, forms, prices, churn = _list(document["demand"])
        return Demand(
            _int(version, 1),
            tuple(_form(_list(row)) for row in _list(forms)),
            tuple((_int(size, 1), float(price)) for size, price in _list(prices)),
            _int(churn, 0, MOST_CHURN_MILLI),
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise BadSnapshot("demand", str(error)) from None


def _form(row: Row) -> tuple[Form, int]:
    cpu, memory, milli, boards, models, number = row
    if _int(milli, 0) > 1000:
        raise ValueError(f"{milli} thousandths of a board")
    form = Form(_int(cpu, 0), _int(memory, 0), milli, _int(boards, 0), _text(models))
    return form, _int(number, 1)


def _profile_row(p: Profile) -> Row:
    return [p.name, p.slices, list(p.starts), p.share_milli, p.memory_mib, p.max_instances]


def _profile(row: Row) -> Profile:
    name, slices, starts, share, memory, most = row
    return Profile(
        _text(name), _int(slices, 1), _ints(starts), _int(share, 0), _int(memory, 0), _int(most, 0)
    )


def _node_row(n: Node) -> Row:
    return [n.id, n.name, n.blocked, n.cpu_milli, n.memory_mib, n.zone, n.rack]


def _node(row: Row) -> Node:
    node_id, name, blocked, cpu, memory, zone, rack = row
    return Node(
        _int(node_id), _text(name), _text(blocked), _known(cpu), _known(memory), _text(zone), _text(rack)
    )


def _device_row(d: Device, board: int) -> Row:
    layout = None if d.layout is None else [list(one) for one in d.layout]
    return [
        d.id, d.node_id, d.model, d.grid, d.memory_mib, d.weight_milli, sorted(d.modes), board,
        layout, d.max_clients, d.index, d.domain, d.blocked,
        d.bandwidth_gbps, d.compute_class, d.switch, d.numa,
    ]  # fmt: skip


def _device(row: Row, boards: tuple[tuple[Profile, ...], ...]) -> Device:
    (
        device_id, node_id, model, grid, memory, weight, modes, board,
        layout, clients, index, domain, blocked,
        bandwidth, compute_class, switch, numa,
    ) = row  # fmt: skip
    return Device(
        _int(device_id), _int(node_id), _text(model), _int(grid, 1, 64), _int(memory, 0), _int(weight, 0),
        frozenset(_mode(m) for m in _list(modes)), boards[_int(board, 0)], _layout(layout),
        _int(clients, 0), _int(index), _text(domain), _text(blocked),
        _known(bandwidth), _known(compute_class), _text(switch), _known(numa),
    )  # fmt: skip


def _layout(value: Any) -> tuple[tuple[str, int], ...] | None:
    if value is None:
        return None
    return tuple((_text(name), _int(start, 0)) for name, start in _list(value))


def _held_row(h: Held) -> Row:
    return [
        h.device_id, h.start, h.size, h.mode, h.team_id, h.lease_id, _us(h.until),
        h.share_milli, h.memory_mib, h.is_host, h.profile, h.cpu_milli, h.host_memory_mib,
    ]  # fmt: skip


def _held(row: Row) -> Held:
    (
        device_id, start, size, mode, team_id, lease_id, until,
        share, memory, is_host, profile, cpu, host_memory,
    ) = row  # fmt: skip
    if not isinstance(is_host, bool):
        raise ValueError("is_host is not true or false")
    return Held(
        _int(device_id), _int(start, 0, 64), _int(size, 0, 64), _mode(mode), _int(team_id),
        None if lease_id is None else _int(lease_id), _instant(until), _int(share, 0),
        _int(memory, 0), is_host, _text(profile), _int(cpu, 0), _int(host_memory, 0),
    )  # fmt: skip


def _claim_row(c: Claim) -> Row:
    return [
        c.id, c.team_id, c.mode, c.count, c.duration_s, c.priority, _us(c.queued_at),
        sorted(c.models), c.profile, c.share_milli, c.memory_mib,
        c.cpu_milli, c.host_memory_mib, c.least_memory_mib, c.least_bandwidth_gbps, c.least_class,
        c.zone, c.near_zone, c.nodes, c.max_memory_mib,
    ]  # fmt: skip


def _claim(row: Row) -> Claim:
    (
        claim_id, team_id, mode, count, duration, priority, queued_at,
        models, profile, share, memory, cpu, host_memory,
        least_memory, least_bandwidth, least_class, zone, near_zone, nodes, max_memory,
    ) = row  # fmt: skip
    return Claim(
        _int(claim_id), _int(team_id), _mode(mode), _int(count, 1), _int(duration, 1), _int(priority),
        _instant(queued_at), frozenset(_text(m) for m in _list(models)), _text(profile),
        _int(share, 0), _int(memory, 0), _int(cpu, 0), _int(host_memory, 0),
        _int(least_memory, 0), _int(least_bandwidth, 0), _int(least_class, 0), _text(zone), _text(near_zone),
        _int(nodes, 0), _int(max_memory, 0),
    )  # fmt: skip


def _quota(row: Row) -> TeamQuota:
    team_id, parent_id, ceiling, used, name = row
    return TeamQuota(
        _int(team_id),
        None if parent_id is None else _int(parent_id),
        None if ceiling is None else _int(ceiling),
        _int(used),
        _text(name),
    )


def _us(at: datetime) -> int:
    return (at - EPOCH) // MICROSECOND


def _instant(value: Any) -> datetime:
    try:
        return EPOCH + timedelta(microseconds=_int(value))
    except OverflowError:
        raise ValueError(f"not an instant: {value}") from None


def _int(value: Any, low: int = -(2**63), high: int = 2**63 - 1) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"not a whole number in range: {value!r:.40}")
    return value


def _known(value: Any) -> int | None:
    return None if value is None else _int(value, 0)


def _ints(value: Any) -> tuple[int, ...]:
    return tuple(_int(one, 0) for one in _list(value))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"not a text: {value!r:.40}")
    return value


def _mode(value: Any) -> Mode:
    if value not in MODES:
        raise ValueError(f"unknown mode: {value!r:.40}")
    mode: Mode = value
    return mode


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"not a list: {value!r:.40}")
    return value
