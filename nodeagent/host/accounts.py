"""Local accounts of this host: whose unit a lease becomes. The portal's user name is the account's name."""

from __future__ import annotations

import pwd
from dataclasses import dataclass
from typing import Final

# Below this number accounts belong to the system (UID_MIN in login.defs); nobody's lease may run as one.
FIRST_UID: Final = 1000
NOBODY_UID: Final = 65534


@dataclass(frozen=True, slots=True)
class Account:
    """One local account; ``home`` and ``shell`` are absolute paths."""

    uid: int
    gid: int
    home: str
    name: str = ""
    shell: str = "/bin/sh"


def account_of(name: str) -> Account:
    """Return the local account of a portal user.

    Raises LookupError with a sentence for people where this host has none, or none that may hold a lease.
    """
    try:
        found = pwd.getpwnam(name)
    except (KeyError, ValueError):  # ValueError: a name with a NUL in it
        raise LookupError(
            f"this host has no account {name!r}; add it (useradd, or your directory service), then try again"
        ) from None
    if found.pw_uid < FIRST_UID or found.pw_uid == NOBODY_UID:
        raise LookupError(
            f"{name!r} is an account of the system on this host (uid {found.pw_uid}); leases are opened only for"
            f" people, from uid {FIRST_UID} on"
        )
    return Account(found.pw_uid, found.pw_gid, found.pw_dir, found.pw_name, found.pw_shell or "/bin/sh")
