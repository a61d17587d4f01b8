"""A pool of a Slurm cluster: a lease is one job, known by its name, checked before it counts as ready."""

from __future__ import annotations

import math
import pwd
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Final

from nodeagent.backends.base import (
    ENDING,
    OVER,
    RUNNING,
    UNKNOWN,
    WAITING,
    BackendAwayError,
    BackendRefusedError,
    ClusterJob,
    LeaseOrder,
    PoolFacts,
    whole_devices,
)
from nodeagent.backends.slurm.commands import SlurmCommands, is_garbage, rows
from nodeagent.backends.slurm.output import (
    count_of,
    fields_of,
    given,
    instant_of,
    seconds_of,
    takes_no_work,
    tres_count,
)
from nodeagent.backends.slurm.settings import SlurmSettings
from nodeagent.protocol.messages import DeviceFact

OURS: Final = re.compile(r"berth-[A-Za-z0-9._-]{1,64}-g[0-9]{1,10}")
COLUMNS: Final = (
    "JobID", "Name", "State", "Reason", "UserName", "tres-alloc", "BatchHost", "StartTime", "EndTime", "comment",
)  # fmt: skip
NAMES_AT_ONCE: Final = 1000
# The batch script of a lease: it holds the units until somebody ends it, and dies by the first SIGTERM.
HOLDER: Final = "#!/bin/sh\nexec /bin/sleep infinity\n"
_PHASES: Final = {
    "PENDING": WAITING, "CONFIGURING": WAITING, "REQUEUED": WAITING, "REQUEUE_HOLD": WAITING, "RESV_DEL_HOLD": WAITING,
    "SPECIAL_EXIT": WAITING, "REQUEUE_FED": WAITING, "RUNNING": RUNNING, "SUSPENDED": RUNNING, "STOPPED": RUNNING,
    "SIGNALING": RUNNING, "RESIZING": RUNNING, "STAGE_OUT": ENDING, "COMPLETING": ENDING,
}  # fmt: skip
_ENDED: Final = {
    "CANCELLED": "removed_by_other", "TIMEOUT": "cluster_ended", "DEADLINE": "cluster_ended",
    "NODE_FAIL": "host_lost", "BOOT_FAIL": "host_lost", "PREEMPTED": "cluster_preempted",
    "OUT_OF_MEMORY": "out_of_memory", "REVOKED": "removed_by_other",
}  # fmt: skip


