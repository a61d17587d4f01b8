"""What is thrown: texts and values that have broken parsers, databases and templates elsewhere."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

TEXTS = (
    "", " ", "\t\r\n", "\x00", "a\x00b", "\x7f", "\ud800", "\udfff x", "\ufeff", "\u202etxt.exe",
    "e\u0301\u0327" * 40, "🚀" * 60, "x" * 151, "x" * 5_000, "x" * 70_000, "'", "' OR 1=1 --",
    '"; DROP TABLE teams_team; --', "%", "%s", "%(n)s", "{}", "{0.__class__}", "{{7*7}}", "{% debug %}",
    "${7*7}", "<script>alert(1)</script>", "../../etc/passwd", "/dev/null", "C:\\con", "$(touch PWNED)", "`id`",
    "; ls", "| cat", "\r\nSet-Cookie: a=b", "=1+1", "@SUM(A1)", "-0", "0", "1", "-1", "1.5", "1e3", "1e400",
    "0x10", "٣", "９", "NaN", "Infinity", "-inf", "null", "None", "true", "undefined", "9" * 19, "9" * 20,
    "9" * 400, "-" + "9" * 400, "2147483648", "-2147483649", "9223372036854775808", "0001-01-01", "9999-12-31",
    "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-02-30T25:61:61Z", "2027-03-28T02:30",
    "2027-01-01T09:00", "2999-01-01T00:00:00Z", "10 min", "1 h", "99999999 h", "-1 h", "1e9 d", "h100",
    "perception", "language", "gpu-01", "operator", "[]", "{", "[[[[", "a,b,,c", "Europe/Berlin", "Mars/Phobos",
    "localtime", "high", "weekly",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 2**31 - 1, 2**31, -(2**31) - 1, 2**53, 2**63 - 1, 2**63, 10**18, 0.5, -0.0, 1e300,
    [], {}, [[]], [{}], [None], ["x"], {"a": 1}, {"": ""}, {"__proto__": {}}, ["x"] * 300, {"a": {"b": {"c": [1]}}},
)  # fmt: skip


def text(rng: random.Random) -> str:
    """Return a nasty text, now and then two glued or with a letter changed."""
    found = rng.choice(TEXTS)
    if rng.random() < 0.15:
        found += rng.choice(TEXTS)
    if found and rng.random() < 0.1:
        at = rng.randrange(len(found))
        found = (
            found[:at]
            + chr(rng.choice((0, 9, 39, 127, 160, 0x2028, 0x10FFFF, rng.randrange(1, 0xD7FF))))
            + found[at:]
        )
    return found


def value(rng: random.Random) -> Any:
    """Return a value as JSON knows it."""
    kind = rng.random()
    if kind < 0.5:
        return text(rng)
    if kind < 0.85:
        return copy.deepcopy(rng.choice(VALUES))
    return rng.randint(-(10 ** rng.randint(0, 25)), 10 ** rng.randint(0, 25))


def spoilt(body: Any, rng: random.Random) -> Any:
    """Return a body of which a few places, at any depth, hold something else, are gone or are new."""
    body = copy.deepcopy(body)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        found = list(places(body))
        if not found:
            return value(rng)
        holder, key = rng.choice(found)
        action = rng.random()
        if action < 0.1 and isinstance(holder, dict):
            del holder[key]
        elif action < 0.18 and isinstance(holder, dict):
            holder[text(rng)[:300]] = value(rng)
        elif action < 0.24 and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        else:
            holder[key] = value(rng)
    return body


def places(found: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place in a value: what holds it, and under which key."""
    pairs = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    for key, inner in list(pairs):
        yield found, key
        yield from places(inner)
