"""Processes on GPUs as pages list them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.translation import gettext_lazy as _

from portal.fleet.models import Node
from portal.leases.models import Lease
from portal.leases.selectors import uids_on
from portal.leases.states import LeaseState
from portal.telemetry.processes import ORPHAN, ProcessNow, processes_of, processes_of_lease
from portal.web.figures import memory

STATES = {
    "held": _("in its lease"),
    "open": _("on its lease's slice"),
    ORPHAN: _("orphan"),
    "system": _("of the system"),
}
MEASURED = (LeaseState.ACTIVE, LeaseState.INTERRUPTED)
_FIRST = (ORPHAN, "open", "held", "system")
MOST = 500


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One process; ``memory`` None is unknown, ``name`` and ``lease`` "" too."""

    pid: int
    name: str
    device: Any
    state: str
    state_text: Any
    lease: str
    memory: str | None

    @property
    def is_orphan(self) -> bool:
        """Say whether it belongs to no lease that may use its slice."""
        return self.state == ORPHAN


@dataclass(frozen=True, slots=True)
class ProcessTable:
    """A node's newest list, orphans first."""

    at: datetime
    rows: list[ProcessRow]
    orphans: int
    left_out: int


def process_table(node: Node, *, now: datetime) -> ProcessTable | None:
    """Return what a node listed last, None when that is unknown; leases of other nodes are not named."""
    found = processes_of(node.name, now=now)
    if found is None:
        return None
    devices = dict(node.devices.values_list("uuid", "index"))
    leases = uids_on(node, {row.lease for row in found.rows})
    ordered = sorted(found.rows, key=lambda row: (_rank(row.state), devices.get(row.device, -1), row.pid))
    rows = [_row(one, devices.get(one.device, _("unknown")), one.lease in leases) for one in ordered]
    return ProcessTable(found.at, rows[:MOST], found.orphans, max(0, len(rows) - MOST))


def own_processes(lease: Lease, *, now: datetime) -> list[ProcessRow] | None:
    """Return what the lease's node lists for it, None when that is unknown; before it is active it has none."""
    if lease.state not in MEASURED:
        return None
    found = processes_of_lease(lease.node.name, lease.uid, now=now)
    return None if found is None else _plain(found)


def _plain(rows: Iterable[ProcessNow]) -> list[ProcessRow]:
    ordered = sorted(rows, key=lambda row: (row.name, row.pid))[:MOST]
    return [_row(one, "", has_lease=True) for one in ordered if one.state != ORPHAN]


def _rank(state: str) -> int:
    return _FIRST.index(state) if state in _FIRST else len(_FIRST)


def _row(one: ProcessNow, device: Any, has_lease: bool) -> ProcessRow:
    return ProcessRow(
        pid=one.pid,
        name=one.name,
        device=device,
        state=one.state,
        state_text=STATES.get(one.state, one.state),
        lease=one.lease if has_lease else "",
        memory=memory(one.memory_mib),
    )
