"""Reads of ``portal.common.rows`` beside the same as querysets, and a page of the API beside the framework's.

``python -m tools.bench.rows`` wants DATABASE_URL and REDIS_URL of servers it may make a database on.
Both of a pair take turns in one process. CPU of this process, but for the deep page: that is wall-clock
time, PostgreSQL's included.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

ROUNDS, WARM_UP, DEEP = 400, 20, 200_000
Read = Callable[[], Any]
Pairs = dict[str, tuple[Read, Read]]


def measure() -> dict[str, Any]:
    import subprocess

    from tools.bench import stack

    with stack.running(is_demo=False) as here:
        command = [sys.executable, "-m", "tools.bench.rows"]
        made = subprocess.run(
            command, cwd=stack.ROOT, env=here.environment(), capture_output=True, text=True, check=True
        )
    found: dict[str, Any] = json.loads(made.stdout)
    return found


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    import django

    django.setup()
    from django.test.runner import DiscoverRunner

    runner = DiscoverRunner(verbosity=0, interactive=False)
    old = runner.setup_databases()
    try:
        found = _compare()
    finally:
        runner.teardown_databases(old)
    json.dump(found, sys.stdout)


def _compare() -> dict[str, dict[str, str]]:
    found = {}
    for name, (ours, theirs) in _reads().items():
        took: tuple[list[float], list[float]] = ([], [])
        for _ in range(WARM_UP + ROUNDS):
            for read, times in zip((ours, theirs), took, strict=True):
                began = time.thread_time()
                read()
                times.append((time.thread_time() - began) * 1e6)
        fast, slow = (sorted(times[WARM_UP:])[ROUNDS // 2] for times in took)
        found[name] = {"rows": f"{fast:.0f} µs", "queryset": f"{slow:.0f} µs", "ratio": f"{slow / fast:.1f}"}
    return found | {f"page of 50, {DEEP:,} entries deep": _deep_page()}


def _deep_page() -> dict[str, str]:
    """Compare the API's pages with ``CursorPagination`` far down a long list, in wall-clock time."""
    from django.db import connection
    from rest_framework.pagination import CursorPagination
    from rest_framework.request import Request
    from rest_framework.test import APIRequestFactory

    from portal.api.pagination import Pages
    from portal.audit.models import AuditEntry

    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO audit_auditentry (at, action, target, detail)"
            " SELECT now(), 'bench', n::text, '{}' FROM generate_series(1, %s) n",
            [DEEP + 1000],
        )
        cursor.execute("ANALYZE audit_auditentry")
    after = AuditEntry.objects.order_by("-pk").values_list("pk", flat=True)[DEEP]
    make = APIRequestFactory()

    class Theirs(CursorPagination):
        ordering, page_size = "-id", 50

    mark = base64.b64encode(f"p={after}".encode()).decode()
    asked = [Request(make.get("/", {"cursor": one})) for one in (after, mark)]
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(WARM_UP + ROUNDS):
        for n, page in enumerate((Pages().page, Theirs().paginate_queryset)):
            began = time.perf_counter()
            page(AuditEntry.objects.all(), asked[n])
            took[n].append((time.perf_counter() - began) * 1e6)
    ours, theirs = (sorted(times[WARM_UP:])[ROUNDS // 2] for times in took)
    return {"ours": f"{ours:.0f} µs", "CursorPagination": f"{theirs:.0f} µs"}


def _reads() -> Pairs:
    """Return each read twice, by ``Rows`` and as a queryset, over four leases of four requests."""
    from portal.common.clock import db_now
    from portal.leases.models import Lease
    from tools.bench import fleet, stages

    made = fleet.prepare(db_now())
    stages.Walker(made).walk(stages.Meter(), 4)
    leases = list(Lease.objects.order_by("pk"))
    return _lease_reads(leases) | _request_reads(leases) | _catalog_reads(leases[0], made, db_now())


def _lease_reads(leases: list[Any]) -> Pairs:
    from portal.common.rows import Rows
    from portal.leases.models import Lease, LeaseEvent

    ids, uid, request = [one.pk for one in leases], leases[0].uid, leases[0].request_id
    six = ("team", "user", "flavor", "flavor.device_model", "node", "request")
    dotted = tuple(name.replace(".", "__") for name in six)
    all_of, step = Rows(Lease, *six), Rows(Lease, "team", "request")
    booked, events = Rows(Lease, "team", "request", "user", "node"), Rows(LeaseEvent)
    return {
        "a lease with six relations": (
            lambda: all_of.first("it.uid = %s", [uid]),
            lambda: Lease.objects.select_related(*dotted).get(uid=uid),
        ),
        "4 leases with team and request": (
            lambda: step.where("it.id = ANY(%s) ORDER BY it.id", [ids]),
            lambda: list(Lease.objects.select_related("team", "request").filter(pk__in=ids).order_by("pk")),
        ),
        "the leases of a request, four relations": (
            lambda: booked.where("it.request_id = %s ORDER BY it.id", [request]),
            lambda: list(
                Lease.objects.select_related("team", "request", "user", "node")
                .filter(request_id=request)
                .order_by("pk")
            ),
        ),
        "the events of 4 leases": (
            lambda: events.where("it.lease_id = ANY(%s) ORDER BY it.at, it.id", [ids]),
            lambda: list(LeaseEvent.objects.filter(lease_id__in=ids).order_by("at", "pk")),
        ),
    }


def _request_reads(leases: list[Any]) -> Pairs:
    from portal.common.rows import NewRow, Rows
    from portal.common.sql import fetch
    from portal.leases.models import LeaseRequest

    requests = [one.request_id for one in leases]
    queue, bare, new = Rows(LeaseRequest, "team", "flavor"), Rows(LeaseRequest), NewRow(LeaseRequest)

    def another() -> Any:
        one = LeaseRequest.objects.get(pk=requests[0])
        one.pk, one.uid = None, f"req-{time.monotonic_ns()}"
        return one

    def insert() -> None:
        fetch(new.sql, new.values(another()))

    def create() -> None:
        one = another()
        one._state.adding = True
        one.save(force_insert=True)

    return {
        "4 requests with team and flavor": (
            lambda: queue.where("it.id = ANY(%s)", [requests]),
            lambda: list(LeaseRequest.objects.select_related("team", "flavor").filter(pk__in=requests)),
        ),
        "4 requests": (
            lambda: bare.where("it.id = ANY(%s) ORDER BY it.id", [requests]),
            lambda: list(LeaseRequest.objects.filter(pk__in=requests).order_by("pk")),
        ),
        "a new request (one more read in both)": (insert, create),
    }


def _catalog_reads(lease: Any, made: dict[str, Any], now: datetime) -> Pairs:
    from portal.catalog.models import Flavor, Rate
    from portal.common.rows import Rows
    from portal.fleet.models import Node
    from portal.teams.models import Team

    node, model = lease.node_id, Flavor.objects.get(slug=made["flavor"]).device_model_id
    span = (now, now + timedelta(hours=1))
    rates, flavors, nodes, teams = Rows(Rate, "card"), Rows(Flavor, "device_model"), Rows(Node), Rows(Team)
    return {
        "the prices of a span": (
            lambda: rates.where(
                '"card".is_default AND it.device_model_id = %s AND it.valid && tstzrange(%s, %s) ORDER BY it.valid',
                [model, *span],
            ),
            lambda: list(
                Rate.objects.select_related("card")
                .filter(card__is_default=True, device_model_id=model, valid__overlap=span)
                .order_by("valid")
            ),
        ),
        "a flavor with its model": (
            lambda: flavors.first("it.slug = %s AND it.is_active", [made["flavor"]]),
            lambda: (
                Flavor.objects.select_related("device_model")
                .filter(slug=made["flavor"], is_active=True)
                .first()
            ),
        ),
        "a node": (
            lambda: nodes.first("it.id = %s", [node]),
            lambda: Node.objects.get(pk=node),
        ),
        "all nodes": (
            lambda: nodes.where("TRUE ORDER BY it.name", []),
            lambda: list(Node.objects.order_by("name")),
        ),
        "a team": (
            lambda: teams.first("it.slug = %s", [made["team"]]),
            lambda: Team.objects.filter(slug=made["team"]).first(),
        ),
    }


if __name__ == "__main__":
    main()
