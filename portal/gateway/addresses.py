"""Where the gateways are, as the settings name them, for agents and for browsers."""

from __future__ import annotations

from urllib.parse import urlsplit

from django.conf import settings

TERMINAL_PATH, SSH_PATH, AGENT_PATH = "/streams/v1/terminal", "/streams/v1/ssh", "/streams/v1/agent"
WATCH_PATH = "/streams/v1/watch"
OUTPUTS_PATH = "/jobs/v1/agent"


def for_browsers(host: str, *, is_secure: bool, path: str = TERMINAL_PATH) -> list[str]:
    """Return the address of every gateway's terminals, for whoever called the portal by ``host`` (with its port)."""
    scheme = "wss" if is_secure else "ws"
    name = urlsplit(f"//{host}").hostname or host
    name = f"[{name}]" if ":" in name else name
    found = []
    for told in settings.GATEWAYS:
        if "://" in told:
            base = told
        elif told.startswith(":"):
            base = f"{scheme}://{name}{told}"
        else:
            base = f"{scheme}://{host}{told}"
        found.append(base.rstrip("/") + path)
    return found


def origins(addresses: list[str]) -> list[str]:
    """Return what a page's policy has to name for these addresses."""
    parts = [urlsplit(address) for address in addresses]
    return sorted({f"{part.scheme}://{part.netloc}" for part in parts})
