"""What the operator chose for NVIDIA devices, and the host that their driver stands on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from nodeagent.drivers.nvml.mps.daemon import UserIds
from nodeagent.host.accounts import account_of
from nodeagent.host.files import Read, Write, read_text, write_text
from nodeagent.host.shell import HostShell, Shell


@dataclass(frozen=True, slots=True)
class NvmlSettings:
    """How devices may be used.

    ``run_dir`` is the folder for what a reboot may lose (None: the usual one). ``offer`` names the sharing modes of
    this node (None: whole devices and MIG). ``may_limit_power``: the operator lets the agent lower power limits while
    the node sleeps. ``timeslice`` as nvidia-smi has it, 0 default to 3 long. ``listens``: hear the events of devices in
    a thread, until the driver is closed. ``looks_only``: nothing is written below ``run_dir``. ``is_root``: the agent
    is; ``has_units``: leases are opened in units, which limits can bind to.
    """

    run_dir: Path | None = None
    offer: frozenset[str] | None = None
    may_limit_power: bool = False
    timeslice: int = 2
    listens: bool = False
    looks_only: bool = False
    is_root: bool = True
    has_units: bool = True


def _unnoticed(name: str) -> None:
    """Let a change pass."""


@dataclass(frozen=True, slots=True)
class NvmlHost:
    """The host as the driver reaches it; a simulated one stands in for it part by part.

    ``write`` writes to files of the kernel, ``send`` signals processes. ``clock_ns`` never goes back, ``wall_ns`` tells
    people the time. ``on_change`` is called before and after each change of the share files, for proofs.
    """

    shell: Shell = field(default_factory=HostShell)
    read: Read = read_text
    write: Write = write_text
    send: Callable[[int, int], None] = os.kill
    account: Callable[[str], UserIds] = account_of
    clock_ns: Callable[[], int] = time.monotonic_ns
    wall_ns: Callable[[], int] = time.time_ns
    on_change: Callable[[str], None] = _unnoticed
