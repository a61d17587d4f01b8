"""One device cut into what stands on it: leases, free room, room that no size fits, room being cleaned.

Pure: placements and positions come in, slots on the device's own scale come out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from django.urls import reverse
from django.utils.translation import gettext as _

from portal.common.moments import moment
from portal.fleet.models import Device, Mode
from portal.leases.models import Placement
from portal.leases.states import LeaseState

SHARES = 1000
OTHERS = 0  # the colour of teams out of sight
CLEANING = (LeaseState.ENDING, LeaseState.CLEANING, LeaseState.FAILED)


@dataclass(frozen=True, slots=True)
class DeviceStretch:
    """A stretch of a device: ``size`` of its scale from ``start``. Holders out of sight have no url."""

    start: int
    size: int
    kind: str
    title: str
    label: str = ""
    tone: int = OTHERS
    mine: bool = False
    lease: str = ""
    url: str = ""
    team: str = ""
    until: datetime | None = None


@dataclass(frozen=True)
class TeamsInSight:
    """What one person may know of teams: names and colours of those in sight, and which are their own."""

    names: dict[int, str]
    mine: frozenset[int]

    def tone(self, team_id: int) -> int:
        """Return the colour of a team in sight, 1 to 8: the same on every page of this person."""
        return self._places[team_id] % 8 + 1

    @cached_property
    def _places(self) -> dict[int, int]:
        return {pk: at for at, pk in enumerate(sorted(self.names))}


@dataclass(frozen=True, slots=True)
class SlicedDevice:
    """A device with what decides its free room: legal MIG positions as bit masks, and why it is closed.

    ``blocked`` is the device's own fault; ``away`` says that its node takes no new work.
    """

    device: Device
    positions: tuple[int, ...]
    blocked: str = ""
    away: str = ""
    foreign: tuple[tuple[int, int], ...] = ()


def cut(
    board: SlicedDevice, placements: Sequence[Placement], viewer: TeamsInSight
) -> tuple[int, list[DeviceStretch]]:
    """Return the device's scale and its slots from left to right; together they fill the scale."""
    hosts = [p for p in placements if p.lease_id is None]
    if hosts:
        return SHARES, _shares(board, hosts[0], [p for p in placements if p.host_id], viewer)
    grid = board.device.model.grid
    taken = [_held(p, p.start, p.size, viewer) for p in placements]
    taken += [_foreign(start, size) for start, size in board.foreign if not _covered(taken, start)]
    return grid, sorted([*taken, *_rest(board, taken, grid)], key=lambda slot: slot.start)


def _shares(
    board: SlicedDevice, host: Placement, shares: Sequence[Placement], viewer: TeamsInSight
) -> list[DeviceStretch]:
    slots, at = [], 0
    for share in shares:
        size = min(share.share_milli, SHARES - at)
        slots.append(_held(share, at, size, viewer))
        at += size
    if at < SHARES:
        slots.append(_share_left(board, host, at, viewer))
    return slots


def _share_left(board: SlicedDevice, host: Placement, at: int, viewer: TeamsInSight) -> DeviceStretch:
    if board.blocked or board.away:
        return _closed(board, at, SHARES - at)
    name = viewer.names.get(host.team_id)
    if host.team_id in viewer.mine and name:
        return DeviceStretch(
            at, SHARES - at, "free", _("Free for %(team)s, which shares this device") % {"team": name}
        )
    whose = name or _("another team")
    return DeviceStretch(
        at, SHARES - at, "reserved", _("Kept for %(team)s, which shares this device") % {"team": whose}
    )


def _held(placement: Placement, start: int, size: int, viewer: TeamsInSight) -> DeviceStretch:
    lease = placement.lease
    assert lease is not None
    if lease.state in CLEANING:
        return DeviceStretch(start, size, "cleaning", _("Being cleaned; free in a moment"))
    name = viewer.names.get(lease.team_id)
    what = placement.profile or str(Mode(placement.mode).label)
    if name is None:
        return DeviceStretch(
            start, size, "lease", _("Another team · %(what)s") % {"what": what}, team=_("Another team")
        )
    return DeviceStretch(
        start,
        size,
        "lease",
        " · ".join((name, what, str(lease.user), _ends(lease.not_after))),
        label=name,
        tone=viewer.tone(lease.team_id),
        mine=lease.team_id in viewer.mine,
        lease=lease.uid,
        url=reverse("web:lease", args=[lease.uid]),
        team=name,
        until=lease.not_after,
    )


def _ends(at: datetime) -> str:
    return _("until %(when)s") % {"when": moment(at)}


def _foreign(start: int, size: int) -> DeviceStretch:
    return DeviceStretch(start, size, "blocked", _("Held by something that is not Berth's"))


def _covered(taken: Iterable[DeviceStretch], start: int) -> bool:
    return any(slot.start <= start < slot.start + slot.size for slot in taken)


def _rest(board: SlicedDevice, taken: Sequence[DeviceStretch], grid: int) -> list[DeviceStretch]:
    """Return runs of room that nobody holds: free where a size still fits, stranded where none does."""
    mask = 0
    for slot in taken:
        mask |= ((1 << slot.size) - 1) << slot.start
    usable = _usable(board, mask, grid)
    runs: list[tuple[int, int, bool]] = []
    for at in range(grid):
        if mask >> at & 1:
            continue
        fits = bool(usable >> at & 1)
        if runs and runs[-1][0] + runs[-1][1] == at and runs[-1][2] == fits:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1, fits)
        else:
            runs.append((at, 1, fits))
    return [_room(board, start, size, fits) for start, size, fits in runs]


def _usable(board: SlicedDevice, mask: int, grid: int) -> int:
    """Return the free slices that some size could still cover, as a mask; an empty device is all free."""
    if not mask:
        return (1 << grid) - 1
    usable = 0
    for bits in board.positions:
        if not bits & mask:
            usable |= bits
    return usable


def _closed(board: SlicedDevice, start: int, size: int) -> DeviceStretch:
    kind = "blocked" if board.blocked else "away"
    return DeviceStretch(start, size, kind, board.blocked or board.away)


def _room(board: SlicedDevice, start: int, size: int, fits: bool) -> DeviceStretch:
    if board.blocked or board.away:
        return _closed(board, start, size)
    if fits:
        return DeviceStretch(start, size, "free", _("Free"))
    return DeviceStretch(start, size, "stranded", _("Stranded: no flavor fits beside what runs here"))
