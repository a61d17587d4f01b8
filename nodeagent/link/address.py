"""Where the portal is."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

PATH = "/agent/v1"
STREAMS_PATH = "/streams/v1/agent"
SCHEMES = {"ws": "ws", "http": "ws", "wss": "wss", "https": "wss"}


class AddressError(ValueError):
    """The portal's address cannot be used; the sentence shows what one looks like."""


@dataclass(frozen=True, slots=True)
class Address:
    """The portal's agent socket; ``is_local`` means no proxy is ever asked."""

    url: str
    is_local: bool


def address_of(portal: str, *, allow_plain: bool = False) -> Address:
    """Return the agent socket of a portal's address; raises AddressError.

    Without encryption only a portal on this very host is spoken to, unless ``allow_plain``: anybody on the way
    could read the enrolment token and say what runs here.
    """
    example = "give an address such as wss://berth.example or https://berth.example"
    try:
        parts = urlsplit(portal)
        port = parts.port
    except ValueError as no:
        raise AddressError(f"{portal!r} is not an address ({no}); {example}") from no
    scheme = SCHEMES.get(parts.scheme)
    if scheme is None or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise AddressError(f"{portal!r} is not the address of a portal; {example}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    where = host if port is None else f"{host}:{port}"
    base = parts.path.rstrip("/").removesuffix(PATH)
    is_local = is_loopback(parts.hostname)
    if scheme == "ws" and not is_local and not allow_plain:
        raise AddressError(
            f"{portal} is not encrypted: anybody on the way could command this node. Give a wss:// address, or say"
            " --allow-plain where the network itself is trusted"
        )
    return Address(f"{scheme}://{where}{base}{PATH}", is_local)


def gateway_of(portal: Address, told: str, *, allow_plain: bool = False) -> Address:
    """Return where a gateway takes this agent's streams; raises AddressError.

    ``told`` is a whole address, or what differs from the portal's own: a port, a path, or both. The rule about
    encryption is the portal's.
    """
    base = urlsplit(portal.url)
    if "://" in told:
        where = told
    elif told.startswith(":"):
        host = f"[{base.hostname}]" if ":" in (base.hostname or "") else base.hostname
        where = f"{base.scheme}://{host}{told}"
    else:
        where = f"{base.scheme}://{base.netloc}{told}"
    found = address_of(where, allow_plain=allow_plain)
    return Address(found.url.removesuffix(PATH) + STREAMS_PATH, found.is_local)


def is_loopback(host: str) -> bool:
    """Say whether a host of an address is this very machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
