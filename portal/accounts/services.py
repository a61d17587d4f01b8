from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.utils.translation import gettext as _

from portal.accounts.models import ApiToken, Scope, User
from portal.common.errors import Invalid, NotFound

TOKEN_MARK = "bth_"  # noqa: S105 (the mark tokens begin with)
MAX_TOKEN_DAYS = 90


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token row and its secret, which is shown once and never stored."""

    row: ApiToken
    secret: str


def digest_of(secret: str) -> bytes:
    """Return the SHA-256 under which a secret is stored."""
    return hashlib.sha256(secret.encode()).digest()


@transaction.atomic
def create_token(*, user: User, name: str, scopes: list[str], days: int, now: datetime) -> NewToken:
    """Make an API token, or raise Invalid naming the field."""
    fields = {}
    if not name.strip() or len(name) > 60:
        fields["name"] = _("Give the token a name of 1 to 60 characters.")
    if not scopes or set(scopes) - set(Scope.values):
        fields["scopes"] = _("Choose at least one of: %(names)s.") % {"names": ", ".join(Scope.values)}
    if not 1 <= days <= MAX_TOKEN_DAYS:
        fields["days"] = _("A token lives 1 to %(days)d days.") % {"days": MAX_TOKEN_DAYS}
    if fields:
        raise Invalid(fields=fields)
    # One at a time for one person, so that two at once do not both take the last place.
    User.objects.select_for_update().get(pk=user.pk)
    most = settings.MAX_TOKENS_PER_PERSON
    if ApiToken.objects.filter(user=user, revoked_at=None, expires_at__gt=now).count() >= most:
        sentence = _("You have %(n)d usable tokens, the most one person may have. Revoke one first.")
        raise Invalid(fields={"name": sentence % {"n": most}})
    secret = TOKEN_MARK + secrets.token_urlsafe(32)
    row = ApiToken.objects.create(
        user=user,
        name=name.strip(),
        prefix=secret[:8],
        digest=digest_of(secret),
        scopes=sorted(set(scopes)),
        created_at=now,
        expires_at=now + timedelta(days=days),
    )
    return NewToken(row, secret)


def revoke_token(*, user: User, token_id: int, now: datetime) -> None:
    """End a token of this user at once. Safe to repeat; raises NotFound for another's token."""
    if not ApiToken.objects.filter(pk=token_id, user=user).exists():
        raise NotFound
    ApiToken.objects.filter(pk=token_id, user=user, revoked_at=None).update(revoked_at=now)
