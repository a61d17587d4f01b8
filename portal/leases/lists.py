"""Pages of leases and of requests that a person may see: as quick at the millionth row as at the first.

There is no count and no page number: a page is what follows, or comes before, the row that was last on the one left.
Each team's own rows are read in order from an index, no more of each than a page holds, and then merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

from portal.common.rows import Rows
from portal.common.sql import fetch, in_sql
from portal.leases.models import Lease, LeaseRequest
from portal.leases.states import LIVE_LEASES, LeaseState, RequestState

# Names are looked through from the newest on, so many rows for a page: a name has no index that knows its middle.
LOOKED_THROUGH: Final = 5_000
R = TypeVar("R", Lease, LeaseRequest)


@dataclass(frozen=True, slots=True)
class ListQuery:
    """What a list shows: rows of these teams, narrowed; ``user`` for one person's own.

    ``states`` empty means any, ``text`` is part of a name or id. ``ordering`` names the order, "-" before it for the
    other way round. ``after`` and ``before`` are uids of rows of these teams; any other is as if there were none.
    """

    teams: Sequence[int]
    ordering: str
    size: int
    user: int | None = None
    states: tuple[str, ...] = ()
    text: str = ""
    after: str = ""
    before: str = ""


@dataclass(frozen=True, slots=True)
class ListPage(Generic[R]):
    """Rows, and the uids from which the pages before and after go on, "" where there is none.

    ``looked_to`` is how far back names were looked through where that was not to the end: the next page goes on there.
    """

    rows: list[R] = field(default_factory=list)
    previous: str = ""
    next: str = ""
    looked_to: datetime | None = None


@dataclass(frozen=True, slots=True)
class _Kind:
    """A table and the columns that its orders go by; ``joins`` and ``name`` are for looking through names."""

    table: str
    owner: str
    orders: dict[str, str]
    by_team: str
    name: str
    joins: str = ""
    # Where an index of a team's rows begins with the state too, each state is read by itself.
    states: tuple[str, ...] = ()


_LEASES = _Kind(
    "leases_lease", "user_id", {"started": "starts_at", "ends": "not_after"}, "starts_at", "r.name",
    "JOIN leases_leaserequest r ON r.id = it.request_id",
)  # fmt: skip
_REQUESTS = _Kind(
    "leases_leaserequest", "author_id", {"asked": "id", "quote": "quote_micro"}, "id", "it.name",
    states=tuple(RequestState.values),
)  # fmt: skip
_LEASE_ROWS = Rows(Lease, "team", "user", "flavor", "flavor.device_model", "node", "request")
_REQUEST_ROWS = Rows(LeaseRequest, "team", "author", "flavor", "flavor.device_model")
LEASE_ORDERS: Final = (*_LEASES.orders, "team")
REQUEST_ORDERS: Final = (*_REQUESTS.orders, "team")


def lease_page(query: ListQuery) -> ListPage[Lease]:
    """Return a page of leases with team, user, flavor, node and request; at most four queries."""
    return _page(_LEASES, _LEASE_ROWS, query)


def request_page(query: ListQuery) -> ListPage[LeaseRequest]:
    """Return a page of requests with team, author and flavor; at most four queries."""
    return _page(_REQUESTS, _REQUEST_ROWS, query)


def _page(kind: _Kind, objects: Rows[R], query: ListQuery) -> ListPage[R]:
    mark = _mark(kind, query)
    # Backwards is the other order from the mark on, turned round.
    is_back = mark is not None and not query.after
    is_descending = query.ordering.startswith("-") != is_back
    if query.text and query.user is None and not _is_live(kind, query):
        found, edge = _looked_through(kind, query, mark, is_descending)
    else:
        found, edge = _ordered(kind, query, mark, is_descending), None
    ids = found[: query.size]
    if is_back:
        ids.reverse()
    by_id = {row.pk: row for row in objects.where("it.id = ANY(%s)", [ids])}
    rows = [by_id[pk] for pk in ids if pk in by_id]
    more = rows[0 if is_back else -1].uid if len(found) > query.size and rows else edge[0] if edge else ""
    back_to, on_from = (rows[0].uid, rows[-1].uid) if rows else (query.before, query.after)
    return ListPage(
        rows,
        previous=more if is_back else back_to if mark is not None else "",
        next=on_from if is_back else more,
        looked_to=edge[1] if edge and len(found) <= query.size else None,
    )


def _mark(kind: _Kind, query: ListQuery) -> dict[str, Any] | None:
    """Return where the row stands from which a page goes on; None for the first page."""
    wanted = query.after or query.before
    if not wanted or "\x00" in wanted:
        return None
    rows = fetch(
        f"SELECT it.id, t.name, it.{_key(kind, query)} FROM {kind.table} it"  # noqa: S608 (our own words)
        " JOIN teams_team t ON t.id = it.team_id WHERE it.uid = %s AND it.team_id = ANY(%s)",
        [wanted, list(query.teams)],
    )
    return dict(zip(("id", "team", "key"), rows[0], strict=True)) if rows else None


def _key(kind: _Kind, query: ListQuery) -> str:
    return kind.orders.get(query.ordering.removeprefix("-"), kind.by_team)


def _is_live(kind: _Kind, query: ListQuery) -> bool:
    """Say whether only leases that live are wanted: there are no more of these than the fleet holds."""
    return kind is _LEASES and bool(query.states) and LeaseState.ENDED not in query.states


def _named(kind: _Kind, query: ListQuery) -> str:
    return f"(it.uid ILIKE %(text)s OR {kind.name} ILIKE %(text)s)" if query.text else "TRUE"


def _values(query: ListQuery, mark: dict[str, Any] | None) -> dict[str, Any]:
    escaped = query.text.replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_")
    return {
        "teams": list(query.teams), "user": query.user, "states": list(query.states), "text": f"%{escaped}%",
        "most": query.size + 1, **{f"mark_{name}": value for name, value in (mark or {}).items()},
    }  # fmt: skip


def _ordered(kind: _Kind, query: ListQuery, mark: dict[str, Any] | None, is_descending: bool) -> list[int]:
    """Return the ids that follow the mark, one more than a page has."""
    is_few = query.user is not None or _is_live(kind, query)
    sql = (_few if is_few else _merged)(kind, query, mark, is_descending)
    return [row[0] for row in fetch(sql, _values(query, mark))]


def _few(kind: _Kind, query: ListQuery, mark: dict[str, Any] | None, is_descending: bool) -> str:
    """Return the SQL over rows of which there are few: what lives, or what is one person's."""
    key, way, beyond = _key(kind, query), *_way(is_descending)
    by_team = query.ordering.endswith("team")
    where = ["it.team_id = ANY(%(teams)s::bigint[])", _named(kind, query)]
    if query.user is not None:
        where.append(f"it.{kind.owner} = %(user)s")
    if query.states:
        where.append("it.state = ANY(%(states)s)")
    if _is_live(kind, query):
        where.append(f"it.state IN {in_sql(LIVE_LEASES)}")  # names the index of what lives
    columns = [*(["t.name"] if by_team else []), f"it.{key}", *(["it.id"] if key != "id" else [])]
    marks = [
        *(["%(mark_team)s"] if by_team else []),
        "%(mark_key)s",
        *(["%(mark_id)s"] if key != "id" else []),
    ]
    if mark:
        where.append(f"({', '.join(columns)}) {beyond} ({', '.join(marks)})")
    return (
        f"SELECT it.id FROM {kind.table} it JOIN teams_team t ON t.id = it.team_id {kind.joins}"  # noqa: S608 (our own words)
        f" WHERE {' AND '.join(where)} ORDER BY {', '.join(f'{one} {way}' for one in columns)} LIMIT %(most)s"
    )


