from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from portal.teams.models import Membership, Role, Team

LONGEST_GROUP = 200


class ProviderAdmission(models.TextChoices):
    """Whom a provider's word lets in."""

    EVERYBODY = "everybody", _("Everybody whom it lets in")
    GROUPS = "groups", _("Only members of a group below")


class ProviderProtocol(models.TextChoices):
    """How a provider is asked who somebody is."""

    OPENID = "openid", _("OpenID Connect: people sign in at the provider")
    LDAP = "ldap", _("Directory (LDAP): people type its password here")


class IdentityProvider(models.Model):
    """Where people of the organisation have their account: an OpenID Connect provider, or a directory.

    The secret is sealed (portal.common.sealing) and never shown again. Of a directory ``issuer`` is its address,
    ``client_id`` the name that we look people up by, ``groups_claim`` the attribute with their groups; people are
    looked for below ``base_dn`` by ``user_filter``, in which ``{name}`` stands for what was typed.
    """

    slug = models.SlugField(max_length=40, unique=True)
    name = models.CharField(max_length=60)
    protocol = models.CharField(
        max_length=8,
        choices=ProviderProtocol.choices,
        default=ProviderProtocol.OPENID,
        db_default=ProviderProtocol.OPENID,
    )
    issuer = models.URLField(max_length=300)
    client_id = models.CharField(max_length=200)
    sealed_secret = models.BinaryField(max_length=1000, default=b"")
    groups_claim = models.CharField(max_length=100, default="groups")
    base_dn = models.CharField(max_length=300, default="", db_default="", blank=True)
    user_filter = models.CharField(max_length=300, default="", db_default="", blank=True)
    admission = models.CharField(
        max_length=10, choices=ProviderAdmission.choices, default=ProviderAdmission.GROUPS
    )
    is_active = models.BooleanField(default=True)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["name", "slug"]
        constraints = [
            models.CheckConstraint(
                condition=Q(admission__in=ProviderAdmission.values), name="identity_provider_admission_known"
            ),
            models.CheckConstraint(
                condition=Q(protocol=ProviderProtocol.OPENID)
                | (Q(protocol=ProviderProtocol.LDAP) & Q(user_filter__contains="{name}") & ~Q(base_dn="")),
                name="identity_provider_directory_is_whole",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class GroupRule(models.Model):
    """Who is in this group at the provider has this role in this team."""

    provider = models.ForeignKey(IdentityProvider, on_delete=models.CASCADE, related_name="rules")
    group = models.CharField(max_length=LONGEST_GROUP)
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="+")
    role = models.CharField(max_length=12, choices=Role.choices)

    class Meta:
        ordering = ["group", "team_id", "role"]
        constraints = [
            models.UniqueConstraint(fields=["provider", "group", "team", "role"], name="group_rule_once"),
            models.CheckConstraint(condition=Q(role__in=Role.values), name="group_rule_role_known"),
        ]

    def __str__(self) -> str:
        return f"{self.group} → {self.role} in {self.team}"


class GivenRole(models.Model):
    """A membership that a provider's groups gave: it goes when the groups go. One given by hand has no such row."""

    membership = models.OneToOneField(Membership, on_delete=models.CASCADE, related_name="given_by")
    provider = models.ForeignKey(IdentityProvider, on_delete=models.CASCADE, related_name="+")

    def __str__(self) -> str:
        return f"{self.membership} by {self.provider}"


class ExternalIdentity(models.Model):
    """Whom a provider means by a subject, its ``sub`` claim or the entry's own id; never a mail address, which can
    change hands.
    """

    provider = models.ForeignKey(IdentityProvider, on_delete=models.CASCADE, related_name="identities")
    subject = models.CharField(max_length=255)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="identities")
    created_at = models.DateTimeField()
    last_used_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["provider", "subject"], name="identity_per_subject"),
            models.UniqueConstraint(fields=["provider", "user"], name="identity_per_person"),
        ]

    def __str__(self) -> str:
        return f"{self.user} at {self.provider}"
