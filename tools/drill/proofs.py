"""Proofs from the raw rows: none of the product's own functions, queries or tables of states are used here.

Each proof returns sentences about what does not hold; nothing is a good answer. ``while_running`` are those that
must hold at every moment, ``at_rest`` those that need everything to have come to an end.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import psycopg

from tools.drill.ledger import DrillLedger

Rows = list[tuple[Any, ...]]
HOLDING = ("preparing", "active", "interrupted", "ending", "cleaning", "failed")
# The steps a lease may take, written down anew: the product's own table is what is tried here.
STEPS = {
    ("", "booked"), ("booked", "preparing"), ("booked", "ended"), ("preparing", "active"),
    ("preparing", "failed"), ("preparing", "cleaning"), ("active", "ending"), ("active", "interrupted"),
    ("active", "failed"), ("interrupted", "active"), ("interrupted", "cleaning"), ("interrupted", "failed"),
    ("ending", "cleaning"), ("cleaning", "ended"), ("failed", "cleaning"),
}  # fmt: skip
OVER = ("fulfilled", "rejected", "withdrawn", "expired", "impossible")


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
            " u.share_milli_seconds, u.micro_per_hour, p.starts_at AS month, p.ends_at AS month_end, u.line_id,"
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


def _second(at: datetime) -> int:
    """Return the whole second an instant lies in."""
    return int(at.timestamp() // 1)


def _uid(seen: RowsSeen, lease: int | None) -> str:
    return str(seen.leases[lease]["uid"]) if lease in seen.leases else f"placement without a lease ({lease})"


def active_seconds(events: Iterable[StoredEvent]) -> list[tuple[int, int | None]]:
    """Return the active time that events in the order they were written tell of, in whole seconds."""
    found: list[tuple[int, int | None]] = []
    since: int | None = None
    for event in events:
        if event.now == "active":
            since = _second(event.at)
        elif event.was == "active" and since is not None:
            if _second(event.at) > since:
                found.append((since, _second(event.at)))
            since = None
    return [*found, (since, None)] if since is not None else found


# What must hold at every moment


def steps_follow_each_other(seen: RowsSeen) -> list[str]:
    """Each step begins where the last one ended, is allowed, and is not earlier than the last one."""
    wrong = []
    for lease, events in seen.events.items():
        for before, after in pairwise(events):
            if after.was != before.now:
                wrong.append(f"{_uid(seen, lease)}: {before.now} and then {after.was} -> {after.now}")
            if after.at < before.at:
                late = (before.at - after.at).total_seconds()
                wrong.append(
                    f"{_uid(seen, lease)}: {after.now} is {late:.3f} s earlier than {before.now} before it"
                )
        wrong += [
            f"{_uid(seen, lease)}: {e.was} -> {e.now} is no step"
            for e in events
            if (e.was, e.now) not in STEPS
        ]
        if lease in seen.leases and events[-1].now != seen.leases[lease]["state"]:
            wrong.append(
                f"{_uid(seen, lease)} is {seen.leases[lease]['state']}, its last step {events[-1].now}"
            )
    return wrong


def nothing_overlaps(seen: RowsSeen) -> list[str]:
    """No slot of a device is held twice at any time, by the rows' periods and by the leases' own steps."""
    wrong = []
    for name, spans in (("by period", _by_period(seen)), ("by steps", _by_steps(seen))):
        per_device: dict[int, list[tuple[datetime, datetime, dict[str, Any]]]] = defaultdict(list)
        for begins, ends, row in spans:
            per_device[row["device_id"]].append((begins, ends, row))
        for rows in per_device.values():
            rows.sort(key=lambda item: item[0])
            running: list[tuple[datetime, datetime, dict[str, Any]]] = []
            for begins, ends, row in rows:
                running = [other for other in running if other[1] > begins]
                wrong += [
                    f"{name}: {_uid(seen, row['lease_id'])} and {_uid(seen, other[2]['lease_id'])}"
                    f" on device {row['device_id']} at {begins:%H:%M:%S.%f}, for"
                    f" {(min(ends, other[1]) - begins).total_seconds():.3f} s"
                    for other in running
                    if row["low"] < other[2]["high"] and other[2]["low"] < row["high"]
                ]
                running.append((begins, ends, row))
    return wrong


def _by_period(seen: RowsSeen) -> Iterable[tuple[datetime, datetime, dict[str, Any]]]:
    for row in seen.placements:
        if row["host_id"] is None and not row["is_empty"] and row["low"] is not None:
            yield row["begins"], row["ends"] or datetime.max.replace(tzinfo=UTC), row


def _by_steps(seen: RowsSeen) -> Iterable[tuple[datetime, datetime, dict[str, Any]]]:
    """From the step into ``preparing`` until the node confirmed the slice gone; bookings that never began hold none."""
    for row in seen.placements:
        if row["host_id"] is not None or row["low"] is None or row["lease_id"] is None:
            continue
        events = seen.events[row["lease_id"]]
        begun = [e.at for e in events if e.now == "preparing"]
        ended = [e.at for e in events if e.now == "ended"]
        if begun:
            yield begun[0], ended[0] if ended else datetime.max.replace(tzinfo=UTC), row


def shares_fit(seen: RowsSeen) -> list[str]:
    """What is held of a shared board at any time is no more than the board."""
    wrong = []
    per_device: dict[int, list[tuple[datetime, int, int]]] = defaultdict(list)
    memory = {}
    for row in seen.placements:
        if row["host_id"] is None or row["lease_id"] is None:
            continue
        memory[row["device_id"]] = row["board_mib"]
        events = seen.events[row["lease_id"]]
        begun = [e.at for e in events if e.now == "preparing"]
        ended = [e.at for e in events if e.now == "ended"]
        if begun:
            per_device[row["device_id"]].append((begun[0], row["share_milli"], row["memory_mib"]))
            if ended:
                per_device[row["device_id"]].append((ended[0], -row["share_milli"], -row["memory_mib"]))
    for device, changes in per_device.items():
        share = mib = 0
        for at, more, more_mib in sorted(changes):
            share, mib = share + more, mib + more_mib
            if share > 1000 or mib > memory[device]:
                wrong.append(f"device {device} holds {share} thousandths and {mib} MiB at {at:%H:%M:%S}")
    return wrong


def nothing_overruns(seen: RowsSeen) -> list[str]:
    """No lease's money clock runs, and none is ended, later than its end."""
    wrong = []
    for lease, row in seen.leases.items():
        limit = row["not_after"]
        if row["activated_at"] and row["ended_at"] and row["ended_at"] > limit:
            late = (row["ended_at"] - limit).total_seconds()
            wrong.append(f"{row['uid']} ended {late:.3f} s after its end ({row['end_reason']})")
        for event in seen.events[lease]:
            if event.was == "active" and event.at > limit:
                late = (event.at - limit).total_seconds()
                wrong.append(f"{row['uid']}: active -> {event.now} is {late:.3f} s after its end")
        last = max((u["ends"] for u in seen.usage.get(lease, ())), default=None)
        if last is not None and last > limit:
            wrong.append(f"{row['uid']} is billed {(last - limit).total_seconds():.3f} s beyond its end")
    return wrong


