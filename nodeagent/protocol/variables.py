"""The variables that a node may set for a lease. Its holder's shell reads them, so a list says which: a node that
could name any would set LD_PRELOAD or PATH, and some that begin like a vendor's load libraries as well.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Final

LONGEST: Final = 4096
LISTED: Final = "VISIBLE_DEVICES"
# The agent, as root, hands a program its own variables under this prefix: a command line is for everybody to read.
GIVEN: Final = "BERTH_GIVEN_"
NAMES: Final = frozenset(
    {
        "ASCEND_RT_VISIBLE_DEVICES",
        "ASCEND_RUNTIME_OPTIONS",
        "ASCEND_VISIBLE_DEVICES",
        "BERTH_DATA_SETS",
        "BERTH_GENERATION",
        "BERTH_LEASE",
        "BERTH_MEMORY_LIMIT_MIB",
        "BERTH_NODES",
        "BERTH_NODE_COUNT",
        "BERTH_NODE_RANK",
        "BERTH_NOTICE",
        "BERTH_SCRATCH",
        "BERTH_SHARE_PERCENT",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "CUDA_MPS_LOG_DIRECTORY",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "MLU_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
    }
)
# Of a variable that only one place can have, the others of a lease are numbered: CUDA_MPS_PIPE_DIRECTORY_2.
_NUMBER: Final = re.compile(r"_[1-9][0-9]{0,3}\Z")


def may_set(name: object, value: object) -> bool:
    """Say whether a node may set this variable to this value for a lease."""
    if not isinstance(name, str) or not isinstance(value, str):
        return False
    is_known = name in NAMES or (name.isascii() and _NUMBER.sub("", name) in NAMES)
    return is_known and len(value) <= LONGEST and value.isprintable()


def allowed(told: object) -> dict[str, str]:
    """Return those of a node's variables that it may set; of anything else none."""
    if not isinstance(told, Mapping):
        return {}
    return {name: value for name, value in told.items() if may_set(name, value)}


def merged(places: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the variables of all places of a lease: lists of devices grow, of others that differ each has a number.

    A process can follow only one of those (one MPS server, say); the first is the one it finds by itself.
    """
    env: dict[str, str] = {}
    for place in places:
        for name, value in place.items():
            _join(env, name, value)
    return env


def _join(env: dict[str, str], name: str, value: str) -> None:
    if env.get(name, value) == value:
        env[name] = value
    elif name.endswith(LISTED):
        if value not in env[name].split(","):
            env[name] = f"{env[name]},{value}"
    else:
        number = 1 + sum(other.startswith(f"{name}_") for other in env)
        env[f"{name}_{number}"] = value


def export_lines(env: Mapping[str, str]) -> list[str]:
    """Return lines for a POSIX shell by name, safe for any value; what nobody may set is left out."""
    return [f"export {name}={shlex.quote(value)}" for name, value in sorted(allowed(env).items())]
