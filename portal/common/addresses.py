"""Where a call comes from: the peer itself, or what a proxy that we were told to trust says of it."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from portal.common.environment import Network

UNKNOWN = "unknown"
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def client_address(request: HttpRequest) -> str:
    """Return the caller's address. ``X-Forwarded-For`` counts only as far as trusted proxies wrote it."""
    return believed(
        request.META.get("REMOTE_ADDR", ""),
        request.META.get("HTTP_X_FORWARDED_FOR", ""),
        settings.TRUSTED_PROXIES,
    )


def believed(peer: str, forwarded: str, trusted: Sequence[Network]) -> str:
    """Return the last address that no trusted proxy has, reading the list from its end.

    Each proxy appends whom it heard. So the end is what the nearest one says, and everything before the first
    address that is not a trusted proxy was written by the caller and may be anything.
    """
    found = _address(peer)
    told = [part.strip() for part in forwarded.split(",")] if forwarded else []
    while found is not None and told and _is_in(found, trusted):
        earlier = _address(told.pop())
        if earlier is None:
            break
        found = earlier
    return str(found) if found is not None else UNKNOWN


def group_of(address: str) -> str:
    """Return what counts as one place: an IPv4 address, or the /64 that one IPv6 site has to itself."""
    found = _address(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found) if found is not None else UNKNOWN


def forget_strange_scheme(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[..., HttpResponse]:
    """Ignore ``X-Forwarded-Proto`` of anybody but a trusted proxy: only it knows whether TLS was spoken."""

    def middleware(request: HttpRequest) -> HttpResponse:
        peer = _address(request.META.get("REMOTE_ADDR", ""))
        if peer is None or not _is_in(peer, settings.TRUSTED_PROXIES):
            request.META.pop("HTTP_X_FORWARDED_PROTO", None)
        return get_response(request)

    return middleware


def _address(text: str) -> Address | None:
    try:
        found = ipaddress.ip_address(text.strip().strip("[]"))
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def _is_in(address: Address, networks: Sequence[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)
