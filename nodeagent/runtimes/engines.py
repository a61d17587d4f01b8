"""What Podman's versions understand of devices for containers."""

from __future__ import annotations

import re
from typing import Final

from nodeagent.host.shell import ProgramError, Shell

# Podman 5.5 brought --cdi-spec-dir and stopped looking into /var/run/cdi by itself (its issue 26569); older ones look
# there and refuse the option.
SPEC_DIR_VERSION: Final = (5, 5)
SPEC_DIR: Final = ("--cdi-spec-dir", "/var/run/cdi")
_VERSION: Final = re.compile(r"version (\d+)\.(\d+)(?:\.(\d+))?")


def version_of(text: str) -> tuple[int, ...] | None:
    """Return what ``podman --version`` said as numbers."""
    found = _VERSION.search(text)
    return tuple(int(part or 0) for part in found.groups()) if found else None


def podman_version(shell: Shell) -> tuple[int, ...] | None:
    """Return the version of this host's Podman, None where there is none."""
    try:
        return version_of(shell.run(["podman", "--version"]).out)
    except ProgramError:
        return None


def device_lines(version: tuple[int, ...] | None) -> dict[str, str]:
    """Return the lines by which holders run Podman with a lease's device, by who runs it: root, and in the lease.

    ``version`` None: Podman is not there, and neither are lines.
    """
    if version is None:
        return {}
    where = f" {' '.join(SPEC_DIR)}" if version >= SPEC_DIR_VERSION else ""
    tail = "run --rm --device berth.local/lease=LEASE IMAGE"
    return {
        "root": f"sudo podman{where} {tail}",
        "lease": f"sudo berth-agent enter LEASE -- podman --cgroup-manager=cgroupfs{where} {tail}",
    }