class SlurmBackend:
    """Speaks to the cluster by its commands. Its own words for the cluster are name, uid and comment of a job."""

    name = "slurm"

    def __init__(
        self,
        commands: SlurmCommands,
        settings: SlurmSettings,
        *,
        uid_of: Callable[[str], pwd.struct_passwd] = pwd.getpwnam,
        is_root: bool = True,
    ) -> None:
        self._run, self._pool = commands.run, settings
        self._uid_of, self._is_root = uid_of, is_root
        self._checked: dict[str, tuple[str, ...]] = {}
        self._asked: set[str] = set()
        self._most_on_one = 0
        self.cluster = ""
        self.version = "unknown"

    def reachable(self) -> None:
        """Ask the controller who it is; raises BackendAwayError."""
        told = dict(
            re.findall(r"^(\w+)\s+= (.*?)\s*$", self._run("scontrol", "show", "config"), re.MULTILINE)
        )
        cluster, version = told.get("ClusterName", ""), told.get("SLURM_VERSION", "")
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,40}", cluster):
            raise BackendAwayError("scontrol show config names no cluster: is this Slurm?")
        self.cluster, self.version = cluster, version or "unknown"

    def remember(self, cluster: str, most_on_one: int) -> None:
        """Take what was known of the cluster when it answered last, for a start while it is away."""
        self.cluster, self._most_on_one = cluster, most_on_one

    def facts(self) -> PoolFacts:
        """Count the units of the partition's hosts; raises BackendRefusedError for a partition that does not exist."""
        partition = fields_of(self._run("scontrol", "-o", "show", "partition", self._pool.partition))
        columns = ("NodeList", "StateComplete", "Gres", "GresUsed", "Reason")
        text = self._run("sinfo", "-h", "-N", "-p", self._pool.partition, "-O", _format(columns))
        hosts = rows(text, len(columns))
        if not partition.get("State") or is_garbage(text, hosts):
            raise BackendAwayError("sinfo and scontrol answer with something that cannot be read")
        units = away = used = most = 0
        silent: list[str] = []
        for host, state, gres, gres_used, why in hosts:
            count = count_of(gres, self._pool.gres)
            most = max(most, count)
            units += count
            if takes_no_work(state):
                away += count
                if count:
                    silent.append(
                        f"{host} is {state}" + ("" if why.strip() == "none" else f" ({why.strip()})")
                    )
            else:
                used += min(count, count_of(gres_used, self._pool.gres))
        notes: list[tuple[str, str]] = []
        if partition["State"] != "UP":
            said = f"the partition {self._pool.partition} is {partition['State']}: it starts no jobs"
            notes.append(
                ("partition_down", f"{said}; scontrol update PartitionName={self._pool.partition} State=UP")
            )
        if not units:
            notes.append(
                (
                    "no_units",
                    f"no host of the partition {self._pool.partition} has {self._pool.gres};"
                    " compare BERTH_SLURM_GRES with sinfo -o %G",
                )
            )
        if silent:
            notes.append(
                ("hosts_away", f"{away} of {units} units are out of service: {'; '.join(silent)}"[:1000])
            )
        self._most_on_one = most
        return PoolFacts(units, away, used, most, tuple(notes))

    def devices(self, units: int) -> tuple[DeviceFact, ...]:
        """Return the pool's units; each is a whole device, which is all that the cluster tells apart."""
        pool = self._pool
        named = f"slurm:{self.cluster}/{pool.partition}/{pool.kind}"
        return whole_devices(named, units, pool.vendor, pool.model, pool.memory_mib)

    def ensure(self, order: LeaseOrder) -> ClusterJob:
        """Return the lease's job, submitting it where the cluster knows none of its name."""
        account = self._account(order)
        if order.may_exist:
            for job in self.observe([order.name]):
                if job.is_ours and job.user == account.pw_name:
                    return job
                if job.phase != OVER:
                    raise BackendRefusedError(
                        "name_taken",
                        f"job {job.job} of {job.user} is called {job.name} already",
                        is_passing=True,
                    )
        said = self._run("sbatch", *self._words(order, account), stdin=HOLDER).strip()
        job_id = said.partition(";")[0]
        if not job_id.isdecimal():
            raise BackendAwayError(f"sbatch answered {said[:80]!r} instead of the number of a job")
        return ClusterJob(order.name, job_id, WAITING, user=account.pw_name)

    def observe(self, names: Collection[str], *, strays: bool = False) -> tuple[ClusterJob, ...]:
        """Return the jobs of these names. One that runs is checked: what it was given is read back.

        The names are given to squeue, so that no text of anybody else's jobs is in its answer.
        """
        asked = list(dict.fromkeys(names))
        if strays:
            text = self._run("squeue", "-h", "-r", "-p", self._pool.partition, "-o", "%j")
            asked += [
                name
                for name in dict.fromkeys(text.splitlines())
                if OURS.fullmatch(name) and name not in asked
            ]
        found: list[ClusterJob] = []
        for at in range(0, len(asked), NAMES_AT_ONCE):
            part = asked[at : at + NAMES_AT_ONCE]
            text = self._run(
                "squeue", "-h", "-r", "-t", "all", "-p", self._pool.partition, "-n", ",".join(part),
                "-O", _format(COLUMNS),
            )  # fmt: skip
            jobs = rows(text, len(COLUMNS))
            if is_garbage(text, jobs):
                raise BackendAwayError(f"squeue answers with something that cannot be read: {text[:80]!r}")
            found += [self._job(row) for row in jobs if row[1] in part]
        found += self._remembered(set(asked) - {job.name for job in found}) if len(found) < len(asked) else []
        for job in found:  # of those looked for: what is known of others is not read back anew
            if job.phase not in (RUNNING, ENDING, UNKNOWN):
                self._checked.pop(job.job, None)
                self._asked.discard(job.job)
        return tuple(found)

    def extend(self, job: str, ends_in_s: int) -> None:
        """Set the time limit of a job so that it ends in so many seconds, rounded up to whole minutes and one more."""
        told = fields_of(self._run("scontrol", "-o", "show", "job", job))
        ran = seconds_of(told.get("RunTime", ""))
        if told.get("JobState") not in ("RUNNING", "PENDING") or ran is None:
            return  # it is over: what ended it is observed
        limit = fence_minutes(ran + ends_in_s)
        self._run("scontrol", "update", f"JobId={job}", f"TimeLimit={limit}")

    def tell(self, job: str) -> None:
        """Send SIGUSR1 to the programs in a job; its holder script is not one."""
        self._run("scancel", "--signal=USR1", job)

    def end(self, job: str, *, asks: bool) -> None:
        """Cancel a job; with ``asks`` send SIGTERM to the programs in it first, where there are any."""
        if asks and self._has_programs(job):
            if job not in self._asked:
                self._run("scancel", "--signal=TERM", job)
                self._asked.add(job)
            return
        self._run("scancel", job)
        self._asked.discard(job)

    def _has_programs(self, job: str) -> bool:
        steps = self._run("squeue", "-h", "-s", "-j", job, "-o", "%i")
        return any(not step.endswith((".batch", ".extern")) for step in steps.split())

    def _account(self, order: LeaseOrder) -> pwd.struct_passwd:
        """Return who the job runs as: on the host of this agent that account exists as on the cluster's."""
        name = self._pool.user or order.user
        try:
            account = self._uid_of(name)
        except (KeyError, ValueError) as no:
            raise BackendRefusedError("no_account", f"{name} has no account on the host of the agent") from no
        if account.pw_uid == 0:
            raise BackendRefusedError("no_account", f"{name} is root here: no lease runs as root")
        return account

    def _words(self, order: LeaseOrder, account: pwd.struct_passwd) -> list[str]:
        """Return the words of sbatch. The group and the environment are named, or those of the agent would be used."""
        pool = self._pool
        hosts = (
            1
            if order.units <= self._most_on_one or not self._most_on_one
            else math.ceil(order.units / self._most_on_one)
        )
        words = [
            "--parsable", f"--job-name={order.name}", "--dependency=singleton", f"--partition={pool.partition}",
            f"--comment={pool.pool_id}", f"--nodes={hosts}", f"--ntasks={hosts}",
            f"--time={fence_minutes(order.ends_in_s)}", "--no-requeue", "--export=NIL", "--chdir=/",
            "--input=/dev/null", "--output=/dev/null", "--error=/dev/null",
        ]  # fmt: skip
        kind, _, of_type = pool.gres.partition(":")
        if hosts == 1:
            words.append(f"--gres={pool.gres}:{order.units}")
        elif kind == "gpu":  # of GPUs a total can be asked for, and the cluster divides it among the hosts
            words.append(f"--gpus={f'{of_type}:' if of_type else ''}{order.units}")
        elif order.units % hosts == 0:
            words.append(f"--gres={pool.gres}:{order.units // hosts}")
        else:
            said = f"{order.units} {kind} do not divide among {hosts} hosts, and Slurm knows totals of GPUs alone"
            raise BackendRefusedError("not_offered", said)
        if self._is_root:
            words += [f"--uid={account.pw_uid}", f"--gid={account.pw_gid}"]
        if pool.account:
            words.append(f"--account={pool.account.replace('{team}', order.team)}")
        if order.cpu_milli:
            words.append(f"--cpus-per-task={math.ceil(order.cpu_milli / 1000 / hosts)}")
        if order.memory_mib:
            words.append(f"--mem={math.ceil(order.memory_mib / hosts)}M")
        return words

    def _job(self, row: list[str]) -> ClusterJob:
        job, name, state, reason, user, _tres, host, started, ended, comment = row
        phase = _PHASES.get(state, OVER)
        found = ClusterJob(
            name=name,
            job=job,
            phase=phase,
            is_ours=comment == self._pool.pool_id,
            user=user,
            host=host if phase in (RUNNING, ENDING) else "",
            reason=reason if phase == WAITING else state,
            started_at=instant_of(started) if phase != WAITING else None,
            ended_at=instant_of(ended) if phase == OVER else None,
        )
        if phase == RUNNING and found.is_ours:
            places = self._places(job)
            return replace(found, units=len(places), places=places)
        return _ended(found, state, reason) if phase == OVER else found

    def _places(self, job: str) -> tuple[str, ...]:
        """Return what a running job was given, read back from the cluster once."""
        known = self._checked.get(job)
        if known is not None:
            return known
        line = self._run("scontrol", "-o", "-d", "show", "job", job)
        places = given(line, self._pool.gres)
        total = tres_count(fields_of(line).get("TRES", ""), self._pool.gres)
        if total is not None and total < len(places):
            places = places[:total]  # the smaller word is the one that is billed for
        self._checked[job] = places
        return places

    def _remembered(self, names: Iterable[str]) -> list[ClusterJob]:
        """Return what accounting knows of jobs that the controller has forgotten; nothing where there is none."""
        wanted = sorted(names)
        found: dict[str, ClusterJob] = {}
        columns = "JobIDRaw,JobName,State,User,Start,End,Comment"
        for at in range(0, len(wanted), NAMES_AT_ONCE):
            try:
                text = self._run(
                    "sacct", "-n", "-X", "-P", "-D", "-S", "now-40days", "-o", columns,
                    f"--name={','.join(wanted[at : at + NAMES_AT_ONCE])}",
                )  # fmt: skip
            except BackendRefusedError:
                return []  # no accounting is kept here
            except BackendAwayError:
                return [ClusterJob(name, "", UNKNOWN) for name in wanted]
            for line in text.splitlines():
                job, name, state, user, started, ended, *comment = line.split("|")
                word = state.partition(" ")[0]
                if name not in wanted or word in _PHASES:
                    continue
                told = ClusterJob(
                    name, job, OVER, is_ours="|".join(comment) in ("", self._pool.pool_id), user=user, reason=word,
                    started_at=instant_of(started), ended_at=instant_of(ended),
                )  # fmt: skip
                found[name] = _ended(told, state, "")  # the last row of several is the newest
        return list(found.values())


def fence_minutes(seconds: int) -> int:
    """Return the time limit in minutes that ends a job later than this, and less than two minutes later."""
    return max(1, math.ceil(seconds / 60)) + 1


def _format(columns: Iterable[str]) -> str:
    return ",".join(f"{name}:|" for name in columns)


def _ended(job: ClusterJob, state: str, reason: str) -> ClusterJob:
    """Return a job that is over with why, in a word and in the cluster's own."""
    word = state.partition(" ")[0]
    if word == "FAILED" and job.started_at == job.ended_at and reason not in ("", "None", "NonZeroExitCode"):
        return replace(job, code="not_offered", detail=f"job {job.job} never ran: {reason}")
    code = _ENDED.get(word, "cluster_ended")
    by = f" {state.partition(' ')[2]}" if " " in state else ""
    why = f" ({reason})" if reason not in ("", "None") else ""
    return replace(job, code=code, detail=f"job {job.job} is {word}{by}{why}")
