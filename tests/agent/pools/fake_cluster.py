"""A cluster in memory that behaves as Slurm was seen to, and fails as it was seen to fail."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from nodeagent.backends.base import (
    OVER,
    RUNNING,
    UNKNOWN,
    WAITING,
    BackendAwayError,
    BackendRefusedError,
    ClusterJob,
    LeaseOrder,
    PoolFacts,
)
from nodeagent.protocol.messages import DeviceFact


@dataclass
class FakeJob:
    """One job of the cluster: whose, how many units it wants and has, and where its own limit ends it."""

    fact: ClusterJob
    wants: int
    limit_s: int
    has_programs: bool = False
    told: int = 0
    asked: int = 0


class FakeCluster:
    """Hosts of eight units. ``start`` lets what waits begin, as the cluster's scheduler would."""

    name = "slurm"
    version = "22.05.8"
    wide = 12  # units of the widest lease: of two hosts

    def __init__(self, hosts: tuple[str, ...] = ("n1", "n2"), on_each: int = 8) -> None:
        self.hosts = dict.fromkeys(hosts, on_each)
        self.jobs: dict[str, FakeJob] = {}
        self.is_away = self.loses_answer = self.gives_nothing = self.starts_nothing = False
        self.is_accounting_away = False
        self.forgets: set[str] = set()
        self.down: set[str] = set()
        self.refuses: BackendRefusedError | None = None
        self.submitted = 0
        self.skew_s = 0

    # What tests do to it

    def twin_of(self, job: str) -> str:
        """Submit the same name once more, as a submission does whose answer took long; the first keeps it waiting."""
        twin = self._submit(self.jobs[job].fact.name, self.jobs[job].wants, self.jobs[job].limit_s)
        self._say(twin, phase=WAITING, reason="Dependency", units=None, places=())
        return twin

    def foreign(self, units: int, name: str = "train") -> str:
        """Let somebody else's job run in the pool."""
        job = self._submit(name, units, 3600)
        self._say(job, is_ours=False, user="charlie")
        self.start()
        return job

    def remove(self, job: str) -> None:
        """Let somebody cancel a job."""
        self._end(job, "CANCELLED", "removed_by_other")

    def lose_host(self, host: str) -> None:
        """Let a host fall silent: what runs there is over by the controller's word."""
        self.down.add(host)
        for job in [
            job for job, one in self.jobs.items() if one.fact.host == host and one.fact.phase == RUNNING
        ]:
            self._end(job, "NODE_FAIL", "host_lost")

    def live(self) -> list[ClusterJob]:
        """Return the jobs that wait or run."""
        return [one.fact for one in self.jobs.values() if one.fact.phase != OVER]

    def start(self) -> None:
        """Let the cluster's scheduler take one turn."""
        names = {one.fact.name for one in self.jobs.values() if one.fact.phase == RUNNING}
        for job, one in self.jobs.items():
            is_held = one.fact.name in names and one.fact.is_ours
            if one.fact.phase != WAITING or self.starts_nothing or is_held:
                continue
            places = self._free()[: one.wants]
            if len(places) < one.wants:
                self._say(job, reason="Resources")
                continue
            names.add(one.fact.name)
            given = () if self.gives_nothing else tuple(places)
            host = places[0].partition("/")[0]
            self._say(
                job,
                phase=RUNNING,
                reason="None",
                units=len(given),
                places=given,
                host=host,
                started_at=1_000 + self.skew_s,
            )

    # What agents ask of it

    def reachable(self) -> None:
        if self.is_away:
            raise BackendAwayError("Unable to contact slurm controller (connect failure)")

    def facts(self) -> PoolFacts:
        self.reachable()
        units, away = sum(self.hosts.values()), sum(self.hosts[host] for host in self.down)
        used = sum(one.fact.units or 0 for one in self.jobs.values() if one.fact.phase == RUNNING)
        notes = (("hosts_away", f"{away} of {units} units are out of service"),) if away else ()
        return PoolFacts(units, away, used, max(self.hosts.values()), notes)

    def devices(self, units: int) -> tuple[DeviceFact, ...]:
        return tuple(
            DeviceFact(f"slurm:t/gpu/a100/{n}", n, "nvidia", "a100-80gb", 81920, 1, ("exclusive",))
            for n in range(units)
        )

    def ensure(self, order: LeaseOrder) -> ClusterJob:
        self.reachable()
        if self.refuses is not None:
            raise self.refuses
        if order.may_exist:
            for job in self.observe([order.name]):
                if job.is_ours:
                    return job
                raise BackendRefusedError(
                    "name_taken", f"job {job.job} is called so already", is_passing=True
                )
        job_id = self._submit(order.name, order.units, order.ends_in_s)
        if self.loses_answer:
            self.loses_answer = False
            raise BackendAwayError("sbatch did not answer within 15 s")
        return self.jobs[job_id].fact

    def observe(self, names: Collection[str], *, strays: bool = False) -> tuple[ClusterJob, ...]:
        self.reachable()
        known = [one.fact for one in self.jobs.values() if one.fact.job not in self.forgets]
        found = [job for job in known if job.name in names or (strays and job.name.startswith("berth-"))]
        missing = set(names) - {job.name for job in found}
        return (*found, *(ClusterJob(n, "", UNKNOWN) for n in missing if self.is_accounting_away))

    def extend(self, job: str, ends_in_s: int) -> None:
        self.reachable()
        self.jobs[job].limit_s = ends_in_s

    def tell(self, job: str) -> None:
        self.reachable()
        self.jobs[job].told += 1

    def end(self, job: str, *, asks: bool) -> None:
        self.reachable()
        if asks and self.jobs[job].has_programs:
            self.jobs[job].asked += 1
        elif self.jobs[job].fact.phase != OVER:
            self._end(job, "CANCELLED", "removed_by_other")

    def _submit(self, name: str, wants: int, limit_s: int) -> str:
        self.submitted += 1
        job = str(self.submitted)
        self.jobs[job] = FakeJob(
            ClusterJob(name, job, WAITING, user="bob", reason="Priority"), wants, limit_s
        )
        return job

    def _free(self) -> list[str]:
        taken = {
            place for one in self.jobs.values() if one.fact.phase == RUNNING for place in one.fact.places
        }
        every = [
            f"{host}/gpu{n}"
            for host, count in self.hosts.items()
            for n in range(count)
            if host not in self.down
        ]
        return [place for place in every if place not in taken]

    def _end(self, job: str, word: str, code: str) -> None:
        self._say(
            job,
            phase=OVER,
            reason=word,
            code=code,
            detail=f"job {job} is {word}",
            ended_at=2_000 + self.skew_s,
        )

    def _say(self, job: str, **words: object) -> None:
        self.jobs[job].fact = replace(self.jobs[job].fact, **words)  # type: ignore[arg-type]

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Let the controller answer nobody until the block ends."""
        self.is_away = True
        yield
        self.is_away = False

    @contextmanager
    def without(self, host: str) -> Iterator[None]:
        """Lose a host until the block ends."""
        self.lose_host(host)
        yield
        self.down.discard(host)

    def limit_of(self, job: str) -> int:
        """Return after how many seconds the cluster itself ends a job."""
        return self.jobs[job].limit_s
