"""What a text of the wire may look like. Neither side believes the other: the portal's words reach root here, a
node's words reach pages and shells there.

Text without a form is for people alone: it is shown, never used, and the codec blanks what steers terminals.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

Form = Callable[[str], bool]

_ID: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._][A-Za-z0-9._-]{0,63}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+@=,-]*")
_GATEWAY: Final = re.compile(
    r"(?:wss?://(?:[A-Za-z0-9][A-Za-z0-9.-]{0,252}|\[[0-9A-Fa-f:.]{2,45}\]))?(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~-]{1,64}){0,8}/?"
)
_NODE: Final = re.compile(r"/dev/[A-Za-z0-9][A-Za-z0-9._:/+-]*")


def is_id(text: str) -> bool:
    """Say whether this may be the id of a lease or the name of a node: it becomes part of units, files and folders."""
    return _ID.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Say whether this may name hardware, a size or a code; "" is unknown. No spaces, no quotes, no way upwards."""
    return not text or (_NAME.fullmatch(text) is not None and not _leads_up(text))


def is_device_node(text: str) -> bool:
    """Say whether this may be the path of a device node."""
    return _NODE.fullmatch(text) is not None and not _leads_up(text)


def is_gateway(text: str) -> bool:
    """Say whether this may be the address of a gateway: whole, or the part that differs from the portal's."""
    return bool(text) and _GATEWAY.fullmatch(text) is not None and not _leads_up(text)


def is_line(text: str) -> bool:
    """Say whether this is one line without control characters; what else is in it is for its reader to judge."""
    return text.isprintable()


def is_path_below(text: str) -> bool:
    """Say whether this may be the path of a file below some folder, or none at all: never up, never from the root."""
    return text.isprintable() and not text.startswith("/") and not _leads_up(text)


def is_any(text: str) -> bool:
    """Say yes: text that goes as it is, to be judged by who reads it."""
    return True


def blanked(text: str) -> str:
    """Return text for people with a space for each character that no terminal should act on, line ends included."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def _leads_up(text: str) -> bool:
    return ".." in text.split("/")


# By field, or by ``Class.field`` where a name has several meanings; of a map and a list it holds for what is in it.
FORMS: Final[Mapping[str, Form]] = MappingProxyType(
    {
        "lease": is_id,
        "node": is_id,
        "uuid": is_name,
        "device": is_name,
        "partition": is_name,
        "profile": is_name,
        "ProfileFact.name": is_name,
        "vendor": is_name,
        "modes": is_name,
        "pci_bus_id": is_name,
        "boot_id": is_name,
        "runtime": is_name,
        "features": is_name,
        "code": is_name,
        "DesiredLease.job": is_any,
        "JobReport.why": is_name,
        "JobReport.digest": is_name,
        "ClusterUsageRow.job": is_name,
        "ClusterUsageRow.state": is_name,
        "ImageFact.name": is_name,
        "ImageFact.digest": is_name,
        "holder": is_line,
        "ArtifactPiece.path": is_path_below,
        "ArtifactPiece.sha256": is_name,
        "ArtifactPiece.why": is_name,
        "reason": is_name,
        "nonce": is_name,
        "signature": is_name,
        "public_key": is_name,
        "portal_key": is_name,
        "enrol_token": is_name,
        "nodes": is_device_node,
        "gateways": is_gateway,
        "user": is_line,
        "team": is_line,
        "load_pattern": is_line,
        "command": is_line,
    }
)
