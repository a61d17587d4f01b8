"""What a cluster's own accounting counted for jobs of leases, as its pool's agent tells it."""

from __future__ import annotations

from dataclasses import dataclass

# Named by agents that read what a cluster's own accounting counted, and by portals that keep it.
CLUSTER_USAGE = "cluster_usage"


@dataclass(frozen=True, slots=True)
class ClusterUsageRow:
    """One job of a lease that is over, as the cluster's accounting has it.

    Instants are seconds since 1970 of the cluster's clock. ``units`` None: accounting does not say. ``state`` is the
    cluster's word for how it ended, ``ended_by`` the uid of who cancelled it.
    """

    lease: str
    generation: int
    job: str
    units: int | None
    started_at: int
    ended_at: int
    elapsed_s: int
    state: str
    ended_by: int | None = None


@dataclass(frozen=True, slots=True)
class ClusterUsage:
    """What a cluster counted for jobs of this node's leases: evidence beside the bill, never part of it.

    ``told_at`` is the agent's own wall clock, in seconds since 1970. ``books`` is one of ``limits.BOOKS``: on, off (the
    cluster keeps no accounts) or away, with the cluster's words as ``why``. Sent only to portals that welcome the
    feature "cluster_usage"; the same row may come any number of times.
    """

    epoch: int
    told_at: int
    books: str
    why: str
    rows: tuple[ClusterUsageRow, ...]
