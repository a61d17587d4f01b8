"""Proofs from the raw rows: none of the product's own functions, queries or tables of states are used here.

Each proof returns sentences about what does not hold; nothing is a good answer. ``while_running`` are those that
must hold at every moment, ``at_rest`` those that need everything to have come to an end.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import psycopg

from tools.drill.ledger import DrillLedger
from tools.drill.promises import audit_is_complete, promises_were_kept
from tools.drill.rows import RowsSeen, StoredEvent, uid_of

HOLDING = ("preparing", "active", "interrupted", "ending", "cleaning", "failed")
# The steps a lease may take, written down anew: the product's own table is what is tried here.
STEPS = {
    ("", "booked"), ("booked", "preparing"), ("booked", "ended"), ("preparing", "active"),
    ("preparing", "failed"), ("preparing", "cleaning"), ("active", "ending"), ("active", "interrupted"),
    ("active", "failed"), ("interrupted", "active"), ("interrupted", "cleaning"), ("interrupted", "failed"),
    ("ending", "cleaning"), ("cleaning", "ended"), ("failed", "cleaning"),
}  # fmt: skip
OVER = ("fulfilled", "rejected", "withdrawn", "expired", "impossible")


def _second(at: datetime) -> int:
    """Return the whole second an instant lies in."""
    return int(at.timestamp() // 1)


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
                wrong.append(f"{uid_of(seen, lease)}: {before.now} and then {after.was} -> {after.now}")
            if after.at < before.at:
                late = (before.at - after.at).total_seconds()
                wrong.append(
                    f"{uid_of(seen, lease)}: {after.now} is {late:.3f} s earlier than {before.now} before it"
                )
        wrong += [
            f"{uid_of(seen, lease)}: {e.was} -> {e.now} is no step"
            for e in events
            if (e.was, e.now) not in STEPS
        ]
        if lease in seen.leases and events[-1].now != seen.leases[lease]["state"]:
            wrong.append(
                f"{uid_of(seen, lease)} is {seen.leases[lease]['state']}, its last step {events[-1].now}"
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
                    f"{name}: {uid_of(seen, row['lease_id'])} and {uid_of(seen, other[2]['lease_id'])}"
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
                wrong.append(f"{uid_of(seen, lease)} is billed twice at {after['starts']}")
        for record in records:
            seconds = (record["ends"] - record["starts"]).total_seconds()
            if seconds != record["seconds"]:
                wrong.append(f"{uid_of(seen, lease)}: {seconds} s long, {record['seconds']} s billed")
            if record["share_milli_seconds"] != record["seconds"] * seen.leases[lease]["share_milli"]:
                wrong.append(f"{uid_of(seen, lease)}: the share does not multiply out")
            if record["starts"] < record["month"] or record["ends"] > record["month_end"]:
                wrong.append(f"{uid_of(seen, lease)}: billed outside its month")
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
        " LEFT JOIN billing_usagetotal t ON t.line_id = l.id LEFT JOIN (billing_usagerecord u JOIN leases_lease e"
        " ON e.id = u.lease_id) ON t.period_id = u.period_id AND t.team_id = u.team_id AND t.user_id = e.user_id"
        " AND t.flavor_id = e.flavor_id AND t.currency = u.currency AND t.micro_per_hour = u.micro_per_hour"
        " AND t.late_for_id IS NOT DISTINCT FROM u.late_for_id GROUP BY l.id"
    ):
        if seconds != used:
            wrong.append(f"line {line}: {seconds} s, usage {used} s")
    for lease, records in seen.usage.items():
        wrong += [
            f"{uid_of(seen, lease)}: usage of a closed month stands on no invoice"
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
