"""Readers of the environment that refuse nonsense, and the starts that are refused because they are unsafe.

Read by ``portal/settings.py``, so this imports nothing of Django but its exception.
"""

from __future__ import annotations

import ipaddress
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import environ
from django.core.exceptions import ImproperlyConfigured

YES, NO = {"1", "true", "yes", "on"}, {"0", "false", "no", "off", ""}
LEAST_KEY_LENGTH, LEAST_KEY_BITS = 50, 128
LOOPBACK_NAMES = {"localhost", "127.0.0.1", "[::1]", "testserver"}
# Passwords that stand in examples and images; anybody tries them first.
KNOWN_PASSWORDS = {"berth", "postgres", "password", "secret", "admin", "changeme", "change-me", "example"}
NEW_KEY = "Make one with: openssl rand -hex 48"
APPS_DOMAIN = re.compile(
    r"\*\.((?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)(?::([0-9]{1,5}))?"
)
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def read_bool(env: Any, name: str, *, default: bool = False) -> bool:
    """Return a switch: 1, true, yes, on or 0, false, no, off. Anything else is refused, not read as off."""
    text = str(env.str(name, default="1" if default else "0")).strip().lower()
    if text in YES or text in NO:
        return text in YES
    raise ImproperlyConfigured(f"{name}={text!r} is no switch: use 1 or 0.")


def read_whole(env: Any, name: str, *, default: int, least: int, most: int) -> int:
    """Return a whole number within its bounds."""
    text = str(env.str(name, default=str(default))).strip()
    try:
        number = int(text)
    except ValueError:
        raise ImproperlyConfigured(f"{name}={text!r} is not a whole number.") from None
    if not least <= number <= most:
        raise ImproperlyConfigured(f"{name} lies between {least} and {most}, not at {number}.")
    return number


def read_apps_domain(env: Any, name: str, allowed_hosts: Iterable[str]) -> str:
    """Return ``*.`` and a domain, "" for none. No name of the portal may lie on it, nor above it: a page there could
    set cookies for the portal. ``localhost`` may, where browsers let nobody do that.
    """
    text = str(env.str(name, default="")).strip().lower()
    if not text:
        return ""
    found = APPS_DOMAIN.fullmatch(text)
    if found is None or int(found[2] or 1) not in range(1, 65_536):
        raise ImproperlyConfigured(
            f"{name}={text!r} is no domain for apps: write it like *.berth-apps.example.net."
        )
    domain = found[1]
    for host in (one.lower().lstrip(".").strip("[]") for one in allowed_hosts):
        if domain != "localhost" and (
            host == domain or host.endswith(f".{domain}") or domain.endswith(f".{host}")
        ):
            raise ImproperlyConfigured(
                f"{name}: {text} and the portal's {host} share a domain, so programs in leases could set the portal's"
                " cookies. Give apps a domain of their own."
            )
    return text


def read_origin(env: Any, name: str) -> str:
    """Return an origin such as ``https://berth.example.org``, "" for none; plain HTTP only of ``localhost``."""
    text = str(env.str(name, default="")).strip().lower().rstrip("/")
    parts = urlsplit(text)
    host = parts.hostname or ""
    is_name = bool(re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)*", host)) and not host.replace(".", "").isdigit()
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and host == "localhost")
    if text and not (
        is_name and is_safe and text == f"{parts.scheme}://{parts.netloc}" and "@" not in parts.netloc
    ):
        raise ImproperlyConfigured(
            f"{name}={text!r} is no origin for passkeys: write it like https://berth.example.org (a name, no number)."
        )
    return text


def read_mail_server(url: str) -> dict[str, Any]:
    """Return Django's settings for a mail server such as ``smtp+tls://user:password@mail.example.org:587``."""
    try:
        found: dict[str, Any] = environ.Env.email_url_config(url)
        is_sound = bool(found.get("EMAIL_HOST")) or "smtp" not in found["EMAIL_BACKEND"]
    except (KeyError, ValueError):
        is_sound = False
    if not is_sound:
        raise ImproperlyConfigured(
            "BERTH_EMAIL_URL is no mail server: write it like smtp+tls://user:password@mail.example.org:587."
        )
    return {name: value for name, value in found.items() if name.startswith("EMAIL_")}


