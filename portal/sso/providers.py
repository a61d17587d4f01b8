"""Identity providers as operators set them up: who may come in by them, and which groups give which roles."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import transaction
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.common.sealing import PROVIDERS, seal, unseal
from portal.sso.directory import DirectoryClient, ask, is_safe_directory, person_by_password
from portal.sso.models import (
    LONGEST_GROUP,
    GivenRole,
    GroupRule,
    IdentityProvider,
    ProviderAdmission,
    ProviderProtocol,
)
from portal.sso.openid import ProviderClient, ProviderFault, discover, is_safe
from portal.sso.people import Person
from portal.sso.signing_in import follow_groups
from portal.teams.models import Role, Team
from portal.teams.selectors import Rights

MOST_PROVIDERS: Final = 20
MOST_RULES: Final = 500
_SLUG: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class RuleSpec:
    """A group at the provider, and the role it gives in the team of this slug."""

    group: str
    team: str
    role: str


@dataclass(frozen=True, slots=True)
class ProviderSpec:
    """What an operator says of a provider; an empty ``secret`` leaves the one there is.

    ``base_dn`` and ``user_filter`` are of a directory alone.
    """

    name: str
    issuer: str
    client_id: str
    secret: str = ""
    groups_claim: str = "groups"
    admission: str = ProviderAdmission.GROUPS
    is_active: bool = True
    rules: Sequence[RuleSpec] = ()
    protocol: str = ProviderProtocol.OPENID
    base_dn: str = ""
    user_filter: str = ""

    @property
    def is_directory(self) -> bool:
        """Say whether people's passwords are tried at a directory."""
        return self.protocol == ProviderProtocol.LDAP


def active_providers() -> list[IdentityProvider]:
    """Return the providers at which people may sign in, by name."""
    return list(IdentityProvider.objects.filter(is_active=True, protocol=ProviderProtocol.OPENID))


def active_directories() -> list[IdentityProvider]:
    """Return the directories whose passwords let people in, by name."""
    return list(IdentityProvider.objects.filter(is_active=True, protocol=ProviderProtocol.LDAP))


def active_provider(slug: str) -> IdentityProvider:
    """Return a provider at which people may sign in, or raise NotFound."""
    found = IdentityProvider.objects.filter(
        slug=slug, is_active=True, protocol=ProviderProtocol.OPENID
    ).first()
    if found is None:
        raise NotFound
    return found


def client_at(provider: IdentityProvider, callback: str) -> ProviderClient:
    """Return what we are at a provider; raises ProviderFault where its secret was sealed under a key that is gone."""
    return ProviderClient(provider.issuer, provider.client_id, _secret(provider), callback)


def found_in(provider: IdentityProvider, name: str, password: str) -> Person | None:
    """Return whom a directory knows by a name and a password, None for nobody; raises ProviderFault."""
    client = DirectoryClient(
        provider.issuer, provider.client_id, _secret(provider), provider.base_dn, provider.user_filter,
        provider.groups_claim,
    )  # fmt: skip
    return person_by_password(client, name, password)


def _secret(provider: IdentityProvider) -> str:
    secret = unseal(bytes(provider.sealed_secret), purpose=PROVIDERS, owner=provider.pk, name="secret")
    if secret is None:
        raise ProviderFault("its secret was sealed under a key that is gone: set it again")
    return secret


def add_provider(
    *, slug: str, spec: ProviderSpec, actor: User, rights: Rights, now: datetime
) -> IdentityProvider:
    """Set up a provider, once it answered as one, or unasked where it is not active. Operators.

    Raises Forbidden, Conflict where there are too many, and Invalid naming the field.
    """
    require_operator(rights)
    fields = _faults(spec)
    if not _SLUG.fullmatch(slug):
        fields["slug"] = _("Use lower-case letters, digits and hyphens, up to 40.")
    if not spec.secret:
        fields["secret"] = _("The provider shows it where it made the client.")
    if fields:
        raise Invalid(fields=fields)
    if spec.is_active:
        _ask(spec, spec.secret)
    with transaction.atomic():
        if IdentityProvider.objects.count() >= MOST_PROVIDERS:
            raise Conflict(_("There are %(n)d providers, the most there may be.") % {"n": MOST_PROVIDERS})
        provider, is_new = IdentityProvider.objects.get_or_create(slug=slug, defaults={"created_at": now})
        if not is_new:
            raise Invalid(fields={"slug": _("There is a provider of that short name.")})
        _store(provider, spec)
        record(actor, "identity_provider.added", slug, at=now, after=told(provider))
    return provider


