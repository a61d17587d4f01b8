from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Coalesce

from portal.catalog.models import Flavor
from portal.common.ids import lease_uid, request_uid, reservation_uid
from portal.fleet.models import Node
from portal.leases.models_approvals import ApprovalStep
from portal.leases.models_labels import RequestLabels
from portal.leases.models_placements import Placement, SharedHost
from portal.leases.models_starts import PromiseOutcome, StartForecast, StartPromise
from portal.leases.models_templates import RequestTemplate
from portal.leases.models_workshops import Workshop, WorkshopSeat
from portal.leases.states import (
    LIVE_LEASES,
    WANTED_LEASES,
    Approval,
    EndReason,
    ExtensionState,
    LeaseState,
    Opening,
    Repeat,
    RequestState,
    WorkloadKind,
    why_told,
)
from portal.teams.models import Team

__all__ = [
    "ApprovalStep", "Lease", "LeaseEvent", "LeaseExtension", "LeaseRequest", "Placement", "PromiseOutcome",
    "RequestEvent", "RequestLabels", "RequestTemplate", "Reservation", "SharedHost", "StartForecast", "StartPromise",
    "Workshop", "WorkshopSeat",
]  # fmt: skip


class LeaseRequest(models.Model):
    """What was asked; unchanged once submitted, but for its state, why it waits, and an approval of less.

    ``remaining_s`` is the time still owed (less than ``duration_s`` after a lost lease),
    ``cost_milli`` what it takes of a quota, ``reasons`` the ordered wait reasons of the last cycle.
    ``starts_at`` books a start (None: as soon as possible), ``least_duration_s`` is how short it may be cut
    (0: not at all), ``most_count`` above ``count`` lets it grow while boards idle, ``nodes`` 0 means as few
    nodes as possible and n a gang of n nodes with ``count`` units each. ``predicted_s`` is how long it will
    probably run, ``predicted_most_s`` what nine of ten stay below. ``price_milli`` is what it pays of the
    price, in thousandths. ``attempts`` counts the grants that it lost; a lease of its present grant has the
    generation after it. ``evictions`` counts how often it was preempted. ``is_job``: a batch job runs in its lease and
    begins anew by a rule of its own, so a lease that was active does not bring the request back. ``opens``: what its
    page offers first once the lease is active; a batch job opens nothing. ``needs_containers``: only nodes that run
    containers can serve it. ``awaits_person``: a seat in a workshop whose person has not come; nothing of it starts.

    Every step of a life writes every index of its row anew, so a foreign key has one of its own only
    where something is looked up by it and no other index begins with it. So too for leases and placements.
    """

    uid = models.CharField(max_length=24, default=request_uid)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="requests", db_index=False)
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="requests", db_index=False
    )
    flavor = models.ForeignKey(Flavor, on_delete=models.PROTECT, related_name="requests", db_index=False)
    count = models.PositiveSmallIntegerField(default=1)
    duration_s = models.PositiveIntegerField()
    remaining_s = models.PositiveIntegerField()
    priority = models.SmallIntegerField(default=0)
    name = models.CharField(max_length=80, blank=True)
    purpose = models.CharField(max_length=300, blank=True)
    load_pattern = models.CharField(max_length=20, blank=True)
    state = models.CharField(max_length=20, choices=RequestState.choices, default=RequestState.DRAFT)
    cost_milli = models.PositiveBigIntegerField()
    quote_micro = models.BigIntegerField()
    currency = models.CharField(max_length=3)
    attempts = models.PositiveSmallIntegerField(default=0)
    evictions = models.PositiveSmallIntegerField(default=0)
    reasons = models.JSONField(default=list, blank=True)
    submitted_at = models.DateTimeField()
    queued_at = models.DateTimeField(null=True, blank=True)
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="decisions",
        db_index=False,
    )
    decided_for = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        db_index=False,
    )
    decided_at = models.DateTimeField(null=True, blank=True)
    decision_note = models.CharField(max_length=300, blank=True)
    work = models.CharField(max_length=12, choices=WorkloadKind.choices, default=WorkloadKind.INTERACTIVE)
    is_preemptible = models.BooleanField(default=False)
    price_milli = models.PositiveSmallIntegerField(default=1000)
    starts_at = models.DateTimeField(null=True, blank=True)
    least_duration_s = models.PositiveIntegerField(default=0)
    most_count = models.PositiveSmallIntegerField(default=0)
    nodes = models.PositiveSmallIntegerField(default=1)
    predicted_s = models.PositiveIntegerField(null=True, blank=True)
    predicted_most_s = models.PositiveIntegerField(null=True, blank=True)
    predicted_memory_mib = models.PositiveIntegerField(null=True, blank=True)
    is_job = models.BooleanField(default=False)
    needs_containers = models.BooleanField(default=False)
    awaits_person = models.BooleanField(default=False)
    opens = models.CharField(max_length=12, choices=Opening.choices, default=Opening.DEVICE)
    series = models.ForeignKey(
        "Reservation",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="requests",
        db_index=False,
    )

    class Meta:
        ordering = ["-submitted_at", "-id"]
        indexes = [
            models.Index(
                fields=["-priority", "queued_at", "id"],
                name="request_queue",
                condition=Q(state=RequestState.QUEUED),
            ),
            models.Index(
                fields=["id"],
                name="request_growing",
                condition=Q(state=RequestState.GRANTED, most_count__gt=F("count")),
            ),
            models.Index(fields=["team", "state", "id"], name="request_by_team_and_state"),
            models.Index(fields=["team", "state", "quote_micro", "id"], name="request_by_quote"),
            models.Index(fields=["team", "id"], name="request_by_team"),
            models.Index(fields=["author", "-id"], name="request_by_author"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["uid"], name="request_uid_once"),
            models.CheckConstraint(condition=Q(count__gte=1), name="request_asks_for_something"),
            models.CheckConstraint(
                condition=Q(duration_s__gte=1) & Q(remaining_s__lte=F("duration_s")), name="request_time_sane"
            ),
            models.CheckConstraint(condition=Q(state__in=RequestState.values), name="request_state_known"),
            models.CheckConstraint(
                condition=~Q(state=RequestState.QUEUED) | Q(queued_at__isnull=False),
                name="request_queued_has_time",
            ),
            models.CheckConstraint(
                condition=Q(decided_by=None) | ~Q(decided_by=F("author")),
                name="request_not_decided_by_author",
            ),
            models.CheckConstraint(
                condition=Q(decided_for=None)
                | (
                    Q(decided_by__isnull=False)
                    & ~Q(decided_for=F("decided_by"))
                    & ~Q(decided_for=F("author"))
                ),
                name="request_decided_for_another",
            ),
            models.CheckConstraint(condition=Q(work__in=WorkloadKind.values), name="request_work_known"),
            models.CheckConstraint(
                condition=Q(least_duration_s__lte=F("duration_s")), name="request_is_cut_below_its_time"
            ),
            models.CheckConstraint(
                condition=Q(opens__in=Opening.values) & (Q(is_job=False) | Q(opens=Opening.DEVICE)),
                name="request_opens_something_known",
            ),
            models.UniqueConstraint(
                fields=["series", "starts_at"], name="series_books_each_time_once", condition=~Q(series=None)
            ),
        ]

    def __str__(self) -> str:
        return self.uid


