"""How busy a simulated device and its parts are: processes of the host, each with its pattern of load.

Figures are plausible, not measured: parts of SM, tensor and memory activity follow the load by fixed ratios.
"""

from __future__ import annotations

from functools import lru_cache

from nodeagent.simulation.hardware import ComputeInstance
from nodeagent.simulation.load import load_at
from nodeagent.simulation.machine.device import RESERVED_MIB, NvmlDevice
from nodeagent.simulation.machine.host import SimulatedHost
from nodeagent.simulation.machine.world import SimulatedProcess

MIB = 1024 * 1024
# A device at work draws most, never all, of what its limit allows.
FULL_LOAD_PART = 0.93
COOLEST_C, WARMING_C = 29, 41
# Ratios to the time that anything ran.
SM_PART, OCCUPANCY_PART, TENSOR_PART, DRAM_PART, INTEGER_PART = 0.92, 0.46, 0.55, 0.61, 0.12
PCIE_MIB_S = 1800
STEPS_PER_S = 20


def on(
    host: SimulatedHost, device: NvmlDevice, gi: int | None = None, ci: int | None = None
) -> list[SimulatedProcess]:
    """Return the processes on a device, on one GPU instance or on one compute instance of it."""
    uuid = device.uuid
    return [
        p
        for p in list(host.world.processes.values())
        if p.gpu == uuid and (gi is None or p.gi == gi) and (ci is None or p.ci == ci)
    ]


def part_of(host: SimulatedHost, device: NvmlDevice, part: ComputeInstance | None) -> list[SimulatedProcess]:
    """Return the processes of a device handle: the device's, or those of one MIG device."""
    return on(host, device) if part is None else on(host, device, part.gi.id, part.id)


def busy_percent(host: SimulatedHost, processes: list[SimulatedProcess], at_s: float) -> float:
    """Return how much of the time anything ran for these processes on what they share."""
    return min(100.0, sum(of_process(host, p, at_s) for p in processes))


def of_process(host: SimulatedHost, process: SimulatedProcess, at_s: float) -> float:
    """Return how much of the time one process keeps its part busy."""
    return _percent(process.load_pattern, f"{host.seed}/{process.pid}", int(at_s * STEPS_PER_S))


@lru_cache(maxsize=4096)
def _percent(pattern: str, key: str, step: int) -> float:
    """Return a load that stands still within a step, so that the calls of one round agree and are cheap."""
    return load_at(pattern, key, step / STEPS_PER_S).util_percent


def device_percent(host: SimulatedHost, device: NvmlDevice, at_s: float) -> float:
    """Return the load of a whole device: with MIG on, that of its slices weighted by their SMs."""
    if not device.gpu.mig_enabled:
        return busy_percent(host, on(host, device), at_s)
    busy: dict[int | None, float] = {}
    for process in on(host, device):
        busy[process.gi] = min(100.0, busy.get(process.gi, 0.0) + of_process(host, process, at_s))
    instances, total = device.gpu.instances, max(1, device.sm_total)
    parts = {gi: device.sms_of(instances[gi].profile) / total for gi in busy if gi in instances}
    return min(100.0, sum(busy[gi] * part for gi, part in parts.items()))


def power_mw(host: SimulatedHost, device: NvmlDevice, at_s: float) -> int | None:
    """Return what the device draws now, None where the table knows no figures of it."""
    idle_w, limit_mw = device.board.idle_w, device.power_limit_mw or device.default_limit_mw
    if idle_w is None or limit_mw is None:
        return None
    span_w = max(0.0, limit_mw / 1000 - idle_w)
    drift_w = _percent("idle", f"{host.seed}/{device.uuid}", int(at_s * STEPS_PER_S))
    drawn_w = idle_w + drift_w + span_w * FULL_LOAD_PART * device_percent(host, device, at_s) / 100
    return min(limit_mw, round(drawn_w * 1000))


def energy_mj(host: SimulatedHost, device: NvmlDevice, at_s: float) -> int | None:
    """Return the energy counter, brought up to now by the draw of this moment."""
    drawn = power_mw(host, device, at_s)
    if drawn is None:
        return None
    if device.energy_at_s is not None:
        device.energy_mj += drawn * max(0.0, at_s - device.energy_at_s)
    device.energy_at_s = at_s
    return round(device.energy_mj)


def temperature_c(host: SimulatedHost, device: NvmlDevice, at_s: float) -> int:
    """Return the temperature of the GPU, which follows the power drawn."""
    if device.temperature_c is not None:
        return device.temperature_c
    drawn, limit = power_mw(host, device, at_s), device.default_limit_mw
    return COOLEST_C if drawn is None or not limit else round(COOLEST_C + WARMING_C * drawn / limit)


def memory_bytes(
    host: SimulatedHost, device: NvmlDevice, part: ComputeInstance | None
) -> tuple[int, int, int]:
    """Return (total, reserved, used) of a device; a MIG device shares the memory of its whole GPU instance."""
    if part is None:
        total_mib, reserved_mib, inside = device.memory_mib, RESERVED_MIB, on(host, device)
    else:
        total_mib, reserved_mib = device.memory_of(part.gi.profile), 0
        inside = on(host, device, part.gi.id)
    used_mib = min(total_mib - reserved_mib, sum(p.memory_mib for p in inside))
    return total_mib * MIB, reserved_mib * MIB, used_mib * MIB
