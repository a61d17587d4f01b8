"""What rules can watch: each metric with its subjects and how it is read. Every source is read once per look."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

from django.db.models import Count, Min
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.budgets.services import running_forecasts
from portal.common.models import InvariantCheck, OutboxItem
from portal.fleet.maintenance import nodes_in_maintenance
from portal.fleet.models import Device, HealthEvent, Node
from portal.idle.models import IDLE, IdleStanding
from portal.idle.sweeping import FRESH as JUDGED_LATELY
from portal.leases.models import LeaseRequest
from portal.leases.states import RUNNING_LEASES, RequestState
from portal.notifications.models import Delivery, DeliveryState
from portal.teams.models import Team
from portal.telemetry.frames import DeviceNow
from portal.telemetry.latest import stored_frames
from portal.telemetry.node_view import is_fresh

DEVICE, NODE, TEAM, FLAVOR, FLEET = "device", "node", "team", "flavor", "fleet"
CRITICAL = "critical"
# Memory errors: XIDs by which NVIDIA's driver tells of them, and the agent's own count.
ECC: Final = ("48", "140", "ecc_uncorrected")


@dataclass(frozen=True, slots=True)
class AlertSubject:
    """What a figure is of. ``lineages`` are the ids of its teams and all above them, ``team_id`` its one team."""

    key: str
    about: str
    node_id: int | None = None
    device_id: int | None = None
    team_id: int | None = None
    model_id: int | None = None
    lineages: frozenset[int] = field(default_factory=frozenset)


Values = dict[AlertSubject, float]


@dataclass(frozen=True, slots=True)
class AlertMetric:
    """One thing to watch: in what unit ("%", "°C", "W", "s" or "": a number), of what, and how it is read.

    ``is_event``: who is not in the reading has nothing of it, else it is unknown. ``usual``: a threshold to begin with.
    """

    label: str | Promise
    unit: str
    of: str
    read: Callable[[Sources], Values]
    usual: float
    is_event: bool = False


class Sources:
    """What one look reads, each at most once; the number of queries does not depend on how much there is."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    @cached_property
    def teams(self) -> dict[int, frozenset[int]]:
        """Ids of each team and those above it."""
        return {pk: frozenset(line) for pk, line in Team.objects.order_by().values_list("pk", "lineage")}

    @cached_property
    def devices(self) -> dict[str, AlertSubject]:
        """Devices by uuid, with the teams whose leases are on them as far as that was heard lately."""
        held: dict[str, set[int]] = {}
        for frame in self.frames:
            for slot in frame.slots:
                held.setdefault(slot.device, set()).add(slot.team_id)
        rows = Device.objects.order_by().values_list(
            "pk", "uuid", "index", "node_id", "node__name", "model_id"
        )
        found = {}
        for pk, uuid, index, node_id, name, model_id in rows:
            teams = held.get(uuid, set())
            lines = frozenset().union(*(self.teams.get(team, frozenset()) for team in teams))
            team = next(iter(teams)) if len(teams) == 1 else None
            team = team if team in self.teams else None
            found[uuid] = AlertSubject(f"device:{pk}", f"{name}/{index}", node_id, pk, team, model_id, lines)
        return found

    @cached_property
    def nodes(self) -> list[tuple[AlertSubject, Node]]:
        """All nodes."""
        return [(AlertSubject(f"node:{row.pk}", row.name, row.pk), row) for row in Node.objects.order_by()]

    @cached_property
    def frames(self) -> list[Any]:
        """What nodes measured last, those alone that are heard."""
        return [one for one in stored_frames() if is_fresh(one.at, now=self.now.timestamp())]

    def of_devices(self, figure: Callable[[DeviceNow], float | None]) -> Values:
        """Return a figure of every device that tells it."""
        found: Values = {}
        for frame in self.frames:
            for sample in frame.devices:
                subject, value = self.devices.get(sample.uuid), figure(sample)
                if subject is not None and value is not None:
                    found[subject] = float(value)
        return found

    @cached_property
    def health(self) -> list[tuple[int | None, int, str, str]]:
        """Open health events: device, node, code, severity."""
        rows = HealthEvent.objects.filter(cleared_at=None).order_by()
        return list(rows.values_list("device_id", "node_id", "code", "severity"))

    def of_health(self, is_meant: Callable[[str, str], bool]) -> Values:
        """Return how many open health events of a kind each device, or node as a whole, has."""
        devices = {subject.device_id: subject for subject in self.devices.values()}
        nodes = {subject.node_id: subject for subject, _row in self.nodes}
        found: Values = {}
        for device_id, node_id, code, severity in self.health:
            subject = nodes.get(node_id) if device_id is None else devices.get(device_id)
            if subject is not None and is_meant(code, severity):
                found[subject] = found.get(subject, 0) + 1
        return found

    @cached_property
    def queue(self) -> list[tuple[AlertSubject, int, float]]:
        """By flavor: how many requests wait, and for how many seconds the oldest."""
        rows = (
            LeaseRequest.objects.filter(state=RequestState.QUEUED)
            .values_list("flavor_id", "flavor__name", "flavor__device_model_id")
            .annotate(n=Count("id"), since=Min("queued_at"))
            .order_by()
        )
        return [
            (AlertSubject(f"flavor:{pk}", str(name), model_id=model), n, self._age(since))
            for pk, name, model, n, since in rows
        ]

    @cached_property
    def budgets(self) -> list[tuple[AlertSubject, float, float | None]]:
        """By team: percent of its budget that is spent, and that will probably be (None: unknown)."""
        found = []
        for row in running_forecasts(self.now):
            budget, subject = row.budget, self._of_team(row.budget.team_id, row.budget.team.name)
            end = None if row.likely_micro is None else 100 * row.likely_micro / budget.amount_micro
            found.append((subject, 100 * row.spent_micro / budget.amount_micro, end))
        return found

    def waits_of_teams(self) -> Values:
        """Return for how many seconds the oldest waiting request of each team itself has waited."""
        rows = (
            LeaseRequest.objects.filter(state=RequestState.QUEUED)
            .values_list("team_id", "team__name")
            .annotate(since=Min("queued_at"))
            .order_by()
        )
        return {self._of_team(pk, name): self._age(since) for pk, name, since in rows}

    def idle_of_teams(self) -> Values:
        """Return how many running leases of each team itself were judged idle at the last look, if that was lately."""
        rows = (
            IdleStanding.objects.filter(
                state__in=IDLE, lease__state__in=RUNNING_LEASES, judged_at__gt=self.now - JUDGED_LATELY
            )
            .values_list("lease__team_id", "lease__team__name")
            .annotate(n=Count("pk"))
            .order_by()
        )
        return {self._of_team(pk, name): float(n) for pk, name, n in rows}

    def _of_team(self, pk: int, name: str) -> AlertSubject:
        return AlertSubject(f"team:{pk}", name, team_id=pk, lineages=self.teams.get(pk, frozenset()))

    def fleet(self, value: float | None) -> Values:
        """Return a figure of the installation as a whole, nothing where it is unknown."""
        return {} if value is None else {AlertSubject("fleet", "Berth"): value}

    def oldest_nudge(self) -> float:
        """Return for how many seconds the oldest nudge is owed."""
        return self._age(OutboxItem.objects.aggregate(at=Min("created_at"))["at"])

    def oldest_delivery(self) -> float:
        """Return for how many seconds the oldest message to a contact point has been due."""
        waiting = Delivery.objects.filter(state=DeliveryState.WAITING)
        return self._age(waiting.aggregate(at=Min("due_at"))["at"])

    def broken(self) -> float | None:
        """Return how many invariants do not hold; None before the first check."""
        row = InvariantCheck.objects.filter(checked_at__isnull=False).first()
        return None if row is None else float(len(row.breaches))

    def silence(self) -> Values:
        """Return for how many seconds agents have not been heard; unknown of who never was, or is in maintenance."""
        away = nodes_in_maintenance(now=self.now)
        return {
            subject: self._age(row.last_seen_at)
            for subject, row in self.nodes
            if row.last_seen_at is not None and row.pk not in away
        }

    def _age(self, since: datetime | None) -> float:
        return 0.0 if since is None else max(0.0, (self.now - since).total_seconds())


