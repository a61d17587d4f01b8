"""The simulated driver: every protocol of a driver over simulated devices, kept in a file of the state folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from nodeagent.drivers import errors
from nodeagent.drivers.base import Access, DriverReading, PartitionShape, ProcessFact, ShapeOffer, Tenant
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.protocol.boards import board
from nodeagent.protocol.messages import DeviceFact, HealthFact, PartitionFact
from nodeagent.simulation.devices.access import access_to
from nodeagent.simulation.devices.device import SimulatedDevice, SimulatedShare
from nodeagent.simulation.devices.measure import measure
from nodeagent.simulation.devices.store import HARDWARE, HardwareFile
from nodeagent.simulation.faults import Faults
from nodeagent.simulation.hardware import GpuInstance, SimulatedGpu

FIRST_PID = 40_000


class SimulatedDriver:
    """NVML's rules without hardware. What it holds survives the agent, not a (simulated) reboot."""

    name = "simulated"
    version = "simulated-1"

    def __init__(
        self,
        devices: Iterable[DeviceFact],
        state: Path,
        boot_id: str,
        *,
        faults: Faults | None = None,
        seed: int = 0,
        clock: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Open the hardware in ``state``; another ``boot_id`` than last time finds it rebooted."""
        self.faults = faults or Faults()
        self._seed, self._clock, self._sleep = seed, clock, sleep
        self._boot_id = boot_id
        self._devices = {fact.uuid: self._new_device(fact) for fact in devices}
        self._where: dict[str, str] = {}
        self.told: dict[str, str] = {}
        self._is_asleep = False
        self._energy_mj = dict.fromkeys(self._devices, 0.0)
        self._energy_at: int | None = None
        self._file = HardwareFile(state / HARDWARE)
        self._recall()

    @property
    def is_blocking(self) -> bool:
        """Say whether verbs take time, so that the agent should call them off its loop."""
        return any(self.faults.latency_s.values())

    def boot_id(self) -> str:
        """Return the simulated boot."""
        return self._boot_id

    def inventory(self) -> list[DeviceFact]:
        """Return the devices; MIG mode as it is now."""
        return [
            replace(
                simulated.fact, mig_enabled=simulated.gpu.mig_enabled if simulated.board.profiles else None
            )
            for simulated in self._devices.values()
        ]

    def catalogue(self, device: str) -> list[ShapeOffer]:
        """Return the shapes of a device."""
        return self._simulated(device).offers()

    def observe(self, device: str) -> list[PartitionFact]:
        """Return what exists on a device."""
        self._enter("observe")
        return self._present(device).partitions()

    def create(self, device: str, shape: PartitionShape, position: int, owner: str = "") -> PartitionFact:
        """Make a partition at this position, or refuse as NVML would."""
        self._enter("create")
        simulated = self._present(device)
        self.faults.refuse("create")
        if self._is_asleep:
            raise NvmlLikeError(errors.INVALID_ARGUMENT, "the node sleeps: wake it first")
        if shape.mode == "mig":
            return self._create_instance(simulated, shape.profile, position)
        part = simulated.new_part(shape, owner)
        self.faults.point("share.before")
        simulated.parts[part.uuid] = part
        self._where[part.uuid] = device
        self._file.append(_part_line(device, part))
        self.faults.point("share.after")
        return simulated.part_fact(part)

    def destroy(self, partition: str) -> None:
        """Remove a partition; gone already is success."""
        self._enter("destroy")
        simulated = self._owner(partition)
        if simulated is None:
            return
        self._require_present(simulated)
        self.faults.refuse("destroy")
        if partition in simulated.parts:
            self._destroy_part(simulated, partition)
        elif (instance := self._instance(simulated, partition)) is not None:
            self._destroy_instance(simulated, instance)

    def abandon(self, device: str, owner: str) -> None:
        """Forget an owner's shares of a lost device; its instances are gone with it."""
        simulated = self._simulated(device)
        for partition in [uuid for uuid, part in simulated.parts.items() if part.owner == owner]:
            simulated.tenants.pop(partition, None)
            self._forget_part(simulated, partition)

    def access(self, partition: str) -> Access:
        """Return environment and device nodes of a partition; NOT_FOUND when it does not exist."""
        simulated = self._owner(partition)
        if simulated is None:
            raise NvmlLikeError(errors.NOT_FOUND, partition)
        self._require_present(simulated)
        return access_to(simulated, partition, self._instance(simulated, partition))

    def processes(self, partition: str) -> list[ProcessFact]:
        """Return the simulated process of the tenant, if one is inside."""
        simulated = self._owner(partition)
        if simulated is None:
            return []
        self._require_present(simulated)
        if partition in simulated.tenants:
            return [ProcessFact(FIRST_PID + simulated.fact.index)]
        if self.faults.outlives_look(partition):
            return [ProcessFact(FIRST_PID + simulated.fact.index)]
        self._settle_pids(simulated, partition, [])
        return []

    def metrics(self) -> DriverReading:
        """Measure everything at this instant."""
        now = self._clock()
        readings = [
            measure(simulated, self._seed, now / 1e9, is_asleep=self._is_asleep)
            for simulated in self._devices.values()
        ]
        devices = tuple(sample for sample, _ in readings)
        elapsed_s = 0.0 if self._energy_at is None else (now - self._energy_at) / 1e9
        self._energy_at = now
        for sample in devices:
            self._energy_mj[sample.device] += (sample.power_w or 0.0) * elapsed_s * 1000
        counted = tuple(
            replace(s, energy_mj=None if s.power_w is None else round(self._energy_mj[s.device]))
            for s in devices
        )
        return DriverReading(counted, tuple(part for _, parts in readings for part in parts))

    def health(self) -> list[HealthFact]:
        """Return planned health facts and XID 79 for lost devices."""
        lost = [simulated.fact.uuid for simulated in self._devices.values() if simulated.gpu.is_lost]
        return [
            *self.faults.health,
            *(HealthFact(uuid, "79", "critical", "fallen off the bus") for uuid in lost),
        ]

    def mig_mode(self, device: str) -> bool | None:
        """Return the MIG mode of a device, None where its board has none or it is lost."""
        simulated = self._devices.get(device)
        if simulated is None or simulated.gpu.is_lost or not simulated.board.profiles:
            return None
        return simulated.gpu.mig_enabled

    def set_mig_mode(self, device: str, enabled: bool) -> int:
        """Switch MIG on an empty device; the return value is the activation status."""
        self._enter("mig")
        simulated = self._present(device)
        self.faults.refuse("mig")
        if simulated.parts:
            return errors.IN_USE
        self.faults.point("mig.before")
        status = simulated.gpu.set_mig_mode(enabled)
        if status == 0:
            self._file.append({"op": "mig", "device": device, "on": enabled})
        self.faults.point("mig.after")
        return status

    def attach(self, partition: str, tenant: Tenant) -> None:
        """Start the tenant's simulated process."""
        simulated = self._owner(partition)
        if simulated is None:
            raise NvmlLikeError(errors.NOT_FOUND, partition)
        self._require_present(simulated)
        self.faults.point("attach.before")
        simulated.tenants[partition] = tenant
        self._settle_pids(simulated, partition, [FIRST_PID + simulated.fact.index])
        self._file.append(_tenant_line(partition, tenant))
        self.faults.point("attach.after")

    def confine(self, partition: str, cgroup: str) -> None:
        """Nothing to bind: simulated shares keep their limits by themselves."""

    def detach(self, partition: str, *, kill: bool) -> None:
        """Stop the tenant's process; a stubborn one stays until killed or looked at often enough."""
        simulated = self._owner(partition)
        if kill:
            self.faults.stubborn.pop(partition, None)
        if simulated is None or partition not in simulated.tenants:
            return
        del simulated.tenants[partition]
        self._file.append({"op": "out", "partition": partition})

    def tell(self, partition: str, why: str) -> None:
        """Note that the tenant was told; its processes are not real ones, so nothing is signalled."""
        simulated = self._owner(partition)
        if simulated is not None and partition in simulated.tenants:
            self.told[partition] = why

    def power(self) -> str:
        """Return whether the simulated host sleeps."""
        return "asleep" if self._is_asleep else "awake"

    def set_power(self, *, asleep: bool) -> None:
        """Sleep with nothing on any device, or wake; takes as long as the latency of "sleep" and "wake"."""
        if asleep == self._is_asleep:
            return
        verb = "sleep" if asleep else "wake"
        self._enter(verb)
        self.faults.refuse(verb)
        if asleep and any(simulated.tenants for simulated in self._devices.values()):
            raise NvmlLikeError(errors.IN_USE, "a process is on a device")
        self.metrics()  # what was drawn until now counts as drawn in the state that ends
        self._is_asleep = asleep
        self._file.append({"op": "power", "asleep": asleep})

    def close(self) -> None:
        """Let go of the hardware's file."""
        self._file.close()

    def lose(self, device: str) -> None:
        """Let a GPU fall off the bus (XID 79), until the next reboot."""
        self._simulated(device).gpu.is_lost = True

    def reboot(self, boot_id: str) -> None:
        """Restart the simulated host: partitions are gone, MIG mode stays only where boards remember it."""
        self._boot_id = boot_id
        self._is_asleep = False
        self._where.clear()
        for simulated in self._devices.values():
            simulated.parts.clear()
            simulated.tenants.clear()
            simulated.gpu.reset(reboot=True)
        self._compact()

    def add_foreign(self, device: str, profile: str, start: int) -> PartitionFact:
        """Make a MIG instance behind the agent's back, as an operator with nvidia-smi would."""
        simulated = self._simulated(device)
        if simulated.gpu.set_mig_mode(True) == 0:
            self._file.append({"op": "mig", "device": device, "on": True})
        return self._create_instance(simulated, profile, start)

    def _create_instance(self, simulated: SimulatedDevice, profile_name: str, start: int) -> PartitionFact:
        profile = simulated.profile(profile_name)
        self.faults.point("gi.before")
        instance = simulated.gpu.create_gpu_instance(profile.profile_id, start)
        place = {"device": simulated.fact.uuid, "profile": profile_name, "start": start}
        self._where[simulated.instance_uuid(instance)] = simulated.fact.uuid
        self._file.append({"op": "gi", **place})
        self.faults.point("gi.after")
        self.faults.point("ci.before")
        simulated.gpu.create_compute_instance(instance)
        self._where[simulated.instance_uuid(instance)] = simulated.fact.uuid
        self._file.append({"op": "ci", **place})
        self.faults.point("ci.after")
        return simulated.instance_fact(instance)

    def _destroy_part(self, simulated: SimulatedDevice, partition: str) -> None:
        if self.processes(partition):
            raise NvmlLikeError(errors.IN_USE, f"a process is on {partition}")
        self._forget_part(simulated, partition)

    def _forget_part(self, simulated: SimulatedDevice, partition: str) -> None:
        self.faults.point("unshare.before")
        del simulated.parts[partition]
        self._where.pop(partition, None)
        self._file.append({"op": "unshare", "partition": partition})
        self.faults.point("unshare.after")

    def _destroy_instance(self, simulated: SimulatedDevice, instance: GpuInstance) -> None:
        place = {"device": simulated.fact.uuid, "profile": instance.profile.name, "start": instance.start}
        self.faults.point("unci.before")
        for compute in list(instance.compute):
            usual = simulated.instance_uuid(instance)
            simulated.gpu.destroy_compute_instance(instance, compute)
            self._where.pop(usual, None)
            self._where[simulated.instance_uuid(instance)] = simulated.fact.uuid
            self._file.append({"op": "unci", **place})
        self.faults.point("unci.after")
        self.faults.point("ungi.before")
        simulated.gpu.destroy_gpu_instance(instance)
        self._where.pop(simulated.instance_uuid(instance), None)
        self._file.append({"op": "ungi", **place})
        self.faults.point("ungi.after")
        if self._file.is_long:
            self._compact()

    def _enter(self, verb: str) -> None:
        if latency := self.faults.latency_s.get(verb):
            self._sleep(latency)

    def _new_device(self, fact: DeviceFact) -> SimulatedDevice:
        kind = board(fact.model)
        return SimulatedDevice(fact, kind, SimulatedGpu(kind, mig_enabled=bool(fact.mig_enabled)))

    def _simulated(self, device: str) -> SimulatedDevice:
        if device not in self._devices:
            raise NvmlLikeError(errors.NOT_FOUND, device)
        return self._devices[device]

    def _present(self, device: str) -> SimulatedDevice:
        simulated = self._simulated(device)
        self._require_present(simulated)
        return simulated

    def _require_present(self, simulated: SimulatedDevice) -> None:
        if simulated.gpu.is_lost:
            raise NvmlLikeError(errors.GPU_IS_LOST, simulated.fact.uuid)

    def _owner(self, partition: str) -> SimulatedDevice | None:
        device = self._where.get(partition)
        return None if device is None else self._devices[device]

    def _instance(self, simulated: SimulatedDevice, partition: str) -> GpuInstance | None:
        return next(
            (i for i in simulated.gpu.instances.values() if simulated.instance_uuid(i) == partition), None
        )

    def _settle_pids(self, simulated: SimulatedDevice, partition: str, pids: list[int]) -> None:
        instance = self._instance(simulated, partition)
        if instance is not None:
            instance.pids = pids

    def _recall(self) -> None:
        """Read the hardware file; lines of another boot keep only what survives a reboot."""
        changes = self._file.read()
        boot = changes[0].get("boot_id") if changes else self._boot_id
        for change in changes[1:]:
            self._replay(change)
        if boot != self._boot_id:
            self.reboot(self._boot_id)
        else:
            self._compact()

    def _replay(self, change: dict[str, Any]) -> None:
        """Repeat one remembered change; lines about devices that were taken out are skipped."""
        if change["op"] == "power":
            self._is_asleep = change["asleep"]
            return
        op, device = change["op"], change.get("device") or self._where.get(change.get("partition", ""))
        simulated = self._devices.get(device or "")
        if simulated is None:
            return
        if op == "mig":
            simulated.gpu.mig_enabled = change["on"]
        elif op == "share":
            part = SimulatedShare(change["uuid"], change["owner"], PartitionShape(**change["shape"]))
            simulated.parts[part.uuid] = part
            self._where[part.uuid] = simulated.fact.uuid
        elif op in ("in", "out", "unshare"):
            self._replay_partition(simulated, op, change)
        else:
            self._replay_instance(simulated, op, change["profile"], change["start"])

    def _replay_partition(self, simulated: SimulatedDevice, op: str, change: dict[str, Any]) -> None:
        uuid = change["partition"]
        if op == "in":
            simulated.tenants[uuid] = Tenant(change["lease"], change["load_pattern"])
            self._settle_pids(simulated, uuid, [FIRST_PID + simulated.fact.index])
            return
        simulated.tenants.pop(uuid, None)
        self._settle_pids(simulated, uuid, [])
        if op == "unshare":
            simulated.parts.pop(uuid, None)
            self._where.pop(uuid, None)

    def _replay_instance(self, simulated: SimulatedDevice, op: str, profile: str, start: int) -> None:
        if op == "gi":
            instance = simulated.gpu.create_gpu_instance(simulated.profile(profile).profile_id, start)
        else:
            instance = next(
                i for i in simulated.gpu.instances.values() if (i.profile.name, i.start) == (profile, start)
            )
            self._where.pop(simulated.instance_uuid(instance), None)
        if op == "ci":
            simulated.gpu.create_compute_instance(instance)
        elif op == "unci":
            instance.compute.clear()
        elif op == "ungi":
            instance.pids = []
            simulated.gpu.destroy_gpu_instance(instance)
            return
        self._where[simulated.instance_uuid(instance)] = simulated.fact.uuid

    def _compact(self) -> None:
        lines: list[dict[str, Any]] = [{"op": "boot", "boot_id": self._boot_id}]
        if self._is_asleep:
            lines.append({"op": "power", "asleep": True})
        for uuid, simulated in self._devices.items():
            lines.append({"op": "mig", "device": uuid, "on": simulated.gpu.mig_enabled})
            for i in simulated.gpu.instances.values():
                place = {"device": uuid, "profile": i.profile.name, "start": i.start}
                lines += [{"op": op, **place} for op in (("gi", "ci") if i.compute else ("gi",))]
            lines += [_part_line(uuid, part) for part in simulated.parts.values()]
            lines += [_tenant_line(partition, tenant) for partition, tenant in simulated.tenants.items()]
        self._file.rewrite(lines)


def _tenant_line(partition: str, tenant: Tenant) -> dict[str, Any]:
    return {"op": "in", "partition": partition, **{name: getattr(tenant, name) for name in Tenant.__slots__}}


def _part_line(device: str, part: SimulatedShare) -> dict[str, Any]:
    shape = {name: getattr(part.shape, name) for name in PartitionShape.__slots__}
    return {"op": "share", "device": device, "uuid": part.uuid, "owner": part.owner, "shape": shape}
