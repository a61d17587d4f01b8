"""A Slurm cluster of a test's own: everything in one folder, started as root without systemd, gone afterwards."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from nodeagent.backends.base import ClusterJob
from nodeagent.backends.slurm.backend import SlurmBackend
from nodeagent.backends.slurm.commands import SlurmCommands, quiet_environment
from nodeagent.backends.slurm.output import fields_of, seconds_of
from nodeagent.backends.slurm.settings import SlurmSettings
from nodeagent.host.shell import Done, HostShell, ProgramError

PROGRAMS = ("munged", "mariadbd", "mariadb-install-db", "slurmdbd", "slurmctld", "slurmd", "sbatch", "sacct")
HOLDER, ACCOUNT = "games", "vision"
UP_WITHIN_S = 120.0  # several may come up at once
HOLD = "#!/bin/sh\nexec /bin/sleep infinity\n"
SLURM_CONF = """\
ClusterName=t
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={ctld}
AuthInfo=socket={at}/munge.sock
StateSaveLocation={at}/state
SlurmctldPidFile={at}/slurmctld.pid
SlurmctldLogFile={at}/slurmctld.log
SlurmdPidFile={at}/slurmd.%n.pid
SlurmdLogFile={at}/slurmd.%n.log
SlurmdSpoolDir={at}/spool.%n
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={dbd}
AccountingStoragePass={at}/munge.sock
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES=gres/gpu,gres/gpu:a100
AccountingStoreFlags=job_comment
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
GresTypes=gpu
KillWait=2
SlurmdParameters=config_overrides
ReturnToService=0
MailProg=/bin/true
MpiDefault=none
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,default_queue_depth=2000,bf_interval=10
NodeName=n1 NodeAddr=127.0.0.1 NodeHostname={host} Port={n1} CPUs=64 RealMemory=64000 Gres=gpu:a100:8
NodeName=n2 NodeAddr=127.0.0.1 NodeHostname={host} Port={n2} CPUs=64 RealMemory=64000 Gres=gpu:a100:8
PartitionName=gpu Nodes=n1,n2 Default=YES MaxTime=7-0 State=UP
"""
GRES_CONF = """\
NodeName=n1 Name=gpu Type=a100 File={at}/dev/a[0-7]
NodeName=n2 Name=gpu Type=a100 File={at}/dev/b[0-7]
"""
DBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={at}/munge.sock
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={dbd}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={sql}
StorageUser=root
StorageLoc=slurm
PidFile={at}/slurmdbd.pid
LogFile={at}/slurmdbd.log
"""


def why_no_slurm() -> str:
    """Return why a cluster cannot be started here, "" where it can."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin"
    missing = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    if missing:
        return f"not installed here: {', '.join(missing)} (docs/slurm.md names Debian's packages)"
    return "" if os.geteuid() == 0 else "a cluster of its own wants root"


class FaultyShell(HostShell):
    """Runs Slurm's commands for real; what they answer can be lost or spoiled."""

    def __init__(self, cluster: SlurmCluster) -> None:
        super().__init__(quiet_environment(cluster.environ))
        self._cluster = cluster

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        timeout_s: float = 20.0,
    ) -> Done:
        done = super().run(argv, stdin=stdin, env=env, timeout_s=timeout_s)
        program = Path(argv[0]).name
        if program == "sbatch" and self._cluster.loses_answer:
            self._cluster.loses_answer = False
            raise ProgramError("sbatch did not answer within 15 s")
        if program == "scontrol" and "job" in argv and self._cluster.gives_nothing:
            # As 22.05 did with several types of GPU on one node: RUNNING, with none of them.
            return Done(
                done.code, done.out.replace("gpu:a100:2(IDX:0-1)", "gpu:a100:0").replace("a100=2", "a100=0")
            )
        return done


