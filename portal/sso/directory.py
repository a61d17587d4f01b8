"""A directory (LDAP) as far as signing in needs it: find one person, try their password, read their groups.

Passwords only travel over TLS, or within this machine. What was typed is escaped before it becomes part of a filter,
and an empty password, which directories take for "nobody in particular" and let in (RFC 4513, 5.1.2), is never tried.
Whatever a directory answers is hostile until checked: it is bounded in time and number, and referrals lead nowhere.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from portal.sso.openid import LOCAL, ProviderFault
from portal.sso.people import MOST_GROUPS, Person, plain_mail, plain_text

WITHIN_S: Final = 5
LONGEST_PASSWORD: Final = 1000
# What names an entry for good: RFC 4530, Active Directory, FreeIPA, 389 Directory Server. A DN changes with a name.
SUBJECTS: Final = ("entryUUID", "objectGUID", "ipaUniqueID", "nsUniqueId")
NAMES: Final = ("uid", "sAMAccountName", "cn")
# RFC 4519 for the first two, RFC 2307 for the last, which lists names instead of entries.
_GROUPS_OF: Final = "(|(member={dn})(uniqueMember={dn})(&(objectClass=posixGroup)(memberUid={uid})))"
# Wrong password, none set, too little right, an account that is locked, a password that ran out (RFC 4511, A.2).
_REFUSED: Final = frozenset({49, 48, 50, 53, 19})
_NOT_THERE: Final = 32


@dataclass(frozen=True, slots=True)
class DirectoryClient:
    """Where a directory is, and what we are there: ``bind_dn`` looks people up, ``secret`` is its password."""

    url: str
    bind_dn: str
    secret: str
    base_dn: str
    user_filter: str
    groups_attribute: str


def is_safe_directory(url: str) -> bool:
    """Return whether an address may be told passwords: TLS from the start, TLS before anything is said, or local."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    is_bare = parts.path in ("", "/") and not parts.query and not parts.fragment and not parts.username
    return parts.scheme in ("ldap", "ldaps") and bool(parts.hostname) and port != 0 and is_bare


def ask(client: DirectoryClient) -> None:
    """Sign in as ourselves and look at the base; raises ProviderFault where that is not possible."""
    with _signed_in(client, client.bind_dn, client.secret) as session:
        if session is None:
            raise ProviderFault("it refuses the name and password that we look people up by")
        session.search(client.base_dn, "(objectClass=*)", "BASE", attributes=["1.1"], size_limit=1)
        if session.result["result"] != 0:
            raise ProviderFault(f"there is no {client.base_dn!r}: {_why(session)}")


def person_by_password(client: DirectoryClient, name: str, password: str) -> Person | None:
    """Return who has this name and password, None where they do not fit together; raises ProviderFault."""
    if not name or not 0 < len(password) <= LONGEST_PASSWORD or "\0" in password:
        return None
    with _signed_in(client, client.bind_dn, client.secret) as ours:
        if ours is None:
            raise ProviderFault("it refuses the name and password that we look people up by")
        entry = _entry(ours, client, name)
        if entry is None:
            return None
        with _signed_in(client, entry["dn"], password) as theirs:
            if theirs is None:
                return None
        said = _texts(entry["raw_attributes"])
        return Person(
            subject=_subject(entry["raw_attributes"]),
            username=next((said[key][0] for key in NAMES if said.get(key)), plain_text(name)),
            name=(said.get("displayName") or said.get("cn") or [""])[0][:100],
            email=plain_mail((said.get("mail") or [""])[0]),
            groups=_groups(ours, client, entry["dn"], said),
        )


def _entry(session: Any, client: DirectoryClient, name: str) -> Mapping[str, Any] | None:
    from ldap3.utils.conv import escape_filter_chars

    wanted = client.user_filter.replace("{name}", escape_filter_chars(name))
    attributes = [*SUBJECTS, *NAMES, "displayName", "mail", client.groups_attribute]
    session.search(
        client.base_dn, wanted, "SUBTREE", attributes=attributes, size_limit=2, time_limit=WITHIN_S
    )
    found = _entries(session)
    if len(found) > 1:
        raise ProviderFault(f"more than one entry has the name {name[:60]!r}")
    if not found and session.result["result"] not in (0, _NOT_THERE):
        raise ProviderFault(f"it did not look: {_why(session)}")
    return found[0] if found else None