def change_provider(
    *, slug: str, spec: ProviderSpec, actor: User, rights: Rights, now: datetime
) -> IdentityProvider:
    """Change a provider and replace its rules; its roles change at people's next sign-in.

    With another issuer, its subjects are other people: who came by it before is forgotten. Operators; raises NotFound
    and Invalid naming the field.
    """
    require_operator(rights)
    found = IdentityProvider.objects.filter(slug=slug).first()
    if found is None:
        raise NotFound
    fields = _faults(spec)
    if fields:
        raise Invalid(fields=fields)
    if found.protocol != spec.protocol:
        raise Invalid(fields={"protocol": _("A provider keeps its protocol: set up another one.")})
    _moves(found, spec)
    if spec.is_active:
        _ask(spec, spec.secret or (_secret_or_refuse(found) if spec.is_directory else ""))
    with transaction.atomic():
        provider = IdentityProvider.objects.select_for_update().filter(slug=slug).first()
        if provider is None:
            raise NotFound
        before = told(provider)
        if _moves(provider, spec):
            _forget_people(provider, now)
        _store(provider, spec)
        record(actor, "identity_provider.changed", slug, at=now, before=before, after=told(provider))
    return provider


def _moves(provider: IdentityProvider, spec: ProviderSpec) -> bool:
    """Say whether a provider moves; raises Invalid where the secret there is would be told to somebody else by it."""
    is_elsewhere = provider.issuer.rstrip("/") != spec.issuer.rstrip("/")
    if is_elsewhere and not spec.secret:
        raise Invalid(fields={"secret": _("Another issuer needs its own secret.")})
    return is_elsewhere


@transaction.atomic
def remove_provider(*, slug: str, actor: User, rights: Rights, now: datetime) -> None:
    """Forget a provider, who came by it, and the roles that its groups gave. Operators; raises NotFound."""
    require_operator(rights)
    provider = IdentityProvider.objects.select_for_update().filter(slug=slug).first()
    if provider is None:
        raise NotFound
    _forget_people(provider, now)
    before = told(provider)
    provider.delete()
    record(actor, "identity_provider.removed", slug, at=now, before=before)


def _forget_people(provider: IdentityProvider, now: datetime) -> None:
    """Take the roles that a provider's groups gave, then forget who came by it; people keep their accounts."""
    given = GivenRole.objects.filter(provider=provider)
    for user in User.objects.filter(pk__in=given.values("membership__user")).order_by("pk"):
        follow_groups(provider, user, [], now)
    provider.identities.all().delete()


def told(provider: IdentityProvider) -> dict[str, Any]:
    """Return what the audit list and the API say of a provider: everything but its secret."""
    rules = GroupRule.objects.filter(provider=provider).select_related("team")
    return {
        "slug": provider.slug,
        "name": provider.name,
        "protocol": str(provider.protocol),
        "issuer": provider.issuer,
        "client_id": provider.client_id,
        "has_secret": bool(provider.sealed_secret),
        "groups_claim": provider.groups_claim,
        "base_dn": provider.base_dn,
        "user_filter": provider.user_filter,
        "admission": str(provider.admission),
        "is_active": provider.is_active,
        "rules": [{"group": one.group, "team": one.team.slug, "role": str(one.role)} for one in rules],
    }


def _store(provider: IdentityProvider, spec: ProviderSpec) -> None:
    provider.name, provider.issuer, provider.client_id = spec.name.strip(), spec.issuer, spec.client_id
    provider.groups_claim, provider.admission = spec.groups_claim, spec.admission
    provider.is_active, provider.protocol = spec.is_active, spec.protocol
    provider.base_dn, provider.user_filter = spec.base_dn.strip(), spec.user_filter.strip()
    if spec.secret:
        provider.sealed_secret = seal(spec.secret, purpose=PROVIDERS, owner=provider.pk, name="secret")
    provider.save()
    teams = {team.slug: team for team in Team.objects.filter(slug__in={rule.team for rule in spec.rules})}
    GroupRule.objects.filter(provider=provider).delete()
    GroupRule.objects.bulk_create(
        GroupRule(provider=provider, group=rule.group, team=teams[rule.team], role=rule.role)
        for rule in dict.fromkeys(spec.rules)
    )


