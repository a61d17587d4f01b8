"""A policy as JSON, strictly: every fault of a body is found and named, and a body that passes can decide a turn.

Times of day are "HH:MM" ("24:00" is the end of the day); a time that ends at or before its beginning goes on
past midnight and belongs to the day it begins on. Parts of pools are whole numbers in any unit.
docs/policies.md lists every key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from math import isfinite
from typing import Any, get_args
from zoneinfo import available_timezones

from scheduler.engine.order import ORDERS
from scheduler.engine.place.policy import POLICIES
from scheduler.engine.policy import (
    WORKS,
    Backfill,
    Part,
    PolicyRules,
    Pools,
    PoolTime,
    Preempting,
    Sleep,
    SleepTime,
)

DAY_MINUTES = 1440
WEEK_MINUTES = 7 * DAY_MINUTES
HOUR_S, DAY_S = 3600, 86_400
MOST_TIMES = 50
MOST_FAULTS = 50
BACKFILLS: tuple[str, ...] = get_args(Backfill)
# Least and most of every number, by dotted field name.
BOUNDS: dict[str, tuple[float, float]] = {
    "keep_better": (0, 1),
    "keep_empty": (0, 10),
    "keep_short": (0, 1),
    "keep_apart": (0, 10),
    "half_life_s": (60, 400 * DAY_S),
    "penalty_s": (0, 30 * DAY_S),
    "ageing_s": (60, 30 * DAY_S),
    "depth": (1, 64),
    "reserve_after_s": (0, 30 * DAY_S),
    "memory_factors": (1000, 10_000),
    "part": (0, 1_000_000),
    "preempting.factor": (1, 100),
    "preempting.least_run_s": (0, 7 * DAY_S),
    "preempting.grace_s": (0, DAY_S),
    "preempting.most_evictions": (0, 1000),
    "sleep.after_s": (60, 7 * DAY_S),
    "awake": (0, 10_000),
}
# What a fault says, by its code: names in braces are its facts.
WHY: dict[str, str] = {
    "not_object": "Give an object of names and values.",
    "not_list": "Give a list.",
    "not_text": "Give a text.",
    "not_whole": "Give a whole number.",
    "not_number": "Give a number.",
    "not_yes_no": "Give true or false.",
    "unknown": "There is no such rule.",
    "missing": "This is needed.",
    "too_small": "At least {least}.",
    "too_large": "At most {most}.",
    "too_many": "At most {most} of them.",
    "not_known": "Choose one of: {known}.",
    "bad_zone": "There is no such time zone; write it like Europe/Berlin.",
    "bad_time": "Write the time like 08:30; 24:00 is the end of the day.",
    "no_length": "It begins and ends at the same time; a whole day is 00:00 to 24:00.",
    "overlaps": "It overlaps with time {other} on {day}.",
    "no_days": "Name at least one day.",
    "bad_day": "Days are numbers from 0 (Monday) to 6 (Sunday).",
    "day_twice": "A day is named twice.",
    "no_parts": "At least one part must be above zero.",
    "no_usual_parts": "Say which parts hold outside these times.",
    "bad_model": "Name a device model as the fleet does.",
}
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
Timed = tuple[tuple[int, ...], int, int, dict[str, Any], str]
_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])|24:00", re.ASCII)
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong: where (a dotted name, "" for the whole), a stable code, and its figures."""

    field: str
    code: str
    facts: tuple[tuple[str, Any], ...] = ()

    @property
    def why(self) -> str:
        """The fault as an English sentence; pages translate by ``code``."""
        return WHY[self.code].format(**dict(self.facts))


