"""Leases for containers: one CDI spec per generation, which Docker and Podman look up by name.

``docker run --device berth.local/lease=<lease>`` puts the lease's device nodes, variables and folders into a
container. Format: the Container Device Interface, SPEC.md of cncf-tags/container-device-interface. A spec needs
nothing newer than 0.3.0 (0.5.0 where a name begins with a digit), so old engines read it too.

A container's processes lie in its engine's cgroup, which carries no lease. They do carry the variables of the
spec, and those tell whose they are, for processes that an engine of the host started: an account's own processes,
rootless containers included, are below user.slice, where anybody may claim any variable, and are not counted.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nodeagent.host.files import Exists, Read, passable, put, read_text, subfolders
from nodeagent.host.shell import ProgramError, Shell
from nodeagent.runtimes.base import (
    CDI,
    CDI_DIR,
    ISOLATED,
    RUNTIME,
    Key,
    LeaseEntrance,
    LeaseGrant,
    RuntimeRefusedError,
    require_harmless,
)
from nodeagent.runtimes.cgroups import Cgroups
from nodeagent.runtimes.driver_files import NVIDIA_NODE, driver_mounts
from nodeagent.runtimes.engines import SPEC_DIR_VERSION
from nodeagent.runtimes.lease_folder import LeaseFolder
from nodeagent.runtimes.names import harmless, key_of_stem, stem_of

KIND: Final = "berth.local/lease"
FOLDER: Final = Path("/var/run/cdi")  # one of the two where engines look by default (SPEC.md)
FILE_PREFIX: Final = "berth-lease_"
FILE: Final = re.compile(rf"{FILE_PREFIX}(?P<stem>.+)-(?P<boot>[0-9a-f]{{8}})\.json")
ENGINES: Final = ("docker", "podman", "nerdctl")
LEASE_VARIABLE: Final = "BERTH_LEASE"
GENERATION_VARIABLE: Final = "BERTH_GENERATION"
# docker-<id>.scope, libpod-<id>.scope and such with systemd, a folder <id> without.
CONTAINER: Final = re.compile(r"(?:/|-)[0-9a-f]{64}(?:\.scope)?(?:/|$)")
NEW_FILES: Final = ["rw", "nosuid", "nodev", "rbind"]
READ_ONLY: Final = ["ro", "nosuid", "nodev", "rbind"]

Mounts = Callable[[], Sequence[tuple[str, str]]]


def spec_of(grant: LeaseGrant, mounts: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
    """Return the CDI spec of a grant. ``mounts`` are read-only pairs of host path and path inside.

    No node of our own is made up: major and minor are left out, the engine reads them from the host's node.
    """
    name = device_name(grant.lease)
    env = grant.env | {LEASE_VARIABLE: grant.lease, GENERATION_VARIABLE: str(grant.generation)}
    folders = [
        {"hostPath": one, "containerPath": one, "options": NEW_FILES} for one in dict.fromkeys(grant.folders)
    ]
    read_only = [*((one, one) for one in dict.fromkeys(grant.shown)), *mounts]
    files = [{"hostPath": host, "containerPath": inside, "options": READ_ONLY} for host, inside in read_only]
    binds = [(host, inside) for host, inside in grant.binds.items() if host not in grant.nodes]
    files += [{"hostPath": host, "containerPath": inside, "options": NEW_FILES} for host, inside in binds]
    edits: dict[str, Any] = {"env": [f"{key}={value}" for key, value in sorted(env.items())]}
    if grant.nodes:
        edits["deviceNodes"] = [_node(one, grant.binds.get(one, one)) for one in dict.fromkeys(grant.nodes)]
    if folders or files:
        edits["mounts"] = folders + files
    # Names that begin with a digit, and nodes under another path inside, came with 0.5.0.
    version = "0.5.0" if name[0].isdigit() or grant.binds else "0.3.0"
    return {"cdiVersion": version, "kind": KIND, "devices": [{"name": name, "containerEdits": edits}]}


def _node(path: str, inside: str) -> dict[str, str]:
    """Return a device node, under another path inside where its driver asks for that."""
    other = {} if inside == path else {"hostPath": path}
    return {"path": inside, **other, "permissions": "rw"}


def device_name(lease: str) -> str:
    """Return a lease's device name; one that CDI would not take is refused (letters or digits at both ends)."""
    name = harmless(lease)
    if not (name[0].isalnum() and name[-1].isalnum()):
        raise RuntimeRefusedError(
            "bad_name", f"lease {lease!r} cannot be the name of a device in a container"
        )
    return name


def words_of(lease: str) -> str:
    """Return the name that people give to ``--device``."""
    return f"{KIND}={device_name(lease)}"


