"""Signing in a device without a browser (RFC 8628): it shows a code, a person approves it where they are signed in.

The device's own secret is kept as its SHA-256. One row is one try: approved or refused once, redeemed once.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.utils.translation import gettext as _

from portal.accounts.models import DeviceCode, Scope, User
from portal.accounts.selectors import may_enter
from portal.accounts.services import MAX_TOKEN_DAYS, digest_of
from portal.accounts.sign_in_attempts import Limit, wait_before
from portal.audit.services import record
from portal.audit.sign_ins import create_token
from portal.common.addresses import group_of
from portal.common.errors import Invalid, NotFound, TooManyCalls

LASTS: Final = timedelta(minutes=10)
LATE: Final = timedelta(minutes=2)
KEEP: Final = timedelta(days=1)
INTERVAL_S: Final = 5
SLOWER_S: Final = 5
# No vowels, so that no code is a word; no letters that look alike.
LETTERS: Final = "BCDFGHJKLMNPQRSTVWXZ"
LENGTH: Final = 8
LONGEST_NAME: Final = 60
NEW_ONES = Limit("device", 20, 300)  # one place
GUESSES = Limit("usercode", 10, 600)  # one person, with codes that nobody shows


@dataclass(frozen=True, slots=True)
class NewCode:
    """What the device keeps (``secret``), and the row with the code that it shows."""

    row: DeviceCode
    secret: str


class DeviceRefused(Exception):
    """Why a device gets no token (yet); ``code`` is that of RFC 8628."""

    def __init__(self, code: str, said: str = "") -> None:
        super().__init__(code)
        self.code, self.said = code, said


def begin(*, name: str, days: int, address: str, now: datetime) -> NewCode:
    """Make a code for a device that calls itself ``name``. Raises TooManyCalls and Invalid."""
    wait_s = wait_before(NEW_ONES, group_of(address), now=now)
    if wait_s:
        raise TooManyCalls(_("Too many devices want to sign in from your address."), wait_s=wait_s)
    plain = " ".join("".join(c for c in name if c.isprintable()).split())
    if not 1 <= len(plain) <= LONGEST_NAME or not 1 <= days <= MAX_TOKEN_DAYS:
        raise Invalid(_("Give the device a name of 1 to 60 characters, and the token 1 to 90 days."))
    secret = secrets.token_urlsafe(32)
    row = DeviceCode.objects.create(
        digest=digest_of(secret),
        user_code="".join(secrets.choice(LETTERS) for _n in range(LENGTH)),
        name=plain,
        days=days,
        address=address[:50],
        created_at=now,
        expires_at=now + LASTS,
        interval_s=INTERVAL_S,
    )
    return NewCode(row, secret)


def shown(code: str) -> str:
    """Return a code as people read it: "BCDF-GHJK"."""
    return f"{code[:4]}-{code[4:]}"


def find(user: User, code: str, *, now: datetime) -> DeviceCode:
    """Return the try that waits under a code, however it was typed.

    Guesses are counted: raises TooManyCalls, and NotFound for a code that nobody shows, any more or at all.
    """
    row = DeviceCode.objects.filter(
        user_code="".join(c for c in code.upper() if c.isalpha())[:LENGTH],
        decided_at=None,
        expires_at__gt=now,
    ).first()
    if row is not None:
        return row
    wait_s = wait_before(GUESSES, str(user.pk), now=now)
    if wait_s:
        raise TooManyCalls(_("Too many codes that nobody shows."), wait_s=wait_s)
    raise NotFound(_("No device shows this code now. Look at it again, or begin again there."))


@transaction.atomic
def decide(row: DeviceCode, user: User, *, is_approved: bool, address: str, now: datetime) -> None:
    """Approve or refuse a try, once. Raises NotFound where somebody was quicker or it has expired."""
    won = DeviceCode.objects.filter(pk=row.pk, decided_at=None, expires_at__gt=now).update(
        user=user, decided_at=now, is_approved=is_approved
    )
    if not won:
        raise NotFound(_("No device shows this code now. Look at it again, or begin again there."))
    action = "device.approved" if is_approved else "device.refused"
    record(user, action, user.username, at=now, device=row.name, asked_from=row.address, address=address)


def redeem(secret: str, *, now: datetime) -> str:
    """Return the secret of a token for a device whose code was approved; it is told once.

    Raises DeviceRefused: ``authorization_pending``, ``slow_down`` (asked again too soon: from now on seconds later),
    ``access_denied``, ``expired_token``, ``invalid_grant`` for a device nobody knows or that has its token already.
    """
    # What is refused is written all the same: how often a device asked, and that it asked too soon.
    with transaction.atomic():
        row = DeviceCode.objects.select_for_update().filter(digest=digest_of(secret)).first()
        refusal, said = _refusal(row, now)
        if not refusal:
            assert row is not None
            assert row.user is not None
            try:
                with transaction.atomic():
                    made = create_token(
                        user=row.user, name=row.name, scopes=[Scope.ADMIN], days=row.days, now=now
                    )
            except Invalid as error:
                refusal, said = "access_denied", " ".join(str(text) for text in error.fields.values())
            else:
                DeviceCode.objects.filter(pk=row.pk).update(used_at=now)
                return made.secret
    raise DeviceRefused(refusal, said)


def _refusal(row: DeviceCode | None, now: datetime) -> tuple[str, str]:
    """Return why there is no token now, "" where there is; call with the row locked."""
    if row is None or row.used_at is not None:
        return "invalid_grant", _("This device has its token, or never asked for one.")
    # A device asks now and then: one that was approved in the last moment finds out after it.
    if row.expires_at + (LATE if row.is_approved else timedelta()) <= now:
        return "expired_token", _("Nobody approved the code within ten minutes.")
    if row.decided_at is not None:
        is_good = row.is_approved and row.user is not None and may_enter(row.user)
        return ("", "") if is_good else ("access_denied", _("The code was refused in the browser."))
    too_soon = row.asked_at is not None and now - row.asked_at < timedelta(seconds=row.interval_s)
    slower = SLOWER_S if too_soon else 0
    DeviceCode.objects.filter(pk=row.pk).update(asked_at=now, interval_s=min(60, row.interval_s + slower))
    return ("slow_down" if too_soon else "authorization_pending"), ""


def forget_device_codes(*, now: datetime) -> int:
    """Drop tries that ended a day ago; returns how many."""
    return DeviceCode.objects.filter(expires_at__lt=now - KEEP).delete()[0]
