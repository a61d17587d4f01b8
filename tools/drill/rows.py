"""The rows that the proofs look at, read by plain SQL in one snapshot."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg


@dataclass(frozen=True)
class StoredEvent:
    lease: int
    id: int
    was: str
    now: str
    at: datetime


@dataclass(frozen=True)
class RowsSeen:
    """The rows that the proofs look at, read in one snapshot."""

    leases: dict[int, dict[str, Any]]
    events: dict[int, list[StoredEvent]]
    usage: dict[int, list[dict[str, Any]]]
    placements: list[dict[str, Any]]
    requests: dict[str, dict[str, Any]]
    rates: dict[int, list[tuple[datetime, datetime | None, int]]]
    quotas: list[dict[str, Any]]
    teams: dict[int, dict[str, Any]]
    audit: list[dict[str, Any]]
    now: datetime


def _dicts(session: psycopg.Connection[Any], query: str) -> list[dict[str, Any]]:
    cursor = session.execute(query)
    names = [column.name for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def read(session: psycopg.Connection[Any]) -> RowsSeen:
    """Read everything in one repeatable-read snapshot."""
    with session.transaction():
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        events: dict[int, list[StoredEvent]] = defaultdict(list)
        for row in session.execute("SELECT lease_id, id, was, now, at FROM leases_leaseevent ORDER BY id"):
            events[row[0]].append(StoredEvent(*row))
        usage: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for record in _dicts(
            session,
            "SELECT u.lease_id, lower(u.span) AS starts, upper(u.span) AS ends, u.seconds, u.share_milli,"
            " u.share_milli_seconds, u.micro_per_hour, p.starts_at AS month, p.ends_at AS month_end,"
            " (SELECT t.line_id FROM billing_usagetotal t JOIN leases_lease l ON l.id = u.lease_id"
            " WHERE t.period_id = u.period_id AND t.team_id = u.team_id AND t.user_id = l.user_id"
            " AND t.flavor_id = l.flavor_id AND t.currency = u.currency"
            " AND t.micro_per_hour = u.micro_per_hour AND t.late_for_id IS NOT DISTINCT FROM u.late_for_id) AS line_id,"
            " p.state AS period FROM billing_usagerecord u JOIN billing_billingperiod p ON p.id = u.period_id"
            " ORDER BY lower(u.span)",
        ):
            usage[record["lease_id"]].append(record)
        rates: dict[int, list[tuple[datetime, datetime | None, int]]] = defaultdict(list)
        for model, begin, end, micro in session.execute(
            "SELECT r.device_model_id, lower(r.valid), upper(r.valid), r.micro_per_hour FROM catalog_rate r"
            " JOIN catalog_ratecard c ON c.id = r.card_id WHERE c.is_default ORDER BY 2"
        ):
            rates[model].append((begin, end, micro))
        return RowsSeen(
            leases={
                row["id"]: row
                for row in _dicts(
                    session,
                    "SELECT l.*, f.device_model_id AS model FROM leases_lease l"
                    " JOIN catalog_flavor f ON f.id = l.flavor_id",
                )
            },
            events=events,
            usage=usage,
            placements=_dicts(
                session,
                "SELECT p.id, p.lease_id, p.device_id, p.host_id, lower(p.slots) AS low, upper(p.slots) AS high,"
                " lower(p.period) AS begins, upper(p.period) AS ends, isempty(p.period) AS is_empty, p.is_live,"
                " p.share_milli, p.memory_mib, m.memory_mib AS board_mib, d.node_id FROM leases_placement p"
                " JOIN fleet_device d ON d.id = p.device_id JOIN fleet_devicemodel m ON m.id = d.model_id",
            ),
            requests={
                row["uid"]: row
                for row in _dicts(
                    session,
                    "SELECT r.*, u.username, f.slug AS flavor FROM leases_leaserequest r"
                    " JOIN accounts_user u ON u.id = r.author_id JOIN catalog_flavor f ON f.id = r.flavor_id",
                )
            },
            rates=rates,
            quotas=_dicts(session, "SELECT * FROM quotas_quota"),
            teams={row["id"]: row for row in _dicts(session, "SELECT id, slug, lineage FROM teams_team")},
            audit=_dicts(
                session,
                "SELECT a.action, a.target, a.detail, a.at, u.username FROM audit_auditentry a"
                " LEFT JOIN accounts_user u ON u.id = a.actor_id",
            ),
            now=session.execute("SELECT clock_timestamp()").fetchone()[0],  # type: ignore[index]
        )


def uid_of(seen: RowsSeen, lease: int | None) -> str:
    return str(seen.leases[lease]["uid"]) if lease in seen.leases else f"placement without a lease ({lease})"
