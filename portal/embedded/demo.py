from __future__ import annotations

import re
import socket
from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

# A driver that is loaded shows itself here; asking the library is left to the agent.
NVIDIA_SIGNS = (
    Path("/proc/driver/nvidia/version"),
    Path("/dev/nvidiactl"),
    Path("/usr/lib/wsl/lib/libnvidia-ml.so.1"),
)


class DemoBoard(Protocol):
    """What the demo story says about a node: how many of which board, in which sharing modes."""

    @property
    def node(self) -> str:
        """Name of the node."""

    @property
    def board(self) -> str:
        """Id of the board in the agent's table."""

    @property
    def count(self) -> int:
        """How many of them."""

    @property
    def modes(self) -> Iterable[str]:
        """Sharing modes the node offers."""


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


def nodes(fleet: Iterable[DemoBoard], signs: Iterable[Path] = NVIDIA_SIGNS) -> list[DemoNode]:
    """The demo fleet as agents, and this machine's own GPUs where an NVIDIA driver is loaded."""
    found = [
        DemoNode(spec.node, board=spec.board, count=spec.count, modes=",".join(spec.modes)) for spec in fleet
    ]
    if any(sign.exists() for sign in signs):
        found.append(DemoNode(node_name(socket.gethostname(), {node.name for node in found}), driver="nvml"))
    return found


def node_name(hostname: str, taken: Container[str]) -> str:
    """A host's short name in the letters that node names may have, and not one of the demo's."""
    short = re.sub(r"[^a-z0-9-]+", "-", hostname.split(".")[0].lower()).strip("-")
    return f"{short or 'local'}-gpu" if not short or short in taken else short