class Reservation(models.Model):
    """A series of bookings of the same kind: every day or every week from ``starts_at`` on, until ``until``.

    Each time becomes a request that books its start. ``zone`` is the time zone in which the hour repeats.
    """

    uid = models.CharField(max_length=24, default=reservation_uid)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="reservations")
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="reservations", db_index=False
    )
    flavor = models.ForeignKey(Flavor, on_delete=models.PROTECT, related_name="reservations", db_index=False)
    count = models.PositiveSmallIntegerField(default=1)
    duration_s = models.PositiveIntegerField()
    name = models.CharField(max_length=80, blank=True)
    purpose = models.CharField(max_length=300, blank=True)
    starts_at = models.DateTimeField()
    repeat = models.CharField(max_length=8, choices=Repeat.choices, default=Repeat.WEEKLY)
    until = models.DateTimeField(null=True, blank=True)
    zone = models.CharField(max_length=60, default="UTC")
    made_until = models.DateTimeField(null=True, blank=True)
    approval = models.CharField(max_length=20, choices=Approval.choices, default=Approval.NOT_NEEDED)
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        db_index=False,
    )
    decided_for = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        db_index=False,
    )
    decided_at = models.DateTimeField(null=True, blank=True)
    decision_note = models.CharField(max_length=300, blank=True)
    cancelled_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.UniqueConstraint(fields=["uid"], name="reservation_uid_once"),
            models.CheckConstraint(condition=Q(repeat__in=Repeat.values), name="reservation_repeat_known"),
            models.CheckConstraint(
                condition=Q(until=None) | Q(until__gte=F("starts_at")),
                name="reservation_ends_after_it_starts",
            ),
            models.CheckConstraint(
                condition=Q(approval__in=Approval.values), name="reservation_approval_known"
            ),
            models.CheckConstraint(
                condition=~Q(approval__in=(Approval.APPROVED, Approval.REJECTED))
                | (Q(decided_by__isnull=False) & ~Q(decided_by=F("author"))),
                name="reservation_decided_by_another",
            ),
            models.CheckConstraint(
                condition=Q(decided_for=None)
                | (
                    Q(decided_by__isnull=False)
                    & ~Q(decided_for=F("decided_by"))
                    & ~Q(decided_for=F("author"))
                ),
                name="reservation_decided_for_another",
            ),
            models.CheckConstraint(
                condition=~Q(approval=Approval.AWAITING) | Q(made_until=None),
                name="reservation_asks_once_approved",
            ),
        ]

    def __str__(self) -> str:
        return self.uid


