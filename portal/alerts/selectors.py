"""Alerts as pages and the API read them."""

from __future__ import annotations

from django.db.models import Case, IntegerField, QuerySet, Value, When

from portal.alerts.models import Alert, AlertSeverity, AlertState
from portal.common.errors import NotFound

_RANK = Case(
    When(rule__severity=AlertSeverity.CRITICAL, then=Value(0)),
    When(rule__severity=AlertSeverity.WARNING, then=Value(1)),
    default=Value(2),
    output_field=IntegerField(),
)


def _with_all(rows: QuerySet[Alert]) -> QuerySet[Alert]:
    return rows.select_related("rule", "node", "device__node", "team", "acknowledged_by")


def open_alerts() -> QuerySet[Alert]:
    """Return pending and firing alerts with what they name: firing ones first, of these the worst, then the oldest."""
    rows = Alert.objects.filter(resolved_at=None)
    return _with_all(rows).order_by("state", _RANK, "pending_at", "pk")


def past_alerts() -> QuerySet[Alert]:
    """Return resolved alerts with what they name, the latest first."""
    return _with_all(Alert.objects.filter(resolved_at__isnull=False)).order_by("-resolved_at", "-pk")


def alert_named(uid: str) -> Alert:
    """Return one alert with what it names, or raise NotFound."""
    found = _with_all(Alert.objects.filter(uid=uid)).first()
    if found is None:
        raise NotFound
    return found


def firing_by_severity() -> dict[str, int]:
    """Return how many alerts fire, by severity. One query."""
    found: dict[str, int] = {}
    rows = Alert.objects.filter(state=AlertState.FIRING, resolved_at=None).values_list(
        "rule__severity", flat=True
    )
    for severity in rows:
        found[severity] = found.get(severity, 0) + 1
    return found
