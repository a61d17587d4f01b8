"""One simulated GPU with the rules and error codes of NVML's MIG calls (names follow nvml.h)."""

from __future__ import annotations

from dataclasses import dataclass, field

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.protocol.boards import BoardModel, BoardProfile

PROFILE_COUNT = 18
# The capability files of a driver know fifteen GPU instances with eight compute instances each, on every GPU.
MOST_INSTANCES = 15
# How many compute instances of a width fit into a GPU instance, by its compute slices (NVIDIA's MIG guide, -lcip).
COMPUTE_COUNTS: dict[int, dict[int, int]] = {
    1: {1: 1},
    2: {1: 2, 2: 1},
    3: {1: 3, 2: 1, 3: 1},
    4: {1: 4, 2: 2, 4: 1},
    7: {1: 7, 2: 3, 3: 2, 4: 1, 7: 1},
}
_STEPS = {1: 1, 2: 2, 3: 4, 4: 4, 7: 7}


@dataclass(slots=True, eq=False)
class ComputeInstance:
    """A compute instance of ``slices`` compute slices from ``start``; ``mig_index`` is its place among MIG devices."""

    id: int
    gi: GpuInstance
    start: int
    slices: int
    mig_index: int
    is_stale: bool = False


@dataclass(slots=True, eq=False)
class GpuInstance:
    """A GPU instance; the object is also its handle, which goes stale when the instance is destroyed."""

    id: int
    profile: BoardProfile
    start: int
    compute: dict[int, ComputeInstance] = field(default_factory=dict)
    pids: list[int] = field(default_factory=list)
    is_stale: bool = False

    @property
    def span(self) -> range:
        """Memory slices it occupies."""
        return range(self.start, self.start + self.profile.memory_slices)

    @property
    def mask(self) -> int:
        """The same as bits."""
        return ((1 << self.profile.memory_slices) - 1) << self.start


