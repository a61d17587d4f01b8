"""Who a provider's word lets in, as whom, and with which roles."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import transaction
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.accounts.selectors import entering, may_enter
from portal.audit.services import record
from portal.common.errors import Conflict, Forbidden
from portal.sso.models import (
    LONGEST_GROUP,
    ExternalIdentity,
    GivenRole,
    GroupRule,
    IdentityProvider,
    ProviderAdmission,
)
from portal.sso.people import MOST_GROUPS, Person, plain_mail, plain_text
from portal.teams.models import Membership, Role
from portal.teams.services import clear_ended

_NOT_IN_A_NAME: Final = re.compile(r"[^\w.+-]+")


@dataclass(slots=True)
class AdmittedPerson:
    """Whose account it is; ``is_new``: made just now; ``refusal``: why they may not come in, "" where they may."""

    user: User
    is_new: bool = False
    refusal: str = ""


def person_of(claims: Mapping[str, Any], groups_claim: str) -> Person:
    """Return what verified claims say of somebody; what has another shape than it should counts as not said."""
    return Person(
        subject=str(claims["sub"]),
        username=plain_text(claims.get("preferred_username")),
        name=plain_text(claims.get("name"))[:100],
        email=plain_mail(plain_text(claims.get("email"))),
        groups=_groups(claims, groups_claim),
    )


@transaction.atomic
def admit(provider: IdentityProvider, person: Person, *, now: datetime) -> AdmittedPerson:
    """Return the account of whoever signed in at a provider, made where there is none, with the roles of their groups.

    Locks the provider, so that two first tries make one account. Raises Forbidden for a closed account, and for
    somebody new whom no group lets in. Whoever left all groups is refused too, once the roles they gave are gone.
    """
    IdentityProvider.objects.select_for_update().get(pk=provider.pk)
    rules = list(GroupRule.objects.filter(provider=provider).select_related("team"))
    mine = [rule for rule in rules if person.groups and rule.group in person.groups]
    identity = (
        ExternalIdentity.objects.filter(provider=provider, subject=person.subject)
        .select_related("user")
        .first()
    )
    if identity is None:
        if provider.admission == ProviderAdmission.GROUPS and not mine:
            raise Forbidden(_no_group(provider, person))
        admitted = AdmittedPerson(_new_user(person), is_new=True)
        ExternalIdentity.objects.create(
            provider=provider, subject=person.subject, user=admitted.user, created_at=now, last_used_at=now
        )
        record(None, "account.made", admitted.user.username, at=now, provider=provider.slug)
    else:
        admitted = AdmittedPerson(identity.user)
        ExternalIdentity.objects.filter(pk=identity.pk).update(last_used_at=now)
    if not may_enter(admitted.user):
        raise Forbidden(_("This account is closed. Ask an operator."))
    if person.groups is None:  # not known is not none: nothing is taken away
        return admitted
    follow_groups(provider, admitted.user, mine, now)
    if provider.admission == ProviderAdmission.GROUPS and not mine:
        admitted.refusal = _no_group(provider, person)
    return admitted


@transaction.atomic
def connect(provider: IdentityProvider, person: Person, user: User, *, now: datetime) -> None:
    """Let somebody who is signed in come by a provider from now on.

    Raises Conflict where that is somebody else's, and Forbidden for an account of the demo, which is everybody's.
    """
    if user.is_demo:
        raise Forbidden(_("The accounts of the demo are everybody's: connect one of your own."))
    IdentityProvider.objects.select_for_update().get(pk=provider.pk)
    subject = ExternalIdentity.objects.filter(provider=provider, subject=person.subject).first()
    own = ExternalIdentity.objects.filter(provider=provider, user=user).first()
    if subject is not None and subject.user_id == user.pk:
        return
    if subject is not None:
        raise Conflict(
            _("Another account here is connected to that person at %(name)s.") % {"name": provider.name}
        )
    if own is not None:
        raise Conflict(
            _("Your account is connected to another person at %(name)s.") % {"name": provider.name}
        )
    ExternalIdentity.objects.create(
        provider=provider, subject=person.subject, user=user, created_at=now, last_used_at=now
    )
    record(user, "identity.connected", user.username, at=now, provider=provider.slug)


@transaction.atomic
def disconnect(provider: IdentityProvider, user: User, *, now: datetime) -> None:
    """Take back that a person may come by a provider; what its groups gave goes with it. Safe to repeat.

    Raises Conflict for somebody without a password, who could not come back.
    """
    if not user.has_usable_password():
        raise Conflict(
            _("You have no password here: you could not sign in again. Ask an operator for one first.")
        )
    IdentityProvider.objects.select_for_update().get(pk=provider.pk)
    gone, _rows = ExternalIdentity.objects.filter(provider=provider, user=user).delete()
    if gone:
        follow_groups(provider, user, [], now)
        record(user, "identity.disconnected", user.username, at=now, provider=provider.slug)


def follow_groups(provider: IdentityProvider, user: User, rules: list[GroupRule], now: datetime) -> None:
    """Give what the rules say and take what they gave before; what was given by hand stays, and the last operator.

    Call in a transaction with the provider locked.
    """
    wanted = {(rule.team_id, rule.role): rule.team for rule in rules}
    given = GivenRole.objects.filter(provider=provider, membership__user=user).select_related(
        "membership__team"
    )
    for row in given:
        had = row.membership
        if (had.team_id, had.role) in wanted:
            continue
        if had.role == Role.OPERATOR and had.team.parent_id is None and _is_last(had):
            continue  # somebody must be able to run the installation
        Membership.objects.filter(pk=had.pk).delete()
        record(
            None, "member.removed", user.username, at=now, team_id=had.team_id,
            team=had.team.slug, role=had.role, provider=provider.slug,
        )  # fmt: skip
    for (_team_id, role), team in wanted.items():
        clear_ended(team_id=team.pk, user=user, role=role, now=now)
        membership, is_new = Membership.everything.get_or_create(
            team=team, user=user, role=role, defaults={"created_at": now}
        )
        if not is_new:
            continue
        GivenRole.objects.create(membership=membership, provider=provider)
        record(
            None, "member.added", user.username, at=now, team_id=team.pk,
            team=team.slug, role=role, provider=provider.slug,
        )  # fmt: skip


def _is_last(membership: Membership) -> bool:
    others = Membership.objects.filter(
        entering("user__"), team=membership.team_id, role=membership.role, ends_at=None
    )
    return not others.exclude(pk=membership.pk).exists()


def _no_group(provider: IdentityProvider, person: Person) -> str:
    if person.groups is None:
        return _(
            "%(name)s did not say in which groups you are, and only groups let people in. Tell an operator."
        ) % {"name": provider.name}
    return _(
        "You are in no group of %(name)s that may use Berth. Ask whoever runs the groups, or an operator."
    ) % {"name": provider.name}


def _new_user(person: Person) -> User:
    """Make an account without a password, with a name that nobody has."""
    base = User.normalize_username((person.username or person.email).partition("@")[0])
    base = _NOT_IN_A_NAME.sub("-", base).strip("-.")[:100] or "person"
    near = User.objects.filter(username__istartswith=base).values_list("username", flat=True)
    taken = {name.casefold() for name in near}
    names = (base if n == 1 else f"{base}-{n}" for n in range(1, len(taken) + 2))
    name = next(one for one in names if one.casefold() not in taken)
    user = User(username=name, display_name=person.name, email=person.email)
    user.set_unusable_password()
    user.save()
    return user


def _groups(claims: Mapping[str, Any], path: str) -> frozenset[str] | None:
    """Return the groups at a claim, ``a.b`` for one inside another; None where they are somewhere else, or no list.

    Providers leave the claim out for somebody who is in no group; one with more than fit says where to ask instead
    (OpenID Connect Core 1.0, 5.6.2; Entra ID also by ``hasgroups``).
    """
    found: Any = claims
    for part in [path] if path in claims else path.split("."):
        if not isinstance(found, Mapping):
            return None
        if part not in found:
            elsewhere = claims.get("_claim_names")
            is_elsewhere = isinstance(elsewhere, Mapping) and path in elsewhere
            return None if is_elsewhere or claims.get("hasgroups") else frozenset()
        found = found[part]
    if isinstance(found, str):
        found = [found]
    if not isinstance(found, list) or len(found) > MOST_GROUPS:
        return None
    return frozenset(one for one in found if isinstance(one, str) and 0 < len(one) <= LONGEST_GROUP)
