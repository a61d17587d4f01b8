"""Which drivers there are and how each is opened."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from nodeagent.drivers.base import Driver
from nodeagent.drivers.errors import DriverUnavailableError
from nodeagent.drivers.simulated.driver import SimulatedDriver
from nodeagent.fleet import NodeSpec

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NAMES = ("simulated", "nvml", "auto")


def open_simulated(node: str, state: Path, spec: NodeSpec, clock: Callable[[], int], seed: int) -> Driver:
    """Return a simulated driver; ``spec.reboots`` counts the reboots that were asked for so far."""
    boot = uuid.uuid5(uuid.NAMESPACE_OID, f"{host_boot_id()}/{node}/{spec.reboots}")
    return SimulatedDriver(
        spec.devices, state, str(boot), faults=spec.faults, seed=seed or spec.faults.seed, clock=clock
    )


def open_nvml(*, may_limit_power: bool = False) -> Driver:
    """Return the driver for NVIDIA cards; raises DriverUnavailableError when there are none.

    ``may_limit_power`` lets it lower the cards' power limits while the node sleeps.
    """
    try:
        module: Any = import_module("nodeagent.drivers.nvml.driver")
    except ImportError as no:
        raise DriverUnavailableError("the Python package nvidia-ml-py is not installed") from no
    return cast(Driver, module.NvmlDriver(host_boot_id(), may_limit_power=may_limit_power))


def host_boot_id() -> str:
    """Return the identity of this boot of the host; a new one each time where the system has none."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return str(uuid.uuid4())
