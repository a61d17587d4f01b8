"""Workshops and their seats as pages show them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db.models import Count, Q
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from portal.common.moments import moment, span
from portal.leases.attendees import AttendeeList
from portal.leases.models import Workshop
from portal.leases.seats import AHEAD, BACK, CAME, EARLY, NO_SLICE, OPEN, SeatView
from portal.leases.states import Approval, RequestState
from portal.leases.workshop_quotes import WorkshopQuote
from portal.web.fields import LOCAL_TIME
from portal.web.figures import money

# What became of a seat: word, tone and icon.
SEAT_STATES: dict[str, tuple[Any, str, str]] = {
    AHEAD: (gettext_lazy("Booked"), "info", "calendar"),
    OPEN: (gettext_lazy("Not here yet"), "warn", "hourglass"),
    CAME: (pgettext_lazy("seat", "Came"), "good", "circle-check"),
    BACK: (gettext_lazy("Did not come"), "quiet", "arrow-back-up"),
    NO_SLICE: (gettext_lazy("No slice"), "bad", "circle-x"),
}
_BEING_BOOKED = (gettext_lazy("Being booked"), "info", "loader-2")


@dataclass(frozen=True)
class OtherTime:
    """A start at which all of it would be free: for people, and as the form's field writes it."""

    text: str
    value: str


@dataclass(frozen=True)
class WorkshopPreview:
    """What would be booked: who was found, what it costs at most, and whether there is room at that time.

    ``free`` is how many could be booked then; None: not known. ``price`` None: none is in force.
    """

    people: AttendeeList
    seats: int
    price: Decimal | None
    currency: str
    needs_approval: bool
    free: int | None
    is_short: bool
    others: list[OtherTime]

    @property
    def is_ready(self) -> bool:
        """Say whether everybody on the list was found."""
        return bool(self.seats) and not self.people.unknown


@dataclass(frozen=True)
class WorkshopRow:
    """A workshop in a list or at the head of its page."""

    uid: str
    name: str
    what: str
    team: str
    organiser: str
    purpose: str
    starts_at: datetime
    ends_at: datetime
    returns_at: datetime
    opens_at: datetime
    length: str
    seats: int
    came: int
    state: str
    note: str
    is_cancelled: bool
    is_over: bool
    has_begun: bool


@dataclass(frozen=True)
class SeatRow:
    """Somebody's seat, ready to show."""

    name: str
    username: str
    word: Any
    tone: str
    icon: str
    claimed_at: datetime | None
    lease: str
    lease_state: str
    may_remove: bool


@dataclass(frozen=True)
class OwnSeat:
    """One's own seat in a workshop: what to do now, and the lease once it is there."""

    workshop: str
    name: str
    when: str
    title: str
    text: str
    may_start: bool
    lease: str
    lease_state: str


def own_seat_row(view: SeatView) -> OwnSeat:
    """Return somebody's own seat ready to show to them."""
    workshop = view.seat.workshop
    facts = {
        "what": workshop.flavor.shown_name,
        "from": moment(workshop.starts_at - EARLY),
        "until": moment(workshop.returns_at),
    }
    if view.state == CAME and view.lease:
        title, text = _("Your slice"), facts["what"]
    elif view.state == CAME:
        title, text = _("You are here"), _("Your slice starts as soon as there is a place for it.")
    elif view.state == OPEN:
        title = _("Your slice is ready for you")
        text = _("%(what)s, kept for you until %(until)s.") % facts
    elif view.state == BACK:
        title = _("Your slice was given back")
        text = _("It was not started in time; nothing is billed. You can ask for GPU time of your own.")
    elif view.state == NO_SLICE:
        title = _("There is no slice for you yet")
        text = _("The organiser knows and can ask again.")
    else:
        title = _("You have a seat")
        text = _("Sign in between %(from)s and %(until)s, or press Start then: your slice begins.") % facts
    return OwnSeat(
        workshop=workshop.uid,
        name=workshop.name,
        when=f"{moment(workshop.starts_at)} · {span(workshop.duration_s)}",
        title=str(title),
        text=str(text),
        may_start=view.state == OPEN,
        lease=view.lease.uid if view.lease else "",
        lease_state=str(view.lease.state) if view.lease else "",
    )


def preview(quote: WorkshopQuote, people: AttendeeList) -> WorkshopPreview:
    """Return a quote for the people of a list, ready to show."""
    return WorkshopPreview(
        people=people,
        seats=len(people.people),
        price=money(quote.price_micro),
        currency=quote.currency,
        needs_approval=quote.needs_approval,
        free=quote.free,
        is_short=quote.is_short,
        others=[_other(at) for at in quote.others],
    )


def _other(at: datetime) -> OtherTime:
    local = timezone.localtime(at)
    return OtherTime(date_format(local, "D H:i"), local.strftime(LOCAL_TIME))


def workshop_rows(workshops: Iterable[Workshop], *, now: datetime) -> list[WorkshopRow]:
    """Return workshops ready to show, in their order; one query counts their seats."""
    rows = list(workshops)
    counts = Workshop.objects.filter(pk__in=[row.pk for row in rows]).order_by()
    seats = {
        pk: (n, came)
        for pk, n, came in counts.annotate(
            n=Count("seats"), came=Count("seats", filter=Q(seats__claimed_at__isnull=False))
        ).values_list("pk", "n", "came")
    }
    return [_row(row, *seats[row.pk], now) for row in rows]


def _row(workshop: Workshop, seats: int, came: int, now: datetime) -> WorkshopRow:
    is_plain = workshop.approval in (Approval.NOT_NEEDED, Approval.APPROVED)
    return WorkshopRow(
        uid=workshop.uid,
        name=workshop.name,
        what=workshop.flavor.shown_name,
        team=workshop.team.name,
        organiser=str(workshop.organiser),
        purpose=workshop.purpose,
        starts_at=workshop.starts_at,
        ends_at=workshop.ends_at,
        returns_at=workshop.returns_at,
        opens_at=workshop.starts_at - EARLY,
        length=span(workshop.duration_s) or "",
        seats=seats,
        came=came,
        state="" if is_plain else str(workshop.approval),
        note=workshop.decision_note,
        is_cancelled=workshop.cancelled_at is not None,
        is_over=now >= workshop.ends_at,
        has_begun=now >= workshop.starts_at,
    )


def seat_rows(views: Iterable[SeatView], *, may_manage: bool) -> list[SeatRow]:
    """Return seats ready to show, in their order."""
    return [_seat(view, may_manage) for view in views]


def _seat(view: SeatView, may_manage: bool) -> SeatRow:
    is_queued = view.state == AHEAD and view.request_state != RequestState.GRANTED
    word, tone, icon = _BEING_BOOKED if is_queued and view.request_state else SEAT_STATES[view.state]
    user = view.seat.user
    return SeatRow(
        name=str(user),
        username=user.username,
        word=word,
        tone=tone,
        icon=icon,
        claimed_at=view.seat.claimed_at,
        lease=view.lease.uid if view.lease else "",
        lease_state=str(view.lease.state) if view.lease else "",
        may_remove=may_manage and view.state in (AHEAD, OPEN, NO_SLICE),
    )
