"""One's own bookings and leases as a calendar file (RFC 5545)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from django.db.models import QuerySet
from django.utils.translation import gettext as _
from icalendar import Calendar, Event

from portal.accounts.models import User
from portal.leases.models import Lease
from portal.leases.states import LeaseState

SHOWN = (LeaseState.BOOKED, LeaseState.PREPARING, LeaseState.ACTIVE, LeaseState.INTERRUPTED)
MOST = 1000


def own_leases(user: User) -> QuerySet[Lease]:
    """Return what a person holds or has booked, the next first."""
    rows = Lease.objects.filter(user=user, state__in=SHOWN).select_related(
        "node", "flavor", "request", "team"
    )
    return rows.order_by("starts_at", "id")[:MOST]


def as_ical(leases: Iterable[Lease], *, host: str, now: datetime) -> str:
    """Return a calendar file with an event per lease; ``host`` makes its names unique and leads back here."""
    calendar = Calendar()
    calendar.add("VERSION", "2.0")
    calendar.add("PRODID", "-//Berth//Calendar//EN")
    calendar.add("CALSCALE", "GREGORIAN")
    for lease in leases:
        flavor, node = lease.flavor.shown_name, lease.node.name
        about = _("%(count)d × %(flavor)s on %(node)s for %(team)s") % {
            "count": lease.count,
            "flavor": flavor,
            "node": node,
            "team": lease.team.name,
        }
        event = Event()
        event.add("UID", f"{lease.uid}@{_printable(host)}")
        event.add("DTSTAMP", now.astimezone(UTC))
        event.add("DTSTART", (lease.activated_at or lease.starts_at).astimezone(UTC))
        event.add("DTEND", lease.not_after.astimezone(UTC))
        event.add("SUMMARY", _printable(lease.request.name or f"{lease.count} × {flavor}"))
        event.add("DESCRIPTION", _printable(about))
        event.add("LOCATION", _printable(node))
        event.add("STATUS", "CONFIRMED")
        calendar.add_component(event)
    file: bytes = calendar.to_ical()
    return file.decode()


def _printable(value: str) -> str:
    """Return a text without the control characters that the format forbids and the library lets through."""
    return "".join(" " if ord(c) < 32 and c != "\n" else c for c in value.replace("\r\n", "\n"))