def quotas_add_up(seen: RowsSeen) -> list[str]:
    """What a quota counts is the sum over what is held in its subtree, and never above its ceiling."""
    wrong = []
    for quota in seen.quotas:
        below = {team for team, row in seen.teams.items() if quota["team_id"] in row["lineage"]}
        held = sum(
            row["cost_milli"]
            for row in seen.leases.values()
            if row["team_id"] in below and row["state"] in HOLDING
        )
        name = seen.teams[quota["team_id"]]["slug"]
        if held != quota["used_milli"]:
            wrong.append(f"{name}: {quota['used_milli']} counted, {held} held")
        if quota["ceiling_milli"] is not None and held > quota["ceiling_milli"]:
            wrong.append(f"{name}: {held} held above the ceiling {quota['ceiling_milli']}")
    return wrong


def usage_is_apart(seen: RowsSeen) -> list[str]:
    """No second is billed twice, every record lies in its month and multiplies out."""
    wrong = []
    for lease, records in seen.usage.items():
        for before, after in pairwise(records):
            if after["starts"] < before["ends"]:
                wrong.append(f"{_uid(seen, lease)} is billed twice at {after['starts']}")
        for record in records:
            seconds = (record["ends"] - record["starts"]).total_seconds()
            if seconds != record["seconds"]:
                wrong.append(f"{_uid(seen, lease)}: {seconds} s long, {record['seconds']} s billed")
            if record["share_milli_seconds"] != record["seconds"] * seen.leases[lease]["share_milli"]:
                wrong.append(f"{_uid(seen, lease)}: the share does not multiply out")
            if record["starts"] < record["month"] or record["ends"] > record["month_end"]:
                wrong.append(f"{_uid(seen, lease)}: billed outside its month")
    return wrong


