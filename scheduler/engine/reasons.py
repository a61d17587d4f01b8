"""Every reason why a claim waits or can never start: code, meaning, figures. Docs are held against it.

Figures are plain JSON values: times in ISO 8601 UTC, shares and quota in thousandths, memory in MiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.engine.model import Reason


@dataclass(frozen=True, slots=True)
class ReasonKind:
    """What a code means, the names of its figures, and whether waiting cannot help."""

    meaning: str
    figures: tuple[str, ...]
    is_impossible: bool = False


REASONS: dict[str, ReasonKind] = {
    "quota_ceiling": ReasonKind(
        "The team, or a team above it, has no headroom under its ceiling.",
        ("team", "name", "ceiling_milli", "used_milli", "wanted_milli", "short_milli"),
    ),
    "cohort_exhausted": ReasonKind(
        "The team would borrow more than the others of its cohort lend now.",
        (
            "team",
            "name",
            "guaranteed_milli",
            "used_milli",
            "borrowed_milli",
            "lendable_milli",
            "wanted_milli",
            "short_milli",
        ),
    ),
    "budget_reached": ReasonKind(
        "A budget of the team, or of a team above it, has reached a threshold that keeps this from starting,"
        " the wallet that pays does not cover it, or a quota has too few GPU-hours of the month or too little device"
        " memory left (basis hours or memory).",
        (
            "team",
            "name",
            "action",
            "basis",
            "percent",
            "would_percent",
            "is_monthly",
            "since",
            "until",
            "left_micro",
            "wanted_micro",
            "currency",
            "limit_gpu_s",
            "left_gpu_s",
            "wanted_gpu_s",
            "limit_mib",
            "used_mib",
            "wanted_mib",
        ),
    ),
    "room_is_made": ReasonKind(
        "Leases were told to go for this; it starts when they have ended, at ends_at at the latest.",
        ("leases", "ends_at"),
    ),
    "behind": ReasonKind(
        "There was room when the turn began; claims ahead in the queue took it.",
        ("position", "granted"),
    ),
    "pool_full": ReasonKind(
        "With this its kind of work has more than its pool is entitled to now; what stays within its part went first.",
        ("work", "part_milli", "used_milli", "wanted_milli"),
    ),
    "no_capacity": ReasonKind(
        "Too few units are free; next_end is when the first placement in the way must end.",
        ("wanted", "free", "total", "next_end", "blockers"),
    ),
    "fragmented": ReasonKind(
        "Enough is free in sum, but on no single board at a legal position.",
        ("wanted", "free", "unit", "next_end", "blockers"),
    ),
    "gang_incomplete": ReasonKind(
        "Some of the units, or of the nodes, fit, but not all; a gang starts with all of them or not at all.",
        ("wanted", "fits", "free", "total", "nodes", "nodes_fit", "next_end", "blockers"),
    ),
    "node_resources_short": ReasonKind(
        "A node has the boards, but not the CPU or memory wanted beside them; null is unknown.",
        (
            "node",
            "cpu_milli",
            "free_cpu_milli",
            "host_memory_mib",
            "free_memory_mib",
            "next_end",
            "blockers",
        ),
    ),
    "shared_with_other_team": ReasonKind(
        "Boards of this mode have room, but belong to another team while it uses them.",
        ("boards", "next_end"),
    ),
    "mps_of_other_teams": ReasonKind(
        "Boards that serve MPS have room, but for one team only while it uses them: a fault of one program hits all.",
        ("boards", "next_end"),
    ),
    "node_waking": ReasonKind(
        "Nodes that sleep have room for this and are being woken; ready_at is when by the last time, if known.",
        ("nodes", "ready_at"),
    ),
    "nodes_blocked": ReasonKind(
        "Nodes that could serve this are not available now.",
        ("nodes",),
    ),
    "intake_paused": ReasonKind(
        "Nothing new starts on these nodes, or on some devices of them, while an alert lasts; until then at least.",
        ("nodes", "more", "until"),
    ),
    "nodes_silent": ReasonKind(
        "The wanted time can only be had on nodes that are not heard now; it is booked once they are.",
        ("starts_at", "nodes"),
    ),
    "maintenance_ahead": ReasonKind(
        "There is room now, but maintenance of nodes begins before this would end; longest_s would fit.",
        ("nodes", "starts_at", "longest_s"),
    ),
    "booked_ahead": ReasonKind(
        "There is room now, but others have booked it from starts_at on; longest_s would fit.",
        ("starts_at", "longest_s"),
    ),
    "reserved_for_waiting": ReasonKind(
        "There is room now, but the claim at that position, which waits longer, starts there at starts_at.",
        ("position", "starts_at", "longest_s"),
    ),
    "kept_for_short": ReasonKind(
        "There is room now, but a part of it stays free for shorter ones: this is long and cannot be stopped.",
        (),
    ),
    "booking_taken": ReasonKind(
        "The wanted time is taken; nearest says which starts around it are free, maintenance whose window is in it.",
        ("starts_at", "duration_s", "nearest", "maintenance"),
        is_impossible=True,
    ),
    "booking_above_quota": ReasonKind(
        "At the wanted time the team would be above its quota; nearest says which starts around it are not.",
        ("starts_at", "duration_s", "nearest"),
        is_impossible=True,
    ),
    "no_such_device": ReasonKind(
        "No device of the fleet offers this mode, model, profile, size or zone, or none on a node with containers.",
        ("mode", "models", "profile", "least", "zone", "containers", "nearest"),
        is_impossible=True,
    ),
    "larger_than_any_node": ReasonKind(
        "Even an idle node could not hold this; nearest says what the biggest one could.",
        ("wanted", "nearest"),
        is_impossible=True,
    ),
    "larger_than_fleet": ReasonKind(
        "Even the idle fleet has too few nodes, or boards, for this gang; nearest says how many.",
        ("wanted", "nearest"),
        is_impossible=True,
    ),
    "above_quota": ReasonKind(
        "The cost is above a ceiling even when the team uses nothing else.",
        ("team", "name", "ceiling_milli", "wanted_milli", "nearest"),
        is_impossible=True,
    ),
    "malformed": ReasonKind(
        "A figure of the claim makes no sense: no unit, no time, more than ten years, or below zero.",
        ("field", "value"),
        is_impossible=True,
    ),
}


def are_impossible(reasons: Sequence[Reason]) -> bool:
    """Whether the main reason is one that waiting cannot cure."""
    return bool(reasons) and REASONS[reasons[0].code].is_impossible
