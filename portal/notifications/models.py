from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.utils.translation import get_language, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from portal.common.ids import announcement_uid
from portal.teams.models import Team


class Notification(models.Model):
    """Something a person should know: a kind with the figures its sentence is made from."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="notifications")
    kind = models.CharField(max_length=40)
    target = models.CharField(max_length=40, blank=True)
    facts = models.JSONField(default=dict)
    created_at = models.DateTimeField()
    read_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]
        indexes = [models.Index(fields=["user"], name="notification_unread", condition=Q(read_at=None))]
        constraints = [
            models.UniqueConstraint(fields=["user", "kind", "target"], name="notification_once_per_target")
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.target}"


class ContactKind(models.TextChoices):
    """How somebody is reached beside the pages."""

    EMAIL = "email", _("E-mail")
    WEBHOOK = "webhook", _("Webhook")
    SLACK = "slack", "Slack"
    FEISHU = "feishu", _("Feishu")
    DINGTALK = "dingtalk", _("DingTalk")
    WECOM = "wecom", _("WeCom")


class Topic(models.TextChoices):
    """What notifications are about; each kind begins with one of these or is of its family (``TOPIC_OF``)."""

    REQUESTS = "requests", _("Requests and approvals")
    LEASES = "leases", _("Leases")
    JOBS = "jobs", _("Jobs")
    BOOKINGS = "bookings", _("Bookings and reservations")
    FLEET = "fleet", _("Nodes and devices")
    BUDGETS = "budgets", _("Budgets")
    ALERTS = "alerts", _("Alerts")
    TEAM_ALERTS = "team_alerts", _("Alerts about my teams")
    ESCALATED = "escalated", _("Alerts that nobody has acknowledged")
    OTHER = "other", pgettext_lazy("topic of notifications", "Everything else")


class ContactPoint(models.Model):
    """Where a person is told beside the pages: a mailbox, a webhook, or a group of a chat.

    Address and secret are sealed (portal.common.sealing): whoever knows the address of a chat may write there.
    ``shown`` is what of the address a page may show. ``origin`` is the portal as its owner reached it: links in
    messages begin with it. Minutes are of the day in the owner's time zone.
    """

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="contact_points"
    )
    kind = models.CharField(max_length=10, choices=ContactKind.choices)
    name = models.CharField(max_length=60)
    address = models.BinaryField()
    secret = models.BinaryField(null=True, blank=True)
    shown = models.CharField(max_length=120)
    origin = models.CharField(max_length=300)
    muted = ArrayField(models.CharField(max_length=12, choices=Topic.choices), default=list, blank=True)
    digest_at = models.PositiveSmallIntegerField(null=True, blank=True)
    quiet_from = models.PositiveSmallIntegerField(null=True, blank=True)
    quiet_until = models.PositiveSmallIntegerField(null=True, blank=True)
    is_on = models.BooleanField(default=True)
    # A mailbox is written to only once somebody followed the link that was sent there.
    confirmed_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["pk"]
        constraints = [
            models.UniqueConstraint(fields=["user", "name"], name="contact_point_name_once"),
            models.CheckConstraint(
                condition=Q(quiet_from=None, quiet_until=None)
                | Q(quiet_from__lt=1440, quiet_until__lt=1440) & ~Q(quiet_from=F("quiet_until")),
                name="contact_point_quiet_hours",
            ),
            models.CheckConstraint(
                condition=Q(digest_at=None) | Q(digest_at__lt=1440), name="contact_point_digest_time"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.kind})"


class DeliveryState(models.TextChoices):
    """How far a message to a contact point has come."""

    WAITING = "waiting", pgettext_lazy("delivery", "Waiting")
    SENT = "sent", pgettext_lazy("delivery", "Sent")
    FAILED = "failed", pgettext_lazy("delivery", "Failed")


class DeliveryPurpose(models.TextChoices):
    """Why a message is sent."""

    NEWS = "news", pgettext_lazy("delivery", "Notification")
    TEST = "test", pgettext_lazy("delivery", "Test")
    CONFIRMATION = "confirmation", pgettext_lazy("delivery", "Confirmation")


class Delivery(models.Model):
    """A message to a contact point: the row is the work. One per contact point and telling of a notification.

    ``claimed_until`` is set while a worker sends it; a worker that dies leaves it to the next one then, so a message
    can arrive twice, and is never lost.
    """

    contact = models.ForeignKey(ContactPoint, on_delete=models.CASCADE, related_name="deliveries")
    purpose = models.CharField(max_length=12, choices=DeliveryPurpose.choices, default=DeliveryPurpose.NEWS)
    notification = models.ForeignKey(
        Notification, null=True, blank=True, on_delete=models.CASCADE, related_name="deliveries"
    )
    told_at = models.DateTimeField()
    state = models.CharField(max_length=8, choices=DeliveryState.choices, default=DeliveryState.WAITING)
    attempts = models.PositiveSmallIntegerField(default=0)
    due_at = models.DateTimeField()
    claimed_until = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    error = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ["-pk"]
        indexes = [
            models.Index(fields=["due_at"], name="delivery_due", condition=Q(state=DeliveryState.WAITING)),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["contact", "notification", "told_at"],
                name="delivery_once_per_telling",
                condition=~Q(notification=None),
            ),
            models.CheckConstraint(
                condition=Q(purpose=DeliveryPurpose.NEWS, notification__isnull=False)
                | ~Q(purpose=DeliveryPurpose.NEWS) & Q(notification__isnull=True),
                name="delivery_of_news_has_a_notification",
            ),
            models.CheckConstraint(
                condition=Q(state=DeliveryState.WAITING, ended_at=None)
                | ~Q(state=DeliveryState.WAITING) & Q(ended_at__isnull=False),
                name="delivery_ends_once",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.purpose} to {self.contact_id}: {self.state}"


class AnnouncementLevel(models.TextChoices):
    """How loudly an announcement is said."""

    INFO = "info", pgettext_lazy("announcement", "Information")
    WARNING = "warning", pgettext_lazy("announcement", "Warning")
    CRITICAL = "critical", pgettext_lazy("announcement", "Critical")


class Announcement(models.Model):
    """What operators say on every page, from ``starts_at`` until ``ends_at`` (None: until withdrawn).

    ``team`` None: for everybody, on the sign-in page too; else for those with a role in it or in a team below it.
    ``text_zh`` empty: the English text is shown in Chinese pages too.
    """

    uid = models.CharField(max_length=24, unique=True, default=announcement_uid)
    level = models.CharField(max_length=8, choices=AnnouncementLevel.choices)
    text_en = models.CharField(max_length=300)
    text_zh = models.CharField(max_length=300, blank=True)
    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField(null=True, blank=True)
    withdrawn_at = models.DateTimeField(null=True, blank=True)
    made_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["-starts_at", "-pk"]
        indexes = [
            models.Index(fields=["starts_at"], name="announcement_live", condition=Q(withdrawn_at=None))
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(level__in=AnnouncementLevel.values) & ~Q(text_en=""),
                name="announcement_says_something",
            ),
            models.CheckConstraint(
                condition=Q(ends_at=None) | Q(ends_at__gt=F("starts_at")), name="announcement_ends_later"
            ),
        ]

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """The text in the language of the page."""
        return (self.text_zh if (get_language() or "").startswith("zh") else "") or self.text_en


class Dismissal(models.Model):
    """A person who has read an announcement and wants to see it no more."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    announcement = models.ForeignKey(Announcement, on_delete=models.CASCADE, related_name="dismissals")
    dismissed_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["announcement", "user"], name="dismissed_once")]

    def __str__(self) -> str:
        return f"{self.user_id} dismissed {self.announcement_id}"
