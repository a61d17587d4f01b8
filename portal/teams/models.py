from __future__ import annotations

from datetime import timedelta
from typing import Final

from django.conf import settings
from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import ArrayField, RangeOperators
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models import F, Func, Q, Value
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _


class TimeOutRule(models.TextChoices):
    """What becomes of a request that nobody has decided on in time."""

    REMIND = "remind", _("Remind those who decide")
    REJECT = "reject", _("Reject it")
    APPROVE = "approve", _("Approve it")


class Team(models.Model):
    """People with a quota and a cost centre. Teams form a tree; the root is the organisation.

    ``lineage`` holds the ids from the root down to this team, itself included. A request of more than
    ``approval_above_gpu_seconds`` needs an approval, one of more than ``second_approval_above_gpu_seconds`` that of a
    second person, one of the two from a team above (None: none does). What waits longer than ``approval_time_out_s``
    for a decision (None: for ever) is dealt with as ``approval_time_out_then`` says.
    ``tags`` are names with values for finance; what is used by this team and those below it is tagged so.
    """

    name = models.CharField(max_length=80)
    slug = models.SlugField(max_length=50, unique=True)
    parent = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.PROTECT, related_name="children"
    )
    lineage = ArrayField(models.BigIntegerField(), default=list)
    cost_centre = models.CharField(max_length=40, blank=True)
    tags = models.JSONField(default=dict, blank=True)
    approval_above_gpu_seconds = models.PositiveBigIntegerField(null=True, blank=True)
    second_approval_above_gpu_seconds = models.PositiveBigIntegerField(null=True, blank=True)
    approval_time_out_s = models.PositiveIntegerField(null=True, blank=True)
    approval_time_out_then = models.CharField(
        max_length=8, choices=TimeOutRule.choices, default=TimeOutRule.REMIND, db_default=TimeOutRule.REMIND
    )
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["name"]
        indexes = [GinIndex(fields=["lineage"], name="team_by_lineage")]
        constraints = [
            models.CheckConstraint(condition=~Q(parent=F("id")), name="team_is_not_its_own_parent"),
            models.UniqueConstraint(fields=["parent", "name"], name="team_name_unique_among_siblings"),
            models.CheckConstraint(
                condition=Q(second_approval_above_gpu_seconds=None)
                | Q(
                    approval_above_gpu_seconds__isnull=False,
                    second_approval_above_gpu_seconds__gte=F("approval_above_gpu_seconds"),
                ),
                name="team_second_approval_above_first",
            ),
            models.CheckConstraint(
                condition=Q(approval_time_out_then__in=TimeOutRule.values), name="team_time_out_rule_known"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Project(models.Model):
    """What money is spent for, across people: requests of its team and of those below name it by ``code``.

    ``cost_centre`` is used in place of the team's; "" leaves that one. New requests cannot name a project that is
    ended.
    """

    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="projects")
    code = models.CharField(max_length=40, unique=True)
    name = models.CharField(max_length=80)
    cost_centre = models.CharField(max_length=40, blank=True)
    tags = models.JSONField(default=dict, blank=True)
    is_ended = models.BooleanField(default=False)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["code"]
        constraints = [
            models.CheckConstraint(condition=~Q(code="") & ~Q(name=""), name="project_has_code_and_name")
        ]

    def __str__(self) -> str:
        return self.code


class Role(models.TextChoices):
    """What a member may do in a team and everything below it."""

    RESEARCHER = "researcher", _("Researcher")
    ADMIN = "admin", _("Team admin")
    APPROVER = "approver", _("Approver")
    FINANCE = "finance", _("Finance")
    OPERATOR = "operator", _("Operator")


class HeldMemberships(models.Manager["Membership"]):
    """The memberships that hold now: what has ended gives no right, also before it was cleared away."""

    def get_queryset(self) -> models.QuerySet[Membership]:
        """Leave out what has ended by the database's clock."""
        return super().get_queryset().filter(Q(ends_at=None) | Q(ends_at__gt=Now()))


class Membership(models.Model):
    """A person's role in a team, from ``ends_at`` on no more (None: until it is taken away).

    ``objects`` are those that hold now, ``everything`` also those that have ended and are not cleared away yet.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=12, choices=Role.choices)
    created_at = models.DateTimeField()
    ends_at = models.DateTimeField(null=True, blank=True)

    objects = HeldMemberships()
    everything = models.Manager()

    class Meta:
        indexes = [
            models.Index(fields=["ends_at"], name="membership_that_ends", condition=Q(ends_at__isnull=False))
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(ends_at=None) | Q(ends_at__gt=F("created_at")), name="membership_ends_later"
            ),
            models.UniqueConstraint(fields=["user", "team", "role"], name="membership_once"),
            models.CheckConstraint(condition=Q(role__in=Role.values), name="membership_role_known"),
        ]

    def __str__(self) -> str:
        return f"{self.user} {self.role} in {self.team}"


class TeamInvitation(models.Model):
    """A link with which one person takes a role in a team, once and until ``expires_at``; only its SHA-256 is kept.

    ``email`` is where it was sent, "" where it was handed over otherwise.
    """

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="invitations")
    role = models.CharField(max_length=12, choices=Role.choices)
    role_ends_at = models.DateTimeField(null=True, blank=True)
    digest = models.BinaryField(max_length=32, unique=True)
    email = models.EmailField(blank=True)
    invited_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    used_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE, related_name="+"
    )
    used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(condition=Q(role__in=Role.values), name="invitation_role_known"),
            models.CheckConstraint(
                condition=Q(expires_at__gt=F("created_at")), name="invitation_expires_later"
            ),
            models.CheckConstraint(
                condition=Q(used_at=None, used_by=None)
                | Q(used_at__isnull=False, used_by__isnull=False, revoked_at=None),
                name="invitation_is_used_once_by_somebody",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.role} in {self.team_id} until {self.expires_at}"


MOST_DELEGATED: Final = timedelta(days=90)


class RunningDelegations(models.Manager["Delegation"]):
    """The delegations that hold now, by the database's clock, of people who still have an account."""

    def get_queryset(self) -> models.QuerySet[Delegation]:
        """Leave out what has not begun, is over or was ended."""
        rows = super().get_queryset().filter(ended_at=None, starts_at__lte=Now(), ends_at__gt=Now())
        return rows.filter(delegator__is_active=True, deputy__is_active=True)


class Delegation(models.Model):
    """From ``starts_at`` until before ``ends_at`` the deputy decides on requests in the delegator's place.

    One deputy at a time; the deputy has the roles of approver and team admin that the delegator has at each moment, to
    decide with and for nothing else. ``ended_at`` is set where one of both ended it before its time.
    """

    delegator = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="delegations"
    )
    deputy = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    reason = models.CharField(max_length=300)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    ended_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.CASCADE,
        related_name="+",
        db_index=False,
    )

    objects = models.Manager()
    running = RunningDelegations()

    class Meta:
        ordering = ["-starts_at", "-id"]
        constraints = [
            models.CheckConstraint(
                condition=~Q(delegator=F("deputy")), name="delegation_is_to_somebody_else"
            ),
            models.CheckConstraint(condition=~Q(reason=""), name="delegation_has_a_reason"),
            models.CheckConstraint(
                condition=Q(
                    starts_at__gte=F("created_at"),
                    ends_at__gt=F("starts_at"),
                    ends_at__lte=F("starts_at") + Value(MOST_DELEGATED),
                ),
                name="delegation_is_bounded",
            ),
            models.CheckConstraint(
                condition=Q(ended_at=None, ended_by=None)
                | Q(ended_at__isnull=False, ended_at__gte=F("created_at"), ended_at__lt=F("ends_at"))
                & (Q(ended_by=F("delegator")) | Q(ended_by=F("deputy"))),
                name="delegation_is_ended_by_one_of_both",
            ),
            ExclusionConstraint(
                name="delegation_to_one_at_a_time",
                expressions=[
                    (
                        Func(F("delegator_id"), F("delegator_id") + 1, function="int8range"),
                        RangeOperators.OVERLAPS,
                    ),
                    (Func(F("starts_at"), F("ends_at"), function="tstzrange"), RangeOperators.OVERLAPS),
                ],
                condition=Q(ended_at=None),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.deputy_id} for {self.delegator_id} until {self.ends_at}"
