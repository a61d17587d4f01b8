"""Discounts: dated rules by which leases pay less of the price; the largest that applies counts, none are added up.

Which applies when is said by one function of the database, ``catalog_discounted``: metering, quotes, budgets and the
guard of usage all ask it (docs/adr/0030).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.catalog.models import Discount
from portal.common.errors import Conflict, Invalid, NotFound
from portal.common.sql import fetch
from portal.common.zones import zone_names
from portal.teams.models import Team
from portal.teams.selectors import SEES_TEAM, Rights, below

# A rule begins and ends so much ahead: whoever meters at this moment may have read the rules already.
AHEAD = timedelta(seconds=60)
DAY_MINUTES = 1440
EVERY_DAY = (0, 1, 2, 3, 4, 5, 6)
_ASKED = """
SELECT a.n, d.begins, d.ends, d.discount_id
  FROM unnest(%s::int[], %s::bigint[], %s::boolean[], %s::timestamptz[], %s::timestamptz[])
    AS a (n, team_id, is_preemptible, since, until)
 CROSS JOIN LATERAL catalog_discounted(a.team_id, a.is_preemptible, a.since, a.until) d
 ORDER BY a.n, d.begins
"""
# Asked first: planning the statement above takes longer than anything else of a quote, and most have no discounts.
_ANY = "SELECT EXISTS (SELECT FROM catalog_discount)"


@dataclass(frozen=True, slots=True)
class DiscountHours:
    """When a discount holds: on these days (0 is Monday) from one minute of the day until before another.

    A time that ends before it begins goes on into the next day. ``zone`` is the time zone that is meant.
    """

    days: tuple[int, ...]
    from_minute: int
    to_minute: int
    zone: str


@dataclass(frozen=True, slots=True)
class DiscountWanted:
    """Time whose discounts are asked for: who pays, and from when until when."""

    team_id: int
    is_preemptible: bool
    starts_at: datetime
    ends_at: datetime


@dataclass(frozen=True, slots=True)
class DiscountSpan:
    """Part of a time in which one discount applies, or none."""

    starts_at: datetime
    ends_at: datetime
    discount: Discount | None


def discounts_over(wanted: Sequence[DiscountWanted]) -> list[list[DiscountSpan]]:
    """Return for each time its parts in order; no parts at all where the installation has no discounts.

    One query, one more where there are any, and another where any applies.
    """
    if not wanted or not fetch(_ANY)[0][0]:
        return [[] for _one in wanted]
    columns = [
        list(range(len(wanted))),
        [one.team_id for one in wanted],
        [one.is_preemptible for one in wanted],
        [one.starts_at for one in wanted],
        [one.ends_at for one in wanted],
    ]
    rows = fetch(_ASKED, columns)
    known = Discount.objects.in_bulk({key for _n, _begins, _ends, key in rows if key is not None})
    found: list[list[DiscountSpan]] = [[] for _one in wanted]
    for number, begins, ends, key in rows:
        found[number].append(DiscountSpan(begins, ends, known.get(key)))
    return found


def visible_discounts(rights: Rights) -> QuerySet[Discount]:
    """Return the discounts of everybody, and those of a person's teams, of teams above and below them."""
    own = rights.teams_with(SEES_TEAM)
    above = {
        pk for lineage in Team.objects.filter(pk__in=own).values_list("lineage", flat=True) for pk in lineage
    }
    mine = Q(team=None) | Q(team__in=above) | Q(team__in=Team.objects.filter(below(own)))
    return Discount.objects.filter(mine).select_related("team").order_by("-valid", "-pk")


@transaction.atomic
def add_discount(
    *,
    name: str,
    off_milli: int,
    team: Team | None = None,
    only_preemptible: bool = False,
    hours: DiscountHours | None = None,
    starts_at: datetime | None = None,
    ends_at: datetime | None = None,
    actor: User | None,
    now: datetime,
) -> Discount:
    """Say that leases pay ``off_milli`` thousandths less of the price from an instant on, a minute ahead at least.

    For a team and those below it, for preemptible leases only, in some hours only, or for everybody at any time.
    Raises Invalid naming the field.
    """
    begin = (starts_at or now + AHEAD + timedelta(seconds=1)).replace(microsecond=0)
    end = ends_at and ends_at.replace(microsecond=0)
    fields = _wrong_hours(hours) if hours else {}
    if not 1 <= len(name.strip()) <= 60 or not name.strip().isprintable():
        fields["name"] = _("Give the discount a name of 1 to 60 characters: it stands on receipts.")
    if not 1 <= off_milli <= 1000:
        fields["percent"] = _("A discount lies between 1 and 100 percent.")
    if begin < now + AHEAD:
        fields["starts_at"] = _("A discount begins a minute from now at the earliest.")
    if end is not None and end <= begin:
        fields["ends_at"] = _("A discount ends after it begins.")
    if fields:
        raise Invalid(fields=fields)
    made = Discount.objects.create(
        name=name.strip(),
        off_milli=off_milli,
        team=team,
        only_preemptible=only_preemptible,
        days=sorted(set(hours.days)) if hours else [],
        from_minute=hours.from_minute if hours else 0,
        to_minute=hours.to_minute if hours else 0,
        zone=hours.zone if hours else "UTC",
        valid=(begin, end),
        created_by=actor,
        created_at=now,
    )
    made.refresh_from_db()
    record(
        actor, "discount.added", made.name, at=now, off_milli=off_milli, team=team.slug if team else "",
        only_preemptible=only_preemptible, days=made.days, from_minute=made.from_minute, to_minute=made.to_minute,
        zone=made.zone, starts_at=begin.isoformat(), ends_at=end.isoformat() if end else "",
    )  # fmt: skip
    return made


@transaction.atomic
def end_discount(*, key: int, actor: User | None, now: datetime) -> Discount | None:
    """End a discount a minute from now; one that has not begun by then is taken back, and None returned.

    Raises NotFound, or Conflict where it is over already.
    """
    found = Discount.objects.select_for_update(of=("self",)).filter(pk=key).first()
    if found is None:
        raise NotFound
    end = (now + AHEAD + timedelta(seconds=1)).replace(microsecond=0)
    if found.valid.upper is not None and found.valid.upper <= end:
        raise Conflict(_("This discount is over already, or ends within the minute."))
    record(actor, "discount.ended", found.name, at=now, ends_at=end.isoformat())
    if found.valid.lower > now + AHEAD:
        found.delete()
        return None
    end = max(end, found.valid.lower + AHEAD)
    if found.valid.upper is not None:  # one that has just begun must not last longer for it
        end = min(end, found.valid.upper)
    Discount.objects.filter(pk=key).update(valid=(found.valid.lower, end))
    found.refresh_from_db()
    return found


def _wrong_hours(hours: DiscountHours) -> dict[str, str]:
    fields = {}
    if not hours.days or not set(hours.days) <= set(EVERY_DAY):
        fields["days"] = _("Choose the days on which it holds.")
    if not (0 <= hours.from_minute < DAY_MINUTES and 0 <= hours.to_minute <= DAY_MINUTES):
        fields["from"] = _("Write times of the day such as 20:00 and 06:00.")
    elif hours.from_minute == hours.to_minute:
        fields["from"] = _("The hours must not end when they begin: for whole days leave them out.")
    if hours.zone not in zone_names():
        fields["zone"] = _("There is no such time zone; write it like Europe/Berlin.")
    return fields