def _merged(kind: _Kind, query: ListQuery, mark: dict[str, Any] | None, is_descending: bool) -> str:
    """Return the SQL that reads each team's rows (of each state) in order and merges them, ``key`` and id at hand."""
    key, way, beyond = _key(kind, query), *_way(is_descending)
    by_team = query.ordering.endswith("team")
    groups, where, outer = "unnest(%(teams)s::bigint[]) AS g(id) JOIN teams_team t ON t.id = g.id", [], "TRUE"
    if kind.states:
        states = query.states or kind.states
        groups += f" CROSS JOIN unnest(ARRAY[{in_sql(states)[1:-1]}]) AS s(name)"
        where.append("it.state = s.name")
    elif query.states:
        where.append(f"it.state IN {in_sql(query.states)}")
    if mark:
        follows = f"(it.{key}, it.id) {beyond} (%(mark_key)s, %(mark_id)s)"
        outer = f"t.name {beyond}= %(mark_team)s" if by_team else outer
        where.append(f"(t.name <> %(mark_team)s OR {follows})" if by_team else follows)
    within = " AND ".join(["it.team_id = g.id", *where])
    first = f"t.name {way}, " if by_team else ""
    return (
        f"SELECT l.id FROM {groups} CROSS JOIN LATERAL (SELECT it.id, it.{key} AS key FROM {kind.table} it"  # noqa: S608 (our own words)
        f" WHERE {within} ORDER BY it.{key} {way}, it.id {way} LIMIT %(most)s) l WHERE {outer}"
        f" ORDER BY {first}l.key {way}, l.id {way} LIMIT %(most)s"
    )


def _way(is_descending: bool) -> tuple[str, str]:
    return ("DESC", "<") if is_descending else ("ASC", ">")


def _looked_through(
    kind: _Kind, query: ListQuery, mark: dict[str, Any] | None, is_descending: bool
) -> tuple[list[int], tuple[str, datetime] | None]:
    """Return ids of rows whose name or id has the text, and the last row that was looked at unless that was the end.

    Rows come in the order of their ids and ``LOOKED_THROUGH`` at most are looked at, from the mark on.
    """
    way, beyond = _way(is_descending)
    at = "starts_at" if kind is _LEASES else "submitted_at"
    rows = fetch(
        f"WITH seen AS MATERIALIZED (SELECT it.id, it.uid, it.{at} AS at FROM {kind.table} it"  # noqa: S608 (our own words)
        f" WHERE it.team_id = ANY(%(teams)s::bigint[]) {f'AND it.id {beyond} %(mark_id)s' if mark else ''}"
        f" ORDER BY it.id {way} LIMIT %(looked)s)"
        f" (SELECT it.id, NULL, NULL FROM seen JOIN {kind.table} it USING (id) {kind.joins}"
        f" WHERE {_named(kind, query)} {'AND it.state = ANY(%(states)s)' if query.states else ''}"
        f" ORDER BY it.id {way} LIMIT %(most)s)"
        f" UNION ALL (SELECT NULL, uid, at FROM seen ORDER BY id {way} OFFSET %(looked)s - 1)",
        _values(query, mark) | {"looked": LOOKED_THROUGH},
    )
    edge = next(((uid, moment) for pk, uid, moment in rows if pk is None), None)
    return [pk for pk, *_rest in rows if pk is not None], edge
