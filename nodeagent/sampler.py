"""One frame of measurements from a driver's reading: partitions become slots of leases."""

from __future__ import annotations

from nodeagent.drivers.base import PartitionSample, Reading
from nodeagent.protocol.messages import DeviceSample, Samples, SlotSample
from nodeagent.reconcile import Reconciler
from nodeagent.works import READY


def frame(reading: Reading, reconciler: Reconciler, *, epoch: int, boot_id: str, seq: int) -> Samples:
    """Return the samples of one second; partitions that serve no ready lease are left out."""
    by_partition = {part.partition: part for part in reading.partitions}
    slots = []
    for work in reconciler.works.values():
        if work.phase != READY:
            continue
        for place in work.places:
            part = by_partition.get(place.partition)
            if part is not None:
                slots.append(_slot(work.lease, place.slot.start, part))
    return Samples(epoch, boot_id, seq, tuple(_device(sample) for sample in reading.devices), tuple(slots))


def _slot(lease: str, start: int, part: PartitionSample) -> SlotSample:
    return SlotSample(
        lease=lease,
        device=part.device,
        start=start,
        util_percent=_percent(part.util_percent),
        memory_used_mib=part.memory_used_mib,
        memory_mib=part.memory_mib,
        source=part.source,
    )


def _device(sample: DeviceSample) -> DeviceSample:
    return DeviceSample(
        device=sample.device,
        util_percent=_percent(sample.util_percent),
        memory_used_mib=sample.memory_used_mib,
        power_w=sample.power_w,
        temperature_c=sample.temperature_c,
        energy_mj=sample.energy_mj,
        source=sample.source,
    )


def _percent(value: float | None) -> float | None:
    """Keep a percentage within 0 and 100: counters of real cards overshoot a little."""
    return None if value is None else min(100.0, max(0.0, value))
