"""For whoever runs Berth: alive and ready, and what error codes mean."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError, InterfaceError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from redis.exceptions import RedisError

from portal.common.errors import catalogue
from portal.common.live import redis_client

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
def error_codes(_request: HttpRequest) -> HttpResponse:
    """Answer what every error code means and what to do about it: where the ``type`` of a problem leads."""
    rows = {
        code: {"status": kind.status, "title": str(kind.title), "next": str(kind.next_step)}
        for code, kind in catalogue().items()
    }
    return JsonResponse(rows, json_dumps_params={"ensure_ascii": False, "indent": 2})