class RequestEvent(models.Model):
    """One step of a request. Append-only by trigger."""

    request = models.ForeignKey(LeaseRequest, on_delete=models.PROTECT, related_name="events")
    was = models.CharField(max_length=20)
    now = models.CharField(max_length=20)
    at = models.DateTimeField()
    reason = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = ["at", "id"]

    def __str__(self) -> str:
        return f"{self.was} -> {self.now}"


class Lease(models.Model):
    """The right to hold placements on one node for a time.

    ``ended_at`` is when the money clock stopped, ``clean_at`` when the agent confirmed the slice gone, ``moved_at``
    when it took its last step (None: it had ended before this was kept). ``agent_active_ms`` is the same span by
    the node's own monotonic clock: shown, never billed.
    ``part`` counts the leases of one request that live together: the nodes of a gang, then what it has grown
    by (``is_extra``). ``preempt_at`` is when it must go on behalf of ``preempted_for``, or for nobody because it
    idles; ``cut_by`` says what made it shorter than was asked, ``wanted_until`` when it would end but for maintenance
    that was announced later: then what is left goes back into the queue.
    """

    uid = models.CharField(max_length=24, default=lease_uid)
    request = models.ForeignKey(LeaseRequest, on_delete=models.PROTECT, related_name="leases")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="leases", db_index=False)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="leases", db_index=False
    )
    flavor = models.ForeignKey(Flavor, on_delete=models.PROTECT, related_name="leases", db_index=False)
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="leases", db_index=False)
    state = models.CharField(max_length=12, choices=LeaseState.choices, default=LeaseState.PREPARING)
    generation = models.PositiveIntegerField(default=1)
    count = models.PositiveSmallIntegerField(default=1)
    share_milli = models.PositiveIntegerField()
    cost_milli = models.PositiveBigIntegerField()
    policy_version = models.PositiveIntegerField(default=0)
    demand_version = models.PositiveIntegerField(default=0)
    load_pattern = models.CharField(max_length=20, blank=True)
    starts_at = models.DateTimeField()
    not_after = models.DateTimeField()
    activated_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    clean_at = models.DateTimeField(null=True, blank=True)
    moved_at = models.DateTimeField(null=True, blank=True)
    end_reason = models.CharField(max_length=12, choices=EndReason.choices, blank=True, default="")
    fault = models.CharField(max_length=300, blank=True)
    warned_at = models.DateTimeField(null=True, blank=True)
    is_metered = models.BooleanField(default=False)
    agent_active_ms = models.BigIntegerField(null=True, blank=True)
    part = models.PositiveSmallIntegerField(default=0)
    is_extra = models.BooleanField(default=False)
    is_preemptible = models.BooleanField(default=False)
    price_milli = models.PositiveSmallIntegerField(default=1000)
    preempt_at = models.DateTimeField(null=True, blank=True)
    preempted_for = models.ForeignKey(
        LeaseRequest,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="makes_room",
        db_index=False,
    )
    cut_by = models.CharField(max_length=12, blank=True, default="")
    wanted_until = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-starts_at", "-id"]
        indexes = [
            models.Index(fields=["node"], name="lease_live_by_node", condition=Q(state__in=LIVE_LEASES)),
            models.Index(fields=["node", "clean_at"], name="lease_by_node"),
            models.Index(fields=["not_after"], name="lease_due", condition=Q(state=LeaseState.ACTIVE)),
            models.Index(fields=["team", "starts_at", "id"], name="lease_by_start"),
            models.Index(fields=["team", "not_after", "id"], name="lease_by_end"),
            models.Index(fields=["team", "id"], name="lease_by_team"),
            models.Index(fields=["user", "-starts_at"], name="lease_by_user"),
            models.Index(
                F("team"),
                F("user"),
                Coalesce("ended_at", "not_after"),
                name="lease_by_holder",
                condition=~Q(state=LeaseState.BOOKED),
            ),
            models.Index(fields=["id"], name="lease_to_meter", condition=Q(is_metered=False)),
            models.Index(
                fields=["clean_at"], name="lease_makes_room", condition=Q(preempted_for__isnull=False)
            ),
        ]
        constraints = [
            models.UniqueConstraint(fields=["uid"], name="lease_uid_once"),
            models.UniqueConstraint(
                fields=["request", "part"],
                name="one_wanted_lease_per_part",
                condition=Q(state__in=WANTED_LEASES),
            ),
            models.UniqueConstraint(
                fields=["request", "generation", "part"],
                name="one_live_lease_per_part",
                condition=Q(state__in=LIVE_LEASES),
            ),
            models.CheckConstraint(
                condition=Q(not_after__gt=F("starts_at")), name="lease_ends_after_it_starts"
            ),
            models.CheckConstraint(
                condition=Q(ended_at=None) | Q(activated_at=None) | Q(ended_at__gte=F("activated_at")),
                name="lease_money_clock_runs_forward",
            ),
            models.CheckConstraint(
                condition=~Q(state=LeaseState.ACTIVE) | Q(activated_at__isnull=False),
                name="lease_active_has_a_time",
            ),
            models.CheckConstraint(condition=Q(state__in=LeaseState.values), name="lease_state_known"),
        ]

    def __str__(self) -> str:
        return self.uid

    @property
    def ends_at(self) -> datetime:
        """When it ends as things stand: by its own time, or because it must go before."""
        return self.not_after if self.preempt_at is None else min(self.not_after, self.preempt_at)

    @property
    def must_go_for(self) -> str:
        """Why it was told to go, as a stable code: idle, elastic, priority or reclaim; "" while it may stay."""
        if self.preempt_at is None:
            return ""
        return why_told(
            is_extra=self.is_extra,
            is_preemptible=self.is_preemptible,
            is_for_nobody=self.preempted_for_id is None,
        )


