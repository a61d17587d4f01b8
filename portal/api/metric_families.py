"""Berth's figures for Prometheus, read from rows at the time of the scrape: the same whichever process answers.

The number of queries does not depend on how much there is. What is unknown is left out, never zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

from django.db.models import Count, F, Min, Sum
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from portal.alerts.selectors import firing_by_severity
from portal.billing.models import UsageRecord
from portal.budgets.services import running_forecasts
from portal.common.models import InvariantCheck, OutboxItem
from portal.fleet.models import Device, HealthEvent, Node
from portal.fleet.selectors import node_state
from portal.gateway.stream_counts import stream_counts
from portal.leases.models import Lease, LeaseRequest, Placement
from portal.leases.start_waits import waits_of_starts
from portal.leases.states import LIVE_LEASES, LIVE_ON_NODE, OPEN_REQUESTS, RequestState
from portal.notifications.models import Delivery, DeliveryState
from portal.policies import cycles

# Waits are those of leases granted in this time.
WAITS_OF: Final = timedelta(hours=1)
# Name: what it says, and its labels. Nothing else is exported (tests hold dashboards and rules against this).
FAMILIES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = MappingProxyType({
    "berth_requests": ("Open requests by state.", ("state",)),
    "berth_requests_waiting": ("Requests in the queue.", ("flavor", "model")),
    "berth_leases": ("Live leases by state.", ("state",)),
    "berth_nodes": ("Nodes by state.", ("state",)),
    "berth_devices": ("Devices by health.", ("health",)),
    "berth_capacity_gpus": ("Devices in reference GPUs.", ("model",)),
    "berth_allocated_gpus": ("What leases hold of devices, in reference GPUs.", ("model",)),
    "berth_queue_oldest_seconds": ("Age of the oldest waiting request.", ()),
    "berth_queue_wait_seconds": ("Waits of leases granted in the last hour.", ("quantile",)),
    "berth_queue_starts": ("Leases granted in the last hour.", ()),
    "berth_node_silence_seconds": ("How long the agent of a node has not been heard.", ("node",)),
    "berth_node_revisions_behind": ("Revisions of its desired state that a node has not carried out.", ("node",)),
    "berth_health_events": ("Open health events.", ("severity",)),
    "berth_alerts": ("Alerts that fire.", ("severity",)),
    "berth_outbox_items": ("Nudges owed.", ()),
    "berth_outbox_oldest_seconds": ("Age of the oldest nudge owed.", ()),
    "berth_deliveries_waiting": ("Messages to contact points that wait.", ()),
    "berth_deliveries_overdue_seconds": ("How long the oldest of them has been due.", ()),
    "berth_budget_used_ratio": ("Spend of the running period as a part of a team's budget.", ("team",)),
    "berth_budget_forecast_ratio": ("Likely spend at its end as a part of the budget.", ("team",)),
    "berth_gateway_streams": ("Open streams of gateways by kind.", ("kind",)),
    "berth_leases_to_meter": ("Leases not metered to their end.", ()),
    "berth_usage_records": ("Billed intervals.", ()),
    "berth_invariants_broken": ("Invariants that do not hold.", ()),
    "berth_invariants_checked_timestamp_seconds": ("When they were checked.", ()),
    "berth_cycle_last_timestamp_seconds": ("When the last cycle with requests was taken.", ()),
    "berth_cycle_step_seconds": ("Time of each step of a scheduling cycle.", ("step",)),
    "berth_cycle_requests": ("Requests and leases that scheduling cycles decided on.", ("outcome",)),
})  # fmt: skip
Values = Mapping[tuple[str, ...], float]


class PortalMetrics:
    """A collector of the figures of the whole installation."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def collect(self) -> Iterable[Metric]:
        """Yield each family; one without a figure is left out."""
        found: dict[str, Values] = {
            **self._queue(),
            **self._fleet(),
            **self._mail(),
            **self._budgets(),
            "berth_alerts": {(severity,): n for severity, n in firing_by_severity().items()},
            **_invariants(),
            "berth_gateway_streams": {(kind,): n for kind, n in stream_counts(now=self.now).items()},
            "berth_leases_to_meter": {(): Lease.objects.filter(is_metered=False).count()},
            "berth_usage_records": {(): UsageRecord.objects.count()},
        }
        for name, values in found.items():
            if values:
                yield _gauge(name, values)
        yield from _cycles()

    def _queue(self) -> dict[str, Values]:
        queued = LeaseRequest.objects.filter(state=RequestState.QUEUED)
        waiting = {
            (str(slug), str(model)): (n, since)
            for slug, model, n, since in queued.values_list("flavor__slug", "flavor__device_model__slug")
            .annotate(n=Count("id"), since=Min("queued_at"))
            .order_by()
        }
        oldest = min((since for _n, since in waiting.values()), default=None)
        waits = waits_of_starts(since=self.now - WAITS_OF)
        quantiles = {("0.5",): waits.middle_s, ("0.9",): waits.late_s}
        return {
            "berth_requests": _by_state(LeaseRequest, OPEN_REQUESTS),
            "berth_requests_waiting": {key: n for key, (n, _since) in waiting.items()},
            "berth_leases": _by_state(Lease, LIVE_LEASES),
            "berth_queue_oldest_seconds": {(): self._age(oldest) or 0.0},
            "berth_queue_wait_seconds": {key: wait for key, wait in quantiles.items() if wait is not None},
            "berth_queue_starts": {(): waits.count},
        }

    def _fleet(self) -> dict[str, Values]:
        states: dict[tuple[str, ...], float] = {}
        silence: dict[tuple[str, ...], float] = {}
        behind: dict[tuple[str, ...], float] = {}
        for node in Node.objects.all():
            state = "cordoned" if node.is_cordoned else node_state(node, now=self.now)
            states[(state,)] = states.get((state,), 0) + 1
            behind[(node.name,)] = node.desired_revision - node.observed_revision
            silent_s = self._age(node.last_seen_at)
            if silent_s is not None:
                silence[(node.name,)] = silent_s
        held = (
            Placement.objects.filter(is_live=True, lease__state__in=LIVE_ON_NODE)
            .values_list("device__model__slug")
            .annotate(n=Sum(F("share_milli") * F("device__model__weight_milli")))
            .order_by()
        )
        whole = Device.objects.values_list("model__slug").annotate(n=Sum("model__weight_milli")).order_by()
        capacity: dict[tuple[str, ...], float] = {(str(slug),): n / 1000 for slug, n in whole}
        return {
            "berth_nodes": states,
            "berth_devices": _count(Device.objects.all(), "health"),
            "berth_capacity_gpus": capacity,
            "berth_allocated_gpus": dict.fromkeys(capacity, 0.0)
            | {(str(slug),): n / 1_000_000 for slug, n in held},
            "berth_node_silence_seconds": silence,
            "berth_node_revisions_behind": behind,
            "berth_health_events": _count(HealthEvent.objects.filter(cleared_at=None), "severity"),
        }

    def _mail(self) -> dict[str, Values]:
        owed = OutboxItem.objects.aggregate(n=Count("id"), since=Min("created_at"))
        waiting = Delivery.objects.filter(state=DeliveryState.WAITING).aggregate(
            n=Count("id"), due=Min("due_at")
        )
        return {
            "berth_outbox_items": {(): owed["n"]},
            "berth_outbox_oldest_seconds": {(): self._age(owed["since"]) or 0.0},
            "berth_deliveries_waiting": {(): waiting["n"]},
            "berth_deliveries_overdue_seconds": {(): self._age(waiting["due"]) or 0.0},
        }

    def _budgets(self) -> dict[str, Values]:
        """Return how far running budgets are used, as last looked at; one that nobody looked at yet is left out."""
        running = running_forecasts(self.now)
        return {
            "berth_budget_used_ratio": {
                (row.budget.team.slug,): row.spent_micro / row.budget.amount_micro for row in running
            },
            "berth_budget_forecast_ratio": {
                (row.budget.team.slug,): row.likely_micro / row.budget.amount_micro
                for row in running
                if row.likely_micro is not None
            },
        }

    def _age(self, since: datetime | None) -> float | None:
        return None if since is None else max(0.0, (self.now - since).total_seconds())


