"""Where people want to be told: made, changed, tried, confirmed and removed. Everything by its owner alone."""

from __future__ import annotations

import base64
import re
import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlsplit

from django.conf import settings
from django.core import signing
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.accounts.sign_in_attempts import Limit, wait_before
from portal.audit.services import record
from portal.common.errors import Conflict, Invalid, NotFound, TooManyCalls
from portal.common.sealing import CONTACTS, seal, unseal
from portal.notifications.models import ContactKind, ContactPoint, Delivery, DeliveryPurpose, Topic

MOST_CONTACTS: Final = 10
LONGEST_NAME: Final = 60
LONGEST_ADDRESS: Final = 500
CONFIRM_WITHIN_S: Final = 86_400
# Tests and confirmations of one person: each is a message to somebody.
TESTS: Final = Limit("contact", 20, 3600)
_SALT: Final = "berth.contact-point"
_SECRET_BYTES: Final = 24
_HOSTS: Final = {
    ContactKind.SLACK: ("hooks.slack.com", "hooks.slack-gov.com"),
    ContactKind.FEISHU: ("open.feishu.cn", "open.larksuite.com"),
    ContactKind.DINGTALK: ("oapi.dingtalk.com",),
    ContactKind.WECOM: ("qyapi.weixin.qq.com",),
}
_CHANGEABLE: Final = frozenset({"name", "muted", "digest_at", "quiet_from", "quiet_until", "is_on"})


@dataclass(frozen=True, slots=True)
class NewContactPoint:
    """A contact point and, for a webhook, the secret that its messages are signed with: shown this once."""

    row: ContactPoint
    secret: str


@transaction.atomic
def add_contact_point(
    *, user: User, kind: str, address: str, origin: str, now: datetime, name: str = "", secret: str = ""
) -> NewContactPoint:
    """Make a contact point; raises Invalid by field, Conflict where the person has too many.

    ``origin`` is the portal as the person reached it, such as https://berth.example.org. ``secret`` is that of a
    Feishu or DingTalk robot which asks for signed messages; a webhook gets a new one. A mailbox waits to be confirmed.
    """
    address = _sound_address(kind, address.strip())
    if secret and kind not in (ContactKind.FEISHU, ContactKind.DINGTALK):
        raise Invalid(fields={"secret": _("Only robots of Feishu and DingTalk have a secret of their own.")})
    User.objects.select_for_update(no_key=True).get(pk=user.pk)
    if ContactPoint.objects.filter(user=user).count() >= MOST_CONTACTS:
        raise Conflict(
            _("You have %(n)d contact points, the most one person may have. Remove one first.")
            % {"n": MOST_CONTACTS}
        )
    if kind == ContactKind.WEBHOOK:
        secret = "whsec_" + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()
    row = ContactPoint(
        user=user, kind=kind, name=_sound_name(name or str(ContactKind(kind).label)), shown=_shown(kind, address),
        address=_sealed(user, "address", address), secret=_sealed(user, "secret", secret) if secret else None,
        origin=origin.rstrip("/"), confirmed_at=None if kind == ContactKind.EMAIL else now, created_at=now,
    )  # fmt: skip
    _save(row)
    if kind == ContactKind.EMAIL:
        _send_extra(row, DeliveryPurpose.CONFIRMATION, now=now)
    record(user, "contact_point.added", user.username, at=now, contact=row.pk, kind=kind, name=row.name)
    return NewContactPoint(row, secret if kind == ContactKind.WEBHOOK else "")


@transaction.atomic
def change_contact_point(*, user: User, contact_id: int, now: datetime, **changes: Any) -> ContactPoint:
    """Change name, topics, digest, quiet hours, or switch it on or off; raises Invalid by field, NotFound.

    Minutes of the day for ``digest_at``, ``quiet_from`` and ``quiet_until``; None is none.
    """
    row = own(user, contact_id, for_update=True)
    unknown = set(changes) - _CHANGEABLE
    if unknown:
        raise TypeError(f"not to be changed: {unknown}")
    for field, value in changes.items():
        setattr(row, field, value)
    wrong = {}
    if not set(row.muted) <= set(Topic.values):
        wrong["muted"] = _("Choose among: %(names)s.") % {"names": ", ".join(Topic.values)}
    if (row.quiet_from is None) != (row.quiet_until is None) or (
        row.quiet_from is not None and row.quiet_from == row.quiet_until
    ):
        wrong["quiet_until"] = _(
            "Quiet hours need a beginning and a different end. Leave both empty for none."
        )
    if row.digest_at is not None and row.kind == ContactKind.WEBHOOK:
        wrong["digest_at"] = _("A webhook is told of each thing when it happens.")
    if wrong:
        raise Invalid(fields=wrong)
    row.muted = sorted(set(row.muted))
    row.name = _sound_name(row.name)
    _save(row)
    record(user, "contact_point.changed", user.username, at=now, contact=row.pk, name=row.name)
    return row


@transaction.atomic
def remove_contact_point(*, user: User, contact_id: int, now: datetime) -> None:
    """Forget a contact point with what was to be sent there; raises NotFound for another's."""
    row = own(user, contact_id, for_update=True)
    name, pk = row.name, row.pk
    row.delete()
    record(user, "contact_point.removed", user.username, at=now, contact=pk, name=name)


