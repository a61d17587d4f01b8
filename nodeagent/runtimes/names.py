"""Names that say which lease they belong to, and that can be read back: units, timers, files.

A lease's id becomes letters, digits, dots and dashes; every other byte, the underscore included, becomes ``_``
and two hexadecimal digits. So no id can pretend to be another one, a path or a pattern of systemctl.
"""

from __future__ import annotations

import re
import string
from typing import Final

from nodeagent.runtimes.base import Key, RuntimeRefusedError

SLICE: Final = "berth.slice"
UNIT_PREFIX: Final = "berth-lease-"
END_PREFIX: Final = "berth-end-"
SERVICE: Final = ".service"
TIMER: Final = ".timer"
MOST_NAME: Final = 200  # systemd allows 255 (systemd.unit(5)), files too; prefix and end need some of it

_PLAIN: Final = frozenset(string.ascii_letters + string.digits + ".-")
_STEM: Final = re.compile(r"((?:[A-Za-z0-9.-]|_[0-9a-f]{2})+)-(\d{1,10})")
_ESCAPED: Final = re.compile(r"((?:[A-Za-z0-9.-]|_[0-9a-f]{2})+)")


def harmless(lease: str) -> str:
    """Return a lease's id as part of a name; raises RuntimeRefusedError for one that is empty or far too long."""
    name = "".join(
        chr(byte) if chr(byte) in _PLAIN else f"_{byte:02x}" for byte in lease.encode(errors="replace")
    )
    if not 0 < len(name) <= MOST_NAME:
        raise RuntimeRefusedError(
            "bad_name",
            f"a lease's id has 1 to {MOST_NAME} letters on this host, this one would have {len(name)}",
        )
    return name


def original(name: str) -> str | None:
    """Return the lease's id that ``harmless`` made this of, None for anything else."""
    if not _ESCAPED.fullmatch(name):
        return None
    raw = re.sub(rb"_([0-9a-f]{2})", lambda found: bytes.fromhex(found[1].decode()), name.encode())
    try:
        lease = raw.decode()
        return lease if harmless(lease) == name else None
    except (UnicodeDecodeError, RuntimeRefusedError):
        return None


def stem_of(key: Key) -> str:
    """Return the part of a name that stands for one generation of one lease."""
    return f"{harmless(key[0])}-{key[1]}"


def key_of_stem(stem: str) -> Key | None:
    """Return whose stem this is, None for anything else."""
    found = _STEM.fullmatch(stem)
    lease = original(found[1]) if found else None
    if found is None or lease is None or str(int(found[2])) != found[2]:
        return None
    return lease, int(found[2])


def unit_of(key: Key) -> str:
    """Return the name of a lease's unit."""
    return f"{UNIT_PREFIX}{stem_of(key)}{SERVICE}"


def key_of_unit(unit: str) -> Key | None:
    """Return whose unit this is, None for anything else."""
    if not unit.startswith(UNIT_PREFIX) or not unit.endswith(SERVICE):
        return None
    return key_of_stem(unit[len(UNIT_PREFIX) : -len(SERVICE)])


def end_of(key: Key, due_s: int) -> str:
    """Return the name, without ending, of the timer that ends a lease when the monotonic clock shows ``due_s``."""
    return f"{END_PREFIX}{stem_of(key)}-{due_s}"


def key_of_end(timer: str) -> tuple[Key, int] | None:
    """Return whose end a timer brings and when, None for anything else."""
    if not timer.startswith(END_PREFIX) or not timer.endswith(TIMER):
        return None
    stem, _, due = timer[len(END_PREFIX) : -len(TIMER)].rpartition("-")
    key = key_of_stem(stem)
    return (key, int(due)) if key is not None and due.isascii() and due.isdigit() else None
