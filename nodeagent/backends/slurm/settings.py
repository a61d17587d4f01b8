"""What an administrator says of a pool of a Slurm cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
# A GRES by name and, where the cluster tells them apart, by type: gpu, gpu:a100, gpu:a100_1g.10gb.
GRES: Final = re.compile(r"[A-Za-z0-9_]{1,20}(?::[A-Za-z0-9][A-Za-z0-9._-]{0,39})?")
ACCOUNT: Final = re.compile(r"(?:[A-Za-z0-9._-]|\{team\}){1,60}")


@dataclass(frozen=True, slots=True)
class SlurmSettings:
    """One pool: a partition and a GRES in it, what a unit is called and has, and as whom jobs run.

    ``account`` may name the team (``berth-{team}``), "" leaves it to the cluster. ``user`` is the account of the
    system that all jobs run as, "" the holder's own. ``pool_id`` marks the jobs of this agent.
    """

    partition: str
    gres: str
    model: str
    memory_mib: int
    vendor: str = "nvidia"
    account: str = ""
    user: str = ""
    pool_id: str = ""

    @property
    def kind(self) -> str:
        """Return the type of the GRES, its name where the cluster has no types."""
        return self.gres.partition(":")[2] or self.gres