class LeaseExtension(models.Model):
    """More time that was asked for a lease and needs an approval: with it the lease takes more than may be had
    without. One at a time waits; decided, it never changes (a trigger). What lapsed had waited when its lease ended.
    """

    lease = models.ForeignKey(Lease, on_delete=models.PROTECT, related_name="extensions")
    extra_s = models.PositiveIntegerField()
    state = models.CharField(
        max_length=20, choices=ExtensionState.choices, default=ExtensionState.AWAITING_APPROVAL
    )
    asked_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    asked_at = models.DateTimeField()
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        db_index=False,
    )
    decided_for = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        db_index=False,
    )
    decided_at = models.DateTimeField(null=True, blank=True)
    decision_note = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = ["asked_at", "id"]
        constraints = [
            models.UniqueConstraint(
                fields=["lease"],
                name="one_extension_waits_per_lease",
                condition=Q(state=ExtensionState.AWAITING_APPROVAL),
            ),
            models.CheckConstraint(condition=Q(extra_s__gte=1), name="extension_asks_for_time"),
            models.CheckConstraint(
                condition=Q(state__in=ExtensionState.values), name="extension_state_known"
            ),
            models.CheckConstraint(
                condition=~Q(state__in=(ExtensionState.APPROVED, ExtensionState.REJECTED))
                | (Q(decided_by__isnull=False) & ~Q(decided_by=F("asked_by"))),
                name="extension_decided_by_another",
            ),
            models.CheckConstraint(
                condition=Q(decided_for=None)
                | (
                    Q(decided_by__isnull=False)
                    & ~Q(decided_for=F("decided_by"))
                    & ~Q(decided_for=F("asked_by"))
                ),
                name="extension_decided_for_another",
            ),
        ]

    def __str__(self) -> str:
        return f"+{self.extra_s} s for {self.lease_id}"


class LeaseEvent(models.Model):
    """One step of a lease: what money is made from. Append-only by trigger."""

    lease = models.ForeignKey(Lease, on_delete=models.PROTECT, related_name="events", db_index=False)
    was = models.CharField(max_length=12)
    now = models.CharField(max_length=12)
    at = models.DateTimeField()
    reason = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = ["at", "id"]
        indexes = [models.Index(fields=["lease", "at"], name="lease_event_by_time")]

    def __str__(self) -> str:
        return f"{self.was} -> {self.now}"
