"""What a back end can do: a few calls, each safe to repeat, and what they say.

A back end obeys. Berth decides whether and when; the cluster decides on which host and which device.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Protocol

from nodeagent.protocol.messages import DeviceFact

WAITING: Final = "waiting"
RUNNING: Final = "running"
ENDING: Final = "ending"
OVER: Final = "over"
UNKNOWN: Final = "unknown"


class BackendAwayError(Exception):
    """The cluster did not answer, or not in a way that means anything: nothing is known, so nothing is concluded."""


class BackendRefusedError(Exception):
    """The cluster answered, and said no.

    ``code`` is stable (docs/slurm.md, docs/kubernetes.md), ``detail`` the cluster's own words.

    ``is_passing``: it may say yes later; the call is repeated until the patience of the pool is over.
    """

    def __init__(self, code: str, detail: str, *, is_passing: bool = False) -> None:
        super().__init__(f"{code}: {detail}")
        self.code, self.detail, self.is_passing = code, detail, is_passing


@dataclass(frozen=True, slots=True)
class LeaseOrder:
    """What a lease asks of the cluster. ``name`` is the same for every try, so a job is known by it.

    ``ends_in_s`` is where the cluster itself must end it if nobody else does. ``may_exist``: an earlier try may have
    been heard, so the cluster is asked before anything is submitted. ``units`` are whole units of the pool;
    ``cpu_milli`` and ``memory_mib`` are for all of them together, None leaves it to the cluster.
    """

    name: str
    lease: str
    generation: int
    user: str
    team: str
    units: int
    ends_in_s: int
    cpu_milli: int | None = None
    memory_mib: int | None = None
    may_exist: bool = True


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """One job of this pool as the cluster tells of it.

    ``phase``: waiting, running, ending (its host still holds its units), over (nothing of it is left), unknown
    (it may have ended, and who would know did not answer). ``is_ours``:
    this agent submitted it, as far as the cluster can say. ``units`` are those that it was given, None before that is
    known; ``places`` name them one by one. ``reason`` is the cluster's word for why it waits, or how it ended;
    ``code`` is stable where it ended or waits for ever, "" where nothing is wrong. Times are seconds of the cluster's
    clock.
    """

    name: str
    job: str
    phase: str
    is_ours: bool = True
    user: str = ""
    units: int | None = None
    places: tuple[str, ...] = ()
    host: str = ""
    reason: str = ""
    code: str = ""
    detail: str = ""
    started_at: int | None = None
    ended_at: int | None = None


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """What a pool consists of now.

    ``units`` are all of it, ``away`` those on hosts that take no work, ``used`` those that jobs hold, whoever's.
    ``most_on_one`` is how many one host has at most. ``notes`` are sentences for operators, by a stable code.
    """

    units: int
    away: int = 0
    used: int = 0
    most_on_one: int = 0
    notes: tuple[tuple[str, str], ...] = ()


class Backend(Protocol):
    """A pool of a cluster. Every call may block, raises BackendAwayError, and is safe to repeat.

    Calls for different leases may come from different threads, calls for one lease never overlap.
    """

    name: str
    version: str

    def reachable(self) -> None:
        """Return when the cluster answers; raises BackendAwayError with a sentence for the operator otherwise."""
        ...

    def facts(self) -> PoolFacts:
        """Return what the pool consists of now."""
        ...

    def devices(self, units: int) -> tuple[DeviceFact, ...]:
        """Return the units as devices, the same for the same number; asks nothing of the cluster."""
        ...

    def ensure(self, order: LeaseOrder) -> ClusterJob:
        """Return the job of a lease: the one that is there under its name, or a new one.

        Raises BackendRefusedError, code ``name_taken`` where a job of somebody else has its name.
        """
        ...

    def observe(self, names: Collection[str], *, strays: bool = False) -> tuple[ClusterJob, ...]:
        """Return the jobs of these names, those that ended too as long as the cluster remembers them.

        A name that is not in the answer has no job. ``strays``: and those that this agent submitted under others.
        """
        ...

    def extend(self, job: str, ends_in_s: int) -> None:
        """Move the end that the cluster itself keeps; sooner or later than before. Raises BackendRefusedError."""
        ...

    def end(self, job: str, *, asks: bool) -> None:
        """End a job; one that is over already is success.

        ``asks``: the holder's programs in it are only asked to end. A job without any is ended at once either way.
        """
        ...

    def tell(self, job: str) -> None:
        """Send what the cluster has for that to the programs of the job; safe to repeat."""
        ...


def whole_devices(name: str, units: int, vendor: str, model: str, memory_mib: int) -> tuple[DeviceFact, ...]:
    """Return the units of a pool as devices ``name/0``, ``name/1`` …: nothing smaller is told apart in a cluster."""
    return tuple(
        DeviceFact(
            uuid=f"{name}/{number}",
            index=number,
            vendor=vendor,
            model=model,
            memory_mib=memory_mib,
            grid=1,
            modes=("exclusive",),
            max_clients=1,
        )
        for number in range(units)
    )
