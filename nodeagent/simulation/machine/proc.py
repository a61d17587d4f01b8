"""Files of /proc that the driver of a simulated host shows: capabilities of MIG, devices, processes."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from nodeagent.simulation.hardware import MOST_INSTANCES
from nodeagent.simulation.machine.world import SimulatedProcess

MIG_MINORS: Final = "/proc/driver/nvidia-caps/mig-minors"
MIG_CONFIG: Final = "/proc/driver/nvidia/capabilities/mig/config"
DEVICES: Final = "/proc/devices"
BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
CGROUP_ROOT: Final = "/sys/fs/cgroup"
CONTROLLERS: Final = f"{CGROUP_ROOT}/cgroup.controllers"
PASSED_ON: Final = "/cgroup.subtree_control"
DMEM: Final = "dmem"
PLAIN_CONTROLLERS: Final = "cpuset cpu io memory pids misc"

MOST_GPUS: Final = 32
COMPUTE_NODES: Final = 8
# Minors 1 and 2 are the driver's own (config, monitor).
FIRST_MINOR: Final = 3

_DEVICES = """Character devices:
  1 mem
  5 /dev/tty
195 nvidia
195 nvidia-modeset
195 nvidiactl
237 nvidia-caps
511 nvidia-uvm

Block devices:
  8 sd
"""


def cap_minors(gpu: int, gi: int, ci: int) -> tuple[int, int]:
    """Return the minors of the capability nodes of a GPU instance and of one of its compute instances.

    They are numbered in one row: GPU by GPU, instance by instance, its own node first, then its compute
    instances (NVIDIA MIG user guide, list of mig-minors; its last line is gpu31/gi14/ci7 with 4322).
    """
    first = FIRST_MINOR + (gpu * MOST_INSTANCES + gi) * (1 + COMPUTE_NODES)
    return first, first + 1 + ci


@lru_cache(maxsize=1)
def mig_minors() -> str:
    """Return the text of the list of capability minors: the same on every host, whatever exists."""
    lines = ["config 1", "monitor 2"]
    for gpu in range(MOST_GPUS):
        for gi in range(MOST_INSTANCES):
            lines.append(f"gpu{gpu}/gi{gi}/access {cap_minors(gpu, gi, 0)[0]}")
            lines += [
                f"gpu{gpu}/gi{gi}/ci{ci}/access {cap_minors(gpu, gi, ci)[1]}" for ci in range(COMPUTE_NODES)
            ]
    return "\n".join(lines) + "\n"


def devices() -> str:
    """Return the list of character devices with their majors."""
    return _DEVICES


def of_process(process: SimulatedProcess, name: str, uid: int = 0) -> str | None:
    """Return a file of one process's folder, None where it has no such file; ``uid`` is its account."""
    comm = process.name[:15]
    if name == "cgroup":
        return f"0::{below_root(process.cgroup) or '/'}\n"
    if name == "comm":
        return f"{comm}\n"
    if name == "stat":
        # proc_pid_stat(5): pid, name, state, and as field 22 when it started; the others tell nothing here.
        return f"{process.pid} ({comm}) S {'0 ' * 18}{process.started} 0\n"
    if name == "status":
        caught = sum(1 << (number - 1) for number in process.catches)
        ids = "\t".join([str(uid)] * 4)
        return (
            f"Name:\t{comm}\nState:\tS (sleeping)\nPid:\t{process.pid}\nUid:\t{ids}\nSigCgt:\t{caught:016x}\n"
        )
    return None


def below_root(cgroup: str) -> str:
    """Return a cgroup's path without the mount point, so that both ways of writing it compare."""
    return cgroup.removeprefix(CGROUP_ROOT).rstrip("/")
