"""Alerts as pages and the API read them."""

from __future__ import annotations

from django.db.models import Case, IntegerField, QuerySet, Value, When

from portal.alerts.models import TELLS_TEAMS, Alert, AlertSeverity, AlertState
from portal.common.errors import NotFound
from portal.teams.models import Role, Team
from portal.teams.selectors import Rights, below

_RANK = Case(
    When(rule__severity=AlertSeverity.CRITICAL, then=Value(0)),
    When(rule__severity=AlertSeverity.WARNING, then=Value(1)),
    default=Value(2),
    output_field=IntegerField(),
)


def _with_all(rows: QuerySet[Alert]) -> QuerySet[Alert]:
    return rows.select_related("rule", "node", "device__node", "team", "acknowledged_by")


def alerts_in_sight(rights: Rights, team: Team | None = None) -> QuerySet[Alert]:
    """Return the alerts that a person may see, those about a team and the teams below it if wished.

    Operators see all, team admins those about their teams and the teams below, where the rule tells them of it.
    """
    rows = Alert.objects.all()
    if not rights.is_operator:
        rows = rows.filter(below(rights.teams_with((Role.ADMIN,)), "team__"), rule__audience__in=TELLS_TEAMS)
    return rows if team is None else rows.filter(below([team.pk], "team__"))


def open_alerts(rights: Rights, team: Team | None = None) -> QuerySet[Alert]:
    """Return pending and firing alerts with what they name: firing ones first, of these the worst, then the oldest."""
    rows = alerts_in_sight(rights, team).filter(resolved_at=None)
    return _with_all(rows).order_by("state", _RANK, "pending_at", "pk")


def past_alerts(rights: Rights, team: Team | None = None) -> QuerySet[Alert]:
    """Return resolved alerts with what they name, the latest first."""
    rows = alerts_in_sight(rights, team).filter(resolved_at__isnull=False)
    return _with_all(rows).order_by("-resolved_at", "-pk")


def alert_named(rights: Rights, uid: str) -> Alert:
    """Return one alert with what it names, or raise NotFound also for one out of sight."""
    found = _with_all(alerts_in_sight(rights).filter(uid=uid)).first()
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
