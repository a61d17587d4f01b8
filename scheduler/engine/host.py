"""A node's CPU and memory beside its boards: what it has, what leases took, what is left."""

from __future__ import annotations

from scheduler.engine.columns import PLENTY
from scheduler.engine.model import Held, NodeInfo
from scheduler.engine.shape import Shape


class Host:
    """What leases took of one node. Milli-CPU and MiB; a size nobody knows counts as ``PLENTY``.

    ``cpu_milli`` and ``memory_mib`` are all of it, ``cpu_free`` and ``memory_free`` what is left, 0 where
    more was taken than there is.
    """

    __slots__ = ("_cpu_taken", "_memory_taken", "cpu_free", "cpu_milli", "memory_free", "memory_mib", "node")

    def __init__(self, node: NodeInfo) -> None:
        self.node = node
        self._cpu_taken = self._memory_taken = 0
        self.cpu_free = self.cpu_milli = PLENTY if node.cpu_milli is None else node.cpu_milli
        self.memory_free = self.memory_mib = PLENTY if node.memory_mib is None else node.memory_mib

    @property
    def size(self) -> tuple[int, int]:
        """All of its CPU and memory."""
        return self.cpu_milli, self.memory_mib

    @property
    def is_limited(self) -> bool:
        """Whether its CPU or its memory is known."""
        return self.node.cpu_milli is not None or self.node.memory_mib is not None

    def has_room(self, shape: Shape) -> bool:
        """Whether CPU and memory suffice for the shape now."""
        return self.cpu_free >= shape.cpu_milli and self.memory_free >= shape.host_memory_mib

    def could_hold(self, shape: Shape) -> bool:
        """Whether CPU and memory would suffice if nothing were taken."""
        return self.cpu_milli >= shape.cpu_milli and self.memory_mib >= shape.host_memory_mib

    def times(self, shape: Shape) -> int:
        """How often the shape's CPU and memory are left now; ``PLENTY`` where it wants none."""
        most = PLENTY
        if shape.cpu_milli:
            most = min(most, self.cpu_free // shape.cpu_milli)
        if shape.host_memory_mib:
            most = min(most, self.memory_free // shape.host_memory_mib)
        return most

    def units(self, shape: Shape) -> int:
        """How many units of a gang its CPU and memory allow now, its boards aside."""
        return _units(self.cpu_free, self.memory_free, shape)

    def idle_units(self, shape: Shape) -> int:
        """The same if nothing were taken."""
        return _units(self.cpu_milli, self.memory_mib, shape)

    def free_part(self, shape: Shape) -> float:
        """How much of the wanted CPU and memory is left, by the scarcer one; 1 or more is enough."""
        return _part(self.cpu_free, self.memory_free, shape)

    def idle_part(self, shape: Shape) -> float:
        """The same if nothing were taken."""
        return _part(self.cpu_milli, self.memory_mib, shape)

    def take(self, held: Held, sign: int) -> None:
        """Count what the placement's lease takes (+1) or gives back (-1)."""
        if held.cpu_milli or held.host_memory_mib:
            self._cpu_taken += sign * held.cpu_milli
            self._memory_taken += sign * held.host_memory_mib
            self.cpu_free = max(self.cpu_milli - self._cpu_taken, 0)
            self.memory_free = max(self.memory_mib - self._memory_taken, 0)


def _part(cpu_milli: int, memory_mib: int, shape: Shape) -> float:
    cpu = cpu_milli / shape.cpu_milli if shape.cpu_milli else 1.0
    memory = memory_mib / shape.host_memory_mib if shape.host_memory_mib else 1.0
    return min(cpu, memory)


def _units(cpu_milli: int, memory_mib: int, shape: Shape) -> int:
    if shape.nodes:
        return shape.wanted if cpu_milli >= shape.cpu_milli and memory_mib >= shape.host_memory_mib else 0
    cpu = cpu_milli * shape.wanted // shape.cpu_milli if shape.cpu_milli else PLENTY
    memory = memory_mib * shape.wanted // shape.host_memory_mib if shape.host_memory_mib else PLENTY
    return min(cpu, memory)
