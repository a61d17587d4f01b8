"""What was acknowledged over HTTP, held against the rows: nothing is lost, doubled or missing in the audit."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import datetime, timedelta
from typing import Any

import psycopg

from tools.drill.ledger import DrillLedger
from tools.drill.rows import RowsSeen


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