def _faults(spec: ProviderSpec) -> dict[str, Any]:
    """Return what is wrong with a provider, by field, as far as it can be told without asking it."""
    fields: dict[str, Any] = {}
    if not 1 <= len(spec.name.strip()) <= 60:
        fields["name"] = _("A name has 1 to 60 characters.")
    if spec.protocol not in ProviderProtocol.values:
        fields["protocol"] = _("Choose one of these.")
    elif spec.is_directory:
        fields |= _directory_faults(spec)
    elif not is_safe(spec.issuer) or len(spec.issuer) > 300:
        fields["issuer"] = _("Write an address that begins with https://.")
    elif not 1 <= len(spec.client_id) <= 200:
        fields["client_id"] = _("The provider shows it where it made the client.")
    if len(spec.secret) > 500:
        fields["secret"] = _("At most %(n)d characters.") % {"n": 500}
    if not 1 <= len(spec.groups_claim) <= 100:
        fields["groups_claim"] = _("Write the name of a claim, such as groups.")
    if spec.admission not in ProviderAdmission.values:
        fields["admission"] = _("Choose one of these.")
    wrong = _wrong_rule(spec.rules)
    if wrong:
        fields["rules"] = wrong
    elif spec.admission == ProviderAdmission.GROUPS and not spec.rules:
        fields["rules"] = _("Without a rule nobody could come in. Add one, or let everybody in.")
    return fields


def _directory_faults(spec: ProviderSpec) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if not is_safe_directory(spec.issuer) or len(spec.issuer) > 300:
        fields["issuer"] = _("Write an address such as ldaps://ldap.example.org.")
    if not 1 <= len(spec.client_id) <= 200:
        fields["client_id"] = _("Write the DN of an account that may look people up.")
    if not 1 <= len(spec.base_dn.strip()) <= 300:
        fields["base_dn"] = _("Write where people and groups are, such as dc=example,dc=org.")
    wanted = spec.user_filter.strip()
    is_closed = wanted.startswith("(") and wanted.endswith(")") and wanted.count("(") == wanted.count(")")
    if "{name}" not in wanted or not is_closed or len(wanted) > 300:
        fields["user_filter"] = _("Write a filter in brackets with {name} in it, such as (uid={name}).")
    return fields


def _wrong_rule(rules: Sequence[RuleSpec]) -> str:
    """Return what is wrong with the first rule that cannot be used, "" where all can."""
    if len(rules) > MOST_RULES:
        return _("At most %(n)d rules.") % {"n": MOST_RULES}
    known = set(Team.objects.filter(slug__in={rule.team for rule in rules}).values_list("slug", flat=True))
    for n, rule in enumerate(rules, 1):
        if not 1 <= len(rule.group) <= LONGEST_GROUP:
            return _("Rule %(n)d: a group has 1 to %(most)d characters.") % {"n": n, "most": LONGEST_GROUP}
        if rule.team not in known:
            return _("Rule %(n)d: there is no team “%(team)s”.") % {"n": n, "team": rule.team[:50]}
        if rule.role not in Role.values:
            return _("Rule %(n)d: a role is one of %(roles)s.") % {"n": n, "roles": ", ".join(Role.values)}
    return ""


def _ask(spec: ProviderSpec, secret: str) -> None:
    """Ask a provider who it is; raises Invalid naming the field where it gives no answer that fits."""
    try:
        if spec.is_directory:
            ask(
                DirectoryClient(
                    spec.issuer,
                    spec.client_id,
                    secret,
                    spec.base_dn.strip(),
                    spec.user_filter,
                    spec.groups_claim,
                )
            )
        else:
            discover(spec.issuer)
    except ProviderFault as error:
        sentence = (
            _("That directory does not serve: %(why)s.")
            if spec.is_directory
            else _("Nothing there answers as an identity provider of that address: %(why)s.")
        )
        raise Invalid(fields={"issuer": sentence % {"why": error}}) from error


def _secret_or_refuse(provider: IdentityProvider) -> str:
    try:
        return _secret(provider)
    except ProviderFault as error:
        raise Invalid(fields={"secret": _("The secret cannot be read any more: write it again.")}) from error


def require_operator(rights: Rights) -> None:
    """Raise Forbidden for everybody but operators of the organisation."""
    if not rights.is_operator:
        raise Forbidden(_("Only operators of the organisation set up single sign-on."))