@transaction.atomic
def test_contact_point(*, user: User, contact_id: int, now: datetime) -> Delivery:
    """Send a test message, or the link to confirm a mailbox once more; raises NotFound, TooManyCalls."""
    User.objects.select_for_update(no_key=True).get(pk=user.pk)
    row = own(user, contact_id, for_update=True)
    purpose = DeliveryPurpose.TEST if row.confirmed_at else DeliveryPurpose.CONFIRMATION
    return _send_extra(row, purpose, now=now)


def confirmation_of(row: ContactPoint) -> str:
    """Return what stands in the link that confirms a mailbox."""
    return signing.dumps(row.pk, salt=_SALT)


@transaction.atomic
def confirm_contact_point(*, user: User, signed: str, now: datetime) -> ContactPoint:
    """Confirm one's own mailbox by the link that was sent there; raises NotFound for any other link. Safe to repeat."""
    try:
        pk = signing.loads(signed, salt=_SALT, max_age=CONFIRM_WITHIN_S)
    except signing.BadSignature:
        raise NotFound(
            _("This link is too old or not whole. Send a new one from the page of the contact point.")
        ) from None
    row = own(user, pk, for_update=True)
    if row.confirmed_at is None:
        row.confirmed_at = now
        row.save(update_fields=["confirmed_at"])
        record(user, "contact_point.confirmed", user.username, at=now, contact=row.pk, name=row.name)
    return row


def own(user: User, contact_id: int, *, for_update: bool = False) -> ContactPoint:
    """Return a contact point of this person; raises NotFound for another's.

    Its lock lets others refer to the row: whoever notifies meanwhile does not wait, and is not waited for.
    """
    rows = ContactPoint.objects.all()
    if for_update:
        rows = rows.select_for_update(no_key=True)
    row = rows.filter(pk=contact_id, user=user).first()
    if row is None:
        raise NotFound
    return row


def address_of(row: ContactPoint) -> str | None:
    """Return where it writes to; None for one that was stored under a key that is gone."""
    return unseal(bytes(row.address), purpose=CONTACTS, owner=row.user_id, name="address")


def secret_of(row: ContactPoint) -> str | None:
    """Return with what its messages are signed; "" without one, None where the key is gone."""
    if row.secret is None:
        return ""
    return unseal(bytes(row.secret), purpose=CONTACTS, owner=row.user_id, name="secret")


def has_mail() -> bool:
    """Return whether this installation can send mail."""
    return bool(settings.HAS_MAIL)


def _send_extra(row: ContactPoint, purpose: str, *, now: datetime) -> Delivery:
    # Counted apart from the rows: removing a contact point must not make room for the next stranger's mailbox.
    if wait_s := wait_before(TESTS, str(row.user_id), now=now):
        sentence = _("That is more than %(n)d tests and new mailboxes within an hour. Wait a while.")
        raise TooManyCalls(sentence % {"n": TESTS.most}, wait_s=wait_s)
    return Delivery.objects.create(contact=row, purpose=purpose, told_at=now, due_at=now)


def _save(row: ContactPoint) -> None:
    try:
        with transaction.atomic():
            row.save()
    except IntegrityError as error:
        if "contact_point_name_once" not in str(error):
            raise
        raise Invalid(fields={"name": _("You have a contact point of this name.")}) from None


def _sealed(user: User, name: str, value: str) -> bytes:
    return seal(value, purpose=CONTACTS, owner=user.pk, name=name)


def _sound_name(name: str) -> str:
    name = name.strip()
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise Invalid(fields={"name": _("Give it a name of 1 to 60 characters.")})
    return name


def _sound_address(kind: str, address: str) -> str:
    if kind not in ContactKind.values:
        raise Invalid(
            fields={"kind": _("Choose one of: %(names)s.") % {"names": ", ".join(ContactKind.values)}}
        )
    if kind == ContactKind.EMAIL:
        if not has_mail():
            raise Invalid(fields={"kind": _("This installation sends no mail yet. Ask an operator.")})
        try:
            validate_email(address)
        except ValidationError:
            raise _no_address(_("Write an address such as bob@example.org.")) from None
        if len(address) > LONGEST_ADDRESS:
            raise _no_address(_("Write an address such as bob@example.org."))
        return address
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        parts, host, port = urlsplit(""), "", None
    wanted = ("https", "http") if settings.NOTIFY_PRIVATE_ADDRESSES else ("https",)
    is_sound = (
        parts.scheme in wanted
        and host
        and port != 0
        and len(address) <= LONGEST_ADDRESS
        and re.fullmatch(r"[\x21-\x7e]+", address)
        and parts.username is None
        and parts.password is None
        and not parts.fragment
    )
    if not is_sound:
        raise _no_address(_("Write a whole address that begins with https://, without name and password."))
    hosts = _HOSTS.get(ContactKind(kind))
    if hosts and host not in hosts and not settings.NOTIFY_PRIVATE_ADDRESSES:
        raise _no_address(_("Addresses of this kind begin with https://%(host)s/.") % {"host": hosts[0]})
    return address


def _no_address(sentence: str) -> Invalid:
    return Invalid(fields={"address": sentence})


def _shown(kind: str, address: str) -> str:
    """Return what a page may show: a mailbox whole, of a URL its host and the last four characters."""
    if kind == ContactKind.EMAIL:
        return address[:120]
    return f"{urlsplit(address).hostname}/…{address[-4:]}"[:120]
