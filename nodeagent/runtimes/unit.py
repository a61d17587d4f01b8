"""What a lease's unit is made of: the properties it is started with, and how far a running one agrees with them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from nodeagent.host.accounts import Account
from nodeagent.runtimes.base import LeaseGrant

SHOWN: Final = (
    "LoadState", "ActiveState", "User", "DevicePolicy", "DeviceAllow", "MemoryMax", "CPUQuotaPerSecUSec",
    "ControlGroup", "MainPID",
)  # fmt: skip
# A terminal needs these; "closed" adds /dev/null, zero, full, random and urandom by itself.
TERMINAL: Final = ("/dev/tty", "/dev/ptmx", "char-pts")
# And a container of the holder's own, for its network and its files; both are open to everybody on a host as it is.
CONTAINER: Final = ("/dev/net/tun", "/dev/fuse")
ALLOWED: Final = "rw"
HOLDER: Final = ("sleep", "infinity")
MIB: Final = 1024 * 1024
SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|min|h|d|w|month|y)")
SPAN_US: Final = {
    "us": 1, "ms": 1_000, "s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000,
    "w": 604_800_000_000, "month": 2_629_800_000_000, "y": 31_557_600_000_000,
}  # fmt: skip
# Of processes and threads together: a program that forks without end is refused more, and nobody else on the host.
MOST_TASKS: Final = 8192


@dataclass(frozen=True, slots=True)
class UnitProperties:
    """A unit as ``systemctl show`` tells it."""

    words: dict[str, str] = field(default_factory=dict)
    devices: frozenset[str] = frozenset()

    @property
    def state(self) -> str:
        """Return inactive, activating, active, deactivating or failed."""
        return self.words.get("ActiveState", "inactive")

    @property
    def main_pid(self) -> int:
        """Return its first process, 0 without one."""
        text = self.words.get("MainPID", "0")
        return int(text) if text.isdigit() else 0


def parse(text: str) -> UnitProperties:
    """Read what ``systemctl show`` printed: a line per property, DeviceAllow once for each rule."""
    words, devices = {}, set()
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name == "DeviceAllow":
            devices.add(value)
        else:
            words[name] = value
    return UnitProperties(words, frozenset(devices - {""}))


def device_rules(grant: LeaseGrant) -> list[str]:
    """Return the device rules of a grant: its exact nodes, a terminal's and a container's."""
    return [f"{node} {ALLOWED}" for node in dict.fromkeys((*grant.nodes, *TERMINAL, *CONTAINER))]


def limits(grant: LeaseGrant) -> list[str]:
    """Return the properties that a running unit can still be given (systemctl set-property)."""
    memory = "infinity" if grant.memory_mib is None else str(max(grant.memory_mib, 1) * MIB)
    cpu = "" if grant.cpu_milli is None else f"{_percent(grant.cpu_milli)}%"
    rules = [f"DeviceAllow={rule}" for rule in device_rules(grant)]
    return ["DevicePolicy=closed", "DeviceAllow=", *rules, f"MemoryMax={memory}", f"CPUQuota={cpu}"]


def properties(grant: LeaseGrant, account: Account) -> list[str]:
    """Return all properties of a lease's unit, in the order in which they are given.

    Delegate is what AttachProcessesToUnit asks for, and makes running out of memory end one process, not the
    lease (OOMPolicy in systemd.service(5)). A shell heeds SIGHUP where it ignores SIGTERM. Nobody inside may
    ask systemd for more time (NotifyAccess).
    """
    return [
        f"User={account.name}",
        f"WorkingDirectory=-{account.home}",
        *(one for one in limits(grant) if one not in ("DeviceAllow=", "CPUQuota=")),
        f"TimeoutStopSec={max(grant.grace_s, 1)}",
        f"TasksMax={MOST_TASKS}",
        "KillMode=control-group",
        "SendSIGHUP=yes",
        "Delegate=yes",
        "NotifyAccess=none",
        "NoNewPrivileges=yes",
        *_view(grant),
    ]


def _view(grant: LeaseGrant) -> list[str]:
    """Return what hides all of a folder but what the lease is shown of it, read-only (systemd.exec(5))."""
    if not grant.veiled:
        return []
    shown = [path for path in grant.shown if path.startswith(f"{grant.veiled}/")]
    return [f"TemporaryFileSystem={grant.veiled}:ro", *(f"BindReadOnlyPaths={path}" for path in shown)]


def differs(shown: UnitProperties, grant: LeaseGrant) -> bool:
    """Say whether a running unit's devices or limits are not those of its grant."""
    memory = None if grant.memory_mib is None else max(grant.memory_mib, 1) * MIB
    cpu_us = None if grant.cpu_milli is None else _percent(grant.cpu_milli) * 10_000
    found = shown.words.get("MemoryMax", "infinity")
    return (
        shown.words.get("DevicePolicy") != "closed"
        or shown.devices != frozenset(device_rules(grant))
        or (int(found) if found.isdigit() else None) != memory
        or span_us(shown.words.get("CPUQuotaPerSecUSec", "infinity")) != cpu_us
    )


def span_us(text: str) -> int | None:
    """Return a time span as systemd prints it ("1min 30s") in microseconds, None for infinity."""
    parts = SPAN.findall(text)
    return round(sum(float(number) * SPAN_US[unit] for number, unit in parts)) if parts else None


def _percent(cpu_milli: int) -> int:
    """Return a share of CPU in whole percent of a core, rounded up: older versions of systemd take no others."""
    return max(1, -(-cpu_milli // 10))
