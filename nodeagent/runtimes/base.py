"""What every runtime can do: open a lease to its holder, close it, and say which processes are inside."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final, Protocol

from nodeagent.protocol.forms import is_device_node, is_id, is_line
from nodeagent.protocol.variables import may_set

Key = tuple[str, int]

# Words of an entrance, as LeaseReport carries it.
RUNTIME: Final = "runtime"
UNIT: Final = "unit"
CDI: Final = "cdi"
# Where Podman must be told to look for the device; no word where it looks there by itself.
CDI_DIR: Final = "cdi_dir"
ISOLATED: Final = "isolated"
ENV_FILE: Final = "env_file"
# The lease's scratch folder, how many GiB it may have, and where its team's data sets are.
SCRATCH: Final = "scratch"
SCRATCH_GIB: Final = "scratch_gib"
DATA: Final = "data"


class RuntimeRefusedError(Exception):
    """A lease cannot be opened or closed now: ``word`` is stable, ``detail`` says what to install or allow.

    ``is_passing``: trying again later may help.
    """

    def __init__(self, word: str, detail: str, *, is_passing: bool = False) -> None:
        super().__init__(f"{word}: {detail}")
        self.word = word
        self.detail = detail
        self.is_passing = is_passing


@dataclass(frozen=True, slots=True)
class LeaseGrant:
    """What one generation of one lease may use on this host. Times in seconds from now.

    ``nodes`` are the exact device nodes, ``folders`` host folders it must see and may write to, ``shown`` those of
    its own that it only reads, ``binds`` what must appear inside under another path (host path: path inside), which
    only containers can give; None is no limit. ``veiled`` is a folder of which it sees nothing but what is ``shown``,
    "" for none. ``armed_for`` is the agent's own note of the end that ``ends_in_s`` was counted to.
    """

    lease: str
    generation: int
    user: str
    team: str
    env: dict[str, str]
    nodes: tuple[str, ...]
    ends_in_s: int
    grace_s: int
    folders: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    cpu_milli: int | None = None
    memory_mib: int | None = None
    binds: dict[str, str] = field(default_factory=dict)
    veiled: str = ""
    armed_for: int = field(default=0, compare=False)

    @property
    def key(self) -> Key:
        """Identity: the same lease with a higher generation is another grant."""
        return self.lease, self.generation


def require_harmless(grant: LeaseGrant) -> None:
    """Raise RuntimeRefusedError unless all words of a grant may stand in a unit, a path or a container's spec.

    The codec has refused such frames already; this is for journals, drivers and whatever else comes to open a lease.
    """
    paths = (*grant.folders, *grant.shown, *grant.binds, *grant.binds.values(), grant.veiled or "/")
    bad = [
        *(("bad_name", name) for name in (grant.lease,) if not is_id(name)),
        *(("bad_name", name) for name in (grant.user, grant.team) if not is_line(name)),
        *(("bad_variable", name) for name, value in grant.env.items() if not may_set(name, value)),
        *(("bad_path", node) for node in grant.nodes if not is_device_node(node)),
        *(("bad_path", path) for path in paths if not _is_plain_path(path)),
    ]
    if bad:
        word, text = bad[0]
        raise RuntimeRefusedError(word, f"{text!r} is nothing that a lease on this host may hold")


def _is_plain_path(path: str) -> bool:
    return path.startswith("/") and is_line(path) and ".." not in PurePath(path).parts


@dataclass(frozen=True, slots=True)
class LeaseEntrance:
    """An open lease: ``words`` for its holder (see above), ``cgroup`` below /sys/fs/cgroup ("" without one)."""

    words: dict[str, str] = field(default_factory=dict)
    cgroup: str = ""


class Runtime(Protocol):
    """Every call is safe to repeat and may block for a moment; refusals are RuntimeRefusedError.

    Calls for different leases may come from different threads, calls for one lease never overlap.
    """

    name: str
    is_isolating: bool

    def open(self, grant: LeaseGrant) -> LeaseEntrance:
        """Let the holder in, or return the entrance that is open already; brings its time limit up to date."""
        ...

    def would_refuse(self, grant: LeaseGrant) -> RuntimeRefusedError | None:
        """Return why ``open`` would refuse, as far as can be known without changing anything; None: it would not."""
        ...

    def close(self, key: Key, *, kill: bool) -> None:
        """Ask everything inside to end (SIGTERM), or end it now; what is gone already is success."""
        ...

    def pids(self, key: Key) -> list[int]:
        """Return the processes inside now; none means that the lease is closed for good."""
        ...

    def known(self) -> list[Key]:
        """Return every lease that is open here in any way, whoever remembers it."""
        ...

    def whole(self) -> list[Key]:
        """Return the leases that are open in every way that this runtime has; others are opened once more."""
        ...

    def lease_of(self, pid: int) -> Key | None:
        """Return the lease in whose unit a process runs, None for one outside all of them."""
        ...

    def why_not(self) -> str:
        """Return what is missing for this runtime on this host, "" when it can be used."""
        ...
