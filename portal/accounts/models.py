from __future__ import annotations

from datetime import timedelta
from typing import Final

from django.conf import settings
from django.contrib.auth.models import AbstractUser
from django.contrib.postgres.fields import ArrayField
from django.contrib.sessions.base_session import AbstractBaseSession
from django.db import models
from django.db.models import F, Q, Value
from django.utils.translation import gettext_lazy as _


class User(AbstractUser):
    """A person who signs in. Rights come from memberships, never from flags here."""

    display_name = models.CharField(max_length=100, blank=True)
    language = models.CharField(max_length=10, blank=True, default="")
    # A name of the time zone database; empty as long as the portal's own is meant.
    time_zone = models.CharField(max_length=64, blank=True, default="", db_default="")
    # Made by the demo, with a password that everybody knows: refused everywhere while BERTH_DEMO is off.
    is_demo = models.BooleanField(default=False)
    # Since when it is closed; of those that were closed before this was kept, nobody knows.
    closed_at = models.DateTimeField(null=True, blank=True)

    class Meta(AbstractUser.Meta):
        constraints = [
            models.CheckConstraint(
                condition=Q(closed_at=None) | Q(is_active=False), name="account_that_is_closed_is_not_active"
            ),
        ]

    def __str__(self) -> str:
        return self.display_name or self.username


class Scope(models.TextChoices):
    """What an API token may do, never more than its owner."""

    READ = "read", _("Read")
    LEASE_WRITE = "lease:write", _("Ask for, extend and release GPU time")
    ADMIN = "admin", _("Everything its owner may do")


class ApiToken(models.Model):
    """A token for the API and the command line; only its SHA-256 is kept."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=60)
    prefix = models.CharField(max_length=12)
    digest = models.BinaryField(max_length=32, unique=True)
    scopes = ArrayField(models.CharField(max_length=20, choices=Scope.choices))
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.CheckConstraint(
                condition=Q(expires_at__gt=models.F("created_at")), name="token_expires_later"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"


class SshKey(models.Model):
    """A public key with which a person comes into their leases by SSH, without options or comment."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="ssh_keys")
    name = models.CharField(max_length=60)
    public_key = models.TextField()
    fingerprint = models.CharField(max_length=60)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["-created_at", "-pk"]
        constraints = [
            models.UniqueConstraint(fields=["user", "fingerprint"], name="one_row_per_ssh_key"),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.fingerprint})"


class Tries(models.Model):
    """How often a door was tried in a window that began at ``since``: by account, by place, or by both."""

    scope = models.CharField(max_length=10)
    who = models.CharField(max_length=100)
    since = models.DateTimeField(db_index=True)
    count = models.PositiveIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["scope", "who"], name="one_count_per_door")]

    def __str__(self) -> str:
        return f"{self.scope} {self.who}: {self.count}"


class SignInPlace(models.Model):
    """A place from which a person has signed in: strangers' tries elsewhere do not shut them out here."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    place = models.CharField(max_length=50)
    last_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "place"], name="one_row_per_place")]

    def __str__(self) -> str:
        return f"{self.user_id} {self.place}"


class BrowserSession(AbstractBaseSession):
    """A browser's session, also of nobody yet. Only ``uid`` is ever shown: ``session_key`` lets its holder in."""

    uid = models.CharField(max_length=24, unique=True)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE, related_name="sessions"
    )
    began_at = models.DateTimeField(null=True, blank=True)
    seen_at = models.DateTimeField()
    place = models.CharField(max_length=50, blank=True)
    browser = models.CharField(max_length=60, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(user=None) | Q(began_at__isnull=False), name="who_is_signed_in_began"
            ),
        ]

    def __str__(self) -> str:
        return self.uid


class DeviceCode(models.Model):
    """A device without a browser that wants to sign in: the code that it shows, and who approved it.

    ``digest`` is the SHA-256 of what the device alone knows. ``asked_at`` is when it last asked for its token.
    """

    digest = models.BinaryField(max_length=32, unique=True)
    user_code = models.CharField(max_length=8, unique=True)
    name = models.CharField(max_length=60)
    days = models.PositiveSmallIntegerField()
    address = models.CharField(max_length=50)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(db_index=True)
    interval_s = models.PositiveSmallIntegerField()
    asked_at = models.DateTimeField(null=True)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE, related_name="+")
    decided_at = models.DateTimeField(null=True)
    is_approved = models.BooleanField(default=False)
    used_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(is_approved=False) | Q(user__isnull=False, decided_at__isnull=False),
                name="device_code_approved_by_somebody",
            ),
            models.CheckConstraint(
                condition=Q(used_at=None) | Q(is_approved=True), name="device_code_used_once_approved"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.user_code}"


LONGEST_IMPERSONATION: Final = timedelta(minutes=30)


class Impersonation(models.Model):
    """An operator sees the portal as a person does, reading only, until ``ends_at`` or until they leave.

    ``ended_at`` is None while it lasts and until the person was told of it.
    """

    operator = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    person = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    reason = models.CharField(max_length=300)
    began_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["operator"], condition=Q(ended_at=None), name="one_impersonation_at_a_time"
            ),
            models.CheckConstraint(condition=~Q(operator=F("person")), name="impersonation_is_of_another"),
            models.CheckConstraint(condition=~Q(reason=""), name="impersonation_has_a_reason"),
            models.CheckConstraint(
                condition=Q(
                    ends_at__gt=F("began_at"), ends_at__lte=F("began_at") + Value(LONGEST_IMPERSONATION)
                ),
                name="impersonation_is_short",
            ),
            models.CheckConstraint(
                condition=Q(ended_at=None) | Q(ended_at__gte=F("began_at"), ended_at__lte=F("ends_at")),
                name="impersonation_ends_in_its_time",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.operator_id} as {self.person_id} until {self.ends_at}"
