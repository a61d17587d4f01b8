"""What Slurm's accounting counted for jobs of this pool that are over."""

from __future__ import annotations

import re
from typing import Final

from nodeagent.backends.base import BackendAwayError, BackendRefusedError
from nodeagent.backends.pool_state import key_of
from nodeagent.backends.slurm.commands import SlurmCommands
from nodeagent.backends.slurm.output import instant_of, tres_count
from nodeagent.backends.slurm.settings import SlurmSettings
from nodeagent.backends.usage import UsageReading
from nodeagent.host.shell import MOST_OUTPUT
from nodeagent.protocol.cluster_usage import ClusterUsageRow

COLUMNS: Final = "JobIDRaw,JobName,State,Start,End,ElapsedRaw,AllocTRES,Comment"
_STATE: Final = re.compile(r"([A-Z_]{1,20})(?: by ([0-9]{1,10}))?")
_LEAST_SPAN_S: Final = 60
_OVER: Final = frozenset(
    {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
        "REQUEUED", "REVOKED", "TIMEOUT",
    }
)  # fmt: skip


class SlurmUsage:
    """Reads ``sacct``; changes nothing."""

    def __init__(self, commands: SlurmCommands, settings: SlurmSettings) -> None:
        self._run, self._pool = commands.run, settings

    def read(self, back_s: int) -> UsageReading:
        """Return the jobs of leases that were in the books in the last so many seconds and are over."""
        try:
            rows = self._between(back_s, 0)
        except BackendAwayError as no:
            return UsageReading("away", (), str(no))
        except BackendRefusedError as no:
            return UsageReading("off", (), no.detail)
        return UsageReading("on", tuple(rows.values()))

    def _between(self, since_s: int, until_s: int) -> dict[tuple[str, int, str, int], ClusterUsageRow]:
        """Ask for a span of seconds ago, in halves where the answer is longer than what is read of one."""
        # Each row of a job that was requeued (-D), and all of its time, not only what lies in the span.
        text = self._run(
            "sacct", "-n", "-X", "-D", "-P", "-r", self._pool.partition, "-o", COLUMNS,
            "-S", f"now-{since_s}seconds", "-E", f"now-{until_s}seconds" if until_s else "now",
        )  # fmt: skip
        if len(text) >= MOST_OUTPUT and since_s - until_s >= 2 * _LEAST_SPAN_S:
            middle = (since_s + until_s) // 2
            return self._between(since_s, middle) | self._between(middle, until_s)
        found = {}
        for line in text.splitlines():
            row = self._row(line)
            if row is not None:
                found[row.lease, row.generation, row.job, row.started_at] = row
        return found

    def _row(self, line: str) -> ClusterUsageRow | None:
        """Return a line as a row; None for jobs of others, those that are not over and what cannot be read."""
        columns = line.split("|", 7)
        if len(columns) != 8:
            return None
        job, name, state, start, end, elapsed, tres, comment = columns
        key, word = key_of(name), _STATE.fullmatch(state)
        started_at, ended_at = instant_of(start), instant_of(end)
        if key is None or word is None or word[1] not in _OVER or comment not in ("", self._pool.pool_id):
            return None
        if started_at is None or ended_at is None or not job.isdecimal() or not elapsed.isdecimal():
            return None  # it never began
        return ClusterUsageRow(
            lease=key[0],
            generation=key[1],
            job=job,
            units=tres_count(tres, self._pool.gres),
            started_at=started_at,
            ended_at=ended_at,
            elapsed_s=int(elapsed),
            state=word[1],
            ended_by=int(word[2]) if word[2] else None,
        )
