"""Names of simulated hardware, and of shares on any: same inputs, same UUID, so that they can be told in advance."""

from __future__ import annotations

from functools import lru_cache
from uuid import NAMESPACE_DNS, uuid5

_SPACE = uuid5(NAMESPACE_DNS, "simulated.berth.invalid")
_PREFIX = {"nvidia": "GPU", "hygon": "DCU"}


def simulated_uuid(node: str, index: int, vendor: str = "nvidia") -> str:
    """Return the UUID of a simulated device: ``GPU-...`` or, for Hygon, ``DCU-...``."""
    return f"{_PREFIX.get(vendor, 'DEV')}-{uuid5(_SPACE, f'{node}/{index}')}"


@lru_cache(maxsize=4096)
def simulated_mig_uuid(gpu_uuid: str, profile: str, start: int) -> str:
    """Return the UUID of a simulated MIG slice; like on real devices the next tenant may get the same one."""
    return f"MIG-{uuid5(_SPACE, f'{gpu_uuid}/{profile}/{start}')}"


def share_uuid(device_uuid: str, mode: str, owner: str) -> str:
    """Return the name of a share, ``MPS-``, ``MEM-`` or ``TS-...``: another for each owner. Devices give it none."""
    prefix = {"mps": "MPS", "memlimit": "MEM", "timeslice": "TS"}[mode]
    return f"{prefix}-{uuid5(_SPACE, f'{device_uuid}/{mode}/{owner}')}"
