"""For whoever runs Berth: alive, ready, and figures for Prometheus."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError, InterfaceError, connection
from django.db.migrations.executor import MigrationExecutor
from django.db.models import Count, Min
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from redis.exceptions import RedisError

from portal.accounts.models import User
from portal.accounts.selectors import live_token
from portal.accounts.sign_in_attempts import bad_tokens
from portal.billing.models import UsageRecord
from portal.common.addresses import client_address
from portal.common.errors import catalogue
from portal.common.live import redis_client
from portal.common.middleware import problem
from portal.common.models import InvariantCheck, OutboxItem
from portal.fleet.models import Device, Node
from portal.fleet.selectors import node_state
from portal.leases.models import Lease, LeaseRequest
from portal.leases.states import LIVE_LEASES, OPEN_REQUESTS, RequestState
from portal.policies import cycles
from portal.teams.selectors import Rights

Check = Callable[[], str]


@login_not_required
@require_safe
@never_cache
def healthz(_request: HttpRequest) -> HttpResponse:
    """Answer 200 while this process can answer at all."""
    return JsonResponse({"status": "ok"})


@login_not_required
@require_safe
@never_cache
def readyz(_request: HttpRequest) -> HttpResponse:
    """Answer 200 when database, Redis and migrations are as they must be, else 503 naming what is not."""
    found = {name: check() for name, check in CHECKS.items()}
    is_ready = all(answer == "ok" for answer in found.values())
    response = JsonResponse({"ready": is_ready, "checks": found}, status=200 if is_ready else 503)
    if not is_ready:
        response["Retry-After"] = "3"
    return response


def _database() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except (DatabaseError, InterfaceError):
        return "away"
    return "ok"


def _redis() -> str:
    try:
        redis_client().ping()
    except (RedisError, OSError):
        return "away"
    return "ok"


_migrated = False


def _migrations() -> str:
    """Compare once: a process that saw every migration applied need not look again."""
    global _migrated
    if _migrated:
        return "ok"
    try:
        executor = MigrationExecutor(connection)
        _migrated = not executor.migration_plan(executor.loader.graph.leaf_nodes())
    except (DatabaseError, InterfaceError):
        return "unknown"
    return "ok" if _migrated else "missing"


CHECKS: dict[str, Check] = {"database": _database, "redis": _redis, "migrations": _migrations}


@login_not_required
@require_safe
@never_cache
def metrics(request: HttpRequest) -> HttpResponse:
    """Answer with Berth's figures for Prometheus: to this host itself, or to an operator."""
    if not (_is_local(request) or _is_operator(request)):
        wait_s = _refused_for(request)
        if wait_s:
            refused = problem(
                request, 429, "too_many_calls", "Too many calls with tokens that are not accepted."
            )
            refused["Retry-After"] = str(wait_s)
            return refused
        return problem(
            request, 403, "forbidden", "These figures are for this host and for operators.",
            next_step="Send an operator's token as “Authorization: Bearer …”.",
        )  # fmt: skip
    registry = CollectorRegistry()
    registry.register(MetricsEndpoint(timezone.now()))
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


@login_not_required
@require_safe
def error_codes(_request: HttpRequest) -> HttpResponse:
    """Answer what every error code means and what to do about it: where the ``type`` of a problem leads."""
    rows = {
        code: {"status": kind.status, "title": str(kind.title), "next": str(kind.next_step)}
        for code, kind in catalogue().items()
    }
    return JsonResponse(rows, json_dumps_params={"ensure_ascii": False, "indent": 2})


def _is_local(request: HttpRequest) -> bool:
    """Say whether the call comes from this host itself; one that a proxy passed on does not."""
    if "HTTP_X_FORWARDED_FOR" in request.META or "HTTP_FORWARDED" in request.META:
        return False
    try:
        return ipaddress.ip_address(request.META.get("REMOTE_ADDR", "")).is_loopback
    except ValueError:
        return False