@dataclass(slots=True)
class SimulatedGpu:
    """State of one device. ``clients`` counts who holds it open (monitors too); ``is_lost`` is XID 79.

    ``has_work``: a process runs on it. ``has_mig_config``: instances may be managed without being root, as one
    who may open the driver's capability ``mig/config``; the mode still needs root.
    """

    board: BoardModel
    mig_enabled: bool = False
    is_root: bool = True
    is_passthrough: bool = False
    is_lost: bool = False
    clients: int = 0
    pending_mig: bool | None = None
    instances: dict[int, GpuInstance] = field(default_factory=dict)
    has_work: bool = False
    has_mig_config: bool = False
    _by_id: dict[int, BoardProfile] = field(default_factory=dict, init=False, repr=False)
    _by_enum: dict[int, BoardProfile] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Sort the profiles of the board by both of their numbers."""
        self._by_id = {p.profile_id: p for p in self.board.profiles}
        self._by_enum = {p.nvml_enum: p for p in self.board.profiles}

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
        if self.instances or self.has_work or (self.board.resets_for_mig and self.clients):
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
        found = self._by_enum.get(enum)
        if found is None:
            raise NvmlLikeError(errors.NOT_SUPPORTED, f"profile enum {enum} is not on this board")
        return found

    def possible_placements(self, profile_id: int) -> list[tuple[int, int]]:
        """Return every legal (start, size), free or not; works with MIG off."""
        self._require_board()
        self._require_right()
        profile = self._profile(profile_id)
        return [(start, profile.memory_slices) for start in profile.starts]

    def remaining_capacity(self, profile_id: int) -> int:
        """Return how many more instances of a profile fit, as nvmlDeviceGetGpuInstanceRemainingCapacity."""
        self._require_mig()
        self._require_right()
        profile = self._profile(profile_id)
        room, fits = self.taken, 0
        for start in profile.starts:
            mask = ((1 << profile.memory_slices) - 1) << start
            if not mask & room:
                room |= mask
                fits += 1
        return min(fits, profile.max_instances - self._count(profile_id))

    @property
    def taken(self) -> int:
        """Memory slices that instances occupy, as bits."""
        bits = 0
        for instance in self.instances.values():
            bits |= instance.mask
        return bits

    def create_gpu_instance(self, profile_id: int, start: int) -> GpuInstance:
        """Make an instance at exactly this placement."""
        self._require_mig()
        self._require_right()
        profile = self._profile(profile_id)
        if start not in profile.starts:
            raise NvmlLikeError(errors.INVALID_ARGUMENT, f"{profile.name} cannot start at {start}")
        instance = GpuInstance(0, profile, start)
        if instance.mask & self.taken:
            raise NvmlLikeError(errors.INSUFFICIENT_RESOURCES, f"{profile.name} at {start} overlaps")
        if self._count(profile_id) >= profile.max_instances:
            raise NvmlLikeError(errors.INSUFFICIENT_RESOURCES, f"no more {profile.name} on this board")
        instance.id = self._free_id(profile, start)
        self.instances[instance.id] = instance
        return instance

    def create_anywhere(self, profile_id: int) -> GpuInstance:
        """Make an instance at the first place that is free, as the driver does when nobody names one."""
        self._require_mig()
        self._require_right()
        profile, taken = self._profile(profile_id), self.taken
        for start in profile.starts:
            if not ((1 << profile.memory_slices) - 1) << start & taken:
                return self.create_gpu_instance(profile_id, start)
        raise NvmlLikeError(errors.INSUFFICIENT_RESOURCES, f"no room for {profile.name}")

    def compute_starts(self, instance: GpuInstance, slices: int) -> list[int]:
        """Return where compute instances of this width may start; INVALID_ARGUMENT for a width it cannot have."""
        self._require_alive(instance)
        width = instance.profile.compute_slices
        count = COMPUTE_COUNTS.get(width, {}).get(slices)
        if count is None:
            raise NvmlLikeError(errors.INVALID_ARGUMENT, f"no compute instance of {slices} slices in {width}")
        return [n * _STEPS[slices] for n in range(count)]

    def free_compute_starts(self, instance: GpuInstance, slices: int) -> list[int]:
        """Return those of ``compute_starts`` that are free."""
        taken = {slot for c in instance.compute.values() for slot in range(c.start, c.start + c.slices)}
        starts = self.compute_starts(instance, slices)
        return [start for start in starts if taken.isdisjoint(range(start, start + slices))]

    def create_compute_instance(
        self, instance: GpuInstance, slices: int | None = None, start: int | None = None
    ) -> int:
        """Make a compute instance, spanning its GPU instance unless ``slices`` says otherwise; returns its id."""
        self._require_alive(instance)
        self._require_right()
        width = instance.profile.compute_slices if slices is None else slices
        if start is not None and start not in self.compute_starts(instance, width):
            raise NvmlLikeError(errors.INVALID_ARGUMENT, f"a compute instance cannot start at {start}")
        free = self.free_compute_starts(instance, width)
        place = start if start is not None else next(iter(free), -1)
        if place not in free:
            raise NvmlLikeError(errors.INSUFFICIENT_RESOURCES, "the compute slices are taken")
        used = {c.mig_index for i in self.instances.values() for c in i.compute.values()}
        index = next(n for n in range(self.max_mig_device_count() + 1) if n not in used)
        ci_id = next(n for n in range(8) if n not in instance.compute)
        instance.compute[ci_id] = ComputeInstance(ci_id, instance, place, width, index)
        return ci_id

    def gpu_instances(self, profile_id: int) -> list[GpuInstance]:
        """Return the instances of one profile."""
        self._require_mig()
        self._require_right()
        self._profile(profile_id)
        return [i for i in self.instances.values() if i.profile.profile_id == profile_id]

    def gpu_instance_by_id(self, gi_id: int) -> GpuInstance:
        """Return an instance by id; NOT_FOUND when there is none."""
        self._require_mig()
        self._require_right()
        if gi_id not in self.instances:
            raise NvmlLikeError(errors.NOT_FOUND, f"GPU instance {gi_id}")
        return self.instances[gi_id]

    def max_mig_device_count(self) -> int:
        """Return the largest number of MIG devices; 0 while MIG is off or unknown to the board."""
        return max((p.max_instances for p in self.board.profiles), default=0) if self.mig_enabled else 0

    def mig_device_by_index(self, index: int) -> ComputeInstance:
        """Return a usable instance by its index, which it keeps for life; gaps are NOT_FOUND."""
        self._require_mig()
        if not 0 <= index < self.max_mig_device_count():
            raise NvmlLikeError(errors.INVALID_ARGUMENT, f"MIG index {index}")
        for instance in self.instances.values():
            for compute in instance.compute.values():
                if compute.mig_index == index:
                    return compute
        raise NvmlLikeError(errors.NOT_FOUND, f"no MIG device at index {index}")

    def destroy_compute_instance(self, instance: GpuInstance, ci_id: int, *, is_busy: bool = False) -> None:
        """Remove a compute instance; IN_USE while a process is on it."""
        self._require_alive(instance)
        self._require_right()
        if instance.pids or is_busy:
            raise NvmlLikeError(errors.IN_USE, f"a process is on GPU instance {instance.id}")
        if ci_id not in instance.compute:
            raise NvmlLikeError(errors.INVALID_ARGUMENT, "stale compute instance")
        instance.compute.pop(ci_id).is_stale = True

    def destroy_gpu_instance(self, instance: GpuInstance, *, is_busy: bool = False) -> None:
        """Remove an instance; IN_USE while a compute instance or a process remains."""
        self._require_alive(instance)
        self._require_right()
        if instance.compute or instance.pids or is_busy:
            raise NvmlLikeError(errors.IN_USE, f"GPU instance {instance.id} is still used")
        instance.is_stale = True
        del self.instances[instance.id]

    def utilization_rates(self) -> None:
        """Refuse as NVML does while MIG is on; the figures come from the load model."""
        self._require_present()
        if self.mig_enabled:
            raise NvmlLikeError(errors.NOT_SUPPORTED, "utilisation of a MIG-enabled GPU")

    def reset(self, *, reboot: bool) -> None:
        """Lose all instances. Boards that remember the mode come back in the one that was pending."""
        for instance in self.instances.values():
            instance.is_stale = True
            for compute in instance.compute.values():
                compute.is_stale = True
        self.instances.clear()
        if self.board.mig_survives_reboot and self.pending_mig is not None:
            self.mig_enabled = self.pending_mig
        self.pending_mig = None
        if reboot:
            self.is_lost = False
        if not self.board.mig_survives_reboot:
            self.mig_enabled = False

    def _count(self, profile_id: int) -> int:
        return sum(i.profile.profile_id == profile_id for i in self.instances.values())

    def _profile(self, profile_id: int) -> BoardProfile:
        found = self._by_id.get(profile_id)
        if found is None:
            raise NvmlLikeError(errors.INVALID_ARGUMENT, f"profile id {profile_id}")
        return found

    def _free_id(self, profile: BoardProfile, start: int) -> int:
        """Return the id that published listings show for this size and start, or the next free one."""
        usual = usual_id(self.board.memory_slices, profile, start)
        ids: list[int] = [usual, *range(1, MOST_INSTANCES)]
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

    def _require_right(self) -> None:
        if not (self.is_root or self.has_mig_config):
            raise NvmlLikeError(errors.NO_PERMISSION, "instances need root or the capability mig/config")

    def _require_alive(self, instance: GpuInstance) -> None:
        self._require_present()
        if instance.is_stale:
            raise NvmlLikeError(errors.INVALID_ARGUMENT, "stale handle")


def usual_id(grid: int, profile: BoardProfile, start: int) -> int:
    """Return the id of an instance by size and start, as published listings of 8-slice boards show them.

    They count the whole as 0, halves 1 and 2, quarters 3 to 6, eighths from 7 on; three compute slices are
    counted from the other end. Boards with another grid are taken to count alike.
    """
    parts = grid // profile.memory_slices
    place = start // profile.memory_slices
    if profile.compute_slices == 3:
        place = parts - 1 - place
    return parts - 1 + place
