"""The last five minutes in memory: the newest frame of each node, a short ring per lease and device.

Written by one event loop, read by it and by the threads that render pages. No database, bounded
memory: a full ring is about 7 KB, and there are at most ``MAX_SERIES``.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from collections.abc import Iterable

from portal.telemetry.frames import Frame, LeaseNow, by_lease, lease_now

KEEP_S = 300
MAX_SERIES = 4096
MAX_NODES = 4096
KNOWN_BOOTS = 4
RESTART_AFTER_S = 5  # an agent that was restarted on a running host may count from the start again
Row = tuple[int, float | None, int | None]


class Series:
    """A ring of seconds: utilisation in percent and memory in MiB. NaN inside, None outside."""

    __slots__ = ("_at", "_memory", "_next", "_util", "last")

    def __init__(self) -> None:
        self._at, self._util, self._memory = array("d"), array("d"), array("d")
        self._next = 0
        self.last = -1

    def push(self, second: int, util: float | None, memory_mib: int | None) -> None:
        """Add one second; a second that is there already or was overtaken is ignored."""
        if second <= self.last:
            return
        self.last = second
        row = (second, math.nan if util is None else util, math.nan if memory_mib is None else memory_mib)
        columns = (self._at, self._util, self._memory)
        for column, value in zip(columns, row, strict=True):
            if len(column) < KEEP_S:
                column.append(value)
            else:
                column[self._next] = value
        self._next = (self._next + 1) % KEEP_S

    def rows(self, *, since: float) -> list[Row]:
        """Return (Unix second, utilisation, memory) in order, from ``since`` on."""
        count = len(self._at)
        first = self._next if count == KEEP_S else 0
        order = [(first + i) % count for i in range(count)]
        return [self._row(i) for i in order if self._at[i] >= since]

    def _row(self, i: int) -> Row:
        util, memory = self._util[i], self._memory[i]
        return (
            int(self._at[i]),
            None if math.isnan(util) else util,
            None if math.isnan(memory) else int(memory),
        )


def is_next(frame: Frame, before: Frame) -> bool:
    """Say whether a frame of the same boot follows the one before it."""
    return frame.seq > before.seq or frame.at > before.at + RESTART_AFTER_S


class Readings:
    """What this process knows of the fleet right now. ``is_fed`` says whether frames arrive here."""

    def __init__(self) -> None:
        self.is_fed = False
        self.frames: dict[str, Frame] = {}
        self.leases: dict[str, LeaseNow] = {}
        self._boots: dict[str, list[str]] = {}
        self._series: OrderedDict[tuple[str, str], Series] = OrderedDict()

    def clear(self) -> None:
        """Forget everything."""
        self.__init__()  # type: ignore[misc]

    def take(self, frame: Frame) -> set[str] | None:
        """Keep a frame; returns the leases it shows or no longer shows, None when it was overtaken."""
        before = self.frames.get(frame.node)
        if not self._is_newer(frame, before):
            return None
        if before is None and len(self.frames) >= MAX_NODES:
            self._drop_oldest_node()
        self.frames[frame.node] = frame
        second = int(frame.at)
        for device in frame.devices:
            self._ring("device", device.uuid).push(second, device.util, device.memory_used_mib)
        shown = by_lease(frame.slots)
        for lease, slots in shown.items():
            now = self.leases[lease] = lease_now(frame, slots)
            self._ring("lease", lease).push(second, now.util, now.memory_used_mib)
        gone = {slot.lease for slot in before.slots} - shown.keys() if before else set()
        for lease in gone:
            if lease in self.leases and self.leases[lease].node == frame.node:
                del self.leases[lease]
        return gone | shown.keys()

    def _is_newer(self, frame: Frame, before: Frame | None) -> bool:
        boots = self._boots.setdefault(frame.node, [])
        if before is None or frame.boot_id not in boots:
            boots[:] = [*boots[-KNOWN_BOOTS + 1 :], frame.boot_id]
            return True
        return is_next(frame, before) if frame.boot_id == boots[-1] else False

    def _ring(self, kind: str, name: str) -> Series:
        series = self._series.get((kind, name))
        if series is None:
            if len(self._series) >= MAX_SERIES:
                self._series.popitem(last=False)
            series = self._series[kind, name] = Series()
        else:
            self._series.move_to_end((kind, name))
        return series

    def _drop_oldest_node(self) -> None:
        oldest = min(self.frames.values(), key=lambda frame: frame.at)
        self._forget_node(oldest)

    def _forget_node(self, frame: Frame) -> None:
        del self.frames[frame.node]
        self._boots.pop(frame.node, None)
        for lease in {slot.lease for slot in frame.slots}:
            self.leases.pop(lease, None)

    def prune(self, *, now: float) -> None:
        """Forget rings that are older than they are long, and nodes silent for an hour."""
        for key, series in list(self._series.items()):
            if series.last < now - KEEP_S:
                del self._series[key]
        for frame in list(self.frames.values()):
            if frame.at < now - 3600:
                self._forget_node(frame)

    def history(self, kind: str, name: str, *, now: float) -> list[Row]:
        """Return the last five minutes of a ``lease`` or ``device``; empty when nothing was measured."""
        series = self._series.get((kind, name))
        return series.rows(since=now - KEEP_S) if series else []


readings = Readings()


def fill(frames: Iterable[Frame]) -> None:
    """Keep the newest frames that others left, so that a fresh process has something to show."""
    for frame in frames:
        if frame.node not in readings.frames:
            readings.take(frame)
