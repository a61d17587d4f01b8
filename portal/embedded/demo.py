from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# A driver that is loaded shows itself here; asking the library is left to the agent.
NVIDIA_SIGNS = (
    Path("/proc/driver/nvidia/version"),
    Path("/dev/nvidiactl"),
    Path("/usr/lib/wsl/lib/libnvidia-ml.so.1"),
)


@dataclass(frozen=True)
class DemoNode:
    """One node agent of the embedded stack; ``board`` and ``count`` are for the simulated driver."""

    name: str
    driver: str = "simulated"
    board: str = ""
    count: int = 0
    modes: str = ""

    def arguments(self, port: int, state: Path, token: Path) -> list[str]:
        """Command line of `python -m nodeagent` for this node."""
        given = {
            "portal": f"ws://127.0.0.1:{port}",
            "node": self.name,
            "state": str(state),
            "driver": self.driver,
            "board": self.board,
            "count": str(self.count) if self.count else "",
            "modes": self.modes,
            "enrol-token-file": str(token) if token.exists() else "",
        }
        return [part for option, value in given.items() if value for part in (f"--{option}", value)]


# The demo fleet of DESIGN §11.
SIMULATED = (
    DemoNode("gpu-01", board="h100-80gb", count=8, modes="mig,exclusive"),
    DemoNode("gpu-02", board="a100-80gb", count=8, modes="mig,exclusive"),
    DemoNode("gpu-03", board="l40s", count=8, modes="memlimit,mps,exclusive"),
    DemoNode("gpu-04", board="hygon-dcu", count=8, modes="memlimit,exclusive"),
)


def nodes(signs: tuple[Path, ...] = NVIDIA_SIGNS, *, hostname: str | None = None) -> Iterator[DemoNode]:
    """The demo fleet, and this machine's own GPUs where an NVIDIA driver is loaded."""
    yield from SIMULATED
    if any(sign.exists() for sign in signs):
        yield DemoNode(node_name(hostname or socket.gethostname()), driver="nvml")


def node_name(hostname: str) -> str:
    """A host's short name in the letters that node names may have."""
    short = re.sub(r"[^a-z0-9-]+", "-", hostname.split(".")[0].lower()).strip("-")
    taken = {node.name for node in SIMULATED}
    return f"{short or 'local'}-gpu" if not short or short in taken else short
