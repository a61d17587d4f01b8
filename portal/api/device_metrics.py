"""Devices and slices under DCGM's names, as web processes heard them last: for those who do not scrape each agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from prometheus_client.core import GaugeMetricFamily, Metric

from nodeagent.protocol.dcgm_fields import FIELDS, LABELS, XID, figures
from portal.fleet.models import Device, HealthEvent
from portal.teams.models import Team
from portal.telemetry.frames import Frame, SlotNow
from portal.telemetry.latest import stored_frames
from portal.telemetry.node_view import is_fresh


class DeviceMetrics:
    """A collector of what was measured last. Three queries and one call of Redis, whatever the size."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def collect(self) -> Iterable[Metric]:
        """Yield each family that has a figure; nodes that are silent are left out, as what is unknown is."""
        self._teams = dict(Team.objects.order_by().values_list("pk", "slug"))
        self._devices = {
            uuid: (str(index), slug)
            for uuid, index, slug in Device.objects.order_by().values_list("uuid", "index", "model__slug")
        }
        self._xids: dict[str, int] = {}
        faults = HealthEvent.objects.filter(cleared_at=None, device__isnull=False)
        for uuid, code in faults.order_by().values_list("device__uuid", "code"):
            if code.isdecimal():
                self._xids[uuid] = max(self._xids.get(uuid, 0), int(code))
        families = {name: GaugeMetricFamily(name, text, labels=LABELS) for name, text in FIELDS.items()}
        for frame in stored_frames():
            if is_fresh(frame.at, now=self.now.timestamp()):
                self._add(families, frame)
        return [family for family in families.values() if family.samples]

    def _add(self, families: Mapping[str, GaugeMetricFamily], frame: Frame) -> None:
        whole = {slot.device: slot for slot in frame.slots if slot.is_whole}
        for device in frame.devices:
            if device.uuid not in self._devices:
                continue
            holder = whole.get(device.uuid)
            more = holder.more if holder else None
            known = figures(
                util=device.util, memory_used_mib=device.memory_used_mib, memory_mib=device.memory_mib,
                power_w=device.power_w, temperature_c=device.temp, sm=more and more.sm,
                tensor=more and more.tensor, bandwidth=more and more.bandwidth,
            )  # fmt: skip
            known[XID] = self._xids.get(device.uuid, 0)
            self._put(families, self._labels(frame.node, device.uuid, "", holder), known)
        for slot in frame.slots:
            if slot.is_whole or slot.device not in self._devices:
                continue
            more = slot.more
            known = figures(
                util=slot.util, memory_used_mib=slot.memory_used_mib, memory_mib=slot.memory_mib,
                power_w=more and more.power_w, sm=more and more.sm, tensor=more and more.tensor,
                bandwidth=more and more.bandwidth,
            )  # fmt: skip
            self._put(families, self._labels(frame.node, slot.device, str(slot.start), slot), known)

    def _labels(self, node: str, uuid: str, start: str, slot: SlotNow | None) -> tuple[str, ...]:
        index, model = self._devices[uuid]
        lease, team = (slot.lease, self._teams.get(slot.team_id, "")) if slot else ("", "")
        return node, index, uuid, model, start, lease, team

    @staticmethod
    def _put(
        families: Mapping[str, GaugeMetricFamily], labels: tuple[str, ...], known: Mapping[str, float]
    ) -> None:
        for name, value in known.items():
            families[name].add_metric(labels, value)
