"""What can be made to go wrong on a simulated node, on demand or at random from a seed."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.protocol.failpoints import failpoint
from nodeagent.protocol.messages import HealthFact


class SimulatedCrash(BaseException):
    """The agent dies here; only tests catch it."""


@dataclass(slots=True)
class Faults:
    """Knobs of one simulated node.

    ``latency_s`` per verb; ``refusals`` per verb, NVML codes answered one by one; ``stubborn`` per
    partition: how many looks its process survives being asked to stop (-1: until killed);
    ``crash_at`` names points such as ``gi.before``, ``gi.after``, ``ci.after``, ``share.before``;
    ``rate`` is the chance that a mutation answers IN_USE, drawn from ``seed``.
    """

    latency_s: dict[str, float] = field(default_factory=dict)
    refusals: dict[str, deque[int]] = field(default_factory=dict)
    stubborn: dict[str, int] = field(default_factory=dict)
    crash_at: set[str] = field(default_factory=set)
    health: list[HealthFact] = field(default_factory=list)
    rate: float = 0.0
    seed: int = 0
    _dice: random.Random | None = None

    def refuse(self, verb: str) -> None:
        """Raise the next planned refusal of a verb, or a random one."""
        if self.refusals.get(verb):
            raise NvmlLikeError(self.refusals[verb].popleft(), "planned fault")
        if self.rate:
            self._dice = self._dice or random.Random(self.seed)  # noqa: S311 - repeatable on purpose
            if self._dice.random() < self.rate:
                raise NvmlLikeError(errors.IN_USE, "seeded fault")

    def point(self, name: str) -> None:
        """Die here when asked to."""
        failpoint(f"driver.{name}")
        if name in self.crash_at:
            raise SimulatedCrash(name)

    def outlives_look(self, partition: str) -> bool:
        """Say whether the process of a partition is still there at this look."""
        left = self.stubborn.get(partition, 0)
        if left > 0:
            self.stubborn[partition] = left - 1
        return left != 0