class BadPolicy(ValueError):
    """A body that cannot be a policy, with all its faults; the first one is its ``field`` and ``why``."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        self.field, self.why = self.faults[0].field, self.faults[0].why
        super().__init__("; ".join(f"{fault.field or 'policy'}: {fault.why}" for fault in self.faults))


def policy_from(body: Mapping[str, Any], *, name: str = "default", version: int = 0) -> PolicyRules:
    """Return the policy that a decoded JSON object describes, or raise BadPolicy with every fault.

    A rule that is left out has its default.
    """
    reader = _Reader([])
    given = reader.record(
        body, "", tuple(f.name for f in fields(PolicyRules) if f.name not in ("name", "version"))
    )
    found: dict[str, Any] = {}
    for key, value in given.items():
        found[key] = _RULES[key](reader, value, key)
    if reader.faults:
        raise BadPolicy(reader.faults[:MOST_FAULTS])
    return PolicyRules(name=name, version=version, **found)


def body_of(policy: PolicyRules) -> dict[str, Any]:
    """Return a policy as a JSON object with every rule named: ``policy_from`` gives the same policy again."""
    body: dict[str, Any] = {
        f.name: getattr(policy, f.name) for f in fields(PolicyRules) if f.name not in ("name", "version")
    }
    body["memory_factors"] = dict(policy.memory_factors)
    body["pools"] = {
        "parts": dict(policy.pools.parts),
        "times": [{**_days_and_times(time), "parts": dict(time.parts)} for time in policy.pools.times],
        "zone": policy.pools.zone,
    }
    body["preempting"] = {f.name: getattr(policy.preempting, f.name) for f in fields(Preempting)}
    body["sleep"] = {
        "times": [{**_days_and_times(time), "awake": time.awake} for time in policy.sleep.times],
        "after_s": policy.sleep.after_s,
        "zone": policy.sleep.zone,
    }
    return body


def clock(minute: int) -> str:
    """Return a minute of the day as "HH:MM"."""
    return f"{minute // 60:02d}:{minute % 60:02d}"


@cache
def zones() -> frozenset[str]:
    """The time zones that are known here."""
    return frozenset(available_timezones() | {"UTC"})


def _days_and_times(time: PoolTime | SleepTime) -> dict[str, Any]:
    return {"days": list(time.days), "from": clock(time.from_minute), "to": clock(time.to_minute)}


class _Reader:
    """Reads values of decoded JSON and writes down what is wrong with them; a bad value reads as a harmless one."""

    def __init__(self, faults: list[Fault]) -> None:
        self.faults = faults

    def fault(self, field: str, code: str, **facts: Any) -> None:
        """Write a fault down."""
        self.faults.append(Fault(field, code, tuple(sorted(facts.items()))))

    def record(self, value: Any, at: str, known: Sequence[str], needed: Sequence[str] = ()) -> dict[str, Any]:
        """Return the known members of an object."""
        if not isinstance(value, Mapping):
            self.fault(at, "not_object")
            return {}
        for key in value:
            if key not in known:
                self.fault(_under(at, str(key)[:60]), "unknown")
        for key in needed:
            if key not in value:
                self.fault(_under(at, key), "missing")
        return {key: value[key] for key in known if key in value}

    def items(self, value: Any, at: str, most: int = MOST_TIMES) -> list[Any]:
        """Return the items of a list that is not too long."""
        if not isinstance(value, (list, tuple)):
            self.fault(at, "not_list")
            return []
        if len(value) > most:
            self.fault(at, "too_many", most=most)
            return []
        return list(value)

    def whole(self, value: Any, at: str, bounds: str = "") -> int:
        """Return a whole number within its bounds."""
        if isinstance(value, bool) or not isinstance(value, int):
            self.fault(at, "not_whole")
            return 0
        return value if self._within(value, at, bounds) else 0

    def number(self, value: Any, at: str, bounds: str = "") -> float:
        """Return a finite number within its bounds."""
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or (isinstance(value, float) and not isfinite(value)):
            self.fault(at, "not_number")
            return 0.0
        return float(value) if self._within(value, at, bounds) else 0.0  # in bounds, so never too large

    def yes_no(self, value: Any, at: str) -> bool:
        """Return true or false."""
        if not isinstance(value, bool):
            self.fault(at, "not_yes_no")
        return value is True

    def one_of(self, value: Any, at: str, known: Iterable[str]) -> str:
        """Return a text that is one of those known."""
        names = sorted(known)
        if not isinstance(value, str):
            self.fault(at, "not_text")
        elif value not in names:
            self.fault(at, "not_known", known=", ".join(names))
        else:
            return value
        return ""

    def zone(self, value: Any, at: str) -> str:
        """Return the name of a time zone."""
        if not isinstance(value, str):
            self.fault(at, "not_text")
        elif value not in zones():
            self.fault(at, "bad_zone")
        else:
            return value
        return "UTC"

    def minute(self, value: Any, at: str) -> int | None:
        """Return a time of day in minutes, None when it is none."""
        if not isinstance(value, str):
            self.fault(at, "not_text")
            return None
        if not _TIME.fullmatch(value):
            self.fault(at, "bad_time")
            return None
        return int(value[:2]) * 60 + int(value[3:])

    def days(self, value: Any, at: str) -> tuple[int, ...]:
        """Return days of the week in order."""
        found = self.items(value, at, most=7)
        if isinstance(value, (list, tuple)) and not value:
            self.fault(at, "no_days")
        if any(isinstance(day, bool) or not isinstance(day, int) or not 0 <= day <= 6 for day in found):
            self.fault(at, "bad_day")
            return ()
        if len(set(found)) < len(found):
            self.fault(at, "day_twice")
        return tuple(sorted(set(found)))

    def _within(self, value: float, at: str, bounds: str) -> bool:
        least, most = BOUNDS[bounds or at]
        if value < least:
            self.fault(at, "too_small", least=least)
        elif value > most:
            self.fault(at, "too_large", most=most)
        else:
            return True
        return False


def _under(at: str, key: str) -> str:
    return f"{at}.{key}" if at else key


def _memory_factors(reader: _Reader, value: Any, at: str) -> tuple[tuple[str, int], ...]:
    if not isinstance(value, Mapping):
        reader.fault(at, "not_object")
        return ()
    found = []
    for model, factor in value.items():
        here = _under(at, str(model)[:60])
        if not isinstance(model, str) or not _MODEL.fullmatch(model):
            reader.fault(here, "bad_model")
        found.append((str(model), reader.whole(factor, here, "memory_factors")))
    return tuple(sorted(found))


def _parts(reader: _Reader, value: Any, at: str, *, may_be_empty: bool) -> tuple[Part, ...]:
    given = reader.record(value, at, WORKS)
    before = len(reader.faults)
    found: tuple[Part, ...] = tuple(
        (work, reader.whole(given[work], _under(at, work), "part")) for work in WORKS if work in given
    )
    is_sound = isinstance(value, Mapping) and len(reader.faults) == before
    if is_sound and not sum(part for _, part in found) and (found or not may_be_empty):
        reader.fault(at, "no_parts")
    return found


def _span(reader: _Reader, given: Mapping[str, Any], at: str) -> tuple[tuple[int, ...], int, int] | None:
    """Return days, first minute and end of a time, or None when one of them is faulty."""
    before = len(reader.faults)
    days = reader.days(given["days"], _under(at, "days")) if "days" in given else ()
    begin = reader.minute(given["from"], _under(at, "from")) if "from" in given else None
    end = reader.minute(given["to"], _under(at, "to")) if "to" in given else None
    if begin == DAY_MINUTES:
        reader.fault(_under(at, "from"), "bad_time")
    if begin is not None and begin == end:
        reader.fault(_under(at, "to"), "no_length")
    if len(reader.faults) > before or begin is None or end is None or not days:
        return None
    return days, begin, end or DAY_MINUTES


def _times(reader: _Reader, value: Any, at: str, own: str) -> list[Timed]:
    """Return the sound times of a list as (days, begin, end, members, where); overlaps are faults."""
    found: list[Timed] = []
    busy: list[tuple[int, int, int]] = []  # minutes of the week, and which time (1-based) has them
    for number, item in enumerate(reader.items(value, at), start=1):
        here = f"{at}[{number - 1}]"
        keys = ("days", "from", "to", own)
        given = reader.record(item, here, keys, keys if own == "parts" else keys[:3])
        span = _span(reader, given, here)
        if span is None:
            # What else is wrong with this time is told at once, too.
            found.append(((), 0, 0, given, here))
            continue
        found.append((*span, given, here))
        clash = _clash(busy, *span, number)
        if clash is not None:
            other, day = clash
            reader.fault(_under(here, "from"), "overlaps", other=other, day=DAYS[day])
    return found


def _clash(
    busy: list[tuple[int, int, int]], days: tuple[int, ...], begin: int, end: int, number: int
) -> tuple[int, int] | None:
    """Take the minutes of a time; return the first other time that had one already, and on which day."""
    length = (end - begin) % DAY_MINUTES or DAY_MINUTES
    found = None
    for day in days:
        start = day * DAY_MINUTES + begin
        pieces = [(start, min(start + length, WEEK_MINUTES)), (0, start + length - WEEK_MINUTES)]
        for first, last in pieces:
            for other_first, other_last, other in busy:
                if found is None and first < other_last and other_first < last:
                    found = other, max(first, other_first) // DAY_MINUTES
            if first < last:
                busy.append((first, last, number))
    return found


def _pools(reader: _Reader, value: Any, at: str) -> Pools:
    given = reader.record(value, at, ("parts", "times", "zone"))
    parts = _parts(reader, given.get("parts", {}), _under(at, "parts"), may_be_empty=True)
    times = []
    for days, begin, end, members, here in _times(
        reader, given.get("times", []), _under(at, "times"), "parts"
    ):
        own = (
            _parts(reader, members["parts"], _under(here, "parts"), may_be_empty=False)
            if "parts" in members
            else ()
        )
        times.append(PoolTime(days, begin, end, own))
    if times and not given.get("parts", {}):
        reader.fault(_under(at, "parts"), "no_usual_parts")
    return Pools(parts, tuple(times), reader.zone(given.get("zone", "UTC"), _under(at, "zone")))


def _sleep(reader: _Reader, value: Any, at: str) -> Sleep:
    given = reader.record(value, at, ("times", "after_s", "zone"))
    times = tuple(
        SleepTime(
            days,
            begin,
            end,
            reader.whole(members["awake"], _under(here, "awake"), "awake") if "awake" in members else 1,
        )
        for days, begin, end, members, here in _times(
            reader, given.get("times", []), _under(at, "times"), "awake"
        )
    )
    after_s = reader.whole(given["after_s"], _under(at, "after_s")) if "after_s" in given else Sleep().after_s
    return Sleep(times, after_s, reader.zone(given.get("zone", "UTC"), _under(at, "zone")))


def _preempting(reader: _Reader, value: Any, at: str) -> Preempting:
    kinds: dict[str, Any] = {
        "preemptible": reader.yes_no,
        "borrowed": reader.yes_no,
        "by_score": reader.yes_no,
        "interactive": reader.yes_no,
        "factor": reader.number,
        "least_run_s": reader.whole,
        "grace_s": reader.whole,
        "most_evictions": reader.whole,
    }
    given = reader.record(value, at, tuple(kinds))
    return Preempting(**{key: kinds[key](item, _under(at, key)) for key, item in given.items()})


_RULES: dict[str, Any] = {
    "order": lambda reader, value, at: reader.one_of(value, at, ORDERS),
    "place": lambda reader, value, at: reader.one_of(value, at, POLICIES),
    "share_across_teams": _Reader.yes_no,
    "mps_across_teams": _Reader.yes_no,
    "memory_factors": _memory_factors,
    "repartition": _Reader.yes_no,
    "keep_better": _Reader.number,
    "keep_empty": _Reader.number,
    "keep_short": _Reader.number,
    "keep_apart": _Reader.number,
    "pools": _pools,
    "half_life_s": _Reader.whole,
    "penalty_s": _Reader.whole,
    "ageing_s": _Reader.whole,
    "backfill": lambda reader, value, at: reader.one_of(value, at, BACKFILLS),
    "depth": _Reader.whole,
    "reserve_after_s": _Reader.whole,
    "promise_p90": _Reader.yes_no,
    "preempting": _preempting,
    "sleep": _sleep,
}