def _groups(
    session: Any, client: DirectoryClient, dn: str, said: Mapping[str, list[str]]
) -> frozenset[str] | None:
    """Return the groups of an entry by their DN and by their name; None where they could not all be read."""
    from ldap3.utils.conv import escape_filter_chars

    dns = set(said.get(client.groups_attribute, ()))
    uid = next(iter(said.get("uid", ())), "")
    wanted = _GROUPS_OF.format(dn=escape_filter_chars(dn), uid=escape_filter_chars(uid or "-"))
    session.search(
        client.base_dn, wanted, "SUBTREE", attributes=["cn"], size_limit=MOST_GROUPS, time_limit=WITHIN_S
    )
    if session.result["result"] not in (0, _NOT_THERE):
        return None
    dns |= {entry["dn"] for entry in _entries(session)}
    if len(dns) > MOST_GROUPS:
        return None
    return frozenset(dns) | {name for one in dns if (name := _own_name(one))}


def _own_name(dn: str) -> str:
    """Return what a group is called within its branch: ``ml`` of ``cn=ml,ou=groups,dc=example,dc=org``."""
    from ldap3.core.exceptions import LDAPInvalidDnError
    from ldap3.utils.dn import parse_dn

    try:
        return str(parse_dn(dn)[0][1])
    except (LDAPInvalidDnError, IndexError):
        return ""


def _subject(raw: Mapping[str, list[bytes]]) -> str:
    for name in SUBJECTS:
        for value in raw.get(name, ())[:1]:
            if name == "objectGUID" and len(value) == 16:
                return str(uuid.UUID(bytes_le=value))
            if text := plain_text(value.decode("utf-8", "replace")):
                return text
    raise ProviderFault(f"its entries have none of {', '.join(SUBJECTS)}, by which to know somebody again")


def _entries(session: Any) -> list[Mapping[str, Any]]:
    return [one for one in session.response or () if one.get("type") == "searchResEntry"]


def _texts(raw: Mapping[str, list[bytes]]) -> dict[str, list[str]]:
    return {
        name: [text for value in values if (text := plain_text(value.decode("utf-8", "replace"), most=1000))]
        for name, values in raw.items()
    }


def _why(session: Any) -> str:
    return f"{session.result['description']} {session.result['message']}".strip()[:200]


@contextmanager
def _signed_in(client: DirectoryClient, dn: str, password: str) -> Iterator[Any]:
    """Give a session of this name, None where it is refused; raises ProviderFault for all else."""
    try:
        import ssl

        import ldap3
        from ldap3.core.exceptions import LDAPException
    except ImportError as error:
        raise ProviderFault("the extra berth[ldap] is not installed where the portal runs") from error

    parts = urlsplit(client.url)
    is_tls = parts.scheme == "ldaps"
    server = ldap3.Server(
        parts.hostname, port=parts.port or (636 if is_tls else 389), use_ssl=is_tls, get_info=ldap3.NONE,
        tls=ldap3.Tls(validate=ssl.CERT_REQUIRED), connect_timeout=WITHIN_S,
    )  # fmt: skip
    try:
        session = ldap3.Connection(
            server, user=dn, password=password, receive_timeout=WITHIN_S, read_only=True, auto_referrals=False,
            check_names=False,
        )  # fmt: skip
        session.open(read_server_info=False)
    except LDAPException as error:
        raise ProviderFault(f"it does not answer: {error}"[:300]) from error
    try:
        if not is_tls and parts.hostname not in LOCAL and not session.start_tls(read_server_info=False):
            raise ProviderFault("it offers no TLS")
        if not session.bind(read_server_info=False):
            if session.result["result"] not in _REFUSED:
                raise ProviderFault(f"it lets nobody in: {_why(session)}")
            yield None
            return
        yield session
    except LDAPException as error:
        raise ProviderFault(f"it does not answer: {error}"[:300]) from error
    finally:
        session.unbind()