class CdiSpecs:
    """One folder of specs. Specs of an earlier boot are removed at the first look."""

    name = "cdi"
    # An engine gives a container its nodes and no others, but nothing holds people to using one.
    is_isolating = False

    def __init__(
        self,
        folder: Path = FOLDER,
        *,
        boot_id: str,
        mounts: Mounts = tuple,
        read: Read = read_text,
        pids: Callable[[], list[int]] | None = None,
        send: Callable[[int, int], None] = os.kill,
        which: Callable[[str], str | None] = shutil.which,
        is_root: bool | None = None,
        looks_only: bool = False,
        podman: Callable[[], tuple[int, ...] | None] = lambda: None,
    ) -> None:
        """Take the folder and this boot. ``mounts`` tells which files of the driver every container sees.

        ``podman`` tells its version (None: it is not here).
        ``looks_only``: what an earlier boot left is left to the agent to remove.
        """
        self._folder = LeaseFolder(folder, self.name)
        self._boot = "".join(one for one in boot_id.lower() if one in "0123456789abcdef")[:8].ljust(8, "0")
        self._mounts = mounts
        self._read = read
        self._pids = pids or _all_pids
        self._send = send
        self._which = which
        self._is_root = os.geteuid() == 0 if is_root is None else is_root
        self._cgroups = Cgroups(read, subfolders, os.path.exists)
        self._is_swept = looks_only
        self._podman = podman

    def why_not(self) -> str:
        """Return what is missing for containers on this host, "" when they can be used."""
        if not any(self._which(engine) for engine in ENGINES):
            return f"no container engine is installed ({', '.join(ENGINES)})"
        if not self._is_root and not os.access(self._folder.path, os.W_OK):
            return f"the agent may not write to {self._folder.path}; run it as root"
        return ""

    def open(self, grant: LeaseGrant) -> LeaseEntrance:
        """Write the lease's spec where it is not there as it should be; an older generation's goes first."""
        require_harmless(grant)
        self._sweep()
        path = self._path(grant.key)
        with self._folder.trouble("write", path):
            text = json.dumps(spec_of(grant, self._files(grant)), indent=1, sort_keys=True) + "\n"
            for key, other in self._specs(of=grant.lease):
                if key[1] < grant.generation:
                    other.unlink(missing_ok=True)
            if _text(path) != text:
                if not path.parent.exists():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.parent.chmod(0o755)  # engines of people read it too, whatever the agent's umask is
                put(path, text, mode=0o644)
            for folder in grant.shown:
                passable(Path(folder))  # an engine refuses to mount what is not there
        words = {RUNTIME: self.name, CDI: words_of(grant.lease), ISOLATED: "no"}
        if (self._podman() or ()) >= SPEC_DIR_VERSION:
            words[CDI_DIR] = str(self._folder.path)
        return LeaseEntrance(words)

    def would_refuse(self, grant: LeaseGrant) -> RuntimeRefusedError | None:
        """Return what container engines of this host lack, or that the lease's name is none for a device."""
        if self.why_not():
            return RuntimeRefusedError("cdi", self.why_not())
        try:
            require_harmless(grant)
            device_name(grant.lease)
        except RuntimeRefusedError as no:
            return no
        return None

    def close(self, key: Key, *, kill: bool) -> None:
        """Remove the spec, so that no container gets the lease any more; end those that have it."""
        self._folder.remove(self._path(key))
        for pid in self.pids(key):
            with contextlib.suppress(ProcessLookupError):
                self._send(pid, signal.SIGKILL if kill else signal.SIGTERM)

    def pids(self, key: Key) -> list[int]:
        """Return the processes of containers that were given this lease. Reads one file per process of the host."""
        return [pid for pid in self._pids() if self.lease_of(pid) == key]

    def known(self) -> list[Key]:
        """Return every lease that has a spec of this boot."""
        self._sweep()
        return sorted(key for key, _ in self._specs())

    def whole(self) -> list[Key]:
        """Return the same: there is one way in."""
        return self.known()

    def lease_of(self, pid: int) -> Key | None:
        """Return the lease that a container's process was given, None outside engines of the host."""
        told = told_lease(self._read, pid)
        return told if told is not None and is_engines(self._cgroups.path_of(pid)) else None

    def _files(self, grant: LeaseGrant) -> Sequence[tuple[str, str]]:
        if not any(node.startswith(NVIDIA_NODE) for node in grant.nodes):
            return ()
        try:
            return self._mounts()
        except ProgramError as no:
            raise RuntimeRefusedError(
                "cdi", f"the driver's libraries are not known: {no}", is_passing=True
            ) from no

    def _path(self, key: Key) -> Path:
        return self._folder.path / f"{FILE_PREFIX}{stem_of(key)}-{self._boot}.json"

    def _specs(self, *, of_this_boot: bool = True, of: str = "") -> list[tuple[Key, Path]]:
        """Return the specs of this boot or of earlier ones, by lease; ``of`` names the only lease wanted."""
        begin = f"{FILE_PREFIX}{harmless(of)}-" if of else FILE_PREFIX
        found = []
        for path in self._folder.files():
            match = FILE.fullmatch(path.name) if path.name.startswith(begin) else None
            key = key_of_stem(match["stem"]) if match else None
            if match is None or key is None or (of and key[0] != of):
                continue
            if (match["boot"] == self._boot) is of_this_boot:
                found.append((key, path))
        return found

    def _sweep(self) -> None:
        """Remove what an earlier boot left where the folder outlives one (/etc/cdi)."""
        if self._is_swept:
            return
        for _, path in self._specs(of_this_boot=False):
            with contextlib.suppress(OSError):
                path.unlink()
        self._is_swept = True


def told_lease(read: Read, pid: int) -> Key | None:
    """Return the lease that a process's variables name; they are believed only of those that ``is_engines``."""
    try:
        env = _pairs(read(f"/proc/{pid}/environ"))
    except OSError:
        return None
    lease, generation = env.get(LEASE_VARIABLE), env.get(GENERATION_VARIABLE, "")
    if not lease or not (generation.isascii() and generation.isdigit()):
        return None
    return lease, int(generation)


def is_engines(cgroup: str | None) -> bool:
    """Say whether a cgroup is a container's that an engine of the host made (its id has 64 digits).

    Those below user.slice a login made, those below berth.slice a lease's holder: they prove nothing.
    """
    path = cgroup or ""
    return not path.startswith(("/user.slice/", "/berth.slice/")) and CONTAINER.search(path) is not None


def mounts_of(shell: Shell, exists: Exists) -> Mounts:
    """Return the look-up of the driver's libraries on this host."""
    return lambda: driver_mounts(shell, exists)


def _all_pids() -> list[int]:
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def _pairs(environ: str) -> Mapping[str, str]:
    return dict(pair.partition("=")[::2] for pair in environ.split("\0") if "=" in pair)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
