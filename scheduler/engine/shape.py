"""What a claim asks of a board, without who asks and when: equal shapes share every answer."""

from __future__ import annotations

from typing import NamedTuple

from scheduler.engine.model import SHARED_MODES, Claim, Mode, Policy

# Ten years: anything longer is a mistake, and would run past the end of the calendar.
LONGEST_S = 10 * 366 * 86_400


class Kind(NamedTuple):
    """Which boards can serve a shape at all, whatever they hold now."""

    mode: Mode
    models: frozenset[str]
    profile: str


class Shape(NamedTuple):
    """The wants of one claim.

    ``wanted`` is the number of units; 0 marks a malformed claim, for which nothing is ever granted.
    ``team_id`` matters only where boards are kept to one team, else 0. ``cpu_milli`` and
    ``host_memory_mib`` are wanted of the node, for all units together.
    """

    kind: Kind
    wanted: int
    share_milli: int
    memory_mib: int
    team_id: int
    is_shared: bool
    cpu_milli: int = 0
    host_memory_mib: int = 0

    @property
    def wants_host(self) -> bool:
        """Whether it wants CPU or memory of the node."""
        return bool(self.cpu_milli or self.host_memory_mib)


def shape_of(claim: Claim, policy: Policy) -> Shape:
    """The shape of a claim, with every field that its mode does not read set to its neutral value."""
    count = 0 if bad_field(claim) else claim.count
    host = (claim.cpu_milli, claim.host_memory_mib)
    if claim.mode in SHARED_MODES:
        team_id = 0 if policy.share_across_teams else claim.team_id
        kind = Kind(claim.mode, claim.models, "")
        return Shape(kind, count, claim.share_milli, claim.memory_mib, team_id, True, *host)
    profile = claim.profile if claim.mode == "mig" else ""
    return Shape(Kind(claim.mode, claim.models, profile), count, 1000, 0, 0, False, *host)


def bad_field(claim: Claim) -> str:
    """The first field whose figure makes no sense, or ""."""
    if claim.count < 1:
        return "count"
    if not 1 <= claim.duration_s <= LONGEST_S:
        return "duration_s"
    for name in ("share_milli", "memory_mib", "cpu_milli", "host_memory_mib"):
        if getattr(claim, name) < 0:
            return name
    return ""
