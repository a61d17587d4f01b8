"""What the engine reads and what it answers: plain frozen values, no clock, no database.

Units: memory in MiB, shares in thousandths of one device (``share_milli``), quota in
weighted thousandths (``share_milli`` x class weight / 1000), time in UTC, slots in memory slices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from scheduler.engine.demand import UNKNOWN_DEMAND, Demand
from scheduler.engine.policy import PolicyRules, Work

__all__ = [
    "SHARED_MODES",
    "Booking",
    "Claim",
    "DecayedUsage",
    "DeviceInfo",
    "Forecast",
    "Grant",
    "GrantedSlot",
    "Held",
    "Learned",
    "MigProfile",
    "Mode",
    "NodeInfo",
    "Outage",
    "Plan",
    "PolicyRules",
    "Preemption",
    "Reason",
    "Repartition",
    "Running",
    "Snapshot",
    "TeamQuota",
    "Wait",
    "Work",
]

Mode = Literal["exclusive", "mig", "mps", "memlimit", "timeslice"]
SHARED_MODES: frozenset[str] = frozenset({"mps", "memlimit", "timeslice"})


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A MIG size on one board: how many memory slices it spans and where it may start."""

    name: str
    slices: int
    starts: tuple[int, ...]
    share_milli: int
    memory_mib: int
    max_instances: int


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A host. ``blocked`` says why nothing may be placed on it now ("" when something may).

    ``cpu_milli`` and ``memory_mib`` are what leases may take of it; None is unknown and limits nothing.
    ``zone`` and ``rack`` say where it stands; "" is unknown, and then it stands alone. ``wake_s`` is how long
    waking it takes; None is unknown. ``has_containers``: it runs jobs in containers.
    """

    id: int
    name: str
    blocked: str = ""
    cpu_milli: int | None = None
    memory_mib: int | None = None
    zone: str = ""
    rack: str = ""
    wake_s: int | None = None
    has_containers: bool = False


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """An accelerator. ``grid`` is its number of memory slices (1 for boards without slices).

    ``layout`` pins the MIG positions that may be used, as (profile name, start); None means
    any legal position. ``max_clients`` bounds the shares of a shared mode. ``bandwidth_gbps`` is memory
    bandwidth in GB/s, ``compute_class`` a step of speed (docs/topology.md); None is unknown. Devices of
    a node with the same ``domain`` share fast links, with the same ``switch`` a PCIe switch. Where ``blocked`` is
    "paused", ``paused_until`` is until when at least, if nobody says so again.
    """

    id: int
    node_id: int
    model: str
    grid: int
    memory_mib: int
    weight_milli: int
    modes: frozenset[str]
    profiles: tuple[MigProfile, ...] = ()
    layout: tuple[tuple[str, int], ...] | None = None
    max_clients: int = 48
    index: int = 0
    domain: str = ""
    blocked: str = ""
    bandwidth_gbps: int | None = None
    compute_class: int | None = None
    switch: str = ""
    numa: int | None = None
    paused_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """One live placement: ``size`` slots from ``start``, or one share inside a host placement.

    A host placement (``is_host``) holds a whole board for a shared mode on behalf of one team;
    shares name the same device and mode with ``size`` 0 and count against memory and share only.
    ``until`` is the last instant it may be held. ``profile`` names a MIG partition's size; "" is
    unknown (a partition that is not ours) and then counts for every profile of that span.
    ``cpu_milli`` and ``host_memory_mib`` are what its lease takes of the node, said by one placement
    of the lease per node.
    """

    device_id: int
    start: int
    size: int
    mode: Mode
    team_id: int
    lease_id: int | None
    until: datetime
    share_milli: int = 0
    memory_mib: int = 0
    is_host: bool = False
    profile: str = ""
    cpu_milli: int = 0
    host_memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """One waiting request: ``count`` equal units on one node, all or nothing.

    A gang of whole boards may span nodes: with ``nodes`` n it wants n nodes with ``count`` boards each,
    with ``nodes`` 0 ``count`` boards in all on as few nodes as possible.

    ``models`` empty means any model. ``profile`` is set for ``mig``; ``share_milli`` and
    ``memory_mib`` for the shared modes, where ``memory_mib`` is guaranteed and ``max_memory_mib`` what a
    share may use where the board has it (0: no more than guaranteed). ``cpu_milli`` and
    ``host_memory_mib`` are wanted beside the units on their node, for all of them together (per node of a
    gang; with ``nodes`` 0 shared out by boards, rounded up). ``least_*`` ask for any board that is known
    to have as much; ``zone`` asks for nodes there only, ``near_zone`` for others only when none there has room, and
    ``needs_containers`` for nodes that run them.
    Higher ``priority`` goes first, then earlier
    ``queued_at``, then smaller ``id``, where the order policy says nothing else.

    ``starts_at`` books a start in the future (None: as soon as possible). ``least_duration_s`` says how short
    it may be cut where something comes behind (0: not at all). ``most_count`` above ``count`` lets it grow
    while boards idle. ``predicted_s`` is how long it will run by what was learned (0: unknown), ``ran_s`` what
    it ran before it was preempted ``evictions`` times, ``yields_to`` for which claims: it never preempts their
    leases. ``is_owed`` says that leases were told to go for it, so that its place is kept.
    """

    id: int
    team_id: int
    mode: Mode
    count: int
    duration_s: int
    priority: int
    queued_at: datetime
    models: frozenset[str] = frozenset()
    profile: str = ""
    share_milli: int = 1000
    memory_mib: int = 0
    cpu_milli: int = 0
    host_memory_mib: int = 0
    least_memory_mib: int = 0
    least_bandwidth_gbps: int = 0
    least_class: int = 0
    zone: str = ""
    near_zone: str = ""
    nodes: int = 1
    max_memory_mib: int = 0
    user_id: int = 0
    work: Work = "interactive"
    is_preemptible: bool = False
    starts_at: datetime | None = None
    least_duration_s: int = 0
    most_count: int = 0
    predicted_s: int = 0
    ran_s: int = 0
    evictions: int = 0
    is_owed: bool = False
    yields_to: frozenset[int] = frozenset()
    needs_containers: bool = False


@dataclass(frozen=True, slots=True)
class TeamQuota:
    """A team's place in the tree and its ceiling; ``ceiling_milli`` None means no ceiling of its own.

    ``used_milli`` covers the whole subtree: a grant counts for the team and all its ancestors. What is used
    above ``guaranteed_milli`` is borrowed from the others of its cohort, each of which lends at most
    ``lending_milli`` of what it does not use (None: all of it). Without a cohort nothing is borrowed and the
    ceiling alone counts.
    """

    team_id: int
    parent_id: int | None
    ceiling_milli: int | None
    used_milli: int
    name: str = ""
    guaranteed_milli: int = 0
    lending_milli: int | None = None
    cohort_id: int | None = None


@dataclass(frozen=True, slots=True)
class DecayedUsage:
    """What a person used for a team, in weighted thousandths times seconds, decayed to ``taken_at``."""

    team_id: int
    user_id: int
    used_milli_s: int


@dataclass(frozen=True, slots=True)
class Running:
    """A live lease beside its placements: whose it is, how long it runs, and whether it may be preempted.

    ``claim_id`` is its request, ``cost_milli`` what it takes of the quota, ``ran_s`` what its request ran
    before this start, ``queued_at`` since when that has been in the queue or out of it (None: since it
    started). ``is_extra`` marks what an elastic lease has grown by. ``preempt_at`` is set once it has
    been told to go, on behalf of the claim ``preempted_for``; such a lease stays here until it is clean.
    """

    lease_id: int
    claim_id: int
    team_id: int
    user_id: int
    node_id: int
    started_at: datetime
    until: datetime
    cost_milli: int
    count: int = 1
    priority: int = 0
    work: Work = "interactive"
    is_preemptible: bool = False
    is_extra: bool = False
    evictions: int = 0
    ran_s: int = 0
    predicted_s: int = 0
    preempt_at: datetime | None = None
    preempted_for: int | None = None
    queued_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Booking:
    """A placement that begins in the future and then is held as ``held`` says, until its end."""

    starts_at: datetime
    held: Held


@dataclass(frozen=True, slots=True)
class Outage:
    """A node is not available from ``starts_at`` to ``until``; ``name`` is the maintenance window's."""

    node_id: int
    starts_at: datetime
    until: datetime
    name: str = ""


