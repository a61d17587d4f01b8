"""How large, how many and which words: the bounds that the codec enforces per field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

T = TypeVar("T")

MODES: Final = ("exclusive", "mig", "mps", "memlimit", "timeslice")
PHASES: Final = ("preparing", "ready", "draining", "failed", "gone")
JOB_PHASES: Final = ("waiting", "running", "exited", "lost")
SEVERITIES: Final = ("info", "warning", "critical")
WHYS: Final = ("reclaim", "priority", "elastic", "maintenance")
PROCESS_STATES: Final = ("held", "open", "orphan", "system")
# What somebody has to do about a fault, mildest first (docs/health.md).
ACTIONS: Final = ("", "watch", "restart_workload", "drain", "reset_gpu", "reboot_node", "replace")
BOOKS: Final = ("on", "off", "away")
POWERS: Final = ("awake", "asleep")
POWER_STATES: Final = ("", *POWERS, "unsupported")

TEXT_DEFAULT: Final = 200
# What a job's order may take; of several in one frame all together (MOST_JOBS), the others come with the next.
MOST_JOB: Final = 300 * 1024
MOST_JOBS: Final = 1024 * 1024
# Names are as long as the portal can keep: a longer one would cost its node every report.
TEXT: Final[dict[str, int]] = {
    "detail": 2000,
    "lease": 64,
    "node": 64,
    "user": 150,
    "uuid": 80,
    "device": 80,
    "partition": 80,
    "profile": 30,
    "ProfileFact.name": 30,
    "vendor": 20,
    "boot_id": 64,
    "DeviceFact.model": 80,
    "Hello.site": 60,
    "Hello.rack": 60,
    "Hello.signature": 128,
    "Hello.runtime": 40,
    "NewKey.signature": 128,
    "Hello.nonce": 64,
    "Hello.portal_key": 64,
    "StreamHello.signature": 128,
    "StreamHello.nonce": 64,
    "StreamHello.portal_key": 64,
    "gateways": 300,
    "DesiredLease.job": MOST_JOB,
    "Welcome.portal_key": 64,
    "Challenge.nonce": 64,
    "Rotate.nonce": 64,
    "OpenApp.command": 1000,
    "ImageFact.name": 300,
    "holder": 150,
    "ClusterUsageRow.job": 40,
    "ClusterUsageRow.state": 20,
    "ClusterUsage.why": 500,
    "ArtifactPiece.path": 300,
    "ArtifactPiece.sha256": 64,
}
WORDS: Final[dict[str, tuple[str, ...]]] = {
    "DesiredSlot.mode": MODES,
    "LeaseReport.phase": PHASES,
    "JobReport.phase": JOB_PHASES,
    "HealthFact.severity": SEVERITIES,
    "Desired.power": POWERS,
    "HealthFact.action": ACTIONS,
    "Notice.why": WHYS,
    "ProcessSample.state": PROCESS_STATES,
    "Report.power": POWER_STATES,
    "ClusterUsage.books": BOOKS,
}

# By how much an epoch or a revision may rise at once. A node sees thousands of revisions a day and an epoch per
# enrolment: what is further away is a mistake or a lie, and taking it over would leave nothing above it.
MOST_REVISION_JUMP: Final = 10_000_000
MOST_EPOCH_JUMP: Final = 1000
MOST_FIRST_REVISION: Final = 2**40
WHOLE_DEFAULT: Final = (0, 2**53 - 1)
_YEARS_10 = 10 * 366 * 86400
WHOLE: Final[dict[str, tuple[int, int]]] = {
    "index": (0, 1023),
    "grid": (1, 64),
    "start": (0, 63),
    "size": (0, 64),
    "starts": (0, 63),
    "slices": (1, 64),
    "share_milli": (0, 1000),
    "memory_mib": (0, 2**31 - 1),
    "memory_used_mib": (0, 2**31 - 1),
    "cpu_milli": (0, 2**31 - 1),
    "host_memory_mib": (0, 2**31 - 1),
    "sm_count": (0, 100_000),
    "profile_id": (0, 100_000),
    "max_instances": (0, 64),
    "max_clients": (0, 10_000),
    "numa_node": (0, 1023),
    "epoch": (0, 2**31 - 1),
    "last_epoch": (0, 2**31 - 1),
    "generation": (0, 2**31 - 1),
    "heartbeat_s": (1, 3600),
    "sample_s": (1, 3600),
    "remaining_s": (0, _YEARS_10),
    "grace_s": (0, 86_400),
    "in_s": (0, _YEARS_10),
    "rows": (1, 1000),
    "columns": (1, 1000),
    "status": (-255, 255),
    "exit": (0, 255),
    "signal": (1, 128),
    "peak_mib": (0, 2**31 - 1),
    "size_mib": (0, 2**31 - 1),
    "used_mib": (0, 2**31 - 1),
    "limit_mib": (1, 2**31 - 1),
    "port": (0, 65_535),
    "JobReport.ordinal": (0, 2**31 - 1),
    "ArtifactPiece.size": (0, 2**50),
    "told_at": (0, 2**34),
    "started_at": (0, 2**34),
    "ended_at": (0, 2**34),
    "elapsed_s": (0, _YEARS_10),
    "ClusterUsageRow.units": (0, 2**20),
    "ended_by": (0, 2**32 - 1),
}
REAL_DEFAULT: Final = (0.0, 1e12)
REAL: Final[dict[str, tuple[float, float]]] = {
    "util_percent": (0.0, 100.0),
    "power_w": (0.0, 100_000.0),
    "power_limit_w": (0.0, 100_000.0),
    "sm_percent": (0.0, 100.0),
    "tensor_percent": (0.0, 100.0),
    "bandwidth_percent": (0.0, 100.0),
    "temperature_c": (-60.0, 250.0),
}

LONGEST_IN_MAP: Final = 1000
MOST_GATEWAYS: Final = 4
VARIABLES: Final = "SlotAccess.env"

# A reading of a cluster's accounting goes in frames of so many rows.
MOST_USAGE_ROWS: Final = 500

MANY_DEFAULT: Final = 256
MANY: Final[dict[str, int]] = {
    "leases": 4096,
    "partitions": 4096,
    "Samples.slots": 4096,
    "devices": 1024,
    "health": 1024,
    "processes": 1024,
    "features": 32,
    "env": 64,
    "nodes": 64,
    "proofs": 4,
    "gateways": MOST_GATEWAYS,
    "modes": 16,
    "ClusterUsage.rows": MOST_USAGE_ROWS,
    "OpenApp.command": 64,
    "OpenApp.needs": 8,
    "OpenApp.env": 16,
}


def bound(table: Mapping[str, T], owner: str, name: str, default: T) -> T:
    """Return the bound of a field: its own (``Class.field``), that of its name, or the default."""
    return table.get(f"{owner}.{name}", table.get(name, default))
