"""One simulated device with everything on it: MIG instances, shares, a whole-device holder, its tenants."""

from __future__ import annotations

from dataclasses import dataclass, field

from nodeagent.drivers import errors
from nodeagent.drivers.base import PartitionShape, ShapeOffer, Tenant
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.protocol.boards import BoardModel, BoardProfile
from nodeagent.protocol.messages import DeviceFact, PartitionFact
from nodeagent.protocol.uuids import share_uuid, simulated_mig_uuid
from nodeagent.simulation.hardware import GpuInstance, SimulatedGpu

WHOLE = 1000


@dataclass(frozen=True, slots=True)
class SimulatedShare:
    """A share of a device, or the whole of it (mode exclusive), in the hands of ``owner``."""

    uuid: str
    owner: str
    shape: PartitionShape


@dataclass(slots=True)
class SimulatedDevice:
    """A device: ``gpu`` keeps MIG's rules, ``parts`` everything else; ``tenants`` by partition uuid."""

    fact: DeviceFact
    board: BoardModel
    gpu: SimulatedGpu
    parts: dict[str, SimulatedShare] = field(default_factory=dict)
    tenants: dict[str, Tenant] = field(default_factory=dict)

    def offers(self) -> list[ShapeOffer]:
        """Return what this device can be cut into, as far as its allowed modes go."""
        modes = self.fact.modes
        offers = [
            ShapeOffer(PartitionShape("exclusive", "", self.fact.grid, WHOLE, self.fact.memory_mib), (0,), 1)
        ]
        offers = offers if "exclusive" in modes else []
        if "mig" in modes:
            offers += [self._mig_offer(profile) for profile in self.board.profiles]
        shared = [mode for mode in modes if mode not in ("exclusive", "mig")]
        return offers + [
            ShapeOffer(PartitionShape(mode, "", 0, WHOLE, self.fact.memory_mib), (0,), self.fact.max_clients)
            for mode in shared
        ]

    def partitions(self) -> list[PartitionFact]:
        """Return what exists, half-made MIG instances included."""
        facts = [self.instance_fact(i) for i in list(self.gpu.instances.values())]
        return facts + [self.part_fact(part) for part in list(self.parts.values())]

    def instance_fact(self, instance: GpuInstance) -> PartitionFact:
        """Describe one MIG instance; without a compute instance its name is ``<gpu>/gi<id>``."""
        name = instance.profile.name
        return PartitionFact(
            uuid=self.instance_uuid(instance),
            device=self.fact.uuid,
            profile=name,
            start=instance.start,
            size=instance.profile.memory_slices,
        )

    def instance_uuid(self, instance: GpuInstance) -> str:
        """Return the MIG UUID, or the stand-in for an instance that CUDA cannot use yet."""
        if not instance.compute:
            return f"{self.fact.uuid}/gi{instance.id}"
        return simulated_mig_uuid(self.fact.uuid, instance.profile.name, instance.start)

    def part_fact(self, part: SimulatedShare) -> PartitionFact:
        """Describe a share or the whole device."""
        is_whole = part.shape.mode == "exclusive"
        profile = "" if is_whole else part.shape.mode
        return PartitionFact(
            part.uuid, self.fact.uuid, profile, 0, self.fact.grid if is_whole else 0, part.owner
        )

    def profile(self, name: str) -> BoardProfile:
        """Return a profile of this board by name; INVALID_ARGUMENT when there is none."""
        found = self.board.profile(name)
        if found is None:
            raise NvmlLikeError(errors.INVALID_ARGUMENT, f"{self.board.id} has no profile {name!r}")
        return found

    def new_part(self, shape: PartitionShape, owner: str) -> SimulatedShare:
        """Return the share or whole device that may be made now; refused with NVML codes when not."""
        self._require_offered(shape.mode)
        if self.gpu.mig_enabled:
            raise NvmlLikeError(errors.NOT_SUPPORTED, f"{shape.mode} needs MIG off")
        if shape.mode == "exclusive":
            return self._new_whole(owner)
        uuid = share_uuid(self.fact.uuid, shape.mode, owner)
        others = [part.shape for part in self.parts.values() if part.uuid != uuid]
        if any(other.mode != shape.mode for other in others):
            raise NvmlLikeError(errors.INSUFFICIENT_RESOURCES, f"the device serves {others[0].mode}")
        self._require_room(shape, others)
        return SimulatedShare(uuid, owner, shape)

    def _new_whole(self, owner: str) -> SimulatedShare:
        if any(part.owner != owner for part in self.parts.values()):
            raise NvmlLikeError(errors.INSUFFICIENT_RESOURCES, "the device is not empty")
        shape = PartitionShape("exclusive", "", self.fact.grid, WHOLE, self.fact.memory_mib)
        return SimulatedShare(self.fact.uuid, owner, shape)

    def _require_room(self, shape: PartitionShape, others: list[PartitionShape]) -> None:
        if len(others) >= self.fact.max_clients:
            raise NvmlLikeError(errors.INSUFFICIENT_RESOURCES, f"{self.fact.max_clients} shares are the most")
        # A limit reserves nothing: limits may add up to more than the device has, one alone may not.
        if shape.memory_mib > self.fact.memory_mib:
            raise NvmlLikeError(errors.INSUFFICIENT_RESOURCES, "the device has not that much memory")
        if sum(other.share_milli for other in others) + shape.share_milli > WHOLE:
            raise NvmlLikeError(errors.INSUFFICIENT_RESOURCES, "not enough compute for another share")

    def _require_offered(self, mode: str) -> None:
        if mode not in self.fact.modes:
            raise NvmlLikeError(errors.NOT_SUPPORTED, f"{mode} is not offered on this device")

    def _mig_offer(self, profile: BoardProfile) -> ShapeOffer:
        shape = PartitionShape("mig", profile.name, profile.memory_slices, 0, profile.memory_mib or 0)
        return ShapeOffer(shape, profile.starts, profile.max_instances)