def _by_state(model: Any, states: Iterable[str]) -> Values:
    found = _count(model.objects.filter(state__in=list(states)), "state")
    return {(str(state),): found.get((str(state),), 0) for state in states}


def _count(rows: Any, field: str) -> dict[tuple[str, ...], float]:
    return {(str(key),): n for key, n in rows.values_list(field).annotate(n=Count("id")).order_by()}


def _invariants() -> dict[str, Values]:
    """Return what the newest check of the invariants found; nothing before the first one: unknown, not zero."""
    row = InvariantCheck.objects.filter(checked_at__isnull=False).first()
    if row is None or row.checked_at is None:
        return {}
    return {
        "berth_invariants_broken": {(): len(row.breaches)},
        "berth_invariants_checked_timestamp_seconds": {(): row.checked_at.timestamp()},
    }


def _cycles() -> Iterable[Metric]:
    """Yield how long the steps of scheduling cycles took and what they decided, since Redis was empty."""
    found, counted = cycles.histograms()
    if not counted:
        return  # Redis is away: unknown, not zero
    name, decisions = "berth_cycle_step_seconds", "berth_cycle_requests"
    seconds = HistogramMetricFamily(name, FAMILIES[name][0], labels=FAMILIES[name][1])
    for one in found:
        buckets = [(f"{most / 1000:g}", float(count)) for most, count in one.counts]
        seconds.add_metric([one.step], [*buckets, ("+Inf", float(one.total))], sum_value=one.sum_ms / 1000)
    yield seconds
    decided = CounterMetricFamily(decisions, FAMILIES[decisions][0], labels=FAMILIES[decisions][1])
    for outcome, count in counted.items():
        decided.add_metric([outcome], count)
    yield decided
    last = cycles.last_cycle_at()
    if last is not None:
        yield _gauge("berth_cycle_last_timestamp_seconds", {(): last.timestamp()})


def _gauge(name: str, values: Values) -> Metric:
    text, labels = FAMILIES[name]
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(key, float(value))
    return family
