"""Podman's command lines: what this host's version takes, and what a job in a container is run with.

The container is put inside the lease and never beside it: with crun and ``--cgroups=disabled`` its processes stay in
the cgroup they are started from, which is the lease's unit, so one limit binds all of a lease and one end ends it.
"""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeagent.containers.room import while_there_is_room
from nodeagent.host.files import Exists
from nodeagent.host.shell import ProgramError, Shell
from nodeagent.runtimes.engines import SPEC_DIR, SPEC_DIR_VERSION, version_of

NETWORKS: Final = ("private", "none", "host")
ENGINE_PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
# Where a runner puts the path of a file with the container's variables (nodeagent.jobs.runner).
ENV_FILE: Final = "@env-file@"
HYBRID: Final = "/sys/fs/cgroup/unified"
CATATONIT: Final = ("/usr/libexec/podman/catatonit", "/usr/lib/podman/catatonit")
LEAST_VERSION: Final = (4, 3)
MOST_FILES: Final = 65_536
MOST_PROCESSES: Final = 4096
LEAST_SHM_MIB: Final = 64
USUAL_SHM_MIB: Final = 1024


@dataclass(frozen=True, slots=True)
class ContainerBox:
    """What of a lease a container is given. ``env`` are its variables, ``devices`` names of the Container Device
    Interface, ``mounts`` host paths that appear under the same path, with whether they are read-only.

    ``cpu_milli`` and ``memory_mib``: limits, None for none or where the lease's unit keeps them already.
    """

    name: str
    labels: Mapping[str, str]
    user: str
    home: str
    env: Mapping[str, str]
    devices: Sequence[str] = ()
    mounts: Mapping[str, bool] = field(default_factory=dict)
    cpu_milli: int | None = None
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Podman:
    """The Podman of this host. ``is_root``: it runs as root, for containers of another account; else as the holder."""

    version: tuple[int, ...]
    program: str
    runtime: str
    is_root: bool
    network: str = NETWORKS[0]

    @property
    def base(self) -> list[str]:
        """Return how every command begins."""
        where = SPEC_DIR if self.version >= SPEC_DIR_VERSION else ()
        runtime = f"--runtime={self.runtime}"
        return [self.program, "--cgroup-manager=cgroupfs", runtime, "--log-level=error", *where]

    def pull(self, source: str, most_mib: int = 0) -> list[str]:
        """Return what fetches an image, as long as there is room; its last line on stdout is the image's id.

        ``most_mib`` is what it may take, 0 for as much as the disk has.
        """
        return while_there_is_room(self.base, [*self.base, "pull", source], most_mib)

    def inspect(self, image: str) -> list[str]:
        """Return what prints the id of an image that is here, its size in bytes, its digest, and those under which it
        was fetched."""
        words = "{{.Id}} {{.Size}} {{.Digest}}{{range .RepoDigests}} {{.}}{{end}}"
        return [*self.base, "image", "inspect", "--format", words, image]

    def tags(self, image: str) -> list[str]:
        """Return what prints the names of an image that is here, one a line; nothing for one without a name."""
        return [
            *self.base, "image", "inspect", "--format", "{{range .RepoTags}}{{println .}}{{end}}", image,
        ]  # fmt: skip

    def remove_image(self, *images: str) -> list[str]:
        """Return what forgets an image, by its id or by all its names; one that is gone is success.

        Refused while a container is made of it, and by id where it has several names.
        """
        return [*self.base, "rmi", "--ignore", *images]

    def first_process(self, name: str) -> list[str]:
        """Return what prints the number of a container's first process, as the host counts."""
        return [*self.base, "container", "inspect", "--format", "{{.State.Pid}}", name]

    def remove(self, name: str) -> list[str]:
        """Return what ends a container and forgets it; one that is gone is success."""
        return [*self.base, "rm", "--force", "--ignore", "--time=0", name]

    def run(self, box: ContainerBox, image: str, words: Sequence[str], workdir: str) -> list[str]:
        """Return what runs a command in a new container of an image that is here.

        The image's entry point is left out: what runs is what the job says. Nothing is written into the image; what
        is written outside of home and the temporary folders is refused.
        """
        shm_mib = max(LEAST_SHM_MIB, USUAL_SHM_MIB if box.memory_mib is None else box.memory_mib // 2)
        labels = [f"--label={name}={value}" for name, value in box.labels.items()]
        mounts = [
            f"--volume={path}:{path}:{'ro' if read_only else 'rw'}" for path, read_only in box.mounts.items()
        ]
        return [
            *self.base, "run", "--rm", "--init", "--pull=never", "--log-driver=none", f"--name={box.name}", *labels,
            "--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", f"--user={box.user}",
            f"--shm-size={shm_mib}m", *self._boundary(box), *self._network(),
            *(f"--device={device}" for device in box.devices),
            f"--volume={box.home}:{box.home}:rw", *mounts, f"--workdir={_inside(box.home, workdir)}",
            f"--env-file={ENV_FILE}", "--entrypoint=", image, *words,
        ]  # fmt: skip

    def _boundary(self, box: ContainerBox) -> list[str]:
        if not self.is_root:
            return ["--cgroups=disabled", "--userns=keep-id"]
        files = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], MOST_FILES)
        limits = [
            f"--ulimit=nofile={files}:{files}",
            f"--ulimit=nproc={MOST_PROCESSES}:{MOST_PROCESSES}",
            f"--pids-limit={MOST_PROCESSES}",
        ]
        if box.cpu_milli is not None:
            limits.append(f"--cpus={min(box.cpu_milli / 1000, os.cpu_count() or 1):g}")
        if box.memory_mib is not None:
            limits.append(f"--memory={box.memory_mib}m")
        return limits

    def _network(self) -> list[str]:
        """Return the container's network; its own reaches out, and nobody reaches in."""
        if self.network != "private":
            return [f"--network={self.network}"]
        return ["--network=slirp4netns"] if self.is_root else []


