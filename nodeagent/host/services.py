"""Programs that belong to the host itself, told by name and account together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

# The kernel keeps 15 bytes of a name (TASK_COMM_LEN in include/linux/sched.h).
COMM_BYTES: Final = 15

# Services of the host. A user could give any program these names, so they excuse only accounts of the host itself.
SERVICES: Final = (
    "nvidia-persistenced",
    "nv-hostengine",
    "dcgm-exporter",
    "nvidia-fabricmanager",
    "nvsm_core",
)
DISPLAYS: Final = ("Xorg", "Xwayland", "gnome-shell", "kwin_wayland")
MPS: Final = ("nvidia-cuda-mps-server", "nvidia-cuda-mps-control")
# Root and the accounts of services; those of people begin here (UID_MIN in login.defs(5)).
FIRST_PERSON: Final = 1000


def short_name(name: str) -> str:
    """Return a program's name as the kernel keeps it."""
    return name.encode()[:COMM_BYTES].decode(errors="ignore")


def short_names(names: Iterable[str]) -> frozenset[str]:
    """Return names as the kernel keeps them."""
    return frozenset(short_name(name) for name in names)


_MPS_NAMES: Final = short_names(MPS)
_KNOWN: Final = short_names((*SERVICES, *DISPLAYS)) | _MPS_NAMES


def is_service(
    read: Callable[[str], str],
    pid: int,
    name: str,
    *,
    allowed: frozenset[str] = frozenset(),
    mps_uids: frozenset[int] = frozenset(),
) -> bool:
    """Say whether a process is a program of the host: a name that is known or ``allowed``, under a host's account.

    That is root or the account of a service, for MPS servers also one of ``mps_uids``, for whom this host runs them.
    ``allowed`` are names of at most COMM_BYTES. All four uids of the process count.
    """
    short = short_name(name)
    if short not in _KNOWN and short not in allowed:
        return False
    uids = _uids(read, pid)
    if not uids:
        return False
    return max(uids) < FIRST_PERSON or (short in _MPS_NAMES and uids <= mps_uids)


def _uids(read: Callable[[str], str], pid: int) -> frozenset[int]:
    """Return the accounts in the status line of a process (proc_pid_status(5)), none where it cannot be read."""
    try:
        lines = read(f"/proc/{pid}/status").splitlines()
    except (OSError, ValueError):
        return frozenset()
    words = next((line.split()[1:] for line in lines if line.startswith("Uid:")), [])
    return frozenset(int(word) for word in words if word.isascii() and word.isdigit())


def start_of(read: Callable[[str], str], pid: int) -> str:
    """Return when a process started, in clock ticks since boot, "" when unknown: field 22 of proc_pid_stat(5)."""
    try:
        words = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    except OSError:
        return ""
    return words[19] if len(words) > 19 else ""
