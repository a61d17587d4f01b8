"""Time zones: which there are, which one a person sees times in, and local times that clocks skip."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, available_timezones

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _

LONGEST_NAME = 64
# Names that are no place: files of the database for other programs, and links kept for very old ones.
_NO_PLACE = ("posix", "right", "SystemV", "localtime", "Factory", "posixrules")


class SkippedTimeError(ValueError):
    """A local time that does not exist, because clocks are put forward over it.

    ``wall`` is what was asked for, ``instead`` the same moment as clocks then show it.
    """

    def __init__(self, wall: datetime, zone: tzinfo, instead: datetime) -> None:
        super().__init__(f"{wall} does not exist in {zone}")
        self.wall, self.zone, self.instead = wall, zone, instead

    @property
    def sentence(self) -> str:
        """Return what is wrong and what to choose, for the person who wrote it."""
        said = _(
            "%(wall)s does not exist on %(day)s in %(zone)s: clocks are put forward then. "
            "Choose %(instead)s or another time."
        )
        return said % {
            "wall": f"{self.wall:%H:%M}",
            "day": date_format(self.wall, "DATE_FORMAT"),
            "zone": self.zone,
            "instead": f"{self.instead:%H:%M}",
        }


@functools.cache
def zone_names() -> frozenset[str]:
    """Names of the time zones there are. Listing them opens some six hundred files, so it is done once."""
    return frozenset(
        name
        for name in available_timezones()
        if name.split("/")[0] not in _NO_PLACE and len(name) <= LONGEST_NAME
    )


def zone_named(name: str) -> ZoneInfo | None:
    """Return a time zone by its name, None where there is none of that name."""
    return ZoneInfo(name) if name in zone_names() else None


def instant_of(wall: datetime, zone: tzinfo) -> datetime:
    """Return the instant, in UTC, that clocks in a zone show as ``wall``, a datetime without zone.

    Of a time that comes twice it is the first. Raises SkippedTimeError for one that does not exist,
    OverflowError beyond the calendar.
    """
    at = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    shown = at.astimezone(zone).replace(tzinfo=None, fold=0)
    if shown != wall:
        raise SkippedTimeError(wall, zone, shown)
    return at


def zone_sentence() -> str:
    """Return in which zone times are read and shown now, for beside a field."""
    return _("Time zone: %(zone)s.") % {"zone": timezone.get_current_timezone_name()}