def read_networks(env: Any, name: str) -> list[Network]:
    """Return addresses and networks, separated by commas."""
    found: list[Network] = []
    for text in env.list(name, default=[]):
        try:
            found.append(ipaddress.ip_network(text.strip(), strict=False))
        except ValueError:
            raise ImproperlyConfigured(
                f"{name}: {text.strip()!r} is neither an address nor a network, such as 10.0.0.7 or 10.0.0.0/24."
            ) from None
    return found


def key_fault(key: str) -> str:
    """Return why a secret key could be guessed, empty when it looks random.

    It bounds the entropy from above: by how often each character comes, by how small the key packs, by
    runs such as ``abcdef`` and by pieces that come again. A key from any random source passes; patterns do not.
    """
    if len(key) < LEAST_KEY_LENGTH:
        return f"it has {len(key)} characters, {LEAST_KEY_LENGTH} are the least"
    if key.startswith("django-insecure-"):
        return "it comes from a template"
    counts = Counter(key)
    by_character = -sum(n * math.log2(n / len(key)) for n in counts.values())
    by_packing = 8 * (len(zlib.compress(key.encode(), 9)) - len(zlib.compress(b"", 9)) - 3)
    steps = Counter(ord(after) - ord(before) for before, after in pairwise(key))
    # A third, because four in a million random keys of 64 hexadecimal digits have more than a quarter of one digit.
    is_regular = max(steps.most_common(1)[0][1], max(counts.values())) > len(key) // 3
    pieces = [key[at : at + 6] for at in range(len(key) - 5)]
    is_repeated = len(set(pieces)) < 0.9 * len(pieces)
    if min(by_character, by_packing) < LEAST_KEY_BITS or is_regular or is_repeated:
        return "it repeats itself: it is not random"
    return ""


def refuse_unsafe(
    *,
    debug: bool,
    demo: bool,
    behind_tls: bool,
    key: str,
    hosts: Iterable[str],
    origins: Iterable[str],
    database: dict[str, Any],
    proxies: Iterable[Network],
) -> None:
    """Raise ``ImproperlyConfigured`` with every reason why this start is unsafe, and what to do about each."""
    hosts, found = list(hosts), []
    if "*" in hosts or any(host.strip(". ") == "" for host in hosts):
        found.append(
            "BERTH_ALLOWED_HOSTS=* lets anybody choose the address in links and forms: name the site's own names."
        )
    if debug and not demo:
        found.append(
            "BERTH_DEBUG=1 shows settings and code to whoever meets an error: "
            "set it to 0, or try things out in the demo (BERTH_DEMO=1)."
        )
    elif debug and (behind_tls or not set(hosts) <= LOOPBACK_NAMES):
        found.append(
            "BERTH_DEBUG=1 is for this machine alone: set it to 0, or leave BERTH_ALLOWED_HOSTS unset."
        )
    if key and (fault := key_fault(key)):
        found.append(f"BERTH_SECRET_KEY can be guessed: {fault}. {NEW_KEY}")
    found += [text for origin in origins if (text := _origin_fault(origin, behind_tls=behind_tls))]
    host = str(database.get("HOST") or "")
    is_here = not host or host.startswith("/") or host in ("localhost", "127.0.0.1", "::1")
    if not demo and not is_here and str(database.get("PASSWORD", "")).lower() in KNOWN_PASSWORDS:
        found.append(
            "The password in DATABASE_URL is one that everybody tries first: give the database another."
        )
    if behind_tls and not list(proxies):
        found.append(
            "BERTH_BEHIND_TLS=1 says that a proxy stands before Berth: name its address or network in "
            "BERTH_TRUSTED_PROXIES, or all people look as if they came from one place."
        )
    if found:
        raise ImproperlyConfigured(" ".join(found))


def _origin_fault(origin: str, *, behind_tls: bool) -> str:
    parts = urlsplit(origin)
    if (
        parts.scheme not in ("http", "https")
        or not parts.netloc
        or "*" in origin
        or parts.path not in ("", "/")
    ):
        return (
            f"BERTH_CSRF_TRUSTED_ORIGINS: {origin!r} is not one origin: "
            "name each in full, such as https://berth.example.org."
        )
    if behind_tls and parts.scheme == "http":
        return f"BERTH_CSRF_TRUSTED_ORIGINS: {origin!r} is not encrypted, the site is: use https://."
    return ""
