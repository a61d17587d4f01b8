"""Turn a plan into rows: quota, lease, placements, one node revision; all of it or, per grant, none.

Call inside the cycle's transaction. Lock order: requests granted now, budgets, wallets, quota rows, leases and
placements (inserted), nodes last.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from django.db import IntegrityError, connection, transaction
from psycopg.types.range import Int8Range, TimestamptzRange

from portal.audit.services import record
from portal.catalog import pricing
from portal.common.errors import BudgetExceeded, QuotaExceeded
from portal.common.rows import Rows
from portal.fleet.models import Layout
from portal.fleet.services import raise_revision
from portal.fleet.sizes import own_names
from portal.leases import shared_hosts
from portal.leases.budget_gate import (
    Expense,
    admit,
    hold_budgets,
    is_limited,
    judge,
    refuse,
    stopping,
)
from portal.leases.models import Lease, LeaseRequest, Placement
from portal.leases.requests import expense_of
from portal.leases.states import LIVE_LEASES, LeaseState, RequestState
from portal.leases.transitions import announce, move_requests, note_events
from portal.leases.wallet_holds import hold_for, priced_for_wallets, wallet_to_grow_on
from portal.notifications.services import notify
from portal.quotas import services as quotas
from portal.teams.models import Team
from scheduler import bookings
from scheduler.engine.model import SHARED_MODES, Grant, GrantedSlot, Repartition, Snapshot, Wait
from scheduler.gangs import parts_of

log = logging.getLogger(__name__)
_REQUESTS = Rows(LeaseRequest, "team", "flavor")
Pair = tuple[Grant, LeaseRequest]


def grants(found: Sequence[Grant], *, policy_version: int, now: datetime, snapshot: Snapshot) -> list[Lease]:
    """Store the grants; one that the database refuses is left out and waits for the next turn."""
    if not found:
        return []
    pairs = _claimed(found)
    shared = [p for p in pairs if p[0].slots[0].mode in SHARED_MODES]
    plain = [p for p in pairs if p[0].slots[0].mode not in SHARED_MODES]
    made = _together(plain, policy_version, now, snapshot) + _one_by_one(
        shared, policy_version, now, snapshot
    )
    raise_revision([lease.node_id for lease in made if lease.state != LeaseState.BOOKED])
    announce(made, at=now)
    return made


def repartitions(found: Sequence[Repartition], *, now: datetime) -> None:
    """Pin idle boards to other layouts; a board on which something lives by now keeps its own."""
    for cut in found:
        row = Layout.objects.select_related("device__node").filter(device_id=cut.device_id).first()
        if row is None or Placement.objects.filter(device_id=cut.device_id, is_live=True).exists():
            continue
        names = own_names([cut.device_id])
        was = row.positions
        row.positions = [[names.get((cut.device_id, size), size), start] for size, start in cut.layout]
        row.save(update_fields=["positions"])
        record(None, "device.repartitioned", str(row.device), at=now, was=was, now=row.positions)


def _claimed(found: Sequence[Grant]) -> list[Pair]:
    """Pair the grants with their requests, locked; those that somebody moved meanwhile fall out."""
    rows = _REQUESTS.where(
        f"it.id = ANY(%s) AND it.state = '{RequestState.QUEUED}' FOR UPDATE OF it SKIP LOCKED",
        [[g.claim_id for g in found]],
    )
    still = {r.pk: r for r in rows}
    return [(g, still[g.claim_id]) for g in found if g.claim_id in still]


def _together(pairs: Sequence[Pair], version: int, now: datetime, snapshot: Snapshot) -> list[Lease]:
    if not pairs:
        return []
    try:
        with transaction.atomic():
            return _store(pairs, version, now, snapshot)
    except (IntegrityError, BudgetExceeded, QuotaExceeded) as error:
        log.info("the batch of %d was refused (%s); storing one by one", len(pairs), error)
        return _one_by_one(pairs, version, now, snapshot)


def _one_by_one(pairs: Sequence[Pair], version: int, now: datetime, snapshot: Snapshot) -> list[Lease]:
    made: list[Lease] = []
    for pair in pairs:
        try:
            with transaction.atomic():
                made += _store([pair], version, now, snapshot)
        except (IntegrityError, BudgetExceeded, QuotaExceeded) as error:
            pair[1].state = RequestState.QUEUED
            log.info("grant of request %s refused: %s", pair[1].uid, error)
    return made


def _store(pairs: Sequence[Pair], version: int, now: datetime, snapshot: Snapshot) -> list[Lease]:
    expenses = _check_budgets([request for _grant, request in pairs], now)
    quotas.reserve([(_team(r), grant.cost_milli) for grant, r in pairs if grant.starts_at is None])
    devices = {device.id: device for device in snapshot.devices}
    parts = [(grant, request, part) for grant, request in pairs for part in parts_of(grant, devices)]
    held = {r.pk: bookings.lease_start(grant, r.remaining_s, snapshot, now=now) for grant, r in pairs}
    leases = Lease.objects.bulk_create(
        [
            Lease(
                request=request,
                team=request.team,
                user_id=request.author_id,
                flavor=request.flavor,
                node_id=part.node_id,
                state=held[request.pk].state,
                generation=request.attempts + 1,
                part=part.number,
                count=len(part.slots),
                share_milli=sum(slot.share_milli for slot in part.slots),
                cost_milli=part.cost_milli,
                policy_version=version,
                demand_version=snapshot.demand.version,
                load_pattern=request.load_pattern,
                is_preemptible=request.is_preemptible,
                price_milli=request.price_milli,
                starts_at=held[request.pk].starts_at,
                not_after=held[request.pk].until,
                moved_at=now,
                cut_by=grant.cut_by,
            )
            for grant, request, part in parts
        ]
    )
    _hold(leases, expenses, now)
    booked = [lease.pk for lease in leases if lease.state == LeaseState.BOOKED]
    begun = [lease.pk for lease in leases if lease.state != LeaseState.BOOKED]
    note_events([(pk, "") for pk in booked], LeaseState.BOOKED, at=now)
    note_events([(pk, LeaseState.BOOKED) for pk in begun], LeaseState.PREPARING, at=now)
    bookings.make_room([grant for grant, _request in pairs])
    names = _own_names([slot for grant, _request in pairs for slot in grant.slots])
    made = Placement.objects.bulk_create(
        _placement(slot, lease, snapshot, names)
        for lease, (_grant, _request, part) in zip(leases, parts, strict=True)
        for slot in part.slots
    )
    shared_hosts.count_in([p.pk for p in made if p.host_id and p.lease_id not in booked])
    move_requests([request for _grant, request in pairs], RequestState.GRANTED, at=now, reasons=[])
    for lease in leases:
        if lease.cut_by and lease.part == 0:
            ends_at, author = lease.not_after.isoformat(), lease.request.author
            notify([author], "lease.cut_short", target=lease.uid, at=now, ends_at=ends_at, why=lease.cut_by)
    return leases


def _check_budgets(requests: Sequence[LeaseRequest], now: datetime) -> dict[int, Expense]:
    """Lock budgets and wallets of these requests, or raise BudgetExceeded where one of them may not start any more.

    Returns by request id what was let through; empty where neither limits any of them.
    """
    if not hold_budgets(request.team for request in requests):
        return {}
    expenses = priced_for_wallets([expense_of(request, now=now) for request in requests], requests)
    for expense, reached in zip(expenses, judge(expenses, now=now, with_waiting=False), strict=True):
        refuse(stopping(reached, expense.is_preemptible))
    return {request.pk: expense for request, expense in zip(requests, expenses, strict=True)}


def _hold(leases: Sequence[Lease], expenses: Mapping[int, Expense], now: datetime) -> None:
    """Hold on wallets what new leases can cost at most: what was let through, also where they were cut short."""
    for request_id, expense in expenses.items():
        hold_for([lease for lease in leases if lease.request_id == request_id], expense.at_most, at=now)


def growth(found: Sequence[Grant], *, policy_version: int, now: datetime, snapshot: Snapshot) -> list[Lease]:
    """Store what elastic leases grow by, one more lease each; one whose base has ended meanwhile is left out.

    Quota rows come before requests: whoever cleans a part of such a request holds them when it locks the request.
    """
    made: list[Lease] = []
    if found:
        rows = LeaseRequest.objects.filter(pk__in=[grant.claim_id for grant in found])
        hold_budgets(Team.objects.filter(pk__in=rows.values("team_id")))
        quotas.lock_lineages(rows.values_list("team_id", flat=True))
    for grant in found:
        try:
            with transaction.atomic():
                made += _grow(grant, policy_version, now, snapshot)
        except (IntegrityError, BudgetExceeded, QuotaExceeded) as error:
            log.info("growth of request %d refused: %s", grant.claim_id, error)
    if made:
        raise_revision([lease.node_id for lease in made])
        announce(made, at=now)
    return made


def _grow(grant: Grant, version: int, now: datetime, snapshot: Snapshot) -> list[Lease]:
    """Store one more unit. A base that ends at this moment is not waited for: a sweep ends what it left behind."""
    rows = _REQUESTS.where(
        f"it.id = %s AND it.state = '{RequestState.GRANTED}' AND it.most_count > it.count FOR UPDATE OF it SKIP LOCKED",
        [grant.claim_id],
    )
    live = [
        ls for row in rows for ls in row.leases.filter(generation=row.attempts + 1, state__in=LIVE_LEASES)
    ]
    base = next((ls for ls in live if not ls.is_extra and ls.state == LeaseState.ACTIVE), None)
    if base is None or sum(ls.count for ls in live) >= rows[0].most_count:
        return []
    request, until = rows[0], min(base.not_after, now + timedelta(seconds=grant.duration_s))
    expense = None
    if is_limited(request.team):
        expense = _growth_expense(request, len(grant.slots), now, until, wallet_id=wallet_to_grow_on(base))
        admit(expense, now=now, with_waiting=False)
    quotas.reserve([(_team(request), grant.cost_milli)])
    lease = Lease.objects.create(
        request=request,
        team=request.team,
        user_id=request.author_id,
        flavor=request.flavor,
        node_id=grant.node_id,
        state=LeaseState.PREPARING,
        generation=base.generation,
        part=max(ls.part for ls in live) + 1,
        count=len(grant.slots),
        share_milli=sum(slot.share_milli for slot in grant.slots),
        cost_milli=grant.cost_milli,
        policy_version=version,
        demand_version=snapshot.demand.version,
        load_pattern=request.load_pattern,
        is_extra=True,
        is_preemptible=True,
        price_milli=request.flavor.preemptible_milli,
        starts_at=now,
        not_after=until,
        moved_at=now,
        cut_by=grant.cut_by,
    )
    if expense is not None:
        hold_for([lease], expense.at_most, at=now, wallet_id=expense.wallet_id)
    note_events([(lease.pk, LeaseState.BOOKED)], LeaseState.PREPARING, at=now)
    names = _own_names(grant.slots)
    made = Placement.objects.bulk_create([_placement(slot, lease, snapshot, names) for slot in grant.slots])
    shared_hosts.count_in([p.pk for p in made if p.host_id])
    return [lease]


def _growth_expense(
    request: LeaseRequest, count: int, since: datetime, until: datetime, wallet_id: int | None
) -> Expense:
    """Return what more units of a request would cost; they are preemptible whatever it is."""
    price = pricing.quote(
        request.flavor,
        team_id=request.team_id,
        is_preemptible=True,
        count=count,
        duration_s=max(1, int((until - since).total_seconds())),
        starts_at=since,
        price_milli=request.flavor.preemptible_milli,
        leases=(1, 1),
    )
    return Expense(
        request.team, price.amount_micro, since, until, is_preemptible=True, hold_micro=price.hold_micro,
        wallet_id=wallet_id, share_milli=request.flavor.share_milli * count,
        memory_mib=request.flavor.memory_mib * count,
    )  # fmt: skip


def _team(request: LeaseRequest) -> Team:
    return request.team


def _own_names(slots: Sequence[GrantedSlot]) -> dict[tuple[int, str], str]:
    """Return what drivers call the granted sizes where they have a name of their own for them."""
    devices = {slot.device_id for slot in slots if slot.profile}
    return own_names(devices) if devices else {}


def _placement(
    slot: GrantedSlot, lease: Lease, snapshot: Snapshot, names: Mapping[tuple[int, str], str]
) -> Placement:
    period = TimestamptzRange(lease.starts_at, lease.not_after)
    if slot.mode in SHARED_MODES:
        device = next(d for d in snapshot.devices if d.id == slot.device_id)
        host = shared_hosts.host_for(
            shared_hosts.SharedBoard(slot.device_id, device.grid, slot.board_memory_mib, device.max_clients),
            mode=slot.mode,
            team_id=lease.team_id,
            period=period,
            is_booked=lease.state == LeaseState.BOOKED,
        )
        return Placement(
            lease=lease,
            device_id=slot.device_id,
            team_id=lease.team_id,
            host=host,
            mode=slot.mode,
            start=0,
            size=0,
            slots=None,
            period=period,
            share_milli=slot.share_milli,
            memory_mib=slot.memory_mib,
            max_memory_mib=slot.max_memory_mib,
        )
    return Placement(
        lease=lease,
        device_id=slot.device_id,
        team_id=lease.team_id,
        mode=slot.mode,
        profile=names.get((slot.device_id, slot.profile), slot.profile),
        start=slot.start,
        size=slot.size,
        slots=Int8Range(slot.start, slot.start + slot.size),
        period=period,
        share_milli=slot.share_milli,
        memory_mib=slot.memory_mib,
    )


def waits(found: Sequence[Wait], *, only_first: bool = False) -> int:
    """Store why requests wait, only where it changed; returns how many rows were written.

    With ``only_first`` those are left alone that were told something before.
    """
    by_reason: dict[str, list[int]] = {}
    for wait in found:
        text = json.dumps([{"code": r.code, **r.detail} for r in wait.reasons], sort_keys=True, default=str)
        by_reason.setdefault(text, []).append(wait.claim_id)
    written = 0
    with connection.cursor() as cursor:
        for text, ids in by_reason.items():
            cursor.execute(
                "UPDATE leases_leaserequest SET reasons = %s::jsonb"  # noqa: S608 (our own states)
                f" WHERE id = ANY(%s) AND state = '{RequestState.QUEUED}' AND reasons IS DISTINCT FROM %s::jsonb"
                " AND (NOT %s OR reasons = '[]'::jsonb)",
                [text, ids, text, only_first],
            )
            written += cursor.rowcount
    return written


def impossible(found: Sequence[Wait], *, now: datetime) -> None:
    """Take requests out of the queue that nothing here can ever serve, with the reason."""
    wrong = [wait for wait in found if wait.is_impossible]
    rows = LeaseRequest.objects.select_for_update(skip_locked=True).filter(
        pk__in=[wait.claim_id for wait in wrong], state=RequestState.QUEUED
    )
    by_id = {row.pk: row for row in rows}
    for wait in wrong:
        if wait.claim_id in by_id:
            reasons = [{"code": r.code, **r.detail} for r in wait.reasons]
            move_requests(
                [by_id[wait.claim_id]],
                RequestState.IMPOSSIBLE,
                at=now,
                reason=reasons[0]["code"],
                reasons=reasons,
            )
            bookings.tell_refused(by_id[wait.claim_id], reasons, at=now)
