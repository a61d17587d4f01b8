"""What rules do by themselves: only where a rule says so, seldom, and on record."""

from __future__ import annotations

import logging
from collections import Counter
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction

from portal.alerts.models import Alert, AlertAction, AlertState
from portal.alerts.telling import Silences
from portal.audit.services import record
from portal.common.errors import BerthError
from portal.common.retry import with_retries
from portal.fleet.pauses import causes_of_pauses, end_pause, pause_intake, put_off
from portal.fleet.services import cordon
from portal.leases.health_notices import take_out_of_work

log = logging.getLogger(__name__)
# A rule that matches everything must not take the fleet out of work.
MOST_ACTS: Final = 3
ACTS_OF: Final = timedelta(hours=1)


def act(*, now: datetime) -> int:
    """Do what is due for alerts that fire; returns how often something was done. Call outside a transaction.

    A rule acts at most three times an hour; what is above that is noted as held back, and done by nobody but people.
    A pause of intake lasts for as long as its alert fires and is not silenced; all else is undone by people.
    """
    _settle_pauses(now)
    due = list(
        Alert.objects.filter(state=AlertState.FIRING, acted_at=None, gone_at=None)
        .exclude(rule__action=AlertAction.NOTHING)
        .select_related("rule")
        .order_by("firing_at", "pk")
    )
    if not due:
        return 0
    lately = Alert.objects.filter(acted_at__gt=now - ACTS_OF).values_list("rule_id", flat=True)
    acted, silences, done = Counter(lately), Silences(now=now), 0
    for alert in due:
        if silences.of(alert):
            continue
        if acted[alert.rule_id] >= MOST_ACTS:
            Alert.objects.filter(pk=alert.pk, held_back_at=None).update(held_back_at=now)
            continue
        try:
            is_done = with_retries(lambda alert=alert: _act_once(alert.pk, now))  # type: ignore[misc]
        except BerthError as no:
            log.warning("alert %s: its rule's action was refused: %s", alert.uid, no.detail)
            continue
        acted[alert.rule_id] += is_done
        done += is_done
    return done


def _settle_pauses(now: datetime) -> None:
    """Let pauses go on while their alerts fire, and end the others.

    Pauses are read before alerts: one that is made meanwhile is not mistaken for one whose alert is over.
    """
    causes = causes_of_pauses()
    if not causes:
        return
    silences = Silences(now=now)
    firing = Alert.objects.filter(uid__in=causes, state=AlertState.FIRING)
    lasting = {alert.uid for alert in firing if not silences.of(alert)}
    put_off(lasting, now=now)
    for cause in causes:
        if cause not in lasting:
            with_retries(lambda cause=cause: end_pause(cause=cause, actor=None, now=now))  # type: ignore[misc]


@transaction.atomic
def _act_once(alert_id: int, now: datetime) -> bool:
    """Do what the rule of one alert says; False where somebody else has, or it fires no more."""
    alert = (
        Alert.objects.select_for_update(of=("self",), no_key=True)
        .select_related("rule", "node", "device__node")
        .filter(pk=alert_id, state=AlertState.FIRING, acted_at=None)
        .first()
    )
    if alert is None:
        return False
    rule = alert.rule
    reason = f"alert {alert.uid} of rule {rule}"
    if rule.action == AlertAction.CORDON and alert.node is not None:
        cordon(node=alert.node, actor=None, reason=reason, now=now)
    elif rule.action == AlertAction.QUARANTINE and alert.device is not None:
        take_out_of_work(device=alert.device, actor=None, reason=reason, now=now)
    elif rule.action == AlertAction.PAUSE:
        pause_intake(cause=alert.uid, node=alert.node, device=alert.device, reason=str(rule), now=now)
    else:
        return False
    record(None, "alert.acted", alert.uid, at=now, rule=rule.pk, does=rule.action, about=alert.about)
    Alert.objects.filter(pk=alert.pk).update(acted_at=now, held_back_at=None)
    return True
