"""NVIDIA cards, read-only: inventory, metrics and health; a whole card needs no change to be leased."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pynvml

from nodeagent import notices
from nodeagent.drivers.base import (
    Access,
    Offer,
    PartitionSample,
    ProcessFact,
    Reading,
    Shape,
    Tenant,
)
from nodeagent.drivers.errors import DriverUnavailableError, NotOfferedError
from nodeagent.drivers.nvml.facts import ask, device_fact, health_of, instance_facts, text
from nodeagent.drivers.nvml.power import PowerLimits
from nodeagent.drivers.nvml.topology import seats
from nodeagent.protocol.messages import DeviceFact, DeviceSample, HealthFact, PartitionFact

log = logging.getLogger(__name__)

MIB = 1024 * 1024


class NvmlDriver:
    """Reads real cards. Every call may fail or be missing in the installed driver: then a figure is None."""

    name = "nvml"
    is_blocking = True

    def __init__(self, boot_id: str, library: Any = pynvml, *, may_limit_power: bool = False) -> None:
        """Open NVML; raises DriverUnavailableError when there is no driver or no card.

        ``may_limit_power``: the operator lets the agent lower power limits while the node sleeps.
        """
        self._nvml = library
        self._boot_id = boot_id
        try:
            library.nvmlInit()
            count = library.nvmlDeviceGetCount()
        except library.NVMLError as no:
            raise DriverUnavailableError(f"no NVIDIA driver was found ({no})") from no
        if not count:
            raise DriverUnavailableError("the NVIDIA driver lists no device")
        self.version = text(ask(library, "nvmlSystemGetDriverVersion")) or "unknown"
        self._handles: dict[str, Any] = {}
        self._facts: dict[str, DeviceFact] = {}
        for index in range(count):
            self._learn(index)
        for uuid, seat in seats(library, self._handles).items():
            self._facts[uuid] = replace(self._facts[uuid], **seat._asdict())
        self._limits = PowerLimits(library, self._handles, is_allowed=may_limit_power)

    def boot_id(self) -> str:
        """Return the boot of the host."""
        return self._boot_id

    def inventory(self) -> list[DeviceFact]:
        """Return the cards as they were when the agent started."""
        return list(self._facts.values())

    def catalogue(self, device: str) -> list[Offer]:
        """Return the one shape that needs no change: the whole card."""
        fact = self._facts[device]
        whole = Shape("exclusive", "", fact.grid, 1000, fact.memory_mib)
        return [Offer(whole, (0,), 1)] if "exclusive" in fact.modes else []

    def observe(self, device: str) -> list[PartitionFact]:
        """Return the MIG instances on a card; none of them is ours in this version."""
        return instance_facts(self._nvml, self._handles[device], self._facts[device])

    def create(self, device: str, shape: Shape, position: int, owner: str = "") -> PartitionFact:
        """Hand out a whole card; anything else is not offered yet."""
        fact = self._facts[device]
        if shape.mode not in fact.modes:
            raise NotOfferedError(
                f"{shape.mode} is not offered by this version on NVIDIA cards; ask for whole devices"
            )
        return PartitionFact(device, device, "", 0, fact.grid)

    def destroy(self, partition: str) -> None:
        """Nothing was changed for a whole card, so nothing is undone."""

    def access(self, partition: str) -> Access:
        """Return the variable and the device nodes of a whole card."""
        minor = ask(self._nvml, "nvmlDeviceGetMinorNumber", self._handles[partition])
        nodes = ("/dev/nvidiactl", "/dev/nvidia-uvm")
        own = () if minor is None else (f"/dev/nvidia{minor}",)
        return Access({"CUDA_VISIBLE_DEVICES": partition}, (*nodes, *own))

    def processes(self, partition: str) -> list[ProcessFact]:
        """Return the compute processes on a card."""
        running = ask(self._nvml, "nvmlDeviceGetComputeRunningProcesses", self._handles[partition])
        return [ProcessFact(process.pid, _mib(process.usedGpuMemory)) for process in running or []]

    def metrics(self) -> Reading:
        """Measure every card."""
        samples = [self._sample(uuid) for uuid in self._facts]
        parts = tuple(
            PartitionSample(
                partition=sample.device,
                device=sample.device,
                start=0,
                util_percent=sample.util_percent,
                memory_used_mib=sample.memory_used_mib,
                memory_mib=self._facts[sample.device].memory_mib,
                source=sample.source,
            )
            for sample in samples
        )
        return Reading(tuple(samples), parts)

    def health(self) -> list[HealthFact]:
        """Return lost cards, pending repairs and what the driver asks an operator to do."""
        found: list[HealthFact] = []
        for uuid, handle in self._handles.items():
            found += health_of(self._nvml, uuid, handle)
        return found

    def set_mig_mode(self, device: str, enabled: bool) -> int:
        """Refuse: this version does not repartition NVIDIA cards."""
        raise NotOfferedError("switching MIG is not offered by this version; ask for whole devices")

    def attach(self, partition: str, tenant: Tenant) -> None:
        """Nothing to start: the holder's own processes use the card."""

    def confine(self, partition: str, cgroup: str) -> None:
        """Nothing to bind: a whole card has no limits of its own."""

    def detach(self, partition: str, *, kill: bool) -> None:
        """Nothing to stop: this version ends no processes, it waits until the card lists none."""

    def tell(self, partition: str, why: str) -> None:
        """Signal the processes on a card that listen for it."""
        called = notices.call(process.pid for process in self.processes(partition))
        log.info("told %d process(es) on %s that their lease ends (%s)", len(called), partition, why)

    def power(self) -> str:
        """Return whether the cards stand at their lowest power limit."""
        return self._limits.state()

    def set_power(self, *, asleep: bool) -> None:
        """Lower the power limits of all cards, or put them back."""
        if asleep:
            self._limits.lower()
        else:
            self._limits.restore()

    def _learn(self, index: int) -> None:
        handle = ask(self._nvml, "nvmlDeviceGetHandleByIndex", index)
        fact = None if handle is None else device_fact(self._nvml, handle, index)
        if fact is not None:
            self._handles[fact.uuid], self._facts[fact.uuid] = handle, fact

    def _sample(self, uuid: str) -> DeviceSample:
        nvml, handle = self._nvml, self._handles[uuid]
        rates = ask(self._nvml, "nvmlDeviceGetUtilizationRates", handle)
        memory = ask(self._nvml, "nvmlDeviceGetMemoryInfo", handle)
        power_mw = ask(self._nvml, "nvmlDeviceGetPowerUsage", handle)
        temperature = ask(self._nvml, "nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU)
        energy_mj = ask(self._nvml, "nvmlDeviceGetTotalEnergyConsumption", handle)
        return DeviceSample(
            device=uuid,
            util_percent=None if rates is None else float(rates.gpu),
            memory_used_mib=None if memory is None else memory.used // MIB,
            power_w=None if power_mw is None else power_mw / 1000,
            temperature_c=None if temperature is None else float(temperature),
            energy_mj=energy_mj,
            source="unavailable" if rates is None else "nvml",
        )


def _mib(value: int | None) -> int | None:
    return None if value is None else value // MIB