def _is_operator(request: HttpRequest) -> bool:
    secret = _bearer(request)
    if secret is not None:
        token = live_token(secret, now=timezone.now())
        return token is not None and Rights(token.user).is_operator
    return isinstance(request.user, User) and Rights(request.user).is_operator


def _refused_for(request: HttpRequest) -> int:
    """Count a call with a token that is not accepted; returns for how many seconds its place is refused."""
    secret, now = _bearer(request), timezone.now()
    if secret is None or live_token(secret, now=now) is not None:
        return 0
    return bad_tokens.refused_for(client_address(request), now=now)


def _bearer(request: HttpRequest) -> str | None:
    """Return the token that came along, None where there is none."""
    kind, _space, secret = request.headers.get("Authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else None


class MetricsEndpoint:
    """Business figures read from rows at the time of the scrape: the same whichever process answers."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def collect(self) -> Iterable[Metric]:
        """Yield each figure with its labels."""
        yield _gauge(
            "berth_requests", "Open requests by state.", "state", _by_state(LeaseRequest, OPEN_REQUESTS)
        )
        yield _gauge("berth_leases", "Live leases by state.", "state", _by_state(Lease, LIVE_LEASES))
        yield _gauge("berth_nodes", "Nodes by state.", "state", self._nodes())
        yield _gauge("berth_devices", "Devices by health.", "health", _count(Device.objects.all(), "health"))
        yield _plain("berth_queue_oldest_seconds", "Age of the oldest waiting request.", self._oldest())
        yield _plain("berth_outbox_items", "Nudges owed.", OutboxItem.objects.count())
        unmetered = Lease.objects.filter(is_metered=False).count()
        yield _plain("berth_leases_to_meter", "Leases not metered to their end.", unmetered)
        yield _plain("berth_usage_records", "Billed intervals.", UsageRecord.objects.count())
        yield from _invariants()
        yield from _cycles()

    def _nodes(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for node in Node.objects.all():
            state = "cordoned" if node.is_cordoned else node_state(node, now=self.now)
            found[state] = found.get(state, 0) + 1
        return found

    def _oldest(self) -> float:
        since = LeaseRequest.objects.filter(state=RequestState.QUEUED).aggregate(at=Min("queued_at"))["at"]
        return max(0.0, (self.now - since).total_seconds()) if since else 0.0


def _by_state(model: Any, states: Iterable[str]) -> dict[str, int]:
    found = _count(model.objects.filter(state__in=list(states)), "state")
    return {str(state): found.get(str(state), 0) for state in states}


def _count(rows: Any, field: str) -> dict[str, int]:
    return dict(rows.values_list(field).annotate(n=Count("id")).order_by())


def _invariants() -> Iterable[Metric]:
    """Yield what the newest check of the invariants found; nothing before the first one: unknown, not zero."""
    row = InvariantCheck.objects.filter(checked_at__isnull=False).first()
    if row is not None and row.checked_at is not None:
        yield _plain("berth_invariants_broken", "Invariants that do not hold.", len(row.breaches))
        yield _plain(
            "berth_invariants_checked_timestamp_seconds",
            "When they were checked.",
            row.checked_at.timestamp(),
        )


def _cycles() -> Iterable[Metric]:
    """Yield how long the steps of scheduling cycles took and what they decided, since Redis was empty."""
    found, counted = cycles.histograms()
    if not counted:
        return  # Redis is away: unknown, not zero
    seconds = HistogramMetricFamily(
        "berth_cycle_step_seconds", "Time of each step of a scheduling cycle.", labels=["step"]
    )
    for one in found:
        buckets = [(f"{most / 1000:g}", float(count)) for most, count in one.counts]
        seconds.add_metric([one.step], [*buckets, ("+Inf", float(one.total))], sum_value=one.sum_ms / 1000)
    yield seconds
    decided = CounterMetricFamily(
        "berth_cycle_requests", "Requests and leases that scheduling cycles decided on.", labels=["outcome"]
    )
    for outcome, count in counted.items():
        decided.add_metric([outcome], count)
    yield decided


def _gauge(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


def _plain(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)
