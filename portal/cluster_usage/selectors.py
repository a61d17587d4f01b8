"""The bill of a month beside what clusters counted: each difference with its cause, and what shows it.

A difference is evidence for a credit or debit note, which a person proposes and another decides. Nothing here changes
an amount.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.billing.metering import active_intervals, events_by_lease
from portal.billing.models import BillingPeriod
from portal.cluster_usage.models import ClusterBooks, CountedJob
from portal.common.clock import whole_second
from portal.fleet.models import HealthEvent, NodePresence
from portal.leases.models import Lease

# What poll, report and whole seconds make of two clocks that are right.
TOLERATED_S = 5
# A command fails some ten seconds after its controller went away, so an absence is noticed that late.
NOTICED_LATE = timedelta(seconds=15)
CLUSTER_AWAY = "cluster_away"


class DifferenceCause(models.TextChoices):
    """Why the cluster counted other seconds than were billed."""

    STARTED_LATER = "started_later", gettext_lazy("Start confirmed later")
    ENDED_BY_CLUSTER = "ended_by_cluster", gettext_lazy("Ended by the cluster before our end")
    CONTROLLER_AWAY = "controller_away", gettext_lazy("Cluster did not answer")
    AGENT_AWAY = "agent_away", gettext_lazy("Agent was not heard")
    WINDING_DOWN = "winding_down", gettext_lazy("Wound down after our end")
    HOST_LOST = "host_lost", gettext_lazy("Host lost, counted until given up")
    INTERRUPTED = "interrupted", gettext_lazy("Interrupted, not billed")
    NEVER_READY = "never_ready", gettext_lazy("Never ready, nothing billed")
    REQUEUED = "requeued", gettext_lazy("Requeued by the cluster")
    TWIN = "twin", gettext_lazy("Two jobs of one lease")
    SUSPENDED = "suspended", gettext_lazy("Suspended by the cluster")
    NO_ROW = "no_row", gettext_lazy("The cluster has no row")
    UNKNOWN = "unknown", gettext_lazy("Unknown")


@dataclass(frozen=True, slots=True)
class CausePart:
    """Seconds of a difference by one cause; more than 0: billed and not counted. ``evidence`` is a sentence."""

    cause: DifferenceCause
    seconds: int
    evidence: str


@dataclass(frozen=True, slots=True)
class UsageDifference:
    """A lease of a pool: billed seconds, the cluster's (None: unknown) and what lies between them.

    ``before_s`` is from the cluster's start to ours, ``after_s`` from the cluster's end to ours, both less the skew of
    the agent's clock; None where one side is missing. ``parts`` add up to the difference where the cluster has a row.
    """

    lease: Lease
    jobs: tuple[str, ...]
    billed_s: int
    cluster_s: int | None
    before_s: int | None = None
    after_s: int | None = None
    parts: tuple[CausePart, ...] = ()

    @property
    def difference_s(self) -> int | None:
        """Return how many seconds more were billed than counted."""
        return None if self.cluster_s is None else self.billed_s - self.cluster_s

    @property
    def is_notable(self) -> bool:
        """Say whether somebody should look: more than is tolerated, or nobody knows."""
        return self.difference_s is None or abs(self.difference_s) > TOLERATED_S

    @property
    def is_explained(self) -> bool:
        """Say whether each larger part of the difference has a named cause."""
        return all(
            part.cause not in (DifferenceCause.UNKNOWN, DifferenceCause.NO_ROW)
            for part in self.parts
            if abs(part.seconds) > TOLERATED_S or self.cluster_s is None
        )


@dataclass(frozen=True, slots=True)
class _Span:
    since: datetime
    until: datetime
    said: str


def books_of_clusters() -> list[ClusterBooks]:
    """Return what each pool's agent said of its cluster's accounting, by node."""
    return list(ClusterBooks.objects.select_related("node").order_by("node__name"))


def usage_differences(period: BillingPeriod) -> list[UsageDifference]:
    """Return the leases of pools that are over and ended in the month, by end, with bill and cluster compared.

    Only pools whose agent ever told of its cluster's accounting are there. Five queries, whatever the month.
    """
    nodes = list(ClusterBooks.objects.values_list("node_id", flat=True))
    ended = Q(ended_at__gte=period.starts_at, ended_at__lt=period.ends_at)
    leases = list(
        Lease.objects.filter(ended, node__in=nodes)
        .exclude(clean_at=None)
        .select_related("node", "team")
        .order_by("ended_at", "pk")
    )
    rows: dict[int, list[CountedJob]] = defaultdict(list)
    for row in CountedJob.objects.filter(lease__in=leases):
        rows[row.lease_id].append(row)
    events = events_by_lease(leases)
    since = min((lease.starts_at for lease in leases), default=period.starts_at)
    away = _controllers_away(nodes, since)
    silent = _agents_away(nodes, since)
    found = []
    for lease in leases:
        intervals = [
            (one.starts_at, one.ends_at) for one in active_intervals(events[lease.pk]) if one.ends_at
        ]
        spans = away.get(lease.node_id, []), silent.get(lease.node_id, [])
        one = compared(lease, intervals, rows[lease.pk], controller_away=spans[0], agent_away=spans[1])
        if one.billed_s or one.cluster_s:
            found.append(one)
    return found


def compared(
    lease: Lease,
    billed: Sequence[tuple[datetime, datetime]],
    rows: Sequence[CountedJob],
    *,
    controller_away: Sequence[_Span] = (),
    agent_away: Sequence[_Span] = (),
) -> UsageDifference:
    """Compare a lease's billed time with the cluster's rows, which are in order of their start."""
    billed_s = sum(_seconds(until - since) for since, until in billed)
    jobs = tuple(dict.fromkeys(row.job for row in rows))
    if not rows:
        said = _("The cluster's accounting has no job of this lease, or nobody could read it.")
        part = CausePart(DifferenceCause.NO_ROW, billed_s, said)
        return UsageDifference(lease, jobs, billed_s, None, parts=(part,))
    cluster_s = sum(row.elapsed_s for row in rows)
    last = max(rows, key=lambda row: row.ended_at)
    if not billed:
        said = _("The job ended as %(state)s; the lease was never ready.") % {"state": last.state}
        part = CausePart(DifferenceCause.NEVER_READY, -cluster_s, said)
        return UsageDifference(lease, jobs, 0, cluster_s, parts=(part,))
    starts, ends = _ours(rows[0], rows[0].started_at), _ours(last, last.ended_at)
    begins, over = billed[0][0], billed[-1][1]
    before_s, after_s = _seconds(begins - starts), _seconds(over - ends)
    parts = [
        _at_start(before_s, starts, begins, controller_away, agent_away),
        _at_end(lease, after_s, ends, over, last, controller_away, agent_away),
    ]
    pauses = _seconds(over - begins) - billed_s
    if pauses:
        said = _("Events of the lease have %(n)d s between its start and end that are not billed.")
        parts.append(CausePart(DifferenceCause.INTERRUPTED, -pauses, said % {"n": pauses}))
    holes = _seconds(last.ended_at - rows[0].started_at) - cluster_s
    if holes:
        parts.append(_between(rows, jobs, holes))
    found = tuple(part for part in parts if part.seconds)
    return UsageDifference(lease, jobs, billed_s, cluster_s, before_s, after_s, found)


def _at_start(
    before_s: int,
    starts: datetime,
    begins: datetime,
    controller_away: Sequence[_Span],
    agent_away: Sequence[_Span],
) -> CausePart:
    if before_s <= 0:
        said = _("We began %(n)d s before the cluster says it did.") % {"n": -before_s}
        return CausePart(DifferenceCause.UNKNOWN, -before_s, said)
    absence = _absence(starts, begins, controller_away, agent_away)
    if absence is not None:
        return CausePart(absence[0], -before_s, absence[1])
    said = _("The cluster began at %(at)s UTC; what it gave was read back and billed from %(n)d s later.")
    return CausePart(DifferenceCause.STARTED_LATER, -before_s, said % {"at": _clock(starts), "n": before_s})


def _at_end(
    lease: Lease,
    after_s: int,
    ends: datetime,
    over: datetime,
    last: CountedJob,
    controller_away: Sequence[_Span],
    agent_away: Sequence[_Span],
) -> CausePart:
    absence = _absence(min(ends, over), max(ends, over), controller_away, agent_away)
    if absence is not None:
        return CausePart(absence[0], after_s, absence[1])
    values = {"state": last.state, "at": _clock(ends), "n": abs(after_s), "uid": last.ended_by}
    if after_s > 0:
        if last.state == "CANCELLED" and last.ended_by is not None:
            said = _("Cancelled by uid %(uid)s at %(at)s UTC; our end is %(n)d s later.") % values
        else:
            said = _("The job ended as %(state)s at %(at)s UTC; our end is %(n)d s later.") % values
        # A job that the cluster cancelled for nobody else and that is billed on is not explained by its state.
        is_named = last.state != "REQUEUED"
        return CausePart(
            DifferenceCause.ENDED_BY_CLUSTER if is_named else DifferenceCause.UNKNOWN, after_s, said
        )
    if last.state in ("NODE_FAIL", "BOOT_FAIL"):
        said = _("The cluster gave its host up at %(at)s UTC and counts until then.") % values
        return CausePart(DifferenceCause.HOST_LOST, after_s, said)
    if lease.clean_at is not None and ends <= lease.clean_at + timedelta(seconds=TOLERATED_S):
        said = _("The lease ended %(n)d s before its job: its programs had their grace, which nobody pays.")
        return CausePart(DifferenceCause.WINDING_DOWN, after_s, said % values)
    said = _("The cluster counts %(n)d s beyond our end, and the units were reported clean before that.")
    return CausePart(DifferenceCause.UNKNOWN, after_s, said % values)


def _between(rows: Sequence[CountedJob], jobs: Sequence[str], holes: int) -> CausePart:
    """Name what the cluster did not count between the first start and the last end, or counted twice."""
    if len(jobs) > 1:
        return CausePart(DifferenceCause.TWIN, holes, _("Jobs %(jobs)s") % {"jobs": ", ".join(jobs)})
    if len(rows) > 1:
        said = _("Job %(job)s has %(n)d rows: the cluster put it back into its queue.")
        return CausePart(DifferenceCause.REQUEUED, holes, said % {"job": jobs[0], "n": len(rows)})
    said = _("Job %(job)s ran %(n)d s less than from its start to its end.") % {"job": jobs[0], "n": holes}
    return CausePart(DifferenceCause.SUSPENDED, holes, said)


def _absence(
    since: datetime, until: datetime, controller_away: Sequence[_Span], agent_away: Sequence[_Span]
) -> tuple[DifferenceCause, str] | None:
    """Return who was away in a gap longer than tolerated, the cluster before the agent."""
    if _seconds(until - since) <= TOLERATED_S:
        return None
    for cause, spans in (
        (DifferenceCause.CONTROLLER_AWAY, controller_away),
        (DifferenceCause.AGENT_AWAY, agent_away),
    ):
        for span in spans:
            if span.since < until + NOTICED_LATE and span.until > since:
                return cause, span.said
    return None


def _controllers_away(nodes: Iterable[int], since: datetime) -> dict[int, list[_Span]]:
    found: dict[int, list[_Span]] = defaultdict(list)
    rows = HealthEvent.objects.filter(node__in=nodes, device=None, code=CLUSTER_AWAY).filter(
        Q(cleared_at=None) | Q(cleared_at__gte=since)
    )
    for event in rows.order_by("at"):
        until = event.cleared_at or datetime.max.replace(tzinfo=UTC)
        values = {
            "since": _clock(event.at),
            "until": _clock(event.cleared_at) if event.cleared_at else _("now"),
        }
        said = _("The cluster did not answer from %(since)s to %(until)s UTC.") % values
        found[event.node_id].append(_Span(event.at, until, said))
    return found


def _agents_away(nodes: Iterable[int], since: datetime) -> dict[int, list[_Span]]:
    """Return the gaps between the times in which a node was heard."""
    found: dict[int, list[_Span]] = defaultdict(list)
    heard: dict[int, datetime] = {}
    rows = NodePresence.objects.filter(node__in=nodes, ended_at__gte=since).order_by("node_id", "began_at")
    for node_id, began_at, ended_at in rows.values_list("node_id", "began_at", "ended_at"):
        before = heard.get(node_id)
        if before is not None and began_at > before:
            values = {"since": _clock(before), "until": _clock(began_at)}
            said = _("The agent was not heard from %(since)s to %(until)s UTC.") % values
            found[node_id].append(_Span(before, began_at, said))
        heard[node_id] = max(ended_at, before or ended_at)
    return found


def _ours(row: CountedJob, at: datetime) -> datetime:
    """Return an instant of the cluster's clock as ours would have it."""
    return whole_second(at - timedelta(seconds=row.skew_s))


def _seconds(span: timedelta) -> int:
    return round(span.total_seconds())


def _clock(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
