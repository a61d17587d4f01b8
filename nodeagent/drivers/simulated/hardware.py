"""One simulated GPU with the rules and error codes of NVML's MIG calls (names follow nvml.h)."""

from __future__ import annotations

from dataclasses import dataclass, field

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.protocol.boards import Board, BoardProfile

PROFILE_COUNT = 18


@dataclass(slots=True, eq=False)
class GpuInstance:
    """A GPU instance; the object is also its handle, which goes stale when the instance is destroyed."""

    id: int
    profile: BoardProfile
    start: int
    compute: set[int] = field(default_factory=set)
    pids: list[int] = field(default_factory=list)
    is_stale: bool = False

    @property
    def span(self) -> range:
        """Memory slices it occupies."""
        return range(self.start, self.start + self.profile.memory_slices)


@dataclass(slots=True)
class SimulatedGpu:
    """State of one card. ``clients`` counts who holds it open (monitors too); ``is_lost`` is XID 79."""

    board: Board
    mig_enabled: bool = False
    is_root: bool = True
    is_passthrough: bool = False
    is_lost: bool = False
    clients: int = 0
    pending_mig: bool | None = None
    instances: dict[int, GpuInstance] = field(default_factory=dict)

    def mig_mode(self) -> tuple[bool, bool]:
        """Return (current, pending), as nvmlDeviceGetMigMode."""
        self._require_board()
        return self.mig_enabled, self.mig_enabled if self.pending_mig is None else self.pending_mig

    def set_mig_mode(self, enabled: bool) -> int:
        """Switch and return the activation status: 0 done, IN_USE or RESET_REQUIRED pending."""
        self._require_board()
        self._require_root()
        if enabled == self.mig_enabled:
            self.pending_mig = None
            return 0
        if self.instances or (self.board.resets_for_mig and self.clients):
            self.pending_mig = enabled
            return errors.IN_USE
        if self.board.resets_for_mig and self.is_passthrough:
            self.pending_mig = enabled
            return errors.RESET_REQUIRED
        self.mig_enabled, self.pending_mig = enabled, None
        return 0

    def profile_info(self, enum: int) -> BoardProfile:
        """Return a profile by its NVML enum (not by the id that other calls take)."""
        self._require_board()
        if not 0 <= enum < PROFILE_COUNT:
            raise NvmlLikeError(errors.INVALID_ARGUMENT, f"profile enum {enum}")
        found = next((p for p in self.board.profiles if p.nvml_enum == enum), None)
        if found is None:
            raise NvmlLikeError(errors.NOT_SUPPORTED, f"profile enum {enum} is not on this board")
        return found

    def possible_placements(self, profile_id: int) -> list[tuple[int, int]]:
        """Return every legal (start, size), free or not; works with MIG off."""
        self._require_board()
        self._require_root()
        profile = self._profile(profile_id)
        return [(start, profile.memory_slices) for start in profile.starts]

    def remaining_capacity(self, profile_id: int) -> int:
        """Return how many more instances of a profile fit, as nvmlDeviceGetGpuInstanceRemainingCapacity."""
        self._require_mig()
        profile = self._profile(profile_id)
        taken = {slot for instance in self.instances.values() for slot in instance.span}
        room, fits = set(taken), 0
        for start in profile.starts:
            span = set(range(start, start + profile.memory_slices))
            if not span & room:
                room |= span
                fits += 1
        return min(fits, profile.max_instances - self._count(profile_id))

    def create_gpu_instance(self, profile_id: int, start: int) -> GpuInstance:
        """Make an instance at exactly this placement."""
        self._require_mig()
        self._require_root()
        profile = self._profile(profile_id)
        if start not in profile.starts:
            raise NvmlLikeError(errors.INVALID_ARGUMENT, f"{profile.name} cannot start at {start}")
        span = set(range(start, start + profile.memory_slices))
        if any(span & set(other.span) for other in self.instances.values()):
            raise NvmlLikeError(errors.INSUFFICIENT_RESOURCES, f"{profile.name} at {start} overlaps")
        if self._count(profile_id) >= profile.max_instances:
            raise NvmlLikeError(errors.INSUFFICIENT_RESOURCES, f"no more {profile.name} on this board")
        instance = GpuInstance(self._free_id(profile, start), profile, start)
        self.instances[instance.id] = instance
        return instance

    def create_compute_instance(self, instance: GpuInstance) -> int:
        """Make the one compute instance that spans a GPU instance."""
        self._require_alive(instance)
        self._require_root()
        if instance.compute:
            raise NvmlLikeError(errors.INSUFFICIENT_RESOURCES, "the compute slices are taken")
        instance.compute.add(0)
        return 0

    def gpu_instances(self, profile_id: int) -> list[GpuInstance]:
        """Return the instances of one profile."""
        self._require_mig()
        self._profile(profile_id)
        return [i for i in self.instances.values() if i.profile.profile_id == profile_id]

    def gpu_instance_by_id(self, gi_id: int) -> GpuInstance:
        """Return an instance by id; NOT_FOUND when there is none."""
        self._require_mig()
        if gi_id not in self.instances:
            raise NvmlLikeError(errors.NOT_FOUND, f"GPU instance {gi_id}")
        return self.instances[gi_id]

    def max_mig_device_count(self) -> int:
        """Return the largest number of MIG devices; 0 while MIG is off or unknown to the board."""
        return max((p.max_instances for p in self.board.profiles), default=0) if self.mig_enabled else 0

    def mig_device_by_index(self, index: int) -> GpuInstance:
        """Return a usable instance by sparse index; gaps are NOT_FOUND."""
        self._require_mig()
        if not 0 <= index < self.max_mig_device_count():
            raise NvmlLikeError(errors.INVALID_ARGUMENT, f"MIG index {index}")
        usable = [i for i in sorted(self.instances.values(), key=lambda i: i.id) if i.compute]
        if index >= len(usable):
            raise NvmlLikeError(errors.NOT_FOUND, f"no MIG device at index {index}")
        return usable[index]

    def destroy_compute_instance(self, instance: GpuInstance, ci_id: int) -> None:
        """Remove a compute instance; IN_USE while a process is on it."""
        self._require_alive(instance)
        self._require_root()
        if instance.pids:
            raise NvmlLikeError(errors.IN_USE, f"a process is on GPU instance {instance.id}")
        if ci_id not in instance.compute:
            raise NvmlLikeError(errors.INVALID_ARGUMENT, "stale compute instance")
        instance.compute.remove(ci_id)

    def destroy_gpu_instance(self, instance: GpuInstance) -> None:
        """Remove an instance; IN_USE while a compute instance or a process remains."""
        self._require_alive(instance)
        self._require_root()
        if instance.compute or instance.pids:
            raise NvmlLikeError(errors.IN_USE, f"GPU instance {instance.id} is still used")
        instance.is_stale = True
        del self.instances[instance.id]

    def utilization_rates(self) -> None:
        """Refuse as NVML does while MIG is on; the figures come from the load model."""
        self._require_present()
        if self.mig_enabled:
            raise NvmlLikeError(errors.NOT_SUPPORTED, "utilisation of a MIG-enabled GPU")

    def reset(self, *, reboot: bool) -> None:
        """Lose all instances; the mode survives only where the board remembers it."""
        for instance in self.instances.values():
            instance.is_stale = True
        self.instances.clear()
        self.pending_mig = None
        if reboot:
            self.is_lost = False
        if not self.board.mig_survives_reboot:
            self.mig_enabled = False

    def _count(self, profile_id: int) -> int:
        return sum(i.profile.profile_id == profile_id for i in self.instances.values())

    def _profile(self, profile_id: int) -> BoardProfile:
        found = next((p for p in self.board.profiles if p.profile_id == profile_id), None)
        if found is None:
            raise NvmlLikeError(errors.INVALID_ARGUMENT, f"profile id {profile_id}")
        return found

    def _free_id(self, profile: BoardProfile, start: int) -> int:
        """Return the id that published listings show for this size and start, or the next free one."""
        usual = _USUAL_IDS.get((self.board.memory_slices, profile.name[0], profile.memory_slices, start), 1)
        ids: list[int] = [usual, *range(1, 64)]
        return next(i for i in ids if i not in self.instances)

    def _require_present(self) -> None:
        if self.is_lost:
            raise NvmlLikeError(errors.GPU_IS_LOST, "XID 79: the GPU has fallen off the bus")

    def _require_board(self) -> None:
        self._require_present()
        if not self.board.profiles:
            raise NvmlLikeError(errors.NOT_SUPPORTED, f"{self.board.id} has no MIG")

    def _require_mig(self) -> None:
        self._require_board()
        if not self.mig_enabled:
            raise NvmlLikeError(errors.NOT_SUPPORTED, "MIG is off")

    def _require_root(self) -> None:
        if not self.is_root:
            raise NvmlLikeError(errors.NO_PERMISSION, "changes need root")

    def _require_alive(self, instance: GpuInstance) -> None:
        self._require_present()
        if instance.is_stale:
            raise NvmlLikeError(errors.INVALID_ARGUMENT, "stale handle")


def _usual_ids() -> dict[tuple[int, str, int, int], int]:
    """Ids by (grid, compute width, size, start), as published listings of 8-slice boards show them."""
    ids = {(8, "7", 8, 0): 0, (8, "4", 4, 0): 1, (8, "3", 4, 4): 1, (8, "3", 4, 0): 2}
    ids |= {(8, "2", 2, start): 3 + start // 2 for start in (0, 2, 4)}
    ids |= {(8, "1", 2, start): 3 + start // 2 for start in (0, 2, 4, 6)}
    ids |= {(8, "1", 1, start): 7 + start for start in range(7)}
    return ids


_USUAL_IDS = _usual_ids()