@dataclass(frozen=True, slots=True)
class Learned:
    """How long requests run, from those that ended and those that have not (``scheduler.engine.learning``).

    ``lengths`` are rows (team id, size group, probability per bin of the length); group -1 is any size of the
    team, team 0 everybody. ``errors`` counts by how many bins predictions were off. Version 0: nothing.
    """

    version: int = 0
    lengths: tuple[tuple[int, int, tuple[float, ...]], ...] = ()
    errors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything one turn may look at, as of ``taken_at``.

    ``likely_s`` says by claim id how long it will probably run, where that is less than it may: whoever plays the
    queue forward goes by it, a turn does not. It is never published (``outcome`` reckons it).
    """

    taken_at: datetime
    nodes: tuple[NodeInfo, ...]
    devices: tuple[DeviceInfo, ...]
    held: tuple[Held, ...]
    queue: tuple[Claim, ...]
    quotas: tuple[TeamQuota, ...]
    demand: Demand = UNKNOWN_DEMAND
    running: tuple[Running, ...] = ()
    bookings: tuple[Booking, ...] = ()
    outages: tuple[Outage, ...] = ()
    people: tuple[DecayedUsage, ...] = ()
    growing: tuple[Claim, ...] = ()
    learned: Learned = Learned()
    likely_s: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GrantedSlot:
    """Where one unit of a grant goes.

    ``size`` 0 with a shared mode means a share inside a host placement; whoever commits the grant
    opens that host placement (the whole board, for the grant's team) when the board has none yet.
    The first slot of a grant on a node says what the grant takes of that node's CPU and memory.
    ``board_memory_mib`` is what all shares of a board opened now may be promised together and
    ``max_memory_mib`` the limit that the driver sets to this share, never more than its board has; both 0
    for other modes.
    """

    device_id: int
    mode: Mode
    start: int
    size: int
    share_milli: int
    memory_mib: int
    profile: str = ""
    cpu_milli: int = 0
    host_memory_mib: int = 0
    board_memory_mib: int = 0
    max_memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class Grant:
    """A claim that gets its units now; ``cost_milli`` is what its quota pays.

    All are on ``node_id``, but those of a gang over several nodes: there it is the first slot's node, and
    slots of one node stand together. ``starts_at`` is set where the units are booked for later. Where
    ``duration_s`` is less than was asked, ``cut_by`` says what comes behind: "maintenance", "booking", or "waiting"
    for a start that was promised to another claim.
    """

    claim_id: int
    team_id: int
    node_id: int
    slots: tuple[GrantedSlot, ...]
    cost_milli: int
    duration_s: int
    starts_at: datetime | None = None
    cut_by: str = ""


@dataclass(frozen=True, slots=True)
class Preemption:
    """A live lease that has to go, so that the claim ``claim_id`` gets its place.

    ``why``: reclaim (it was borrowed of the claim's guarantee), priority (it may be preempted, and the claim
    stands higher, by score too where the policy says so) or elastic (it had grown by this).
    """

    lease_id: int
    claim_id: int
    why: str


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a claim waits: a stable ``code`` and the figures its sentence is made from."""

    code: str
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wait:
    """A claim that gets nothing this turn: 1-based ``position`` and ordered reasons, the main one first."""

    claim_id: int
    position: int
    reasons: tuple[Reason, ...]
    is_impossible: bool = False


@dataclass(frozen=True, slots=True)
class Repartition:
    """An idle board and the layout it should be pinned to: (profile, start), sorted by start."""

    device_id: int
    layout: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The decision of one turn. A claim that leases are preempted for waits until they are gone.

    ``spared`` are leases that were told to go and may stay after all, ``growth`` what elastic leases get on
    top: its claims run already.
    """

    grants: tuple[Grant, ...] = ()
    waits: tuple[Wait, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    repartitions: tuple[Repartition, ...] = ()
    spared: tuple[int, ...] = ()
    growth: tuple[Grant, ...] = ()


@dataclass(frozen=True, slots=True)
class Forecast:
    """When a claim would start: ``starts_at`` None means not within the horizon, with the reasons why.

    ``is_certain``: leases were told to go for it by then, and their place is kept for it.
    """

    claim_id: int
    starts_at: datetime | None
    position: int
    reasons: tuple[Reason, ...] = ()
    is_impossible: bool = False
    is_certain: bool = False
