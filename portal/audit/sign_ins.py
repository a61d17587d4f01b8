"""Doors and keys, used and written down: signing in and out, tokens, SSH keys. Errors as in ``accounts.services``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils.translation import gettext as _

from portal.accounts import services, sessions, sign_in_attempts, ssh_keys
from portal.accounts.models import ApiToken, SshKey, User
from portal.audit.services import record
from portal.common.errors import Forbidden, Invalid, NotFound, TooManyCalls

MOST_NAMED = 50


@transaction.atomic
def signed_in(user: User, attempt: sign_in_attempts.Attempt, address: str, *, now: datetime) -> None:
    """Give the try back, remember the place and write it down."""
    sign_in_attempts.succeed(attempt, user, address, now=now)
    record(user, "sign_in", user.username, at=now, address=address)


def signed_in_by(user: User, provider: str, address: str, *, now: datetime) -> None:
    """Write down that somebody came in by an identity provider."""
    record(user, "sign_in", user.username, at=now, address=address, provider=provider)


def provider_failed(provider: str, address: str, *, now: datetime, why: str) -> None:
    """Write down that an identity provider's word let nobody in, and why."""
    record(None, "sign_in.failed", provider, at=now, address=address, why=why[:300])


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


@transaction.atomic
def add_ssh_key(*, user: User, name: str, key: str, now: datetime) -> SshKey:
    """Register a public key and write it down, once; raises Invalid by field."""
    row, is_new = ssh_keys.add_key(user, name=name, line=key, now=now)
    if is_new:
        record(user, "ssh_key.added", user.username, at=now, key=row.name, fingerprint=row.fingerprint)
    return row


@transaction.atomic
def remove_ssh_key(*, user: User, key_id: int, now: datetime) -> None:
    """Forget a public key and write it down; raises NotFound for another's."""
    row = ssh_keys.remove_key(user, key_id)
    record(user, "ssh_key.removed", user.username, at=now, key=row.name, fingerprint=row.fingerprint)


@transaction.atomic
def end_session(*, user: User, uid: str, now: datetime) -> None:
    """End one of a person's sessions and write it down; raises NotFound for another's, and for one that has ended."""
    if not sessions.end_sessions(user, uid=uid, now=now):
        raise NotFound
    record(user, "session.ended", user.username, at=now, session=uid)


@transaction.atomic
def end_other_sessions(*, user: User, but: str, now: datetime) -> int:
    """End all sessions of a person but the one with this key, and write it down; returns how many. Safe to repeat."""
    ended = sessions.end_sessions(user, but=but, now=now)
    if ended:
        record(user, "session.others_ended", user.username, at=now, sessions=ended[:MOST_NAMED], n=len(ended))
    return len(ended)


@dataclass(frozen=True, slots=True)
class PasswordChange:
    """What went with an old password: how many sessions ended and tokens were revoked."""

    sessions: int
    tokens: int


def change_password(
    *, user: User, old: str, new: str, with_tokens: bool, address: str, but: str, now: datetime
) -> PasswordChange:
    """Give a person another password and end their sessions but the one with the key ``but``.

    Tokens stay, unless ``with_tokens``. Counted like a try to sign in before the old password is looked at. Raises
    TooManyCalls, Invalid naming the field, and Forbidden for an account of the demo, whose password is everybody's.
    Opens its own transactions: a wrong password stays counted.
    """
    if user.is_demo:
        raise Forbidden(_("The accounts of the demo keep the password that everybody knows."))
    attempt = sign_in_attempts.begin_attempt(user.username, address, now=now)
    if attempt.wait_s:
        if attempt.is_first_refused:
            record(user, "password.refused", user.username, at=now, address=address, why="too many tries")
        raise TooManyCalls(_("Too many tries with a wrong password."), wait_s=attempt.wait_s)
    with transaction.atomic():
        locked = User.objects.select_for_update().get(pk=user.pk)
        fields = _password_faults(locked, old, new)
        if not fields:
            sign_in_attempts.succeed(attempt, locked, address, now=now)
            locked.set_password(new)
            locked.save(update_fields=["password"])
            ended = sessions.end_sessions(locked, but=but, now=now)
            usable = ApiToken.objects.filter(user=locked, revoked_at=None, expires_at__gt=now)
            revoked = usable.update(revoked_at=now) if with_tokens else 0
            record(
                user, "password.changed", user.username, at=now,
                address=address, sessions=len(ended), tokens=revoked,
            )  # fmt: skip
            user.password = locked.password
            return PasswordChange(len(ended), revoked)
    if "old" in fields:
        record(user, "password.refused", user.username, at=now, address=address, why="refused")
    else:
        sign_in_attempts.give_back(attempt)
    raise Invalid(fields=fields)


def _password_faults(user: User, old: str, new: str) -> dict[str, str]:
    """Return what is wrong with the passwords, by field; the new one is looked at only once the old one is right."""
    if not user.check_password(old):
        return {"old": _("That is not your password. Capitals matter.")}
    if new == old:
        return {"new": _("That is your present password. Choose another one.")}
    try:
        validate_password(new, user)
    except ValidationError as error:
        return {"new": " ".join(error.messages)}
    return {}
