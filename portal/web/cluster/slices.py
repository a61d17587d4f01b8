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


@dataclass(frozen=True, slots=True)
class HeldPlace:
    """What is held on a device now: a placement with its lease and holder; a host of shares has no ``lease``."""

    device_id: int
    start: int
    size: int
    share_milli: int
    profile: str
    mode: str
    host_id: int | None
    team_id: int
    lease: str
    state: str
    holder: str
    not_after: datetime | None


@dataclass(frozen=True)
class TeamsInSight:
    """What one person may know of teams: names and colours of those in sight, and which are their own.

    It also keeps the words that a map of thousands of slices writes on each, looked up once for a page.
    """

    names: dict[int, str]
    mine: frozenset[int]

    @cached_property
    def another(self) -> str:
        """Return what stands for a team out of sight."""
        return _("Another team")

    @cached_property
    def until(self) -> str:
        """Return the words for an end, with a place for when."""
        return _("until %(when)s")

    @cached_property
    def modes(self) -> dict[str, str]:
        """Return the names of sharing modes."""
        return {str(mode): str(mode.label) for mode in Mode}

    def lease_url(self, uid: str) -> str:
        """Return the address of a lease."""
        return self._lease_url.replace("UID", uid)

    @cached_property
    def _lease_url(self) -> str:
        return reverse("web:lease", args=["UID"])

    def tone(self, team_id: int) -> int:
        """Return the colour of a team in sight, 1 to 8: the same on every page of this person."""
        return self._places[team_id] % 8 + 1

    @cached_property
    def _places(self) -> dict[int, int]:
        return {pk: at for at, pk in enumerate(sorted(self.names))}


@dataclass(frozen=True, slots=True)
class SlicedDevice:
    """A device with what decides its free room: legal MIG positions as bit masks, and why it is closed.

    ``blocked`` is the device's own fault; ``away`` says that its node takes no new work. ``is_paused``: sound, but
    nothing new starts on it while an alert lasts.
    """

    device: Device
    positions: tuple[int, ...]
    blocked: str = ""
    away: str = ""
    foreign: tuple[tuple[int, int], ...] = ()
    is_paused: bool = False


def cut(
    board: SlicedDevice, placements: Sequence[HeldPlace], viewer: TeamsInSight
) -> tuple[int, list[DeviceStretch]]:
    """Return the device's scale and its slots from left to right; together they fill the scale."""
    hosts = [p for p in placements if not p.lease]
    if hosts:
        return SHARES, _shares(board, hosts[0], [p for p in placements if p.host_id], viewer)
    grid = board.device.model.grid
    taken = [_held(p, p.start, p.size, viewer) for p in placements]
    taken += [_foreign(start, size) for start, size in board.foreign if not _covered(taken, start)]
    return grid, sorted([*taken, *_rest(board, taken, grid)], key=lambda slot: slot.start)


def _shares(
    board: SlicedDevice, host: HeldPlace, shares: Sequence[HeldPlace], viewer: TeamsInSight
) -> list[DeviceStretch]:
    slots, at = [], 0
    for share in shares:
        size = min(share.share_milli, SHARES - at)
        slots.append(_held(share, at, size, viewer))
        at += size
    if at < SHARES:
        slots.append(_share_left(board, host, at, viewer))
    return slots


def _share_left(board: SlicedDevice, host: HeldPlace, at: int, viewer: TeamsInSight) -> DeviceStretch:
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


def _held(place: HeldPlace, start: int, size: int, viewer: TeamsInSight) -> DeviceStretch:
    if place.state in CLEANING:
        return DeviceStretch(start, size, "cleaning", _("Being cleaned; free in a moment"))
    name = viewer.names.get(place.team_id)
    what = place.profile or viewer.modes[place.mode]
    if name is None:
        return DeviceStretch(start, size, "lease", f"{viewer.another} · {what}", team=viewer.another)
    assert place.not_after is not None
    until = viewer.until % {"when": moment(place.not_after)}
    return DeviceStretch(
        start,
        size,
        "lease",
        f"{name} · {what} · {place.holder} · {until}",
        label=name,
        tone=viewer.tone(place.team_id),
        mine=place.team_id in viewer.mine,
        lease=place.lease,
        url=viewer.lease_url(place.lease),
        team=name,
        until=place.not_after,
    )


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
