from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

from portal.teams.models import Role


class AuthenticatorApp(models.Model):
    """The app of a person that shows a code every 30 seconds (RFC 6238).

    The secret is sealed (portal.common.sealing). It counts once ``confirmed_at`` says that a first code was right.
    ``last_step`` is the newest 30 seconds whose code was used: each lets in once.
    """

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="authenticator_app"
    )
    sealed_secret = models.BinaryField(max_length=200)
    created_at = models.DateTimeField()
    confirmed_at = models.DateTimeField(null=True)
    last_step = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(confirmed_at=None) | Q(confirmed_at__gte=models.F("created_at")),
                name="authenticator_app_confirmed_later",
            ),
        ]

    def __str__(self) -> str:
        return f"app of {self.user_id}"


class RecoveryCode(models.Model):
    """A code for who has lost the app; only its SHA-256 is kept, and each lets in once."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="recovery_codes"
    )
    digest = models.BinaryField(max_length=32)
    used_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "digest"], name="recovery_code_once"),
        ]

    def __str__(self) -> str:
        return f"code of {self.user_id}"


class Passkey(models.Model):
    """A passkey of a person: its public key alone. ``sign_count`` goes up with each use where the device counts."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="passkeys")
    name = models.CharField(max_length=60)
    credential_id = models.BinaryField(max_length=1023, unique=True)
    public_key = models.BinaryField(max_length=2000)
    sign_count = models.BigIntegerField(default=0)
    created_at = models.DateTimeField()
    last_used_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=~Q(name="") & Q(sign_count__gte=0), name="passkey_has_a_name_and_counts_up"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.user_id}"


class RequiringRole(models.Model):
    """Who holds this role anywhere needs a second factor to sign in with a password."""

    role = models.CharField(max_length=12, choices=Role.choices, unique=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(role__in=Role.values), name="requiring_role_known"),
        ]

    def __str__(self) -> str:
        return self.role
