"""One frame of measurements from a driver's reading: partitions become slots of leases."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from nodeagent.drivers.base import DriverReading, PartitionSample
from nodeagent.link.node_work import NodeLeases
from nodeagent.protocol.messages import DeviceSample, ProcessSample, Samples, SlotSample
from nodeagent.reconcile.lease_records import READY

# Every how many frames the processes on the devices are told; between them the field is None.
PROCESSES_EVERY: Final = 5


def frame(
    reading: DriverReading,
    reconciler: NodeLeases,
    *,
    epoch: int,
    boot_id: str,
    seq: int,
    processes: tuple[ProcessSample, ...] | None = None,
) -> Samples:
    """Return the samples of one second; partitions that serve no ready lease are left out.

    ``processes`` are those of the last look, None in frames that do not tell them (``PROCESSES_EVERY``).
    """
    by_partition = {part.partition: part for part in reading.partitions}
    slots = []
    for record in reconciler.lease_records.values():
        if record.phase != READY:
            continue
        for place in record.places:
            part = by_partition.get(place.partition)
            if part is not None:
                slots.append(_slot(record.lease, place.slot.start, part))
    devices = tuple(_device(sample) for sample in reading.devices)
    return Samples(epoch, boot_id, seq, devices, tuple(slots), processes)


def _slot(lease: str, start: int, part: PartitionSample) -> SlotSample:
    return SlotSample(
        lease=lease,
        device=part.device,
        start=start,
        util_percent=_percent(part.util_percent),
        memory_used_mib=part.memory_used_mib,
        memory_mib=part.memory_mib,
        source=part.source,
        sm_percent=_percent(part.sm_percent),
        tensor_percent=_percent(part.tensor_percent),
        bandwidth_percent=_percent(part.bandwidth_percent),
        power_w=part.power_w,
        sources=dict(part.sources),
    )


def _device(sample: DeviceSample) -> DeviceSample:
    return replace(
        sample,
        util_percent=_percent(sample.util_percent),
        sm_percent=_percent(sample.sm_percent),
        tensor_percent=_percent(sample.tensor_percent),
        bandwidth_percent=_percent(sample.bandwidth_percent),
    )


def _percent(value: float | None) -> float | None:
    """Keep a percentage within 0 and 100: counters of real devices overshoot a little."""
    return None if value is None else min(100.0, max(0.0, value))
