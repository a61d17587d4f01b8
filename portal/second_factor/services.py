"""A second factor for who signs in with a password: codes of an app, and recovery codes for who has lost it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import pyotp
from django.db import transaction
from django.utils.translation import gettext as _

from portal.accounts import sessions, sign_in_attempts
from portal.accounts.models import User
from portal.audit.services import record
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound, TooManyCalls
from portal.common.sealing import SECOND_FACTORS, seal, unseal
from portal.second_factor.models import AuthenticatorApp, Passkey, RecoveryCode, RequiringRole
from portal.teams.models import Membership, Role
from portal.teams.selectors import Rights

ISSUER: Final = "Berth"
STEP_S: Final = 30
# One step to either side: the clocks of phones are not ours.
STEPS_BESIDE: Final = (0, -1, 1)
RECOVERY_CODES: Final = 10
RECOVERY_BYTES: Final = 10  # 80 random bits: nobody finds one by its digest
LONGEST_CODE: Final = 40


@dataclass(frozen=True, slots=True)
class FactorState:
    """What a person has: since when (None without), recovery codes that are left, and whether a role needs it."""

    since: datetime | None
    codes_left: int
    is_required: bool


@dataclass(frozen=True, slots=True)
class NewApp:
    """What an app has to know: the secret as it is typed, and the same as an address that a QR code holds."""

    secret: str
    address: str


def state_of(user: User) -> FactorState:
    """Return what a person has and needs."""
    since = AuthenticatorApp.objects.filter(user=user).values_list("confirmed_at", flat=True).first()
    left = RecoveryCode.objects.filter(user=user, used_at=None).count() if since else 0
    return FactorState(since, left, is_required(user))


def has_factor(user: User) -> bool:
    """Say whether a person is asked for a code after the password."""
    return AuthenticatorApp.objects.filter(user=user, confirmed_at__isnull=False).exists()


def is_required(user: User) -> bool:
    """Say whether a role that the person holds anywhere needs a second factor; never for an account of the demo."""
    roles = RequiringRole.objects.values("role")
    return not user.is_demo and Membership.objects.filter(user=user, role__in=roles).exists()


def required_roles() -> list[str]:
    """Return the roles that need a second factor."""
    return list(RequiringRole.objects.order_by("role").values_list("role", flat=True))


@transaction.atomic
def begin(user: User, *, now: datetime) -> NewApp:
    """Make a secret that does not count yet; one made before and never confirmed is void.

    Raises Forbidden for who has no password here, and for an account of the demo; Conflict for who has a factor.
    """
    if user.is_demo:
        raise Forbidden(_("The accounts of the demo are everybody's: use one of your own."))
    if not user.has_usable_password():
        raise Forbidden(
            _("You sign in by your organisation's provider, which asks for a second factor itself.")
        )
    User.objects.select_for_update().get(pk=user.pk)
    if has_factor(user):
        raise Conflict(_("You have a second factor already. Turn it off first."))
    secret = pyotp.random_base32()
    sealed = seal(secret, purpose=SECOND_FACTORS, owner=user.pk, name="app")
    AuthenticatorApp.objects.update_or_create(
        user=user, defaults={"sealed_secret": sealed, "created_at": now, "confirmed_at": None, "last_step": 0}
    )
    return _shown(user, secret)


def begun(user: User) -> NewApp | None:
    """Return the secret that waits for its first code; None where there is none."""
    row = AuthenticatorApp.objects.filter(user=user, confirmed_at=None).first()
    secret = _secret(row) if row else None
    return _shown(user, secret) if secret else None


def confirm(user: User, code: str, *, now: datetime) -> list[str]:
    """Let the app count once its first code is right; returns the recovery codes, which are never shown again.

    Raises TooManyCalls, Conflict where nothing waits to be confirmed, and Invalid naming ``code``.
    """
    attempt = count_try(user, now)
    with transaction.atomic():
        User.objects.select_for_update().get(pk=user.pk)
        row = AuthenticatorApp.objects.filter(user=user, confirmed_at=None).first()
        if row is None:
            raise Conflict(_("There is no app to confirm. Begin again."))
        step = _step_of(row, code, now)
        if step is not None:
            sign_in_attempts.give_back(attempt)
            row.confirmed_at, row.last_step = now, step
            row.save(update_fields=["confirmed_at", "last_step"])
            record(user, "second_factor.on", user.username, at=now)
            return _new_codes(user)
    raise Invalid(fields={"code": _wrong_code()})


def check(user: User, code: str, *, now: datetime) -> str:
    """Use a code of the app or a recovery code, which lets in once; returns "app" or "recovery".

    Counted before it is looked at. Raises TooManyCalls, and Invalid naming ``code``.
    """
    attempt = count_try(user, now)
    kind = "app" if _use_app(user, code, now) else "recovery" if _use_recovery(user, code, now) else ""
    if not kind:
        raise Invalid(fields={"code": _wrong_code()})
    sign_in_attempts.give_back(attempt)
    if kind == "recovery":
        left = RecoveryCode.objects.filter(user=user, used_at=None).count()
        record(user, "second_factor.recovery_used", user.username, at=now, left=left)
    return kind


def prove(user: User, password: str, address: str, *, now: datetime) -> None:
    """Take the password before a factor is changed: whoever finds a screen unlocked must not keep the account.

    Counted like a try to sign in. Raises TooManyCalls, and Invalid naming ``password``.
    """
    attempt = sign_in_attempts.begin_attempt(user.username, address, now=now)
    if attempt.wait_s:
        raise TooManyCalls(_("Too many tries with a wrong password."), wait_s=attempt.wait_s)
    if not user.check_password(password):
        record(user, "password.refused", user.username, at=now, address=address, why="refused")
        raise Invalid(fields={"password": _("That is not your password.")})
    sign_in_attempts.give_back(attempt)


@transaction.atomic
def renew_codes(user: User, *, now: datetime) -> list[str]:
    """Make other recovery codes; those before are void. Raises Conflict for who has no factor."""
    User.objects.select_for_update().get(pk=user.pk)
    if not has_factor(user):
        raise Conflict(_("You have no second factor."))
    record(user, "second_factor.codes_renewed", user.username, at=now)
    return _new_codes(user)


@transaction.atomic
def turn_off(user: User, *, now: datetime) -> None:
    """Forget a person's own factor. Safe to repeat; raises Conflict where a role of theirs needs one."""
    User.objects.select_for_update().get(pk=user.pk)
    if is_required(user):
        raise Conflict(
            _(
                "One of your roles needs a second factor. An operator can reset yours, so that you can set it up again."
            )
        )
    if _forget(user):
        record(user, "second_factor.off", user.username, at=now)


