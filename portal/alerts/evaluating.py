"""A look at every rule: which alerts begin, fire and are resolved. Rows are the state; a lost look costs nothing."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction

from portal.alerts.acting import act
from portal.alerts.metrics import METRICS, AlertSubject, Sources, Values
from portal.alerts.models import Alert, AlertComparison, AlertRule, AlertState
from portal.alerts.telling import tell
from portal.common.retry import is_unreachable, with_retries

log = logging.getLogger(__name__)
# A rule that matches everything has so many alerts; the rest is counted.
MOST_OPEN: Final = 500
# A condition that holds no more for less than this has only fluttered.
RESOLVED_AFTER: Final = timedelta(seconds=60)
# An alert whose figure nobody knows any more is resolved after this.
FORGOTTEN_AFTER: Final = timedelta(hours=24)
# How often the figure of an alert is written anew while nothing else changes.
KEPT_EVERY: Final = timedelta(seconds=60)


def watch_alerts(*, now: datetime) -> int:
    """Look at every rule, tell people, and do what rules say; returns how many rules were looked at.

    Call outside a transaction: each rule is settled in one of its own, so one that fails keeps none of the others back.
    Safe to repeat and in parallel.
    """
    sources, looked = Sources(now), 0
    for rule in AlertRule.objects.filter(is_on=True, removed_at=None):
        metric = METRICS.get(rule.metric)
        if metric is None:
            continue  # of another version
        try:
            values = metric.read(sources)
            with_retries(lambda rule=rule, values=values: settle_rule(rule.pk, values, now=now))  # type: ignore[misc]
            looked += 1
        except Exception as error:
            if is_unreachable(error):
                raise
            log.exception("alert rule %s could not be looked at", rule.pk)
    with_retries(lambda: tell(now=now))
    act(now=now)
    return looked


@transaction.atomic
def settle_rule(rule_id: int, values: Values, *, now: datetime) -> None:
    """Bring the alerts of one rule in line with what was read; nothing where another worker is at it or was later."""
    rule = (
        AlertRule.objects.select_for_update(skip_locked=True, no_key=True)
        .filter(pk=rule_id, is_on=True, removed_at=None)
        .first()
    )
    if rule is None or (rule.evaluated_at is not None and rule.evaluated_at > now):
        return
    open_now = {alert.subject: alert for alert in Alert.objects.filter(rule=rule, resolved_at=None)}
    matching = _matching(rule, values)
    # Those that have an alert keep it, so that the rest does not take turns; then the worst come first.
    is_above = rule.comparison == AlertComparison.ABOVE
    order = sorted(
        matching,
        key=lambda one: (one.key not in open_now, -matching[one] if is_above else matching[one], one.key),
    )
    kept = {one.key: one for one in order[:MOST_OPEN]}
    for_s = timedelta(seconds=rule.for_s)
    _begin(rule, [one for key, one in kept.items() if key not in open_now], matching, now=now)
    known = {one.key for one in values}
    is_event = METRICS[rule.metric].is_event
    changed: list[Alert] = []
    over: list[Alert] = []
    for key, alert in open_now.items():
        if key in kept:
            if _go_on(alert, matching[kept[key]], for_s, now):
                changed.append(alert)
        elif is_event or key in known or now - alert.seen_at >= FORGOTTEN_AFTER:
            (over if alert.state == AlertState.PENDING else changed).append(alert)
            _fade(alert, now)
    Alert.objects.filter(pk__in=[alert.pk for alert in over]).delete()
    Alert.objects.bulk_update(
        changed, ["state", "value", "seen_at", "firing_at", "gone_at", "resolved_at"], batch_size=MOST_OPEN
    )
    rule.evaluated_at, rule.matched, rule.folded = now, len(matching), len(matching) - len(kept)
    rule.save(update_fields=["evaluated_at", "matched", "folded"])


def _matching(rule: AlertRule, values: Values) -> dict[AlertSubject, float]:
    """Return the subjects of the rule for which its condition holds; what is no number is unknown."""
    is_above = rule.comparison == AlertComparison.ABOVE
    return {
        subject: value
        for subject, value in values.items()
        if math.isfinite(value)
        and (value > rule.threshold if is_above else value < rule.threshold)
        and (rule.node_id is None or subject.node_id == rule.node_id)
        and (rule.team_id is None or rule.team_id in subject.lineages)
        and (rule.device_model_id is None or subject.model_id == rule.device_model_id)
    }


def _begin(
    rule: AlertRule, subjects: list[AlertSubject], matching: Mapping[AlertSubject, float], *, now: datetime
) -> None:
    is_at_once = rule.for_s == 0
    Alert.objects.bulk_create(
        (
            Alert(
                rule=rule, subject=one.key, about=one.about[:160], node_id=one.node_id, device_id=one.device_id,
                team_id=one.team_id, state=AlertState.FIRING if is_at_once else AlertState.PENDING,
                value=matching[one], pending_at=now, seen_at=now, firing_at=now if is_at_once else None,
            )
            for one in subjects
        ),
        ignore_conflicts=True,
    )  # fmt: skip


def _go_on(alert: Alert, value: float, for_s: timedelta, now: datetime) -> bool:
    """Note that the condition still holds; says whether there is something to write."""
    is_due = alert.state == AlertState.PENDING and now - alert.pending_at >= for_s
    is_back = alert.gone_at is not None
    is_old = now - alert.seen_at >= KEPT_EVERY
    if is_due:
        alert.state, alert.firing_at = AlertState.FIRING, now
    alert.gone_at = None
    alert.value, alert.seen_at = value, now
    return is_due or is_back or is_old


def _fade(alert: Alert, now: datetime) -> None:
    """Note that the condition does not hold; after a moment of it the alert is resolved."""
    alert.gone_at = alert.gone_at or now
    if alert.state == AlertState.FIRING and now - alert.gone_at >= RESOLVED_AFTER:
        alert.state, alert.resolved_at = AlertState.RESOLVED, now
