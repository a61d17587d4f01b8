"""What has to hold before a month is closed: one list for the page, the API, the command and the close itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from django.db.models import Sum
from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.billing.electricity import charges_electricity, complete_at, is_posted, unpriced_hours
from portal.billing.energy import KWH_MJ
from portal.billing.metering import active_intervals, events_by_lease, pieces, rates_by_model
from portal.billing.models import BillingPeriod, InvoiceNote, NoteState, PeriodState, UsageTotal
from portal.billing.settled import settled_until
from portal.common.errors import Conflict
from portal.common.invariants import BOOKS, MONEY, broken
from portal.common.models import InvariantCheck
from portal.common.months import Months
from portal.common.sql import fetch
from portal.leases.models import Lease
from portal.leases.states import LeaseState

MOST_NAMED = 5
_MONTH = """
  WITH month AS (
    SELECT id, starts_at, ends_at, tstzmultirange(tstzrange(starts_at, ends_at)) AS span
    FROM billing_billingperiod WHERE id = %s),
  concerned AS (
    SELECT l.id, l.uid, l.is_metered FROM leases_lease l JOIN month m
    ON l.activated_at < m.ends_at AND (l.ended_at IS NULL OR l.ended_at >= m.starts_at)"""
_UNLIKE = f"""),
  active AS (
    SELECT lease_id, range_agg(tstzrange(date_trunc('second', at), date_trunc('second', left_at))) AS span
    FROM (SELECT e.lease_id, e.now, e.at, coalesce(lead(e.at) OVER (PARTITION BY e.lease_id ORDER BY e.at, e.id),
            greatest(%s, e.at)) AS left_at
          FROM leases_leaseevent e JOIN concerned c ON c.id = e.lease_id) steps
    WHERE now = '{LeaseState.ACTIVE}' GROUP BY lease_id),
  metered AS (
    SELECT u.lease_id, range_agg(u.span) AS span
    FROM billing_usagerecord u JOIN concerned c ON c.id = u.lease_id GROUP BY u.lease_id)
  SELECT c.uid FROM concerned c CROSS JOIN month
  LEFT JOIN active a ON a.lease_id = c.id LEFT JOIN metered m ON m.lease_id = c.id
  WHERE coalesce(a.span, '{{}}') * month.span <> coalesce(m.span, '{{}}') * month.span
  AND NOT (%s AND NOT c.is_metered AND coalesce(m.span, '{{}}') <@ coalesce(a.span, '{{}}')) ORDER BY c.id
"""  # noqa: S608 (our own states)
# Leases that were active in the month, or have usage in it, whose usage there is not their active seconds there. Takes
# the month, the instant to count to, and whether a lease that metering has not done with may have less than that.
UNLIKE_EVENTS = f"""{_MONTH}
    UNION SELECT l.id, l.uid, l.is_metered FROM month m
    JOIN billing_usagerecord u ON m.id IN (u.period_id, u.late_for_id)
    JOIN leases_lease l ON l.id = u.lease_id{_UNLIKE}"""  # noqa: S608 (our own parts)
# The same of those only that metering has not done with: a few, however many there were.
_OPEN_UNLIKE_EVENTS = f"{_MONTH} WHERE NOT l.is_metered{_UNLIKE}"
# Metering cuts usage at the end of a month; what it has not done with is looked at by itself.
_CROSSING = """
SELECT count(*) FROM leases_lease WHERE activated_at < %(end)s AND (ended_at IS NULL OR ended_at > %(end)s) AND id IN (
  SELECT lease_id FROM billing_usagerecord WHERE period_id = %(month)s AND upper(span) = %(end)s
  UNION SELECT id FROM leases_lease WHERE NOT is_metered)
