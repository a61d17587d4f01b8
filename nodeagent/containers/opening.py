"""Whether this host runs jobs in containers, and how."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from nodeagent.containers.boxes import LeaseContainers, PlayedContainers, UnitContainers
from nodeagent.containers.podman import find_podman
from nodeagent.host.shell import HostShell
from nodeagent.reconcile.lease_records import LeaseRecord
from nodeagent.workloads.entry import LeaseEntry, PlayedEntry

log = logging.getLogger(__name__)


def open_containers(
    entry: LeaseEntry, notice: Callable[[LeaseRecord], Path], *, network: str
) -> LeaseContainers | None:
    """Return how containers are run in leases that are entered like this, None where they cannot be (it is logged)."""
    is_played = isinstance(entry, PlayedEntry)
    found = find_podman(HostShell(), is_root=is_played and os.geteuid() == 0, network=network)
    if isinstance(found, str):
        log.info("no jobs in containers: %s (docs/containers.md)", found)
        return None
    return PlayedContainers(found, entry, notice) if isinstance(entry, PlayedEntry) else UnitContainers(found)