def _memory(sample: DeviceNow) -> float | None:
    return (
        None if sample.memory_used_mib is None else 100 * sample.memory_used_mib / max(1, sample.memory_mib)
    )


METRICS: Final[Mapping[str, AlertMetric]] = MappingProxyType({
    "node_silence": AlertMetric(_("Silence of an agent"), "s", NODE, Sources.silence, 300),
    "node_behind": AlertMetric(
        _("Revisions that a node has not carried out"), "", NODE,
        lambda s: {subject: row.desired_revision - row.observed_revision for subject, row in s.nodes}, 0,
    ),
    "device_util": AlertMetric(
        _("Utilisation of a device"), "%", DEVICE, lambda s: s.of_devices(lambda d: d.util), 5
    ),
    "device_temp": AlertMetric(
        _("Temperature of a device"), "°C", DEVICE, lambda s: s.of_devices(lambda d: d.temp), 90
    ),
    "device_power": AlertMetric(
        _("Power of a device"), "W", DEVICE, lambda s: s.of_devices(lambda d: d.power_w), 700
    ),
    "device_memory": AlertMetric(
        _("Device memory in use"), "%", DEVICE, lambda s: s.of_devices(_memory), 98
    ),
    "xid": AlertMetric(
        _("Open XID events"), "", DEVICE, lambda s: s.of_health(lambda code, _s: code.isdecimal()), 0, True
    ),
    "ecc": AlertMetric(
        _("Memory errors that could not be corrected"), "", DEVICE,
        lambda s: s.of_health(lambda code, _s: code in ECC), 0, True,
    ),
    "health_critical": AlertMetric(
        _("Open critical health events"), "", DEVICE,
        lambda s: s.of_health(lambda _c, severity: severity == CRITICAL), 0, True,
    ),
    "queue_length": AlertMetric(
        _("Waiting requests of a flavor"), "", FLAVOR,
        lambda s: {subject: n for subject, n, _age in s.queue}, 100, True,
    ),
    "queue_wait": AlertMetric(
        _("Longest wait in the queue"), "s", FLAVOR,
        lambda s: {subject: age for subject, _n, age in s.queue}, 14_400, True,
    ),
    "team_queue_wait": AlertMetric(
        _("Longest wait of a team's requests"), "s", TEAM, Sources.waits_of_teams, 14_400, True
    ),
    "team_idle": AlertMetric(_("Idle leases of a team"), "", TEAM, Sources.idle_of_teams, 0, True),
    "budget_used": AlertMetric(
        _("Budget that is spent"), "%", TEAM, lambda s: {subject: used for subject, used, _end in s.budgets}, 90
    ),
    "budget_forecast": AlertMetric(
        _("Budget that will be spent, by forecast"), "%", TEAM,
        lambda s: {subject: end for subject, _used, end in s.budgets if end is not None}, 100,
    ),
    "outbox": AlertMetric(
        _("Oldest nudge that no worker has taken"), "s", FLEET, lambda s: s.fleet(s.oldest_nudge()), 60
    ),
    "deliveries": AlertMetric(
        _("Oldest message that is due and not sent"), "s", FLEET, lambda s: s.fleet(s.oldest_delivery()), 900
    ),
    "invariants": AlertMetric(_("Broken invariants"), "", FLEET, lambda s: s.fleet(s.broken()), 0),
})  # fmt: skip