"""


@dataclass(frozen=True, slots=True)
class CloseItem:
    """One thing to look at before a month is closed: ``sentence`` says how it stands and names the places.

    A must that is not met keeps the month open; ``is_met_by_closing`` is one that a close tries to meet first.
    """

    code: str
    is_met: bool
    must: bool
    figure: int
    sentence: str
    is_met_by_closing: bool = False


def close_items(period: BillingPeriod, *, now: datetime, is_closing: bool = False) -> list[CloseItem]:
    """Return what must hold before the month is closed, and what else finance looks at. Read-only.

    Inside a close (``is_closing``), with the books locked, the answer cannot change any more: it goes through all
    usage, 40 s where there are a million records, and counts electricity anew. A page asks what the hourly check found,
    and looks itself at what is still open.
    """
    return [
        _over(period, now),
        _earlier(period),
        _settled(period, now),
        _priced(period, now),
        _metered(period, now, is_closing=is_closing),
        _electricity(period, now, is_closing=is_closing),
        _unpriced_electricity(period),
        _sound() if is_closing else _sound_as_checked(),
        _usage(period),
        _crossing(period),
        _undecided_notes(),
    ]


def is_ready(items: Sequence[CloseItem]) -> bool:
    """Say whether a close may be tried: no must is unmet, but for what the close meets itself."""
    return all(item.is_met or not item.must or item.is_met_by_closing for item in items)


def _over(period: BillingPeriod, now: datetime) -> CloseItem:
    is_met = period.ends_at <= now
    text = (
        _("The month is over.")
        if is_met
        else _("The month still runs: it can be closed after its last second.")
    )
    return CloseItem("over", is_met, True, 0, text)


def _earlier(period: BillingPeriod) -> CloseItem:
    rows = BillingPeriod.objects.filter(starts_at__lt=period.starts_at).exclude(state=PeriodState.CLOSED)
    names = [str(row) for row in rows.order_by("starts_at")]
    text = ngettext(
        "%(n)d earlier month is still open: %(names)s. Months are closed in their order.",
        "%(n)d earlier months are still open: %(names)s. Months are closed in their order.",
        len(names),
    )
    return _named("earlier", names, _("All earlier months are closed."), text)


def _settled(period: BillingPeriod, now: datetime) -> CloseItem:
    until = settled_until(None, now=now)
    waiting = [pk for pk, at in until.items() if at < period.ends_at]
    rows = Lease.objects.filter(pk__in=waiting).select_related("node").order_by("pk")
    names = [f"{lease.uid} ({lease.node.name})" for lease in rows]
    if period.ends_at > now:
        text = ngettext("%(n)d lease still runs.", "%(n)d leases still run.", len(names))
        return _named("settled", names, _("No lease runs."), text)
    text = ngettext(
        "The end of %(n)d lease may still be dated in this month, because its node has been silent since then"
        " or its end is being settled: %(names)s.",
        "The ends of %(n)d leases may still be dated in this month, because their nodes have been silent since"
        " then or their ends are being settled: %(names)s.",
        len(names),
    )
    return _named("settled", names, _("No node is silent whose last word came before the month's end."), text)


def _priced(period: BillingPeriod, now: datetime) -> CloseItem:
    rows = Lease.objects.filter(is_metered=False, activated_at__lt=period.ends_at).select_related("flavor")
    leases = list(rows.order_by("pk"))
    events = events_by_lease(leases)
    rates = rates_by_model(lease.flavor.device_model_id for lease in leases)
    names, months = [], Months()
    for lease in leases:
        until = min(now, period.ends_at)
        intervals = [i for i in active_intervals(events[lease.pk]) if i.starts_at < until]
        try:
            pieces(intervals, rates[lease.flavor.device_model_id], months=months, now=until)
        except Conflict:
            names.append(lease.uid)
    text = ngettext(
        "%(n)d lease ran while no price was in force: %(names)s. Add one first.",
        "%(n)d leases ran while no price was in force: %(names)s. Add one first.",
        len(names),
    )
    return _named("priced", names, _("Every lease has a price."), text)


def _metered(period: BillingPeriod, now: datetime, *, is_closing: bool) -> CloseItem:
    asked = UNLIKE_EVENTS if is_closing else _OPEN_UNLIKE_EVENTS
    names = [str(uid) for (uid,) in fetch(asked, [period.pk, now, False])]
    met = _("Every lease is metered to its last second in this month.")
    if period.ends_at > now:
        text = ngettext(
            "%(n)d lease is still to be metered: that is done when it ends, or its month or price does.",
            "%(n)d leases are still to be metered: that is done when they end, or their month or price does.",
            len(names),
        )
        return _named("metered", names, met, text)
    text = ngettext(
        "The usage of %(n)d lease is not its active time to the second yet: %(names)s. Closing meters it again, and"
        " refuses while that stays so.",
        "The usage of %(n)d leases is not their active time to the second yet: %(names)s. Closing meters them"
        " again, and refuses while that stays so.",
        len(names),
    )
    return _named("metered", names, met, text, is_met_by_closing=True)


def _electricity(period: BillingPeriod, now: datetime, *, is_closing: bool) -> CloseItem:
    if not charges_electricity(period.starts_at, period.ends_at):
        return CloseItem(
            "electricity", True, True, 0, _("No price of electricity is in force: none is charged.")
        )
    if now < complete_at(period):
        text = _("Energy of the month is still coming in, until %(at)s UTC.") % {
            "at": f"{complete_at(period).astimezone(UTC):%Y-%m-%d %H:%M}"
        }
        return CloseItem("electricity", False, True, 0, text)
    if is_posted(period, counts_anew=is_closing):
        return CloseItem("electricity", True, True, 0, _("Electricity is on the books as it was measured."))
    text = _("Electricity is not on the books as it was measured: closing puts it there.")
    return CloseItem("electricity", False, True, 0, text, is_met_by_closing=True)


def _unpriced_electricity(period: BillingPeriod) -> CloseItem:
    found = unpriced_hours(period)
    count = sum(hours for hours, _mj in found.values())
    if not count:
        return CloseItem(
            "unpriced_electricity",
            True,
            False,
            0,
            _("No hour is free of electricity by a gap in its prices."),
        )
    sites = ", ".join(sorted(site or _("without a site") for site in found)[:MOST_NAMED])
    text = ngettext(
        "%(n)s hour of a lease has energy and no price of electricity: %(kwh)s kWh are charged to nobody (%(sites)s).",
        "%(n)s hours of leases have energy and no price of electricity: %(kwh)s kWh are charged to nobody (%(sites)s).",
        count,
    ) % {
        "n": number_format(count, use_l10n=True, force_grouping=True),
        "kwh": number_format(
            round(sum(mj for _hours, mj in found.values()) / KWH_MJ, 3), 3, use_l10n=True, force_grouping=True
        ),
        "sites": sites,
    }
    return CloseItem("unpriced_electricity", False, False, count, text)


def _sound() -> CloseItem:
    names = [breach.invariant.name for breach in broken(MONEY)]
    text = ngettext(
        "%(n)d promise about money does not hold: %(names)s. An operator finds out more with check_invariants.",
        "%(n)d promises about money do not hold: %(names)s. An operator finds out more with check_invariants.",
        len(names),
    )
    return _named("sound", names, _("All sums and prices are right."), text)


def _sound_as_checked() -> CloseItem:
    """Say what the newest hourly check found. A close looks again, so whatever it found a close may be tried."""
    row = InvariantCheck.objects.first()
    if row is None or row.checked_at is None:
        text = _("Sums and prices were not checked yet: that is done every hour, and by closing.")
        return CloseItem("sound", False, True, 0, text, is_met_by_closing=True)
    known = {invariant.name for invariant in BOOKS} | {"usage_tiles", "usage_so_far"}
    names = [one["name"] for one in row.breaches if one["name"] in known]
    at = f"{row.checked_at.astimezone(UTC):%Y-%m-%d %H:%M}"
    met = _("All sums and prices were right at %(at)s UTC; closing looks again.") % {"at": at}
    text = ngettext(
        "%(n)d promise about money did not hold at %(at)s UTC: %(names)s. Closing looks again, and refuses while that"
        " stays so.",
        "%(n)d promises about money did not hold at %(at)s UTC: %(names)s. Closing looks again, and refuses while"
        " that stays so.",
        len(names),
    )
    return _named("sound", names, met, text.replace("%(at)s", at), is_met_by_closing=True)


def _usage(period: BillingPeriod) -> CloseItem:
    count = UsageTotal.objects.filter(period=period).aggregate(n=Sum("records"))["n"] or 0
    text = ngettext("%(n)s usage record goes onto lines.", "%(n)s usage records go onto lines.", count)
    said = number_format(count, use_l10n=True, force_grouping=True)
    return CloseItem("usage", True, False, count, text % {"n": said})


def _crossing(period: BillingPeriod) -> CloseItem:
    ((count,),) = fetch(_CROSSING, {"month": period.pk, "end": period.ends_at})
    text = ngettext(
        "%(n)d lease runs across the month's end: what lies before it is billed in this month.",
        "%(n)d leases run across the month's end: what lies before it is billed in this month.",
        count,
    )
    return CloseItem("crossing", True, False, count, text % {"n": count})


def _undecided_notes() -> CloseItem:
    count = InvoiceNote.objects.filter(state=NoteState.PROPOSED).count()
    text = ngettext(
        "%(n)d note waits for a second person: decided after the close, it is billed in a later month.",
        "%(n)d notes wait for a second person: decided after the close, they are billed in a later month.",
        count,
    )
    met = _("No credit or debit note waits for a second person.")
    return CloseItem("notes", not count, False, count, text % {"n": count} if count else met)


def _named(
    code: str, names: Sequence[str], met: str, unmet: str, *, is_met_by_closing: bool = False
) -> CloseItem:
    more = len(names) - MOST_NAMED
    shown = ", ".join([*names[:MOST_NAMED], *([f"+{more}"] if more > 0 else [])])
    text = unmet % {"n": len(names), "names": shown} if names else met
    return CloseItem(code, not names, True, len(names), text, bool(names) and is_met_by_closing)