# What must hold once everything has come to an end


def usage_equals_events(seen: RowsSeen) -> list[str]:
    """For each lease that is over the billed seconds are its active ones, each one, by the raw events."""
    wrong = []
    for lease, row in seen.leases.items():
        if row["state"] != "ended":
            continue
        active = {
            second
            for begin, end in active_seconds(seen.events[lease])
            for second in range(begin, end or begin)
        }
        billed = {
            second
            for record in seen.usage.get(lease, ())
            for second in range(_second(record["starts"]), _second(record["ends"]))
        }
        if active != billed:
            much, little = len(billed - active), len(active - billed)
            wrong.append(
                f"{row['uid']}: {len(active)} s active, {much} s too much billed, {little} s too little"
            )
        if not row["is_metered"]:
            wrong.append(f"{row['uid']} is over and not metered")
    return wrong


def usage_pays_the_price_of_its_time(seen: RowsSeen) -> list[str]:
    """Each record lies under one price of its time, lowered to what the lease pays of it."""
    wrong = []
    for lease, records in seen.usage.items():
        row = seen.leases[lease]
        for record in records:
            fitting = [
                micro
                for begin, end, micro in seen.rates[row["model"]]
                if begin <= record["starts"] and (end is None or record["ends"] <= end)
            ]
            paid = [micro * row["price_milli"] // 1000 for micro in fitting]
            if paid != [record["micro_per_hour"]]:
                wrong.append(
                    f"{row['uid']} pays {record['micro_per_hour']} from {record['starts']:%H:%M:%S} to"
                    f" {record['ends']:%H:%M:%S}, prices then: {paid}"
                )
    return wrong


def everything_came_to_an_end(seen: RowsSeen) -> list[str]:
    """Each request is over, or waits where somebody can see why; no lease hangs."""
    wrong = [
        f"request {uid} is {row['state']}" + ("" if row["state"] != "queued" else " and nobody says why")
        for uid, row in seen.requests.items()
        if row["state"] not in OVER
        and not (row["state"] == "queued" and row["reasons"])
        and row["state"] != "awaiting_approval"
    ]
    return wrong + [
        f"lease {row['uid']} is {row['state']}" for row in seen.leases.values() if row["state"] != "ended"
    ]


def promises_were_kept(seen: RowsSeen, ledger: DrillLedger, session: psycopg.Connection[Any]) -> list[str]:
    """What was acknowledged is there, once; what was not is there at most as often as it was sent."""
    return [*_submitted(seen, ledger), *_decided(seen, ledger), *_set_up(seen, ledger, session)]


def _submitted(seen: RowsSeen, ledger: DrillLedger) -> list[str]:
    """Each request that was acknowledged is there as it was sent; a key makes one, whatever was lost on the way."""
    wrong = []
    named = Counter(row["name"] for row in seen.requests.values())
    acknowledged: dict[str, set[str]] = defaultdict(set)
    keyed = set()
    for entry in ledger.by_kind["submit"]:
        acknowledged[entry["name"]].add(entry["uid"])
        if entry["key"]:
            keyed.add(entry["name"])
        row = seen.requests.get(entry["uid"])
        if row is None:
            wrong.append(f"request {entry['uid']} was acknowledged and is lost")
            continue
        body = entry["body"]
        promised = (entry["who"], body["flavor"], body["duration_s"], body.get("count", 1), entry["name"])
        if (row["username"], row["flavor"], row["duration_s"], row["count"], row["name"]) != promised:
            wrong.append(f"request {entry['uid']} is not what was acknowledged")
    for name, uids in acknowledged.items():
        if name in keyed and (len(uids) != 1 or named[name] != 1):
            wrong.append(f"{name}: one key, {len(uids)} answers, {named[name]} requests")
    for name, times in ledger.sends.items():
        at_most = 1 if name in keyed else times
        if not len(acknowledged[name]) <= named[name] <= at_most:
            wrong.append(f"{name}: sent {times}, acknowledged {len(acknowledged[name])}, there {named[name]}")
    return wrong


def _decided(seen: RowsSeen, ledger: DrillLedger) -> list[str]:
    """Releases, withdrawals, decisions and extensions hold as they were answered."""
    wrong = []
    by_uid = {row["uid"]: row for row in seen.leases.values()}
    for entry in ledger.by_kind["release"]:
        row = by_uid.get(entry["lease"])
        if row is None or row["state"] in ("active", "preparing", "interrupted"):
            wrong.append(f"lease {entry['lease']} was released and is {row and row['state']}")
        elif entry["ended_at"] and row["ended_at"] and _instant(entry["ended_at"]) != row["ended_at"]:
            wrong.append(f"lease {entry['lease']} ended at {entry['ended_at']} and now at {row['ended_at']}")
    wrong += [
        f"request {entry['uid']} was withdrawn and is {seen.requests[entry['uid']]['state']}"
        for entry in ledger.by_kind["withdraw"]
        if seen.requests[entry["uid"]]["state"] != "withdrawn"
    ]
    wrong += [
        f"request {entry['uid']} was turned down and is {seen.requests[entry['uid']]['state']}"
        for entry in ledger.by_kind["reject"]
        if seen.requests[entry["uid"]]["state"] != "rejected"
    ]
    wrong += [
        f"request {entry['uid']} was approved and waits for approval"
        for entry in ledger.by_kind["approve"]
        if seen.requests[entry["uid"]]["state"] == "awaiting_approval"
    ]
    wrong += [
        f"extending {entry['lease']} was answered {entry['not_after']}, repeated {entry['again']}"
        for entry in ledger.by_kind["extend"]
        if entry["again"] not in (None, entry["not_after"])
    ]
    return wrong


def _set_up(seen: RowsSeen, ledger: DrillLedger, session: psycopg.Connection[Any]) -> list[str]:
    """Tokens and prices are there, and tokens that were ended are over."""
    wrong = []
    tokens = dict(session.execute("SELECT id, revoked_at FROM accounts_apitoken").fetchall())
    wrong += [f"token {e['id']} is lost" for e in ledger.by_kind["token"] if e["id"] not in tokens]
    wrong += [
        f"token {e['id']} was ended and lives"
        for e in ledger.by_kind["token_end"]
        if e["id"] in tokens and tokens[e["id"]] is None
    ]
    prices = {begin for rows in seen.rates.values() for begin, _end, _micro in rows}
    wrong += [
        f"the price of {e['model']} from {e['starts_at']} on is lost"
        for e in ledger.by_kind["price"]
        if _instant(e["starts_at"]) not in prices
    ]
    return wrong


def audit_is_complete(seen: RowsSeen, ledger: DrillLedger) -> list[str]:
    """Each acknowledged action has its entry by whoever did it, and no single action has two."""
    wrong = []
    found = Counter((row["action"], row["target"], row["username"]) for row in seen.audit)
    for entry in ledger.by_kind["submit"]:
        if found["request.submitted", entry["uid"], entry["who"]] != 1:
            times = found["request.submitted", entry["uid"], entry["who"]]
            wrong.append(f"submitting {entry['uid']} stands in the audit {times} times")
    for kind, action in (("approve", "request.approved"), ("reject", "request.rejected")):
        wrong += [
            f"{action} of {e['uid']} is not in the audit once"
            for e in ledger.by_kind[kind]
            if found[action, e["uid"], e["who"]] != 1
        ]
    for entry in ledger.by_kind["withdraw"]:
        who = entry["who"]
        ways = ("request.withdrawn", "booking.cancelled")
        if sum(found[way, entry["uid"], who] for way in ways) != 1:
            wrong.append(f"withdrawing {entry['uid']} is not in the audit once")
    released = defaultdict(list)
    for entry in ledger.by_kind["release"]:
        released[entry["lease"]].append(entry)
    for lease, entries in released.items():
        times = found["lease.released", lease, entries[0]["who"]]
        by_holder = any(e["end_reason"] == "released" and e["ended_at"] for e in entries)
        booking = found["booking.cancelled", entries[0]["uid"], entries[0]["who"]]
        gang = sum(found["lease.released", other, entries[0]["who"]] for other in released)
        if times > 1 or (by_holder and not times and not booking and not gang):
            wrong.append(f"releasing {lease} stands in the audit {times} times")
    extended = Counter(e["lease"] for e in ledger.by_kind["extend"])
    for lease, times in extended.items():
        # Above the team's threshold it waits for an approver, and is acknowledged as that.
        ways = ("lease.extended", "lease.extension_asked")
        told = sum(1 for row in seen.audit if row["action"] in ways and row["target"] == lease)
        if told < times:
            wrong.append(f"extending {lease} was acknowledged {times} times, {told} in the audit")
    keys = Counter(e["key"] for e in ledger.by_kind["extend"])
    wrong += [f"one key extended twice: {key}" for key, times in keys.items() if times > 1]
    for kind, action, field in (
        ("quota", "quota.changed", "team"),
        ("price", "rate.set", "model"),
        ("drain", "node.drain_asked", "node"),
        ("close", "period.closed", "month"),
    ):
        wanted = Counter(e[field] for e in ledger.by_kind[kind])
        for target, times in wanted.items():
            told = sum(n for (act, where, _who), n in found.items() if act == action and where == target)
            if told < times:
                wrong.append(f"{action} of {target}: {times} acknowledged, {told} in the audit")
    return wrong


def invoices_add_up(seen: RowsSeen, ledger: DrillLedger, session: psycopg.Connection[Any]) -> list[str]:
    """A closed month is billed whole and once: totals, lines and usage agree, numbers have no gaps."""
    wrong = []
    months = Counter(e["month"] for e in ledger.by_kind["close"])
    wrong += [f"closing {month} was acknowledged {n} times" for month, n in months.items() if n > 1]
    closed = {
        f"{row[0]:%Y-%m}"
        for row in session.execute("SELECT starts_at FROM billing_billingperiod WHERE state = 'closed'")
    }
    wrong += [f"{month} was closed and is open" for month in months if month not in closed]
    hanging = session.execute(
        "SELECT starts_at, state FROM billing_billingperiod WHERE state = 'closing'"
    ).fetchall()
    wrong += [f"{at:%Y-%m} hangs in {state}" for at, state in hanging]
    for number, total, lines in session.execute(
        "SELECT i.number, i.total_micro, coalesce(sum(l.amount_micro), 0) FROM billing_invoice i"
        " LEFT JOIN billing_invoiceline l ON l.invoice_id = i.id WHERE i.is_issued GROUP BY i.id"
    ):
        if total != lines:
            wrong.append(f"invoice {number}: total {total}, lines {lines}")
    for line, seconds, used in session.execute(
        "SELECT l.id, l.seconds, coalesce(sum(u.seconds), 0) FROM billing_invoiceline l"
        " LEFT JOIN billing_usagerecord u ON u.line_id = l.id GROUP BY l.id"
    ):
        if seconds != used:
            wrong.append(f"line {line}: {seconds} s, usage {used} s")
    for lease, records in seen.usage.items():
        wrong += [
            f"{_uid(seen, lease)}: usage of a closed month stands on no invoice"
            for record in records
            if record["period"] == "closed" and record["line_id"] is None
        ]
    by_month: dict[str, list[int]] = defaultdict(list)
    for (number,) in session.execute("SELECT number FROM billing_invoice WHERE is_issued"):
        month, _, count = number.rpartition("-")
        by_month[month].append(int(count))
    for month, numbers in by_month.items():
        if sorted(numbers) != list(range(min(numbers), min(numbers) + len(numbers))):
            wrong.append(f"invoice numbers of {month} have gaps: {sorted(numbers)}")
    return wrong


def queues_are_empty(session: psycopg.Connection[Any], valkey: Any) -> list[str]:
    """Nothing is owed and nothing waits at the broker."""
    owed = session.execute("SELECT topic, key, attempts FROM common_outboxitem").fetchall()
    wrong = [f"the outbox owes {topic} for {key} ({attempts} tries)" for topic, key, attempts in owed]
    # Beat sends on, so the queue is looked at until it is seen empty once.
    end, waiting = time.monotonic() + 20, 1
    while waiting and time.monotonic() < end:
        waiting = valkey.llen("celery")
        time.sleep(0.05)
    if waiting:
        wrong.append(f"{waiting} messages wait at the broker and are never taken")
    return wrong


def nodes_agree(session: psycopg.Connection[Any]) -> list[str]:
    """Every node has carried out the newest state that was wanted of it."""
    return [
        f"{name} observes {observed} of {desired}"
        for name, desired, observed in session.execute(
            "SELECT name, desired_revision, observed_revision FROM fleet_node"
            " WHERE desired_revision <> observed_revision"
        )
    ]


Always = Callable[[RowsSeen], list[str]]
WHILE_RUNNING: tuple[Always, ...] = (
    steps_follow_each_other,
    nothing_overlaps,
    shares_fit,
    nothing_overruns,
    quotas_add_up,
    usage_is_apart,
)
AT_REST: tuple[Always, ...] = (
    usage_equals_events,
    usage_pays_the_price_of_its_time,
    everything_came_to_an_end,
)


def while_running(seen: RowsSeen) -> dict[str, list[str]]:
    """Return what does not hold of what must hold at every moment, by proof."""
    return {proof.__name__: proof(seen) for proof in WHILE_RUNNING}


def at_rest(
    seen: RowsSeen, ledger: DrillLedger, session: psycopg.Connection[Any], valkey: Any
) -> dict[str, list[str]]:
    """Return what does not hold once everything has come to an end, by proof."""
    found = while_running(seen) | {proof.__name__: proof(seen) for proof in AT_REST}
    found["promises_were_kept"] = promises_were_kept(seen, ledger, session)
    found["audit_is_complete"] = audit_is_complete(seen, ledger)
    found["invoices_add_up"] = invoices_add_up(seen, ledger, session)
    found["queues_are_empty"] = queues_are_empty(session, valkey)
    found["nodes_agree"] = nodes_agree(session)
    return found


def is_at_rest(session: psycopg.Connection[Any]) -> bool:
    """Say whether nothing is under way: no lease lives, nothing is owed, every ended lease is metered."""
    row = session.execute(
        "SELECT (SELECT count(*) FROM leases_lease WHERE state <> 'ended')"
        " + (SELECT count(*) FROM leases_leaserequest WHERE state IN ('queued', 'granted', 'submitted'))"
        " + (SELECT count(*) FROM common_outboxitem)"
        " + (SELECT count(*) FROM leases_lease WHERE NOT is_metered)"
        " + (SELECT count(*) FROM fleet_node WHERE desired_revision <> observed_revision)"
    ).fetchone()
    return row is not None and row[0] == 0


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def since(seen: RowsSeen, ledger: DrillLedger, begin: float, end: float) -> list[float]:
    """Return seconds from asking to active of what was acknowledged in a stretch of the driver's clock."""
    by_request: dict[int, datetime] = {}
    for row in seen.leases.values():
        if row["activated_at"] and not row["is_extra"]:
            known = by_request.get(row["request_id"])
            by_request[row["request_id"]] = min(known, row["activated_at"]) if known else row["activated_at"]
    found = []
    for entry in ledger.by_kind["submit"]:
        row = seen.requests.get(entry["uid"])
        if row is None or not begin <= entry["heard_mono"] < end or row["starts_at"] or row["decided_at"]:
            continue
        active = by_request.get(row["id"])
        if active is not None:
            found.append(max(timedelta(0), active - row["submitted_at"]).total_seconds())
    return found
