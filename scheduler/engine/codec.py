"""Snapshots as bytes: JSON arrays in field order, strict on the way in, the same bytes for equal ones.

``{"v": 10, "taken_at": microseconds, "boards": [...], "nodes": [[...]], ...}``; instants are integer
microseconds since 1970 UTC; a device names its profiles by their row in ``boards``, because a fleet
has hundreds of devices and few kinds of boards.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from scheduler.engine.demand import MOST_CHURN_MILLI, Demand, Form
from scheduler.engine.errors import BadSnapshot
from scheduler.engine.json_values import flag, instant, items, known, mode, text, us, whole, wholes
from scheduler.engine.learning.bins import BINS
from scheduler.engine.model import DeviceInfo, Learned, MigProfile, NodeInfo, Snapshot
from scheduler.engine.tables import (
    CLAIM,
    HELD,
    OUTAGE,
    PERSON,
    QUOTA,
    RUNNING,
    booking,
    booking_row,
)

VERSION = 10
# Tables whose rows are the fields of a value: how a row is written and read.
ROWS: dict[str, tuple[Callable[[Any], list[Any]], Callable[[list[Any]], Any]]] = {
    "held": (HELD.row, HELD.value),
    "queue": (CLAIM.row, CLAIM.value),
    "quotas": (QUOTA.row, QUOTA.value),
    "running": (RUNNING.row, RUNNING.value),
    "bookings": (booking_row, booking),
    "outages": (OUTAGE.row, OUTAGE.value),
    "people": (PERSON.row, PERSON.value),
    "growing": (CLAIM.row, CLAIM.value),
}
TABLES = ("boards", "nodes", "devices", *ROWS)

T = TypeVar("T")
Row = list[Any]


def snapshot_to_json(snapshot: Snapshot, written: TableTexts | None = None) -> bytes:
    """The snapshot as compact JSON. Instants must carry a time zone.

    ``written`` remembers the text of each table: one whose values are the same as last time is not written
    again. The bytes are the same with and without it.
    """
    texts = TableTexts() if written is None else written
    parts = [
        f'"v":{VERSION},"taken_at":{us(snapshot.taken_at)}',
        texts.of("devices", snapshot.devices, lambda: _boards_and_devices(snapshot.devices)),
        texts.of("nodes", snapshot.nodes, lambda: f'"nodes":{_text([_node_row(n) for n in snapshot.nodes])}'),
        f'"demand":{_text(_demand_row(snapshot.demand))},"learned":{_text(_learned_row(snapshot.learned))}',
    ]
    for name, (row, _) in ROWS.items():
        values = getattr(snapshot, name)
        parts.append(texts.of(name, values, lambda: f'"{name}":{_text([row(one) for one in values])}'))  # noqa: B023 (called at once)
    return ("{" + ",".join(parts) + "}").encode()


class TableTexts:
    """The text of each table of the last snapshot, with the values it was written from."""

    def __init__(self) -> None:
        self._texts: dict[str, tuple[Sequence[Any], str]] = {}

    def of(self, name: str, values: Sequence[Any], write: Callable[[], str]) -> str:
        """The text of a table, written only when its values are others than before."""
        known = self._texts.get(name)
        if known is None or known[0] != values:
            known = self._texts[name] = (values, write())
        return known[1]


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _boards_and_devices(devices: Sequence[DeviceInfo]) -> str:
    boards: dict[tuple[MigProfile, ...], int] = {}
    rows = [_device_row(d, boards.setdefault(d.profiles, len(boards))) for d in devices]
    return f'"boards":{_text([[_profile_row(p) for p in profiles] for profiles in boards])},"devices":{_text(rows)}'


def snapshot_from_json(data: bytes) -> Snapshot:
    """The snapshot that these bytes describe. Raises BadSnapshot for anything else."""
    document = _document(data)
    boards = _rows(document, "boards", lambda row: tuple(_profile(items(p)) for p in row))
    tables: dict[str, Any] = {name: _rows(document, name, read) for name, (_, read) in ROWS.items()}
    return Snapshot(
        taken_at=_taken_at(document),
        nodes=_rows(document, "nodes", _node),
        devices=_rows(document, "devices", lambda row: _device(row, boards)),
        demand=_demand(document),
        learned=_learned(document),
        **tables,
    )


def _document(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadSnapshot("snapshot", f"not JSON ({error})") from None
    if not isinstance(document, dict) or document.get("v") != VERSION:
        raise BadSnapshot("snapshot", f"not version {VERSION}")
    if document.keys() != {"v", "taken_at", "demand", "learned", *TABLES}:
        raise BadSnapshot("snapshot", "fields are missing or unknown")
    return document


def _taken_at(document: dict[str, Any]) -> datetime:
    try:
        return instant(document["taken_at"])
    except ValueError as error:
        raise BadSnapshot("taken_at", str(error)) from None


def _rows(document: dict[str, Any], table: str, read: Callable[[Row], T]) -> tuple[T, ...]:
    rows = []
    if not isinstance(document[table], list):
        raise BadSnapshot(table, "not a list")
    for at, row in enumerate(document[table]):
        try:
            rows.append(read(items(row)))
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
        demand.used_milli,
        demand.requests,
    ]


def _demand(document: dict[str, Any]) -> Demand:
    if document["demand"] is None:
        return Demand()
    try:
        version, forms, prices, churn, used, requests = items(document["demand"])
        return Demand(
            whole(version, 1),
            tuple(_form(items(row)) for row in items(forms)),
            tuple((whole(size, 1), float(price)) for size, price in items(prices)),
            whole(churn, 0, MOST_CHURN_MILLI),
            whole(used, 0, 1000),
            whole(requests, 0),
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise BadSnapshot("demand", str(error)) from None


def _learned_row(learned: Learned) -> Row | None:
    return (
        [learned.version, [[*key, list(row)] for *key, row in learned.lengths], list(learned.errors)]
        if learned.version
        else None
    )


def _learned(document: dict[str, Any]) -> Learned:
    if document["learned"] is None:
        return Learned()
    try:
        version, rows, errors = items(document["learned"])
        lengths = tuple(_length(items(row)) for row in items(rows))
        return Learned(whole(version, 1), lengths, tuple(float(count) for count in items(errors)))
    except (ValueError, TypeError, OverflowError) as error:
        raise BadSnapshot("learned", str(error)) from None


def _length(row: Row) -> tuple[int, int, tuple[float, ...]]:
    team, group, chances = row
    if len(items(chances)) != BINS:
        raise ValueError(f"{len(chances)} bins instead of {BINS}")
    return whole(team), whole(group), tuple(float(chance) for chance in chances)


def _form(row: Row) -> tuple[Form, int]:
    cpu, memory, milli, boards, models, number = row
    if whole(milli, 0) > 1000:
        raise ValueError(f"{milli} thousandths of a board")
    form = Form(whole(cpu, 0), whole(memory, 0), milli, whole(boards, 0), text(models))
    return form, whole(number, 1)


def _profile_row(p: MigProfile) -> Row:
    return [p.name, p.slices, list(p.starts), p.share_milli, p.memory_mib, p.max_instances]


def _profile(row: Row) -> MigProfile:
    name, slices, starts, share, memory, most = row
    return MigProfile(
        text(name), whole(slices, 1), wholes(starts), whole(share, 0), whole(memory, 0), whole(most, 0)
    )


def _node_row(n: NodeInfo) -> Row:
    return [n.id, n.name, n.blocked, n.cpu_milli, n.memory_mib, n.zone, n.rack, n.wake_s, n.has_containers]


def _node(row: Row) -> NodeInfo:
    node_id, name, blocked, cpu, memory, zone, rack, wake, has_containers = row
    return NodeInfo(
        whole(node_id),
        text(name),
        text(blocked),
        known(cpu),
        known(memory),
        text(zone),
        text(rack),
        known(wake),
        flag(has_containers),
    )


def _device_row(d: DeviceInfo, board: int) -> Row:
    layout = None if d.layout is None else [list(one) for one in d.layout]
    return [
        d.id, d.node_id, d.model, d.grid, d.memory_mib, d.weight_milli, sorted(d.modes), board,
        layout, d.max_clients, d.index, d.domain, d.blocked,
        d.bandwidth_gbps, d.compute_class, d.switch, d.numa, d.paused_until and us(d.paused_until),
    ]  # fmt: skip


def _device(row: Row, boards: tuple[tuple[MigProfile, ...], ...]) -> DeviceInfo:
    (
        device_id, node_id, model, grid, memory, weight, modes, board,
        layout, clients, index, domain, blocked,
        bandwidth, compute_class, switch, numa, paused,
    ) = row  # fmt: skip
    return DeviceInfo(
        whole(device_id), whole(node_id), text(model), whole(grid, 1, 64), whole(memory, 0), whole(weight, 0),
        frozenset(mode(m) for m in items(modes)), boards[whole(board, 0)], _layout(layout),
        whole(clients, 0), whole(index), text(domain), text(blocked),
        known(bandwidth), known(compute_class), text(switch), known(numa),
        None if paused is None else instant(paused),
    )  # fmt: skip


def _layout(value: Any) -> tuple[tuple[str, int], ...] | None:
    if value is None:
        return None
    return tuple((text(name), whole(start, 0)) for name, start in items(value))
