"""A start that was promised and came late is refunded by a rule, unless the team's own limits were in the way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import DatabaseError, connection, transaction
from django.test import Client

from portal.billing.metering import meter_all
from portal.billing.models import RefundRule, UsageRecord
from portal.common.invariants import broken
from portal.fleet.models import Node
from portal.leases import lifecycle, promises
from portal.leases.models import Lease, LeaseRequest, StartForecast, StartPromise
from portal.leases.promises import judge, promise_record, promise_starts
from portal.leases.requests import withdraw_request
from portal.web.leases.receipt import receipt_of
from tests.portal.builders import PRICES, World, build_world

NOW = datetime(2026, 3, 10, 9, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
PRICE = PRICES["h100-80gb"]


@pytest.fixture
def world(db: None) -> World:
    return build_world(now=NOW)


def rule(cause: str, percent: int, **more: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        begin = NOW - 30 * 24 * HOUR
        RefundRule.objects.create(
            cause=cause, credit_milli=percent * 10, valid=(begin, None), created_at=begin, **more
        )
        cursor.execute("SET LOCAL session_replication_role = origin")


def promised(world: World, name: str = "bob", *, within: timedelta = HOUR) -> LeaseRequest:
    """Return a request that waits and was promised a start."""
    request = world.submit(name, "h100", duration_s=7200)
    StartForecast.objects.create(
        request=request,
        queued_at=request.queued_at,
        made_at=NOW,
        p50_at=NOW + within / 2,
        p90_at=NOW + within,
    )
    assert promise_starts({request.pk: request.queued_at}, policy_version=3) == 1
    return request


def start(world: World, request: LeaseRequest, at: datetime) -> Lease:
    Node.objects.update(last_seen_at=at)
    world.turn(at)
    lease = Lease.objects.get(request=request)
    world.ready(lease, at=at)
    return lease


def outcomes() -> dict[int, tuple[str, str]]:
    return {p.request_id: (p.outcome, p.why) for p in StartPromise.objects.all()}


def test_only_a_start_that_is_late_through_no_limit_of_the_team_is_refunded(world: World) -> None:
    rule("late_start", 50, most_s=1800)
    others = world.active("charlie", "h100", count=7, duration_s=7200)
    in_time, late, limited, given_up = (promised(world) for _ in range(4))
    assert promise_starts({late.pk: late.queued_at}, policy_version=4) == 0, "one promise for a wait"
    withdraw_request(request=given_up, actor=world.user("bob"), rights=world.rights("bob"), now=NOW + MINUTE)
    began = {in_time.pk: start(world, in_time, NOW + HOUR)}
    LeaseRequest.objects.filter(pk=limited.pk).update(reasons=[{"code": "quota_ceiling"}])
    LeaseRequest.objects.filter(pk=late.pk).update(
        reasons=[{"code": "no_capacity"}, {"code": "quota_ceiling"}]
    )
    judge(now=NOW + HOUR + MINUTE)
    judge(now=NOW + HOUR + 2 * MINUTE)
    assert outcomes() == {
        late.pk: ("missed", ""), in_time.pk: ("kept", ""), limited.pk: ("excused", "quota_ceiling"),
        given_up.pk: ("withdrawn", ""),
    }  # fmt: skip

    at = NOW + 2 * HOUR
    Node.objects.update(last_seen_at=at)
    lifecycle.expire_due(now=at)
    world.gone(others, at=at)
    began |= {request.pk: start(world, request, at) for request in (late, limited)}
    Node.objects.update(last_seen_at=NOW + 5 * HOUR)
    lifecycle.expire_due(now=NOW + 5 * HOUR)
    meter_all(now=NOW + 5 * HOUR)
    judge(now=NOW + 5 * HOUR)

    paid = {
        pk: [(u.seconds, u.micro_per_hour) for u in UsageRecord.objects.filter(lease=lease).order_by("span")]
        for pk, lease in began.items()
    }
    assert paid == {
        in_time.pk: [(7200, PRICE)], limited.pk: [(7200, PRICE)], late.pk: [(5400, PRICE), (1800, PRICE // 2)],
    }  # fmt: skip
    lease = began[late.pk]
    lease.refresh_from_db()
    receipt = receipt_of(lease)
    assert receipt.is_late
    assert receipt.promise is not None
    assert receipt.promise.started_at == at
    assert receipt.refund.startswith("Started later than promised: 50 % of the last")
    assert not receipt_of(began[limited.pk]).is_late
    (all_, training) = promise_record(now=NOW)
    assert (all_.promised, all_.kept, all_.missed, all_.excused, all_.withdrawn, all_.open) == (
        4,
        1,
        1,
        1,
        1,
        0,
    )
    assert (all_.work, training.promised, all_.kept_milli) == (None, 4, 500)
    assert broken() == []

    # What the database refuses: another promise, another outcome, and a refund of a start that was in time.
    row = UsageRecord.objects.get(lease=lease, refund__isnull=False)
    for attack in (
        lambda: StartPromise.objects.update(promised_at=NOW + 9 * HOUR),
        lambda: StartPromise.objects.filter(request=in_time).update(outcome="missed"),
        lambda: StartPromise.objects.all()._raw_delete("default"),
        lambda: _refund_instead(began[in_time.pk], row),
    ):
        with pytest.raises(DatabaseError), transaction.atomic():
            attack()


def _refund_instead(lease: Lease, refunded: UsageRecord) -> None:
    own = UsageRecord.objects.get(lease=lease)
    UsageRecord.objects.filter(pk=own.pk).delete()
    own.refund, own.micro_per_hour = refunded.refund, refunded.micro_per_hour
    own.save(force_insert=True)


def test_a_start_between_two_looks_counts_and_the_larger_refund_does(world: World) -> None:
    rule("late_start", 50)
    rule("early_release", 100, most_s=600)
    request = promised(world)
    lease = start(world, request, NOW + HOUR + MINUTE)
    assert StartPromise.objects.get().outcome == "open", "nobody has looked yet"
    Node.objects.update(last_seen_at=NOW + 3 * HOUR)
    lifecycle.release_lease(lease=lease, actor=world.user("bob"), now=NOW + 2 * HOUR + MINUTE)

    meter_all(now=NOW + 3 * HOUR)

    usage = UsageRecord.objects.select_related("refund").get(lease=lease)
    assert (usage.seconds, usage.micro_per_hour, usage.refund.cause) == (3600, PRICE // 2, "late_start")
    judge(now=NOW + 3 * HOUR)
    assert outcomes() == {request.pk: ("missed", "")}


def test_pages_and_api_tell_what_was_promised(world: World, client: Client) -> None:
    request = promised(world)
    client.force_login(world.user("bob"))
    page = client.get(f"/requests/{request.uid}/").content.decode()
    assert "Start promised by" in page
    record = client.get("/forecasts/").content.decode()
    assert "Promised starts" in record
    assert "March 2026" in record
    found = client.get(
        f"/api/v1/requests/{request.uid}/", headers={"Authorization": f"Bearer {world.token('bob')}"}
    ).json()
    assert found["promise"] == {
        "by": "2026-03-10T10:00:00Z", "outcome": "open", "started_at": None, "why": None,
    }  # fmt: skip
    answer = client.get(
        "/api/v1/forecasts/promises/", headers={"Authorization": f"Bearer {world.token('charlie')}"}
    ).json()
    assert answer["promises_now"] is False
    assert promises.OWN_LIMITS
