"""What simulated MPS daemons know: servers, their clients, limits."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Limits:
    """Active thread percentage and pinned memory; None is no limit."""

    percent: float = 100.0
    memory_mib: int | None = None


@dataclass(slots=True)
class Client:
    """A process that works through a server, with the limits it got when it came."""

    pid: int
    space: str
    limits: Limits
    is_busy: bool = False


@dataclass(slots=True)
class Server:
    """A server process of one user on one device; ``looks`` are those until it has started."""

    pid: int
    name: str
    uid: int
    device: str
    place: tuple[str, int | None]
    status: str
    limits: Limits
    clients: dict[int, Client] = field(default_factory=dict)
    looks: int = 0


@dataclass(slots=True)
class Daemon:
    """A control daemon, known by its pipe folder. ``spaces`` are the namespaces of protocol 3, with their limits."""

    pid: int
    pipe: str
    device: str
    protocol: int
    percent: float = 100.0
    limits: dict[str, int] = field(default_factory=dict)
    servers: dict[str, Server] = field(default_factory=dict)
    spaces: dict[str, Limits] = field(default_factory=dict)
    uid: int = 0

    def defaults_on(self, device: str) -> Limits:
        """Return what a new server keeps of the defaults: the last limit set for the device or its ordinal."""
        found = [mib for name, mib in self.limits.items() if name in (device, "0")]
        return Limits(self.percent, found[-1] if found else None)


def ignore(_: object) -> None:
    """Take a value that nobody wants."""
