"""One device of a simulated host: what NVML knows of it beside its MIG instances."""

from __future__ import annotations

from dataclasses import dataclass, field

from nodeagent.protocol.boards import BoardModel, BoardProfile
from nodeagent.simulation.hardware import SimulatedGpu

NVIDIA_VENDOR = 0x10DE
# What the driver keeps of a device's memory for itself: an assumption near what listings of idle devices show.
RESERVED_MIB = 480
# The lowest power limit as a part of the highest: an assumption, devices allow between a quarter and a half.
LOWEST_LIMIT_PART = 0.4
FIRST_BUS = 0x10


@dataclass(slots=True)
class Errors:
    """Error counters: since the last reset (volatile) and for the life of the device; rows waiting for repair."""

    corrected: int = 0
    uncorrected: int = 0
    corrected_ever: int = 0
    uncorrected_ever: int = 0
    rows_corrected: int = 0
    rows_uncorrected: int = 0
    is_remap_pending: bool = False
    is_remap_failed: bool = False


@dataclass(slots=True, eq=False)
class NvmlDevice:
    """A device. ``minor`` is the N of /dev/nvidiaN, ``generation`` rises with every reset: older handles are stale.

    ``monitors`` and ``profilers`` are other clients that hold it open. ``limits`` are memory limits in bytes,
    (soft, hard) by cgroup. ``power_limit_mw`` None is the default. ``clock_reasons`` None follows the load.
    ``is_vgpu``: the host is a guest with a virtual GPU, which cannot be partitioned from inside.
    """

    index: int
    uuid: str
    board: BoardModel
    gpu: SimulatedGpu
    minor: int
    generation: int = 0
    monitors: int = 0
    profilers: int = 0
    compute_mode: int = 0
    is_persistent: bool = False
    power_limit_mw: int | None = None
    limits: dict[str, tuple[int, int]] = field(default_factory=dict)
    errors: Errors = field(default_factory=Errors)
    recovery_action: int = 0
    clock_reasons: int | None = None
    is_vgpu: bool = False
    temperature_c: int | None = None
    energy_mj: float = 0.0
    energy_at_s: float | None = None

    @property
    def bus_id(self) -> str:
        """The PCI address, as NVML writes it."""
        return f"00000000:{FIRST_BUS + self.index:02X}:00.0"

    @property
    def pci_device_id(self) -> int:
        """Device in the upper, vendor in the lower 16 bits."""
        device = next(iter(self.board.pci_device_ids), 0)
        return device << 16 | NVIDIA_VENDOR

    @property
    def memory_mib(self) -> int:
        """Memory of the whole device; that of its largest profile where the table has none."""
        largest = max((p.memory_mib or 0 for p in self.board.profiles), default=0)
        return self.board.memory_mib or largest

    def memory_of(self, profile: BoardProfile) -> int:
        """Return the MiB of a profile, its part of the grid where no listing was found."""
        part = self.memory_mib * profile.memory_slices // self.board.memory_slices
        return part if profile.memory_mib is None else profile.memory_mib

    def sms_of(self, profile: BoardProfile) -> int:
        """Return the SMs of a profile, in proportion to a sibling's where no listing was found."""
        if profile.sm_count is not None:
            return profile.sm_count
        known = next((p for p in self.board.profiles if p.sm_count and p.compute_slices == 1), None)
        return (known.sm_count or 0) * profile.compute_slices if known else 0

    @property
    def sm_total(self) -> int:
        """SMs of the whole device, those of its largest profile where the table has none."""
        return self.board.sm_total or max((self.sms_of(p) for p in self.board.profiles), default=0)

    @property
    def default_limit_mw(self) -> int | None:
        """The power limit it starts with, None where the table has none."""
        return None if self.board.limit_w is None else round(self.board.limit_w * 1000)

    @property
    def lowest_limit_mw(self) -> int | None:
        """The lowest power limit it takes."""
        return None if self.default_limit_mw is None else round(self.default_limit_mw * LOWEST_LIMIT_PART)

    def reset(self, *, reboot: bool) -> None:
        """Lose what a reset or a reboot loses; only boards that remember it keep their MIG mode."""
        self.gpu.reset(reboot=reboot)
        self.generation += 1
        self.compute_mode, self.clock_reasons = 0, None
        self.is_persistent = self.is_persistent and not reboot
        self.power_limit_mw = None if reboot else self.power_limit_mw
        self.limits.clear()
        kept = self.errors
        kept.corrected = kept.uncorrected = 0
        kept.is_remap_pending = False
        if self.recovery_action in (1, 4) or reboot:
            self.recovery_action = 0
        if reboot:
            self.monitors = self.profilers = 0
            self.energy_mj, self.energy_at_s = 0.0, None
