"""Who is told of alerts, and when: grouped, so that a storm is one message; silences and acknowledgements count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction

from portal.accounts.models import User
from portal.alerts.models import (
    TELLS_TEAMS,
    Alert,
    AlertAudience,
    AlertGrouping,
    AlertRule,
    AlertSeverity,
    AlertSilence,
    AlertState,
)
from portal.notifications.services import notify
from portal.teams.models import Membership, Role, Team
from portal.teams.selectors import operators

# After a group was told, what joins it waits this long, and is told together.
GROUP_WAIT: Final = timedelta(minutes=5)
# More groups at once than this are told as one.
MOST_GROUPS: Final = 10
# So many subjects are named in a notification.
MOST_NAMED: Final = 5


def live_silences(*, now: datetime) -> list[AlertSilence]:
    """Return silences that are in force."""
    rows = AlertSilence.objects.filter(ended_at=None, starts_at__lte=now, ends_at__gt=now)
    return list(rows.select_related("rule", "node", "team", "made_by"))


class Silences:
    """Which alerts are silenced now. Two queries, the second only where a team is silenced."""

    def __init__(self, *, now: datetime) -> None:
        self.rows = live_silences(now=now)
        below: dict[int, set[int]] = defaultdict(set)
        if any(row.team_id for row in self.rows):
            for pk, lineage in Team.objects.order_by().values_list("pk", "lineage"):
                for above in lineage:
                    below[above].add(pk)
        self._below = below

    def of(self, alert: Alert) -> AlertSilence | None:
        """Return the silence that holds for an alert, if any."""
        return next((row for row in self.rows if self._covers(row, alert)), None)

    def _covers(self, row: AlertSilence, alert: Alert) -> bool:
        return (
            row.rule_id in (None, alert.rule_id)
            and row.node_id in (None, alert.node_id)
            and (row.team_id is None or alert.team_id in self._below[row.team_id])
        )


@transaction.atomic
def tell(*, now: datetime) -> None:
    """Tell people of alerts that fire, that nobody acknowledged in time, and that are resolved. Safe to repeat."""
    firing = _locked(Alert.objects.filter(state=AlertState.FIRING))
    ended = _locked(
        Alert.objects.filter(state=AlertState.RESOLVED, end_told_at=None, notified_at__isnull=False)
    )
    if not firing and not ended:
        return
    silences = Silences(now=now)
    heard = [
        alert for alert in firing if alert.rule.severity != AlertSeverity.INFO and not silences.of(alert)
    ]
    by_rule: dict[AlertRule, list[Alert]] = defaultdict(list)
    for alert in heard:
        by_rule[alert.rule].append(alert)
    lately = _told_lately(firing, now)
    for rule, alerts in sorted(by_rule.items(), key=lambda one: one[0].pk):
        _tell_new(rule, alerts, lately, now)
        _escalate(rule, alerts, now)
    _tell_ends(ended, firing, now)


def _locked(rows: Any) -> list[Alert]:
    """Return alerts with their rules, locked in order; those that another worker tells of are left to it."""
    found = rows.select_for_update(of=("self",), skip_locked=True, no_key=True).order_by("pk")
    return list(found.select_related("rule", "rule__escalate_to", "node", "team"))


def _group(rule: AlertRule, alert: Alert) -> str:
    if rule.grouping == AlertGrouping.NODE:
        return str(alert.node_id or "")
    return str(alert.team_id or "") if rule.grouping == AlertGrouping.TEAM else ""


def _told_lately(firing: Iterable[Alert], now: datetime) -> set[tuple[int, str]]:
    """Return the groups that were told a moment ago, by alerts that have been resolved since as well."""
    since = now - GROUP_WAIT
    over = Alert.objects.filter(resolved_at__gt=since, notified_at__gt=since).select_related("rule")
    told = [alert for alert in firing if alert.notified_at is not None and alert.notified_at > since]
    return {(alert.rule_id, _group(alert.rule, alert)) for alert in [*over, *told]}


def _tell_new(
    rule: AlertRule, alerts: Sequence[Alert], lately: Container[tuple[int, str]], now: datetime
) -> None:
    groups: dict[str, list[Alert]] = defaultdict(list)
    for alert in alerts:
        groups[_group(rule, alert)].append(alert)
    due = []
    for name, members in groups.items():
        if any(alert.notified_at is None for alert in members) and (rule.pk, name) not in lately:
            due.append((name, members))
    if len(due) > MOST_GROUPS:
        due = [("", [alert for _name, members in due for alert in members])]
    for name, members in due:
        fresh = [alert for alert in members if alert.notified_at is None]
        folded = rule.folded if not name else 0
        _tell_people("firing", rule, name, fresh, len(members) - len(fresh) + folded, now)
        Alert.objects.filter(pk__in=[alert.pk for alert in fresh]).update(notified_at=now)


def _escalate(rule: AlertRule, alerts: Sequence[Alert], now: datetime) -> None:
    """Tell of alerts that fire for long and that nobody has acknowledged, once each."""
    if rule.escalate_min is None:
        return
    since = now - timedelta(minutes=rule.escalate_min)
    late = [
        alert
        for alert in alerts
        if alert.escalated_at is None
        and alert.acknowledged_at is None
        and alert.firing_at is not None
        and alert.firing_at <= since
    ]
    if late:
        people = [rule.escalate_to] if rule.escalate_to is not None else operators()
        facts = _facts(rule, late, len(late)) | {"minutes": rule.escalate_min}
        notify(people, "escalation.alert", target=_target(rule, ""), at=now, is_news=True, **facts)
        Alert.objects.filter(pk__in=[alert.pk for alert in late]).update(escalated_at=now)


def _tell_ends(ended: Iterable[Alert], firing: Iterable[Alert], now: datetime) -> None:
    """Tell that alerts are resolved once nothing that was told of their group fires any more."""
    still = {(alert.rule_id, _group(alert.rule, alert)) for alert in firing if alert.notified_at is not None}
    over: dict[tuple[AlertRule, str], list[Alert]] = defaultdict(list)
    for alert in ended:
        name = _group(alert.rule, alert)
        if (alert.rule_id, name) not in still:
            over[alert.rule, name].append(alert)
    for (rule, name), alerts in over.items():
        _tell_people("resolved", rule, name, alerts, 0, now)
        Alert.objects.filter(pk__in=[alert.pk for alert in alerts]).update(end_told_at=now)


def _tell_people(
    what: str, rule: AlertRule, group: str, alerts: Sequence[Alert], more: int, now: datetime
) -> None:
    """Tell operators and team admins, each person once: of those that they are to hear of, in one message.

    ``more`` is how many others of the group there are, which operators hear of as a number.
    """
    by_admin = _admins_told(rule, alerts)
    heard = {alert.pk for mine in by_admin.values() for alert in mine}
    told: set[int] = set()
    if rule.audience == AlertAudience.TEAM:
        # What no admin hears of must not be lost.
        left, more = [alert for alert in alerts if alert.pk not in heard], 0
    else:
        left = list(alerts)
    target = _target(rule, group)
    if left:
        people = operators()
        told = {user.pk for user in people}
        facts = _facts(rule, left, len(left) + more)
        notify(people, f"alert.{what}", target=target, at=now, is_news=True, **facts)
    # Those who hear of the same alerts are told in one go.
    alike: dict[tuple[int, ...], list[User]] = defaultdict(list)
    for user, mine in by_admin.items():
        if user.pk not in told:
            alike[tuple(alert.pk for alert in mine)].append(user)
    for people in alike.values():
        mine = by_admin[people[0]]
        facts = _facts(rule, mine, len(mine))
        notify(people, f"team_alert.{what}", target=target, at=now, is_news=True, **facts)


def _admins_told(rule: AlertRule, alerts: Sequence[Alert]) -> dict[User, list[Alert]]:
    """Return which alerts each team admin is told of: its own admins of each, else those nearest above it."""
    teams = {alert.team_id: alert.team for alert in alerts if alert.team is not None}
    if rule.audience not in TELLS_TEAMS or not teams:
        return {}
    admins: dict[int, list[User]] = defaultdict(list)
    above = {pk for team in teams.values() for pk in team.lineage}
    rows = Membership.objects.filter(role=Role.ADMIN, team__in=above, user__is_active=True)
    for row in rows.select_related("user").order_by("user_id"):
        admins[row.team_id].append(row.user)
    found: dict[User, list[Alert]] = defaultdict(list)
    for alert in alerts:
        lineage = alert.team.lineage if alert.team is not None else []
        nearest = next((pk for pk in reversed(lineage) if pk in admins), None)
        for user in admins[nearest] if nearest is not None else []:
            found[user].append(alert)
    return found


def _target(rule: AlertRule, group: str) -> str:
    return f"alert-{rule.pk}#{group}"[:40]


def _facts(rule: AlertRule, alerts: Sequence[Alert], count: int) -> dict[str, Any]:
    worst = max(alerts, key=lambda alert: alert.value if rule.comparison == "above" else -alert.value)
    return {
        "rule": rule.name,
        "metric": rule.metric,
        "comparison": rule.comparison,
        "threshold": rule.threshold,
        "severity": rule.severity,
        "count": count,
        "value": worst.value,
        "named": [alert.about for alert in alerts[:MOST_NAMED]],
        "alert": alerts[0].uid,
    }
