"""Rules and alerts as sentences in the reader's language."""

from __future__ import annotations

from django.utils.translation import gettext as _

from portal.alerts.metrics import METRICS
from portal.alerts.models import Alert, AlertComparison, AlertRule
from portal.common.moments import span


def figure_text(metric: str, value: float) -> str:
    """Return a figure with its unit."""
    unit = METRICS[metric].unit if metric in METRICS else ""
    if unit == "s":
        return span(int(value)) or _("%(n)d s") % {"n": 0}
    number = f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.1f}"
    return f"{number} {unit}".strip() if unit != "%" else f"{number} %"


def metric_text(metric: str) -> str:
    """Return what a metric is called; its key where this version does not know it."""
    return str(METRICS[metric].label) if metric in METRICS else metric


def condition_text(metric: str, comparison: str, threshold: float, for_s: int = 0) -> str:
    """Return the condition of a rule."""
    about = {"what": metric_text(metric), "figure": figure_text(metric, threshold)}
    if comparison == AlertComparison.ABOVE:
        said = _("%(what)s above %(figure)s") % about
    else:
        said = _("%(what)s below %(figure)s") % about
    return _("%(condition)s for %(time)s") % {"condition": said, "time": span(for_s)} if for_s else said


def rule_text(rule: AlertRule) -> str:
    """Return what a rule is called: its name, else its condition."""
    return rule.name or condition_text(rule.metric, rule.comparison, rule.threshold, rule.for_s)


def evidence_text(alert: Alert) -> str:
    """Return what was measured against what; its rule must be at hand.

    What an alert of before a change was measured against, the rule does not say any more.
    """
    rule = alert.rule
    if rule.changed_at > alert.pending_at:
        return _("The rule has been changed since.")
    return _("%(value)s, where the rule says: %(condition)s.") % {
        "value": figure_text(rule.metric, alert.value),
        "condition": condition_text(rule.metric, rule.comparison, rule.threshold, rule.for_s),
    }