@transaction.atomic
def reset(username: str, *, actor: User, rights: Rights, now: datetime) -> None:
    """Forget somebody's factor and end their sessions: an operator's word for who has lost app and codes.

    Raises Forbidden, NotFound, and Conflict where there is nothing to forget.
    """
    _require_operator(rights)
    user = User.objects.select_for_update().filter(username=username).first()
    if user is None:
        raise NotFound
    if not _forget(user):
        raise Conflict(_("%(name)s has no second factor.") % {"name": user.username})
    ended = sessions.end_sessions(user, now=now)
    record(actor, "second_factor.reset", user.username, at=now, sessions=len(ended))


@transaction.atomic
def require(roles: Iterable[str], *, actor: User, rights: Rights, now: datetime) -> int:
    """Say which roles need a second factor. Returns how many sessions ended: of people who now need one and have none.

    Raises Forbidden, Invalid naming ``roles``, and Conflict where the operator who asks would be one of them.
    """
    _require_operator(rights)
    wanted = sorted(set(roles))
    if set(wanted) - set(Role.values):
        raise Invalid(fields={"roles": _("A role is one of %(roles)s.") % {"roles": ", ".join(Role.values)}})
    # Who comes by a provider is asked there, and can have no factor here.
    if rights.has_anywhere(*wanted) and not has_factor(actor) and _needs_own(actor):
        raise Conflict(_("Set up your own second factor first: you hold one of these roles."))
    before = required_roles()
    if before == wanted:
        return 0
    RequiringRole.objects.exclude(role__in=wanted).delete()
    RequiringRole.objects.bulk_create(
        (RequiringRole(role=role) for role in wanted if role not in before), ignore_conflicts=True
    )
    without = User.objects.filter(memberships__role__in=wanted, is_demo=False).exclude(
        authenticator_app__confirmed_at__isnull=False
    )
    # Who comes by a provider is asked there.
    people = [user for user in without.distinct().order_by("pk") if user.has_usable_password()]
    ended = sum(len(sessions.end_sessions(user, now=now)) for user in people)
    record(
        actor, "second_factor.required", "second-factor", at=now, before=before, after=wanted, sessions=ended
    )
    return ended


