"""Which drivers there are and how each is opened."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast

from nodeagent.drivers.base import Driver
from nodeagent.drivers.errors import DriverUnavailableError
from nodeagent.host.shell import HostShell

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
RUN_DIR = Path("/run/berth-agent")
VENDORS = ("amd", "hygon", "cambricon", "ascend")
NONE: Final[Mapping[str, str]] = MappingProxyType({})
# Pools of a cluster, which have no driver of devices (nodeagent/backends).
BACKENDS: Final = ("slurm", "kubernetes")
NAMES = ("auto", "nvml", *VENDORS, *BACKENDS, "simulated", "simulated-nvml")


def open_nvml(
    *,
    run_dir: Path | None = None,
    offer: frozenset[str] | None = None,
    may_limit_power: bool = False,
    timeslice: int = 2,
    dcgm_url: str = "",
    looks_only: bool = False,
    has_units: bool = True,
) -> Driver:
    """Return the driver for NVIDIA devices; raises DriverUnavailableError when there are none.

    ``offer`` names the sharing modes that the operator allows (None: whole devices and MIG), ``run_dir`` is the
    folder for what a reboot may lose. ``may_limit_power`` lets it lower the devices' power limits while the node
    sleeps; ``timeslice`` (0 default to 3 long) holds on devices that are shared in time; ``dcgm_url`` is a DCGM
    exporter to ask for what NVML does not tell. ``looks_only``: it writes nothing into the folder and hears no events.
    ``has_units``: leases are opened in units, to which memory limits bind.
    """
    try:
        module: Any = import_module("nodeagent.drivers.nvml.driver")
        settings: Any = import_module("nodeagent.drivers.nvml.settings")
        dcgm: Any = import_module("nodeagent.drivers.nvml.telemetry.dcgm")
    except ImportError as no:
        raise DriverUnavailableError("the Python package nvidia-ml-py is not installed") from no
    chosen = settings.NvmlSettings(
        run_dir=run_dir or RUN_DIR,
        offer=offer,
        may_limit_power=may_limit_power,
        timeslice=timeslice,
        listens=not looks_only,
        looks_only=looks_only,
        is_root=os.geteuid() == 0,
        has_units=has_units,
    )
    exporter = dcgm.Dcgm(dcgm_url) if dcgm_url else None
    driver = module.NvmlDriver(host_boot_id(), settings=chosen, dcgm=exporter)
    return cast(Driver, driver)


def open_real(
    name: str,
    *,
    run_dir: Path,
    offer: frozenset[str] | None = None,
    may_limit_power: bool = False,
    dcgm_url: str = "",
    layouts: Mapping[str, str] = NONE,
    can_bind: bool = False,
    has_units: bool = True,
    looks_only: bool = False,
) -> Driver:
    """Return the driver of this name, for "auto" the first whose devices are found.

    ``layouts`` is how AMD boards are cut, ``can_bind`` whether holders come as containers that can be shown a file
    under another path; ``looks_only``: nothing is written into the folder. Raises DriverUnavailableError, for "auto"
    with what each driver looked for.
    """
    missing: list[str] = []
    waits_for: list[str] = []
    for each in ("nvml", *VENDORS) if name == "auto" else (name,):
        try:
            if each == "nvml":
                return open_nvml(
                    run_dir=run_dir,
                    offer=offer,
                    may_limit_power=may_limit_power,
                    dcgm_url=dcgm_url,
                    looks_only=looks_only,
                    has_units=has_units,
                )
            return _open_vendor(
                each, run_dir, offer, layouts=layouts, can_bind=can_bind, looks_only=looks_only
            )
        except DriverUnavailableError as no:
            missing.append(f"{each}: {no}")
            if no.waits_for:
                waits_for.append(f"{each}: {no.waits_for}")
        except ImportError as no:
            missing.append(f"{each}: this installation lacks a part of the driver ({no})")
    said = "; ".join(missing) if name == "auto" else missing[0].partition(": ")[2]
    raise DriverUnavailableError(said, waits_for="; ".join(waits_for))


def _open_vendor(
    name: str,
    run_dir: Path,
    offer: frozenset[str] | None,
    *,
    layouts: Mapping[str, str],
    can_bind: bool,
    looks_only: bool,
) -> Driver:
    """Return the driver of another vendor's devices."""
    driver = getattr(import_module(f"nodeagent.drivers.{name}.driver"), f"{name.capitalize()}Driver")
    own: dict[str, Any] = {}
    if name == "amd":
        own["layouts"] = layouts
    elif name == "hygon":
        own["can_bind"] = can_bind
    found = driver(host_boot_id(), HostShell(), run_dir, read_text, offer=offer, looks_only=looks_only, **own)
    return cast(Driver, found)


def read_text(path: str) -> str:
    """Return a file of the host; raises OSError."""
    return Path(path).read_text(encoding="utf-8", errors="replace")


def host_boot_id() -> str:
    """Return the identity of this boot of the host; a new one each time where the system has none."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return str(uuid.uuid4())
