"""What a claim asks of a board, without who asks and when: equal shapes share every answer."""

from __future__ import annotations

from operator import attrgetter
from typing import NamedTuple

from scheduler.engine.model import SHARED_MODES, Claim, DeviceInfo, Mode, NodeInfo, PolicyRules

MOST_NODES = 10_000
NOT_NEGATIVE = (
    "share_milli", "memory_mib", "cpu_milli", "host_memory_mib",
    "least_memory_mib", "least_bandwidth_gbps", "least_class",
)  # fmt: skip
_not_negative = attrgetter(*NOT_NEGATIVE)
# Ten years: anything longer is a mistake, and would run past the end of the calendar.
LONGEST_S = 10 * 366 * 86_400


class Wishes(NamedTuple):
    """What a claim asks of boards and nodes beyond model and profile; see ``Claim``."""

    least_memory_mib: int
    least_bandwidth_gbps: int
    least_class: int
    zone: str
    near_zone: str
    needs_containers: bool

    def hold_for(self, device: DeviceInfo, node: NodeInfo) -> bool:
        """Whether figures, zone and containers are as asked for; a figure nobody knows is never enough."""
        return (
            device.memory_mib >= self.least_memory_mib
            and (device.bandwidth_gbps or 0) >= self.least_bandwidth_gbps
            and (device.compute_class or 0) >= self.least_class
            and (not self.zone or node.zone == self.zone)
            and (not self.needs_containers or node.has_containers)
        )


NO_WISHES = Wishes(0, 0, 0, "", "", needs_containers=False)
_wishes = attrgetter(*Wishes._fields)


class ShapeKind(NamedTuple):
    """Which boards can serve a shape at all, whatever they hold now. ``wishes`` None: none, as most have."""

    mode: Mode
    models: frozenset[str]
    profile: str
    wishes: Wishes | None = None

    @property
    def near_zone(self) -> str:
        """The zone one would like, "" for none."""
        return self.wishes.near_zone if self.wishes else ""

    def suits(self, device: DeviceInfo, node: NodeInfo) -> bool:
        """Whether model, figures, zone and containers are as asked for."""
        return (not self.models or device.model in self.models) and (
            self.wishes is None or self.wishes.hold_for(device, node)
        )


class Shape(NamedTuple):
    """The wants of one claim.

    ``wanted`` is the number of units on each of ``nodes`` nodes (with ``nodes`` 0: in all); 0 marks a
    malformed claim, for which nothing is ever granted.
    ``team_id`` matters only where boards are kept to one team, else 0. ``cpu_milli`` and
    ``host_memory_mib`` are wanted of the node, for all units together.
    """

    kind: ShapeKind
    wanted: int
    share_milli: int
    memory_mib: int
    team_id: int
    is_shared: bool
    cpu_milli: int = 0
    host_memory_mib: int = 0
    nodes: int = 1

    @property
    def is_spread(self) -> bool:
        """Whether it may span several nodes."""
        return self.nodes != 1

    @property
    def units(self) -> int:
        """How many units it has in all."""
        return self.wanted * max(self.nodes, 1)

    def host_part(self, units: int) -> tuple[int, int]:
        """Milli-CPU and MiB that a node with so many of the units gives."""
        if self.nodes:
            return self.cpu_milli, self.host_memory_mib
        return -(-self.cpu_milli * units // self.wanted), -(-self.host_memory_mib * units // self.wanted)

    @property
    def wants_host(self) -> bool:
        """Whether it wants CPU or memory of the node."""
        return bool(self.cpu_milli or self.host_memory_mib)


def shape_of(claim: Claim, policy: PolicyRules) -> Shape:
    """The shape of a claim, with every field that its mode does not read set to its neutral value."""
    count = 0 if bad_field(claim) else claim.count
    host = (claim.cpu_milli, claim.host_memory_mib, claim.nodes)
    if claim.mode in SHARED_MODES:
        team_id = 0 if policy.may_mix(claim.mode) else claim.team_id
        return Shape(_kind(claim), count, claim.share_milli, claim.memory_mib, team_id, True, *host)
    return Shape(_kind(claim), count, 1000, 0, 0, False, *host)


def _kind(claim: Claim) -> ShapeKind:
    profile = claim.profile if claim.mode == "mig" else ""
    wishes = _wishes(claim)
    return ShapeKind(claim.mode, claim.models, profile, Wishes(*wishes) if any(wishes) else None)


def bad_field(claim: Claim) -> str:
    """The first field whose figure makes no sense, or ""."""
    if claim.count < 1:
        return "count"
    if claim.nodes != 1 and (claim.mode != "exclusive" or not 0 <= claim.nodes <= MOST_NODES):
        return "nodes"
    if not 1 <= claim.duration_s <= LONGEST_S:
        return "duration_s"
    if min(_not_negative(claim)) >= 0:
        return ""
    return next(name for name in NOT_NEGATIVE if getattr(claim, name) < 0)
