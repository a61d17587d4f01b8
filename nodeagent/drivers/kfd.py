"""The kernel's list of compute devices (KFD topology), which AMD's driver and those derived from it keep in sysfs.

Fields after the kernel's ``drivers/gpu/drm/amd/amdkfd/kfd_topology.c``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

NODES: Final = "/sys/class/kfd/kfd/topology/nodes"
MOST_NODES: Final = 512


@dataclass(frozen=True, slots=True)
class KfdNode:
    """One device that computes. ``slot`` is its PCI address without function; "" or 0 is unknown."""

    index: int
    slot: str
    render_minor: int
    unique_id: int

    @property
    def visible_as(self) -> str:
        """Return the name that ROCr takes for this device, "" when the kernel gives it none."""
        return f"GPU-{self.unique_id:016x}" if self.unique_id else ""


def kfd_nodes(read: Callable[[str], str]) -> dict[int, KfdNode]:
    """Return the computing devices by node number; none where there is no such list."""
    found = {}
    for index in range(MOST_NODES):
        try:
            lines = read(f"{NODES}/{index}/properties").splitlines()
        except OSError:
            break
        facts = {name: value for name, _, value in (line.partition(" ") for line in lines)}
        if _whole(facts.get("simd_count")) and (minor := _whole(facts.get("drm_render_minor"))):
            place = _whole(facts.get("location_id"))
            slot = f"{_whole(facts.get('domain')):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}"
            found[index] = KfdNode(index, slot, minor, _whole(facts.get("unique_id")))
    return found


def slot_of(bdf: str) -> str:
    """Return a PCI address without its function, in lower case and with four digits of domain."""
    address = bdf.strip().lower().rpartition(".")[0]
    domain, _, rest = address.partition(":")
    return f"{domain[-4:]:0>4}:{rest}" if rest.count(":") == 1 else ""


def _whole(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 22 else 0
