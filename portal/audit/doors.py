"""Doors and keys, used and written down: signing in and out, API tokens. Errors as in ``accounts.services``."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from portal.accounts import services, tries
from portal.accounts.models import ApiToken, User
from portal.audit.services import record


@transaction.atomic
def signed_in(user: User, attempt: tries.Attempt, address: str, *, now: datetime) -> None:
    """Give the try back, remember the place and write it down."""
    tries.succeed(attempt, user, address, now=now)
    record(user, "sign_in", user.username, at=now, address=address)


def sign_in_failed(name: str, address: str, *, now: datetime, why: str) -> None:
    """Write down a try that failed. A name nobody has is left out: it may be a password in the wrong field."""
    known = User.objects.filter(username=name).values_list("username", flat=True).first()
    record(None, "sign_in.failed", known or "unknown", at=now, address=address, why=why)


def signed_out(user: User, *, now: datetime) -> None:
    """Write down that somebody left."""
    record(user, "sign_out", user.username, at=now)


@transaction.atomic
def create_token(*, user: User, name: str, scopes: list[str], days: int, now: datetime) -> services.NewToken:
    """Make an API token and write it down."""
    made = services.create_token(user=user, name=name, scopes=scopes, days=days, now=now)
    record(
        user, "token.made", user.username, at=now,
        token=made.row.pk, name=made.row.name, prefix=made.row.prefix, scopes=made.row.scopes, days=days,
    )  # fmt: skip
    return made


@transaction.atomic
def revoke_token(*, user: User, token_id: int, now: datetime) -> None:
    """End a token and write it down, once."""
    row = ApiToken.objects.select_for_update().filter(pk=token_id, user=user, revoked_at=None).first()
    services.revoke_token(user=user, token_id=token_id, now=now)
    if row is not None:
        record(user, "token.revoked", user.username, at=now, token=row.pk, name=row.name, prefix=row.prefix)
