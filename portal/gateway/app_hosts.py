"""The names of apps: one host, and so one origin, per app and lease, on a domain that is not the portal's."""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit

from django.conf import settings

from nodeagent.protocol.lease_streams import is_app_name

BETWEEN: Final = "--"
ENTER_PATH: Final = "/_berth/enter"
LOCAL: Final = "localhost"
_LEASE: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,40}[a-z0-9]")


def parent() -> str:
    """Return the domain that apps' names end in, "" where there are none."""
    return str(settings.APPS_DOMAIN).removeprefix("*.").partition(":")[0]


def is_apps_host(host: str) -> bool:
    """Say whether a request for this host is for an app, whatever its name."""
    return bool(parent()) and _name(host).endswith(f".{parent()}")


def parse(host: str) -> tuple[str, str] | None:
    """Return app and lease of a host, None for one that names none."""
    if not is_apps_host(host):
        return None
    label = _name(host).removesuffix(f".{parent()}")
    app, between, lease = label.partition(BETWEEN)
    if not between or not is_app_name(app) or not _LEASE.fullmatch(lease):
        return None
    return app, lease


def origin(app: str, lease: str, *, is_secure: bool) -> str:
    """Return the origin of an app in a lease."""
    scheme = "https" if is_secure else "http"
    return f"{scheme}://{app}{BETWEEN}{lease}{settings.APPS_DOMAIN.removeprefix('*')}"


def all_origins(*, is_secure: bool) -> str:
    """Return what a page's policy has to name where it leads to apps."""
    return f"{'https' if is_secure else 'http'}://{settings.APPS_DOMAIN}"


def is_reachable(portal_host: str) -> bool:
    """Say whether whoever called the portal by this name reaches apps: ``*.localhost`` is each one's own machine."""
    if parent() != LOCAL:
        return True
    name = _name(portal_host)
    if name == LOCAL or name.endswith(f".{LOCAL}"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".").lower()
    except ValueError:
        return ""
