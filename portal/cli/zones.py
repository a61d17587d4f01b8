"""The time zone that a command reads and shows times in: the one of ``--zone``, else the machine's."""

from __future__ import annotations

import os
from datetime import datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

HOW = "write it like 2026-03-01T14:00 or 2026-03-01T13:00:00Z"
_chosen: ZoneInfo | None = None


def choose(name: str) -> None:
    """Use a zone from now on; "" is the machine's. Stops the command where there is none of that name."""
    global _chosen
    try:
        _chosen = ZoneInfo(name) if name else None
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise typer.BadParameter("write a time zone like Europe/Berlin", param_hint="--zone") from None


def current() -> tzinfo | None:
    """Return the zone in use, None for the machine's."""
    return _chosen


def name() -> str:
    """Return the name of the zone in use; "" where the machine's has none."""
    if _chosen is not None:
        return _chosen.key
    told = os.environ.get("TZ", "").removeprefix(":")
    place = told or os.path.realpath("/etc/localtime").partition("zoneinfo/")[2]
    try:
        return ZoneInfo(place).key if place else ""
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return ""


def local(at: datetime) -> datetime:
    """Return an instant as clocks in the zone in use show it."""
    return at.astimezone(_chosen)


def instant(text: str, option: str) -> str:
    """Return what was written as the API takes it, in the zone in use unless it names another; or stop the command."""
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is not None:
            return at.isoformat()
        meant = at.replace(tzinfo=_chosen) if _chosen else at.astimezone()
        shown = datetime.fromtimestamp(meant.timestamp(), _chosen).replace(tzinfo=None)
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(HOW, param_hint=option) from None
    if shown != at:
        said = f"{text} does not exist there: clocks are put forward then; write {shown:%Y-%m-%dT%H:%M} or another time"
        raise typer.BadParameter(said, param_hint=option)
    return meant.isoformat()
