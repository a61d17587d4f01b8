"""Passkeys (WebAuthn) beside the authenticator app: at the second step either is enough.

Who has none of them at hand types a code, so a passkey needs the app first. Bound to ``PASSKEY_ORIGIN`` and to no
other name of the portal.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import urlsplit

import webauthn
from django.conf import settings
from django.db import transaction
from django.utils.translation import gettext as _
from webauthn.helpers import base64url_to_bytes, bytes_to_base64url, parse_authentication_credential_json
from webauthn.helpers.exceptions import WebAuthnException
from webauthn.helpers.structs import (
    AuthenticatorSelectionCriteria,
    PublicKeyCredentialDescriptor,
    ResidentKeyRequirement,
    UserVerificationRequirement,
)

from portal.accounts import sign_in_attempts
from portal.accounts.models import User
from portal.audit.services import record
from portal.common.errors import Conflict, Invalid, NotFound
from portal.second_factor.models import Passkey
from portal.second_factor.services import count_try, has_factor

MOST_PASSKEYS: Final = 10
MOST_NAME: Final = 60
LONGEST_ANSWER: Final = 20_000
# What a program that is no browser may send in place of an answer.
_UNREADABLE: Final = (WebAuthnException, ValueError, TypeError, KeyError, AttributeError)


@dataclass(frozen=True, slots=True)
class PasskeyQuestion:
    """What the browser is asked, as JSON, and the challenge (base64url) that its answer has to sign."""

    options: str
    challenge: str


def are_offered() -> bool:
    """Say whether passkeys can be used here: only under the one name that they are bound to."""
    return bool(settings.PASSKEY_ORIGIN)


def passkeys_of(user: User) -> list[Passkey]:
    """Return a person's passkeys, the oldest first."""
    return list(Passkey.objects.filter(user=user).order_by("created_at", "pk"))


def ask_to_make(user: User) -> PasskeyQuestion:
    """Return what a browser needs to make a passkey. Raises Conflict without an app, and where there are too many."""
    if not are_offered():
        raise Conflict(_("Passkeys are not set up on this portal."))
    if not has_factor(user):
        raise Conflict(_("Set up an authenticator app first: its codes are the way in without the passkey."))
    held = passkeys_of(user)
    if len(held) >= MOST_PASSKEYS:
        raise Conflict(_("You have %(n)d passkeys already; remove one first.") % {"n": MOST_PASSKEYS})
    options = webauthn.generate_registration_options(
        rp_id=_host(),
        rp_name="Berth",
        user_name=user.username,
        user_display_name=str(user),
        user_id=user.pk.to_bytes(8, "big"),
        exclude_credentials=[PublicKeyCredentialDescriptor(bytes(row.credential_id)) for row in held],
        authenticator_selection=AuthenticatorSelectionCriteria(
            resident_key=ResidentKeyRequirement.DISCOURAGED,
            user_verification=UserVerificationRequirement.DISCOURAGED,
        ),
    )
    return PasskeyQuestion(webauthn.options_to_json(options), bytes_to_base64url(options.challenge))


@transaction.atomic
def add_passkey(user: User, *, name: str, answer: str, challenge: str, now: datetime) -> Passkey:
    """Keep the public key of a passkey that a browser has made. Raises Conflict, and Invalid naming the field."""
    User.objects.select_for_update().get(pk=user.pk)
    ask_to_make(user)
    label = name.strip()
    if not label or len(label) > MOST_NAME or not label.isprintable():
        raise Invalid(fields={"name": _("Give it a name of at most %(n)d characters.") % {"n": MOST_NAME}})
    try:
        made = webauthn.verify_registration_response(
            credential=answer,
            expected_challenge=base64url_to_bytes(challenge),
            expected_rp_id=_host(),
            expected_origin=settings.PASSKEY_ORIGIN,
        )
    except _UNREADABLE as error:
        raise Invalid(fields={"answer": _("The passkey could not be made. Try again.")}) from error
    if Passkey.objects.filter(credential_id=made.credential_id).exists():
        raise Conflict(_("This passkey is kept already."))
    row = Passkey.objects.create(
        user=user, name=label, credential_id=made.credential_id, public_key=made.credential_public_key,
        sign_count=made.sign_count, created_at=now,
    )  # fmt: skip
    record(user, "second_factor.passkey_added", user.username, at=now, name=label)
    return row


def ask_to_use(user: User) -> PasskeyQuestion | None:
    """Return what a browser needs to use one of the person's passkeys; None where there is none."""
    held = passkeys_of(user) if are_offered() else []
    if not held:
        return None
    options = webauthn.generate_authentication_options(
        rp_id=_host(),
        allow_credentials=[PublicKeyCredentialDescriptor(bytes(row.credential_id)) for row in held],
        user_verification=UserVerificationRequirement.DISCOURAGED,
    )
    return PasskeyQuestion(webauthn.options_to_json(options), bytes_to_base64url(options.challenge))


def use_passkey(user: User, *, answer: str, challenge: str, now: datetime) -> None:
    """Take a passkey at the second step. Counted like a code, before it is looked at.

    A counter that does not go up is that of a copy: refused, and written down. Raises TooManyCalls and Invalid.
    """
    attempt = count_try(user, now)
    refusal = Invalid(fields={"code": _("This passkey is not right. Try again, or type a code.")})
    if not are_offered() or len(answer) > LONGEST_ANSWER:
        raise refusal
    try:
        said = parse_authentication_credential_json(answer)
        row = Passkey.objects.filter(user=user, credential_id=said.raw_id).first()
        if row is None:
            raise refusal
        found = webauthn.verify_authentication_response(
            credential=said,
            expected_challenge=base64url_to_bytes(challenge),
            expected_rp_id=_host(),
            expected_origin=settings.PASSKEY_ORIGIN,
            credential_public_key=bytes(row.public_key),
            credential_current_sign_count=0,
        )
    except _UNREADABLE as error:
        raise refusal from error
    counts = found.new_sign_count > 0 or row.sign_count > 0
    newer = Passkey.objects.filter(pk=row.pk)
    newer = newer.filter(sign_count__lt=found.new_sign_count) if counts else newer.filter(sign_count=0)
    if not newer.update(sign_count=found.new_sign_count, last_used_at=now):
        record(user, "second_factor.passkey_copied", user.username, at=now, name=row.name)
        raise Invalid(
            fields={"code": _("This passkey may have been copied: its counter went back. Type a code.")}
        )
    sign_in_attempts.give_back(attempt)


@transaction.atomic
def remove_passkey(user: User, key: int, *, now: datetime) -> None:
    """Forget one of a person's passkeys. Raises NotFound."""
    row = Passkey.objects.select_for_update().filter(user=user, pk=key).first()
    if row is None:
        raise NotFound
    row.delete()
    record(user, "second_factor.passkey_removed", user.username, at=now, name=row.name)


def _host() -> str:
    return urlsplit(settings.PASSKEY_ORIGIN).hostname or ""
