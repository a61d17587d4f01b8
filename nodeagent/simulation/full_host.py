"""A simulated host put together: devices, processes, MPS, nvidia-smi, units and containers, one hook for all changes.

The driver of real devices and the real runtimes run on it unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from nodeagent.drivers.nvml.driver import NvmlDriver
from nodeagent.drivers.nvml.mps.servers import Mps
from nodeagent.drivers.nvml.settings import NvmlHost, NvmlSettings
from nodeagent.host.accounts import Account
from nodeagent.host.shell import Done
from nodeagent.runtimes.base import Runtime
from nodeagent.runtimes.cdi import CdiSpecs
from nodeagent.runtimes.choice import pick
from nodeagent.runtimes.plain import PlainRuntime
from nodeagent.runtimes.systemd import SystemdRuntime
from nodeagent.simulation.faults import Faults
from nodeagent.simulation.machine.host import SimulatedHost
from nodeagent.simulation.machine.world import SimulatedShell, World
from nodeagent.simulation.nvml import SimulatedNvml
from nodeagent.simulation.programs.mps import PROGRAM as MPS_PROGRAM
from nodeagent.simulation.programs.mps_host import mps_on
from nodeagent.simulation.programs.smi import PROGRAM as SMI_PROGRAM
from nodeagent.simulation.programs.smi import SimulatedSmi
from nodeagent.simulation.programs.systemd import SimulatedSystemd

PEOPLE: Final = ("alice", "bob", "charlie")
UIDS: Final = {name: 1001 + at for at, name in enumerate(PEOPLE)}
# A socket's path has little room; the simulated program opens none.
ANY_LENGTH: Final = 10_000

Hook = Callable[[str], None]


class FullHost:
    """One host that outlives its agents. ``hook`` is called before and after every change with its name."""

    def __init__(
        self,
        name: str,
        boards: Sequence[str],
        folder: Path,
        clock: Callable[[], int],
        *,
        seed: int = 0,
        sleep: Callable[[float], None] = lambda seconds: None,
        faults: Faults | None = None,
    ) -> None:
        """Put the boards into a host; files of agents go below ``folder``, ``sleep`` is how slow calls take time."""
        self.hook: Hook = lambda name: None
        self.folder, self._clock = folder, clock
        self.world = World(uids=dict(UIDS))
        self.host = SimulatedHost(
            boards, name=name, clock=clock, sleep=sleep, faults=faults, world=self.world, seed=seed
        )
        self.host.on_change = self._changed
        self.host.has_dmem = True
        self.systemd = SimulatedSystemd(self.world, on_change=self._changed)
        self.mps = mps_on(self.host, UIDS, socket_room=ANY_LENGTH)
        self.smi = SimulatedSmi(self.host, on_change=self._changed)
        self.shell = SimulatedShell(
            {**self.systemd.programs(), MPS_PROGRAM: self._say_to_mps, SMI_PROGRAM: self.smi}
        )

    @property
    def run_dir(self) -> Path:
        """Folder for what a reboot loses."""
        return self.folder / "run"

    @property
    def specs(self) -> Path:
        """Folder of container devices."""
        return self.folder / "cdi"

    def driver(
        self,
        offer: frozenset[str] | None = None,
        *,
        listens: bool = False,
        looks_only: bool = False,
        may_limit_power: bool = False,
    ) -> NvmlDriver:
        """Return the driver of real devices in a fresh session on this host, as a new agent opens it.

        ``listens``: with its own thread for events; ``looks_only``: without writing into the host's folders.
        """
        self.host.end_agent()
        library = SimulatedNvml(self.host)
        mps = Mps(
            library,
            self.shell,
            self.run_dir / "mps",
            account=account,
            own=lambda path, uid, gid: None,
            pause=lambda seconds: None,
            clock=self.now_s,
            socket_room=ANY_LENGTH,
        )
        settings = NvmlSettings(
            run_dir=self.run_dir,
            offer=offer,
            may_limit_power=may_limit_power,
            listens=listens,
            looks_only=looks_only,
            is_root=self.host.is_root,
        )
        host = NvmlHost(
            shell=self.shell,
            read=self.read,
            write=self.host.write,
            send=self.world.send,
            account=account,
            clock_ns=self._clock,
            on_change=self._changed,
        )
        return NvmlDriver(self.host.boot_id, library, settings=settings, host=host, mps=mps)

    def runtime(self, name: str = "auto", *, looks_only: bool = False) -> Runtime:
        """Return the runtime of this name on a host with systemd and a container engine, as a new agent opens it."""
        self.pass_time()
        units = SystemdRuntime(
            self.shell,
            read=self.read,
            write=self.systemd.write,
            folders=self.systemd.folders,
            exists=self.systemd.exists,
            account=account,
            clock_s=self.systemd.clock_s,
            is_root=True,
        )
        containers = CdiSpecs(
            self.specs,
            boot_id=self.host.boot_id,
            read=self.read,
            pids=lambda: list(self.world.processes),
            send=self.world.send,
            which=lambda engine: f"/usr/bin/{engine}",
            is_root=True,
            looks_only=looks_only,
        )
        return pick(name, units, containers, PlainRuntime(self.run_dir, account=account, is_root=False))

    def read(self, path: str) -> str:
        """Return a file of this host; raises OSError for what it has not."""
        try:
            return self.systemd.read(path)
        except OSError as missing:
            try:
                return self.host.read(path)
            except OSError:
                raise missing from None

    def now_s(self) -> float:
        """Return the host's monotonic clock in seconds."""
        return self._clock() / 1e9

    def pass_time(self) -> None:
        """Let units and scripts do what is due by now; nobody needs the agent for that."""
        self.systemd.tick(self.now_s())
        self.host.tick()

    def reboot(self) -> None:
        """Restart: everything but files on disk is gone."""
        self.systemd.reboot()
        self.host.reboot()
        self.mps = mps_on(self.host, UIDS, socket_room=ANY_LENGTH)

    def _say_to_mps(self, argv: Sequence[str], stdin: str, env: Mapping[str, str]) -> Done:
        return self.mps(argv, stdin, env)

    def _changed(self, name: str) -> None:
        self.hook(name)


def account(name: str) -> Account:
    """Return the account of one of the people of simulated hosts; raises LookupError for anybody else."""
    if name not in PEOPLE:
        raise LookupError(f"this host has no account {name!r}; it knows {', '.join(PEOPLE)}")
    uid = UIDS[name]
    return Account(uid, uid, f"/home/{name}", name)
