"""Device nodes of a device and of its MIG instances. The capability nodes are the boundary between tenants."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NvmlLikeError

COMMON: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm")
MINORS: Final = "/proc/driver/nvidia-caps/mig-minors"
MISSING: Final = (
    f"{MINORS} cannot be read, so the device nodes of MIG instances are not known;"
    " load the driver with MIG support (nvidia-modprobe) or let the agent see the host's /proc"
)

Read = Callable[[str], str]


def gpu_nodes(minor: int) -> tuple[str, ...]:
    """Return the nodes that every holder on a device needs."""
    return (*COMMON, f"/dev/nvidia{minor}")


def why_not(read: Read) -> str:
    """Return why the nodes of MIG instances cannot be known on this host, "" when they can."""
    try:
        read(MINORS)
    except OSError:
        return MISSING
    return ""


def slice_nodes(read: Read, minor: int, gi_id: int, ci_id: int) -> tuple[str, str]:
    """Return the two capability nodes of an instance; raises NOT_FOUND rather than guess a number.

    Lines of the file look like ``gpu0/gi7/ci0/access 607``. The nodes of ``mig/config`` and ``mig/monitor``
    stand in it as well: they are never handed out.
    """
    wanted = (f"gpu{minor}/gi{gi_id}/access", f"gpu{minor}/gi{gi_id}/ci{ci_id}/access")
    try:
        known = _minors(read(MINORS))
    except OSError as no:
        raise NvmlLikeError(errors.NOT_FOUND, MISSING) from no
    missing = [name for name in wanted if not known.get(name, "").isdigit()]
    if missing:
        raise NvmlLikeError(
            errors.NOT_FOUND,
            f"{MINORS} has no line for {missing[0]}; the driver may be older than this device",
        )
    gi, ci = (f"/dev/nvidia-caps/nvidia-cap{known[name]}" for name in wanted)
    return gi, ci


@lru_cache(maxsize=1)
def _minors(text: str) -> dict[str, str]:
    """Return the numbers by name. The file is read anew each time; its thousands of lines hardly ever change."""
    return dict(words for line in text.splitlines() if len(words := line.split()) == 2)
