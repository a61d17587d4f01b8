"""One's own bookings and leases as a calendar file (RFC 5545), made by hand: a dozen lines need no library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.leases.models import Lease
from portal.leases.states import LeaseState

SHOWN = (LeaseState.BOOKED, LeaseState.PREPARING, LeaseState.ACTIVE, LeaseState.INTERRUPTED)
MOST = 1000
LINE_OCTETS = 75


def own_leases(user: User) -> QuerySet[Lease]:
    """Return what a person holds or has booked, the next first."""
    rows = Lease.objects.filter(user=user, state__in=SHOWN).select_related(
        "node", "flavor", "request", "team"
    )
    return rows.order_by("starts_at", "id")[:MOST]


def as_ical(leases: Iterable[Lease], *, host: str, now: datetime) -> str:
    """Return a calendar file with an event per lease; ``host`` makes its names unique and leads back here."""
    lines = ["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//Berth//Calendar//EN", "CALSCALE:GREGORIAN"]
    for lease in leases:
        lines += _event(lease, host, now)
    lines.append("END:VCALENDAR")
    return "".join(part + "\r\n" for line in lines for part in _folded(line))


def _event(lease: Lease, host: str, now: datetime) -> list[str]:
    title = lease.request.name or f"{lease.count} × {lease.flavor.shown_name}"
    about = _("%(count)d × %(flavor)s on %(node)s for %(team)s") % {
        "count": lease.count,
        "flavor": lease.flavor.shown_name,
        "node": lease.node.name,
        "team": lease.team.name,
    }
    return [
        "BEGIN:VEVENT",
        f"UID:{lease.uid}@{_text(host)}",
        f"DTSTAMP:{_stamp(now)}",
        f"DTSTART:{_stamp(lease.activated_at or lease.starts_at)}",
        f"DTEND:{_stamp(lease.not_after)}",
        f"SUMMARY:{_text(title)}",
        f"DESCRIPTION:{_text(about)}",
        f"LOCATION:{_text(lease.node.name)}",
        "STATUS:CONFIRMED",
        "END:VEVENT",
    ]


def _stamp(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")


def _text(value: str) -> str:
    """Return a text value with what has a meaning in the format escaped (RFC 5545, 3.3.11)."""
    clean = "".join(" " if ord(c) < 32 and c != "\n" else c for c in value.replace("\r\n", "\n"))
    for char, escaped in (("\\", "\\\\"), (";", "\\;"), (",", "\\,"), ("\n", "\\n")):
        clean = clean.replace(char, escaped)
    return clean


def _folded(line: str) -> Iterator[str]:
    """Yield a line in pieces of at most 75 octets, never cutting a character; those that go on begin with a space."""
    piece, size = "", 0
    for char in line:
        octets = len(char.encode())
        if size + octets > LINE_OCTETS:
            yield piece
            piece, size = " ", 1
        piece, size = piece + char, size + octets
    yield piece