class SlurmCluster:
    """Two hosts of eight units, with accounting. ``environ`` is what its commands need."""

    wide = 12

    def __init__(self, folder: Path) -> None:
        self.at = folder
        self.environ = {
            "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin",
            "SLURM_CONF": str(folder / "slurm.conf"),
        }
        self.loses_answer = self.gives_nothing = False
        self.pool_id = ""
        self._started: list[subprocess.Popen[bytes]] = []
        names = ("ctld", "dbd", "sql", "n1", "n2")
        self._words = {"at": str(folder), "host": socket.gethostname().partition(".")[0]} | {
            name: str(port) for name, port in zip(names, _free_ports(len(names)), strict=True)
        }

    # Its life

    @contextmanager
    def running(self) -> Iterator[SlurmCluster]:
        """Start everything, and take all of it away afterwards."""
        try:
            self._prepare()
            self._start_services()
            yield self
        finally:
            for name in ("slurmd.n1", "slurmd.n2", "slurmctld", "slurmdbd"):
                self._kill(name, signal.SIGKILL)
            for process in reversed(self._started):
                process.terminate()
            for process in self._started:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)
            with suppress(OSError, ValueError):
                os.kill(int((self.at / "munged.pid").read_text()), signal.SIGTERM)

    def _prepare(self) -> None:
        self.at.chmod(0o755)
        for name in ("dev", "state", "db"):
            (self.at / name).mkdir()
        for name in (f"{letter}{n}" for letter in "ab" for n in range(8)):
            os.mknod(self.at / "dev" / name, 0o020666, os.makedev(1, 3))
        (self.at / "munge.key").write_bytes(secrets.token_bytes(1024))
        (self.at / "munge.key").chmod(0o400)
        texts = {"slurm.conf": SLURM_CONF, "gres.conf": GRES_CONF, "slurmdbd.conf": DBD_CONF}
        for name, text in texts.items():
            (self.at / name).write_text(text.format(**self._words))
        (self.at / "slurmdbd.conf").chmod(0o600)

    def _start_services(self) -> None:
        at, sql = self.at, self.at / "my.sock"
        self.do(
            "munged", "--force", f"--key-file={at}/munge.key", f"--socket={at}/munge.sock",
            f"--pid-file={at}/munged.pid", f"--log-file={at}/munged.log", f"--seed-file={at}/munged.seed",
        )  # fmt: skip
        self.do(
            "mariadb-install-db", "--no-defaults", f"--datadir={at}/db", "--auth-root-authentication-method=normal",
            "--skip-test-db", "--user=root",
        )  # fmt: skip
        self._spawn(
            "mariadbd", "--no-defaults", "--user=root", f"--datadir={at}/db", f"--socket={sql}",
            "--bind-address=127.0.0.1", f"--port={self._words['sql']}", "--innodb-buffer-pool-size=32M",
        )  # fmt: skip
        self._wait(lambda: sql.exists() and _answers(int(self._words["sql"])))
        self._spawn("slurmdbd", "-D")
        self._wait(lambda: _answers(int(self._words["dbd"])))
        self._wait(lambda: self._says("sacctmgr", "-n", "show", "cluster") is not None)
        self.do("sacctmgr", "-i", "add", "cluster", "t", may_fail=True)
        self.do(
            "sacctmgr",
            "-i",
            "add",
            "account",
            ACCOUNT,
            "Description=vision",
            "Organization=berth",
            "parent=root",
        )
        self.do("sacctmgr", "-i", "add", "user", HOLDER, f"account={ACCOUNT}")
        self.start_controller()
        self._spawn("slurmd", "-D", "-N", "n1")
        self._spawn("slurmd", "-D", "-N", "n2")
        self._wait(lambda: (self._says("sinfo", "-h", "-o", "%D %T") or "").split() == ["2", "idle"])

    def start_controller(self) -> None:
        self._spawn("slurmctld", "-D")
        self._wait(lambda: self._says("scontrol", "ping") is not None)

    def backend(self) -> SlurmBackend:
        """Return a back end of a new pool, as an agent of root has it: jobs of earlier ones are not its own."""
        self.pool_id = secrets.token_hex(8)
        settings = SlurmSettings(
            "gpu", "gpu:a100", "a100-80gb", 81920, account="{team}", pool_id=self.pool_id
        )
        commands = SlurmCommands(FaultyShell(self))
        backend = SlurmBackend(commands, settings)
        backend.reachable()
        return backend

    # What tests do to it, as to the one in memory

    def clear(self) -> None:
        """End everything that runs."""
        self.loses_answer = self.gives_nothing = False
        for job in self.live():
            self.do("scancel", job.job)
        self._wait(
            lambda: not self.live() and (self._says("sinfo", "-h", "-o", "%T") or "").split() == ["idle"]
        )

    def start(self) -> None:
        """Nothing: its own scheduler starts what waits."""

    def live(self) -> list[ClusterJob]:
        text = self.do("squeue", "-h", "-o", "%i|%j|%T")
        return [
            ClusterJob(name, job, state)
            for job, name, state in (line.split("|") for line in text.splitlines())
        ]

    def twin_of(self, job: str) -> str:
        name = self.do("squeue", "-h", "-j", job, "-o", "%j").strip()
        return self._submit(name, 2, self.pool_id, "--dependency=singleton")

    def foreign(self, units: int, name: str = "train") -> str:
        job = self._submit(name, units, "somebody")
        self._wait(lambda: self.do("squeue", "-h", "-j", job, "-o", "%T").strip() == "RUNNING")
        return job

    def remove(self, job: str) -> None:
        self.do("scancel", job)

    @contextmanager
    def silent(self) -> Iterator[None]:
        # Not SIGKILL: what it had not written yet, it would have forgotten when it is back.
        self._kill("slurmctld", signal.SIGTERM)
        yield
        self.start_controller()
        self._wait(lambda: self._says("squeue", "-h") is not None)

    @contextmanager
    def without(self, host: str) -> Iterator[None]:
        self.do("scontrol", "update", f"NodeName={host}", "State=DOWN", "Reason=pulled")
        yield
        self.do("scontrol", "update", f"NodeName={host}", "State=RESUME")

    def programs_of(self, job: str) -> list[int]:
        """Return the processes of a job on its hosts, which are this machine."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if (
                f"SLURM_JOB_ID={job}".encode() in words
                and f"SLURM_CONF={self.at}/slurm.conf".encode() in words
            ):
                found.append(int(folder.name))
        return found

    def limit_of(self, job: str) -> int:
        return seconds_of(fields_of(self.do("scontrol", "-o", "show", "job", job))["TimeLimit"]) or 0

    def do(self, *words: str, stdin: str = "", may_fail: bool = False) -> str:
        """Run a command to its end and return what it printed."""
        done = subprocess.run(
            words, input=stdin, capture_output=True, text=True, env=self.environ, check=False, cwd=self.at
        )
        assert may_fail or done.returncode == 0, f"{' '.join(words)}: {done.stderr or done.stdout}"
        return done.stdout

    def _submit(self, name: str, units: int, comment: str, *more: str) -> str:
        return self.do(
            "sbatch", "--parsable", f"--uid={HOLDER}", "--gid=60", "--export=NIL", f"--account={ACCOUNT}",
            "--partition=gpu", "--nodes=1", f"--job-name={name}", f"--comment={comment}", f"--gres=gpu:a100:{units}",
            "--time=60", "--chdir=/", "--output=/dev/null", "--error=/dev/null", *more,
            stdin=HOLD,
        ).strip()  # fmt: skip

    def _says(self, *words: str) -> str | None:
        done = subprocess.run(words, capture_output=True, text=True, env=self.environ, check=False)
        return done.stdout if done.returncode == 0 else None

    def _spawn(self, *words: str) -> None:
        with (self.at / f"{words[0]}.out").open("ab") as out:
            process = subprocess.Popen(words, stdout=out, stderr=out, env=self.environ, cwd=self.at)
        self._started.append(process)

    def _kill(self, name: str, number: int) -> None:
        program, _, node = name.partition(".")
        for process in self._started:
            words = [str(word) for word in process.args]  # type: ignore[union-attr]
            if Path(words[0]).name == program and (not node or words[-1] == node) and process.poll() is None:
                process.send_signal(number)
                process.wait(10)

    def _wait(self, ready: Callable[[], bool]) -> None:
        until = time.monotonic() + UP_WITHIN_S
        while not ready():
            dead = [one.args for one in self._started if one.poll() not in (None, 0, -9)]
            assert (time.monotonic() < until, dead) == (True, []), (
                f"the cluster in {self.at} does not come up"
            )


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _answers(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
