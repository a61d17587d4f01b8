"""The public keys with which people come in by SSH."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from django.db import transaction
from django.utils.translation import gettext as _

from portal.accounts.models import SshKey, User
from portal.common.errors import Invalid, NotFound

MOST_KEYS: Final = 20
MOST_LINE: Final = 8192
LEAST_RSA_BITS: Final = 2048
LONGEST_NAME: Final = 60
KINDS: Final = frozenset(
    {
        "ssh-ed25519",
        "ssh-rsa",
        "ecdsa-sha2-nistp256",
        "ecdsa-sha2-nistp384",
        "ecdsa-sha2-nistp521",
        "sk-ssh-ed25519@openssh.com",
        "sk-ecdsa-sha2-nistp256@openssh.com",
    }
)


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key as it stands in a ``.pub`` file: kind and body without options, its comment, its SHA-256 as ssh says it."""

    text: str
    comment: str
    fingerprint: str


def read_public_key(line: str) -> PublicKey:
    """Return the key of one line; raises Invalid with a sentence for the field ``key``."""
    words = line.strip().split(None, 2)
    if "PRIVATE KEY" in line:
        raise _refused(_("This is a private key: never give it away. Paste the file that ends in .pub."))
    if (
        len(line) > MOST_LINE
        or len(line.strip().splitlines()) != 1
        or len(words) < 2
        or words[0] not in KINDS
    ):
        raise _refused(
            _("Paste one line of a .pub file, such as ~/.ssh/id_ed25519.pub: it begins with ssh-ed25519.")
        )
    try:
        body = base64.b64decode(words[1], validate=True)
        key = load_ssh_public_key(f"{words[0]} {words[1]}".encode())
    except (ValueError, UnsupportedAlgorithm):
        raise _refused(_("This key cannot be read: part of the line is missing or changed.")) from None
    if isinstance(key, rsa.RSAPublicKey) and key.key_size < LEAST_RSA_BITS:
        raise _refused(_("An RSA key has at least 2048 bits. Make a new one with: ssh-keygen -t ed25519"))
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode().rstrip("=")
    return PublicKey(f"{words[0]} {words[1]}", words[2] if len(words) > 2 else "", f"SHA256:{digest}")


@transaction.atomic
def add_key(user: User, *, name: str, line: str, now: datetime) -> tuple[SshKey, bool]:
    """Register a key and say whether it is new; the same key again is the one there is. Raises Invalid by field."""
    found = read_public_key(line)
    name = (name.strip() or found.comment.strip() or _("SSH key"))[:LONGEST_NAME]
    if not name.isprintable():
        raise Invalid(fields={"name": _("Give the key a name of 1 to 60 characters.")})
    # One at a time for one person, so that two at once do not both take the last place.
    User.objects.select_for_update().get(pk=user.pk)
    former = SshKey.objects.filter(user=user, fingerprint=found.fingerprint).first()
    if former is not None:
        return former, False
    if SshKey.objects.filter(user=user).count() >= MOST_KEYS:
        sentence = _("You have %(n)d SSH keys, the most one person may have. Remove one first.")
        raise Invalid(fields={"key": sentence % {"n": MOST_KEYS}})
    made = SshKey.objects.create(
        user=user, name=name, public_key=found.text, fingerprint=found.fingerprint, created_at=now
    )
    return made, True


@transaction.atomic
def remove_key(user: User, key_id: int) -> SshKey:
    """Forget a key: nobody signs in with it from now on. Raises NotFound for another's."""
    row = SshKey.objects.select_for_update().filter(pk=key_id, user=user).first()
    if row is None:
        raise NotFound
    row.delete()
    return row


def keys_of(user_id: int) -> list[str]:
    """Return the public keys of a person, as lines."""
    return list(SshKey.objects.filter(user_id=user_id).order_by("pk").values_list("public_key", flat=True))


def _refused(sentence: str) -> Invalid:
    return Invalid(fields={"key": sentence})