def _needs_own(user: User) -> bool:
    return user.has_usable_password() and not user.is_demo


def count_try(user: User, now: datetime) -> sign_in_attempts.Attempt:
    """Count a try with a code or a passkey; raises TooManyCalls."""
    attempt = sign_in_attempts.begin_second_step(user.username, now=now)
    if attempt.wait_s:
        if attempt.is_first_refused:
            record(user, "second_factor.refused", user.username, at=now, why="too many tries")
        raise TooManyCalls(_("Too many tries with a wrong code."), wait_s=attempt.wait_s)
    return attempt


def _wrong_code() -> str:
    return _("This code is not right. Wait for the next one, and check the clock of your phone.")


def _secret(row: AuthenticatorApp) -> str | None:
    return unseal(bytes(row.sealed_secret), purpose=SECOND_FACTORS, owner=row.user_id, name="app")


def _shown(user: User, secret: str) -> NewApp:
    address = pyotp.TOTP(secret).provisioning_uri(name=user.username, issuer_name=ISSUER)
    return NewApp(secret, address)


def _step_of(row: AuthenticatorApp, code: str, now: datetime) -> int | None:
    """Return the step whose code this is; None for a wrong one, and for a secret sealed under a key that is gone."""
    secret = _secret(row)
    digits = "".join(code.split())
    if secret is None or not (len(digits) == 6 and digits.isascii() and digits.isdecimal()):
        return None
    codes, step = pyotp.TOTP(secret), int(now.timestamp()) // STEP_S
    near = [step + beside for beside in STEPS_BESIDE]
    return next((one for one in near if hmac.compare_digest(codes.generate_otp(one), digits)), None)


def _use_app(user: User, code: str, now: datetime) -> bool:
    row = AuthenticatorApp.objects.filter(user=user, confirmed_at__isnull=False).first()
    step = _step_of(row, code, now) if row else None
    if row is None or step is None:
        return False
    # Of two that send one code at once, one is late.
    return bool(AuthenticatorApp.objects.filter(pk=row.pk, last_step__lt=step).update(last_step=step))


def _use_recovery(user: User, code: str, now: datetime) -> bool:
    digest = _digest(code)
    return bool(RecoveryCode.objects.filter(user=user, digest=digest, used_at=None).update(used_at=now))


def _digest(code: str) -> bytes:
    plain = "".join(c for c in code.lower() if c.isalnum())
    return hashlib.sha256(plain.encode()).digest()


def _new_codes(user: User) -> list[str]:
    RecoveryCode.objects.filter(user=user).delete()
    made = [
        base64.b32encode(secrets.token_bytes(RECOVERY_BYTES)).decode().lower() for _n in range(RECOVERY_CODES)
    ]
    RecoveryCode.objects.bulk_create(RecoveryCode(user=user, digest=_digest(code)) for code in made)
    return ["-".join(code[at : at + 4] for at in range(0, len(code), 4)) for code in made]


def _forget(user: User) -> bool:
    Passkey.objects.filter(user=user).delete()
    RecoveryCode.objects.filter(user=user).delete()
    gone, _rows = AuthenticatorApp.objects.filter(user=user, confirmed_at__isnull=False).delete()
    return bool(gone)


def _require_operator(rights: Rights) -> None:
    if not rights.is_operator:
        raise Forbidden(_("Only operators of the organisation decide about second factors."))
