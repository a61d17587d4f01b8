"""A host with the simulated service manager, its people and one lease for alice, for the tests of units."""

from __future__ import annotations

from dataclasses import dataclass, field

from nodeagent.host.accounts import Account
from nodeagent.runtimes.base import LeaseGrant
from nodeagent.runtimes.systemd import SystemdRuntime
from nodeagent.simulation.machine.world import SimulatedShell, World
from nodeagent.simulation.programs.systemd import SimulatedSystemd

PEOPLE = {
    "alice": Account(1001, 1001, "/home/alice", "alice"),
    "bob": Account(1002, 1002, "/home/bob", "bob"),
}
UNIT = "berth-lease-a-1.service"
CGROUP = f"/berth.slice/{UNIT}"
GRANT = LeaseGrant(
    lease="a",
    generation=1,
    user="alice",
    team="vision",
    env={"CUDA_VISIBLE_DEVICES": "MIG-1"},
    nodes=("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap12"),
    ends_in_s=600,
    grace_s=30,
    cpu_milli=1500,
    memory_mib=2048,
)


def person(name: str) -> Account:
    if name not in PEOPLE:
        raise LookupError(f"this host has no account {name!r}; add it")
    return PEOPLE[name]


@dataclass
class Host:
    systemd: SimulatedSystemd = field(default_factory=lambda: SimulatedSystemd(World()))
    shell: SimulatedShell = field(default_factory=SimulatedShell)

    def __post_init__(self) -> None:
        self.shell.programs.update(self.systemd.programs())

    def agent(self, **facts: object) -> SystemdRuntime:
        """A new agent on the same host."""
        given: dict[str, object] = {
            "read": self.systemd.read,
            "write": self.systemd.write,
            "folders": self.systemd.folders,
            "exists": self.systemd.exists,
            "account": person,
            "clock_s": self.systemd.clock_s,
            "is_root": True,
        }
        return SystemdRuntime(self.shell, **(given | facts))  # type: ignore[arg-type]

    def work(self, *, stubborn: bool = False, below: str = "") -> int:
        return self.systemd.world.spawn(f"{CGROUP}{below}", user="alice", is_stubborn=stubborn).pid

    def ends(self) -> list[float]:
        return sorted(timer.due for timer in self.systemd.timers.values())

    def state(self) -> dict[str, object]:
        unit = self.systemd.units.get(UNIT)
        inside = len(self.systemd.world.inside(CGROUP))
        return {"unit": unit and (unit.state, unit.properties), "inside": inside, "ends": self.ends()}
