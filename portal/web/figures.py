"""Figures as people read them: money, GPU shares, memory and short times. None stays None: unknown."""

from __future__ import annotations

import re
from decimal import Decimal

from django.utils.translation import gettext as _

from portal.common.units import DAY_S, HOUR_S, MINUTE_S, memory_text

MICRO = 1_000_000
LONGEST_TEXT = 40
_PART = re.compile(r"(\d{1,9}(?:[.,]\d{1,3})?)\s*([^\d\s.,]*)")
_UNITS = {
    HOUR_S: ("", "h", "hr", "hrs", "hour", "hours", "小时", "时"),
    MINUTE_S: ("m", "min", "mins", "minute", "minutes", "分钟", "分"),
    DAY_S: ("d", "day", "days", "天", "日"),
    1: ("s", "sec", "secs", "second", "seconds", "秒"),
    7 * DAY_S: ("w", "week", "weeks", "周"),
}
_SECONDS_OF = {word: seconds for seconds, words in _UNITS.items() for word in words}


def money(micro: int | None) -> Decimal | None:
    """Return an amount in micro-units as a decimal amount."""
    return None if micro is None else Decimal(micro) / MICRO


def gpus(milli: int | None) -> str | None:
    """Return thousandths of a device, or of a reference GPU, as "2.75"."""
    return None if milli is None else f"{round(milli / 1000, 3):g}"


def memory(mib: int | None) -> str | None:
    """Return MiB as GiB to a tenth ("19.6 GiB"), below one as MiB, like static/js/i18n.js."""
    return None if mib is None else memory_text(mib)


def milliseconds(value: float | None) -> str | None:
    """Return a short time as "12.3 ms"."""
    return None if value is None else _("%(n)s ms") % {"n": f"{value:.1f}"}


def duration_text(seconds: int) -> str:
    """Return seconds as text that ``parse_duration`` reads back exactly, for forms and addresses."""
    for size, word in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds // size} {word}"
    return f"{seconds} s"


def parse_duration(text: str) -> int | None:
    """Return the seconds of "6 h", "90 min", "1 h 30 min", "1.5" (hours) or "2 d"; None for other text."""
    cleaned = text.strip().lower()
    if not cleaned or len(cleaned) > LONGEST_TEXT:
        return None
    total = Decimal(0)
    at = 0
    while at < len(cleaned):
        part = _PART.match(cleaned, at)
        if part is None or part.group(2) not in _SECONDS_OF:
            return None
        total += Decimal(part.group(1).replace(",", ".")) * _SECONDS_OF[part.group(2)]
        at = part.end()
        while at < len(cleaned) and cleaned[at].isspace():
            at += 1
    return int(total)


def what_text(name: str, count: int, nodes: int = 1) -> str:
    """Return "3 × name", or the name alone for one; "2 nodes, 4 × name each" for a gang over nodes."""
    what = name if count == 1 else _("%(count)d × %(name)s") % {"count": count, "name": name}
    if nodes > 1:
        return _("%(nodes)d nodes with %(what)s each") % {"nodes": nodes, "what": what}
    return what


def gib(memory_mib: int) -> str:
    """Return memory in GiB with all its places, without zeros at the end."""
    return f"{(Decimal(memory_mib) / 1024).normalize():f}"
