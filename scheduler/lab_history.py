"""The installation's own history as the lab plays it: what was asked in a period, how long it ran, and the fleet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from portal.billing.selectors import currency
from portal.catalog.models import Flavor, Rate
from portal.catalog.pricing import lowered
from portal.catalog.selectors import rates_now
from portal.common.sql import fetch
from portal.fleet.models import DeviceModel
from portal.leases.models import LeaseRequest
from portal.leases.states import RequestState
from scheduler import snapshot
from scheduler.engine.model import Claim, TeamQuota
from scheduler.replay.history import History
from scheduler.snapshot_rows import ASKED, asked_claim

# What a request ran in all its leases from an instant on, until now where it still runs; extras of an elastic one and
# the other nodes of a gang ran beside it.
RAN = (
    f"SELECT {ASKED}, r.duration_s, r.uid, r.price_milli, f.id, r.submitted_at < %s,"  # noqa: S608 (our own parts)
    " greatest(coalesce((SELECT min(e.at) FROM leases_requestevent e"
    f" WHERE e.request_id = r.id AND e.now = '{RequestState.QUEUED}'), r.submitted_at), r.starts_at),"
    " extract(epoch FROM l.ran)::float, l.is_open"
    " FROM leases_leaserequest r JOIN catalog_flavor f ON f.id = r.flavor_id"
    " JOIN fleet_devicemodel m ON m.id = f.device_model_id"
    " JOIN LATERAL (SELECT sum(coalesce(o.ended_at, %s) - greatest(o.activated_at, %s)) AS ran,"
    " bool_or(o.ended_at IS NULL) AS is_open, min(o.activated_at) AS began"
    " FROM leases_lease o WHERE o.request_id = r.id AND o.part = 0 AND o.activated_at IS NOT NULL"
    " AND coalesce(o.ended_at, %s) > greatest(o.activated_at, %s)) l ON l.ran IS NOT NULL"
    " WHERE {which} ORDER BY r.id"
)
OF_PERIOD = "r.submitted_at >= %s AND r.submitted_at < %s"
# What a unit of each flavor drew in a period, in watts, where its energy is known; measured and estimated alike.
DRAWN = (
    "SELECT l.flavor_id, (sum(e.measured_mj + e.estimated_mj) / 1000.0 / sum(e.measured_s + e.estimated_s))::float"
    " FROM billing_leaseenergy e JOIN leases_lease l ON l.id = e.lease_id WHERE e.begins >= %s AND e.begins < %s"
    " GROUP BY l.flavor_id HAVING sum(e.measured_s + e.estimated_s) > 0"
)
OF_BEFORE = "r.submitted_at < %s AND l.began < %s"


def read_history(
    since: datetime, until: datetime, *, now: datetime, beat: Callable[[], None] = lambda: None
) -> tuple[History, dict[str, int]]:
    """Return what is played of a period, and how many requests are in it only in part or not at all.

    Reads a day at a time and calls ``beat`` after each, and every thousand requests, so that whoever reads long is
    known to be alive.

    Requests of before that ran when the period began come a second before it with what they still ran. The fleet,
    its quotas and its prices are those of now: nobody keeps what they were.
    """
    zero = since - timedelta(seconds=1)
    came: list[tuple[Any, ...]] = []
    day = since
    while day < until:
        end = min(day + timedelta(days=1), until)
        came += fetch(RAN.replace("{which}", OF_PERIOD), [since, now, since, now, since, day, end])
        beat()
        day = end
    before = fetch(RAN.replace("{which}", OF_BEFORE), [since, now, since, now, since, since, since])
    rows = [*before, *came]
    installation = snapshot.take(now=now)
    teams = [quota.team_id for quota in installation.quotas]
    place = {team_id: number for number, team_id in enumerate(teams, 1)}
    models = {row.slug: row.pk for row in DeviceModel.objects.all()}
    flavors = Flavor.objects.in_bulk()
    rates = rates_now(models.values(), now=now)
    drawn: dict[int, float] = dict(fetch(DRAWN, [since, until]))
    found: list[tuple[Claim, int, str, int | None, int | None]] = []
    for number, row in enumerate(rows):
        if number % 1000 == 0:
            beat()
        *asked, duration_s, uid, price_milli, flavor_id, is_before, queued_at, ran_s, _is_open = row
        claim = asked_claim(tuple(asked))
        claim = replace(
            claim,
            team_id=place[claim.team_id],
            duration_s=duration_s,
            queued_at=zero if is_before else max(queued_at, since),
            starts_at=None,
            least_duration_s=0,
            most_count=0,
            ran_s=0,
            evictions=0,
        )
        rate = rates.get(models[row[0]])
        watts = drawn.get(flavor_id)
        found.append(
            (
                claim,
                max(round(ran_s), 1),
                uid,
                _an_hour(rate, claim, flavors[flavor_id], price_milli),
                None if watts is None else round(watts * claim.count * max(claim.nodes, 1)),
            )
        )
    found.sort(key=lambda one: (one[0].queued_at, one[0].id))
    submitted = LeaseRequest.objects.filter(submitted_at__gte=since, submitted_at__lt=until).count()
    history = History(
        zero=zero,
        since=since,
        until=until,
        teams=tuple(quota.name for quota in installation.quotas),
        nodes=tuple(replace(node, blocked="") for node in installation.nodes),
        devices=tuple(
            replace(one, blocked="", paused_until=None, layout=None) for one in installation.devices
        ),
        quotas=tuple(_renumbered(quota, place) for quota in installation.quotas),
        claims=tuple(replace(claim, id=number) for number, (claim, *_) in enumerate(found, 1)),
        ran_s=tuple(ran for _, ran, *_ in found),
        names=tuple(uid for *_, uid, _, _ in found),
        price_micro=tuple(price for *_, price, _ in found),
        currency=currency(),
        watts=tuple(watts for *_, watts in found),
    )
    left_out = {
        "never_ran": submitted - len(came),
        "still_run": sum(row[-1] for row in rows),
        "of_before": len(before),
    }
    return history, left_out


def _renumbered(quota: TeamQuota, place: dict[int, int]) -> TeamQuota:
    parent = None if quota.parent_id is None else place[quota.parent_id]
    return replace(quota, team_id=place[quota.team_id], parent_id=parent, used_milli=0)


def _an_hour(rate: Rate | None, claim: Claim, flavor: Flavor, price_milli: int) -> int | None:
    """Return micro-units for an hour of all units of a request, None where its board has no price."""
    if rate is None:
        return None
    units = claim.count * max(claim.nodes, 1)
    return int(lowered(rate.price_of(flavor), price_milli) * flavor.share_milli * units // 1000)
