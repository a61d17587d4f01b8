"""What a simulated device measures: slices, the device as their sum, unknown where devices are silent."""

from __future__ import annotations

from dataclasses import replace

from nodeagent.drivers.base import PartitionSample, PartitionShape
from nodeagent.protocol.messages import DeviceSample
from nodeagent.simulation.devices.device import SimulatedDevice
from nodeagent.simulation.load import Load, load_at

AT_REST = Load(0.0, 0.0)
# What a sleeping host's boards draw of their idle power. An assumption of the simulation, not a measured figure.
ASLEEP_PART = 0.1


def measure(
    simulated: SimulatedDevice, seed: int, at_s: float, *, is_asleep: bool = False
) -> tuple[DeviceSample, list[PartitionSample]]:
    """Return the sample of a device and of each partition on it at one instant."""
    if simulated.gpu.is_lost:
        return DeviceSample(simulated.fact.uuid, None, None, None, None, None, "unavailable"), []
    shapes = dict(_shapes(simulated))
    loads = {uuid: _load(simulated, uuid, seed, at_s) for uuid in shapes}
    weighted = [(_weight(simulated, shapes[uuid][1]), load) for uuid, load in loads.items()]
    samples = [_sample(simulated, uuid, *shapes[uuid], loads[uuid]) for uuid in shapes]
    busy = min(100.0, sum(weight * load.util_percent for weight, load in weighted))
    used = sum(sample.memory_used_mib or 0 for sample in samples)
    device = _device(simulated, busy, used, seed, at_s)
    return (_asleep(simulated, device) if is_asleep else device), samples


def source(simulated: SimulatedDevice) -> str:
    """Say where the utilisation of slices comes from on such a device, or that nothing reports it."""
    if simulated.gpu.mig_enabled:
        return "gpm" if simulated.board.has_slice_metrics else "unavailable"
    return "hy-smi" if simulated.fact.vendor == "hygon" else "nvml"


def _shapes(simulated: SimulatedDevice) -> list[tuple[str, tuple[int, PartitionShape]]]:
    found = []
    for i in list(simulated.gpu.instances.values()):
        memory_mib = i.profile.memory_mib or 0
        shape = PartitionShape("mig", i.profile.name, i.profile.memory_slices, 0, memory_mib)
        found.append((simulated.instance_uuid(i), (i.start, shape)))
    return found + [(part.uuid, (0, part.shape)) for part in list(simulated.parts.values())]


def _load(simulated: SimulatedDevice, uuid: str, seed: int, at_s: float) -> Load:
    tenant = simulated.tenants.get(uuid)
    if tenant is None:
        return AT_REST
    return load_at(tenant.load_pattern, f"{seed}/{tenant.lease}/{uuid}", at_s)


def _weight(simulated: SimulatedDevice, shape: PartitionShape) -> float:
    """Return the part of the device's compute that a partition has."""
    if shape.mode != "mig":
        return shape.share_milli / 1000
    profile = simulated.profile(shape.profile)
    if profile.sm_count and simulated.board.sm_total:
        return profile.sm_count / simulated.board.sm_total
    return shape.size / simulated.fact.grid


def _sample(
    simulated: SimulatedDevice, uuid: str, start: int, shape: PartitionShape, load: Load
) -> PartitionSample:
    origin = source(simulated)
    return PartitionSample(
        partition=uuid,
        device=simulated.fact.uuid,
        start=start,
        util_percent=None if origin == "unavailable" else load.util_percent,
        memory_used_mib=round(shape.memory_mib * load.memory_part),
        memory_mib=shape.memory_mib,
        source=origin,
    )


def _asleep(simulated: SimulatedDevice, awake: DeviceSample) -> DeviceSample:
    """Return the sample of a device whose host sleeps: a part of its idle power, nothing at work."""
    idle_w = simulated.board.idle_w
    power_w = None if idle_w is None or awake.power_w is None else round(idle_w * ASLEEP_PART, 1)
    cool = None if awake.temperature_c is None else min(awake.temperature_c, 25.0)
    return replace(awake, power_w=power_w, temperature_c=cool)


def _device(simulated: SimulatedDevice, busy: float, used_mib: int, seed: int, at_s: float) -> DeviceSample:
    board, origin = simulated.board, source(simulated)
    drift = load_at("idle", f"{seed}/{simulated.fact.uuid}", at_s).util_percent
    power_w = temperature_c = None
    if board.idle_w is not None and board.limit_w is not None:
        power_w = board.idle_w + drift + (board.limit_w - board.idle_w) * 0.93 * busy / 100
        temperature_c = round(29 + 41 * power_w / board.limit_w, 1)
    return DeviceSample(
        device=simulated.fact.uuid,
        util_percent=None if origin == "unavailable" else round(busy, 1),
        memory_used_mib=used_mib,
        power_w=None if power_w is None else round(power_w, 1),
        temperature_c=temperature_c,
        source=origin,
    )