def _inside(home: str, workdir: str) -> str:
    if workdir == "~" or workdir.startswith("~/"):
        workdir = workdir[2:]
    return os.path.normpath(os.path.join(home, workdir))


def within(home: str, workdir: str) -> str:
    """Return a working folder as the host has it: the home for one that only the image has."""
    inside = _inside(home, workdir)
    return inside if f"{inside}/".startswith(f"{home.rstrip('/')}/") else ""


def find_podman(
    shell: Shell,
    *,
    is_root: bool,
    network: str = NETWORKS[0],
    which: Callable[[str], str | None] = shutil.which,
    exists: Exists = os.path.exists,
) -> Podman | str:
    """Return this host's Podman, or the sentence that says what is missing for containers.

    ``is_root``: containers are to be run by root, for another account. Two programs at most are asked, some ms.
    """
    program = which("podman")
    if program is None:
        return "podman is not installed"
    try:
        version = version_of(shell.run([program, "--version"]).out)
    except ProgramError as no:
        return str(no)
    if version is None or version < LEAST_VERSION:
        return f"Podman {_dotted(LEAST_VERSION)} or later is needed, this is {_dotted(version or ())}"
    runtime, missing = _oci_runtime(which, exists, is_root=is_root)
    if missing:
        return missing
    if not (which("catatonit") or any(map(exists, CATATONIT))):
        return "catatonit is not installed; without it a job in a container is not asked before its end"
    if not is_root and not which("newuidmap"):
        return "newuidmap is not installed (package uidmap)"
    helpers = ["slirp4netns"] if is_root or version < (5,) else ["slirp4netns", "pasta"]
    if network == "private" and not any(map(which, helpers)):
        return f"{' or '.join(helpers)} is not installed; install it, or use --container-network none"
    return Podman(version, program, runtime, is_root, network)


def _oci_runtime(which: Callable[[str], str | None], exists: Exists, *, is_root: bool) -> tuple[str, str]:
    """Return which runtime can be used, or what is missing; runc always makes a cgroup, beside the lease's."""
    if which("crun") and not exists(HYBRID):
        return "crun", ""
    if is_root and which("runc"):
        return "runc", ""
    if which("crun"):
        return "", f"crun refuses a host with both versions of cgroups ({HYBRID} is mounted)"
    return "", "crun is not installed, and runc cannot keep a container inside its lease"


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version)) or "unknown"


def image_folder_of(text: str) -> Path | None:
    """Return the folder of OCI layouts that an option names, None for none."""
    return Path(text).absolute() if text else None
