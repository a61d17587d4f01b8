"""A history played under a policy, and what it did to waits, fairness, use and the bill.

Every turn is the product's ``plan`` (``scheduler.replay.turns``). The same history and policy give the same answer,
byte by byte: nothing in it is measured by the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from scheduler.engine.columns import Flags, Floats, Ints
from scheduler.engine.model import SHARED_MODES, PolicyRules
from scheduler.replay.forecast import ForecastRecorder
from scheduler.replay.history import History, scene_of
from scheduler.replay.turns import PlayedQueue, Turns

SIZES = ((1, 1), (2, 3), (4, 7), (8, 15), (16, 63), (64, None))  # units, from and to
STARVED_S = 86_400  # whoever waits longer than the longest of this and ten times its own length
HOURS = 24
MOST_TOLD = 20
THIN = 20  # forecasts after which fewer of those who wait get one


class Progress:
    """Tells after the turns of each second how far a play is, in thousandths of the requests that came."""

    def __init__(self, count: int, tell: Callable[[int], None]) -> None:
        self._count = max(count, 1)
        self._tell = tell

    def turned(self, turns: Turns, came: range, began: Sequence[int], now: int) -> None:
        """The turns of a second are over."""
        del turns, began, now
        self._tell(came.stop * 1000 // self._count)


def play(
    history: History, policy: PolicyRules, tell: Callable[[int], None] = lambda _: None
) -> dict[str, Any]:
    """Play a history and return what came of it, as JSON.

    ``tell`` hears of progress after each turn, also while nothing comes or starts, and may raise to stop it.
    """
    jobs, scene, kept = scene_of(history, policy)
    if not kept:
        return {"requests": 0, "impossible": len(history.claims), "never": 0}
    forecasts = ForecastRecorder(jobs, every=1, thin=THIN, since=_first(history))
    played = Turns(jobs, policy, scene, watches=(Progress(len(kept), tell), forecasts)).play()
    return _answer(history, kept, played, jobs.gpus) | {"promises": promises(forecasts)}


def promises(made: ForecastRecorder) -> dict[str, int]:
    """How many forecasts were made for those who had to wait, and how many were kept.

    Kept is one whose request started by the instant that nine of ten should start by, or by the very instant where
    the forecast was certain. ``unknown`` waited without one: no start was in sight.
    """
    over = [one for one in made.shown if one.wait_s >= 0]
    return {
        "forecasts": len(over) + len(made.certain_kept),
        "kept": sum(one.wait_s <= one.p90_s for one in over) + sum(made.certain_kept),
        "unknown": made.unknown,
    }


def _first(history: History) -> int:
    return int((history.since - history.zero).total_seconds())


def most_changed(history: History, plays: Sequence[dict[str, Any]]) -> list[tuple[str, str, list[int]]]:
    """The requests whose waits differ most between plays of a history: name, team, seconds waited in each.

    ``plays`` are what ``play`` said under "played". At most MOST_TOLD, and only those that started in each.
    """
    waits: dict[int, list[int]] = {}
    for played in plays:
        for place, wait, ended in zip(played["row"], played["wait"], played["ended"], strict=True):
            if ended:
                waits.setdefault(place, []).append(wait)
    known = [(max(one) - min(one), place, one) for place, one in waits.items() if len(one) == len(plays)]
    known.sort(key=lambda one: (-one[0], one[1]))
    return [
        (history.names[place], history.teams[history.claims[place].team_id - 1], one)
        for apart_s, place, one in known[:MOST_TOLD]
        if apart_s
    ]


def _answer(
    history: History, kept: Sequence[int], played: PlayedQueue, units: Sequence[int]
) -> dict[str, Any]:
    first = _first(history)
    last = int((history.until - history.zero).total_seconds())
    submit = np.array([int((history.claims[row].queued_at - history.zero).total_seconds()) for row in kept])
    # A row that never started has no start after its coming and no end.
    ended = np.array(played.ended)
    has_ended = ended > 0
    started, wait = np.array(played.started), np.array(played.waited)
    team = np.array([history.claims[row].team_id - 1 for row in kept])
    size, ran = np.array(units), np.array([history.ran_s[row] for row in kept])
    counted = (submit >= first) & has_ended
    starved = counted & (wait > np.maximum(STARVED_S, 10 * ran))
    hour = (submit + (history.zero.hour * 60 + history.zero.minute) * 60) // 3600 % HOURS
    slowdown = (wait + ran) / np.maximum(ran, 600)
    by_team = [
        {
            "team": name,
            **_waits(wait[chosen]),
            "slowdown": _mean(slowdown[chosen]),
            "starved": int(starved[chosen].sum()),
            "never": int((~has_ended & (team == number)).sum()),
        }
        for number, name in enumerate(history.teams)
        if (chosen := counted & (team == number)).any() or (~has_ended & (team == number)).any()
    ]  # fmt: skip
    slow = np.array([row["slowdown"] for row in by_team if row["requests"]])
    used = _held_by_hour(history, kept, played, first, last)
    held_s = (ended - submit - wait).tolist()  # all time that is no wait: its runs, and what preemptions cost
    return {
        "requests": int(counted.sum()),
        "impossible": len(history.claims) - len(kept),
        "never": int((~has_ended).sum()),
        "starved": int(starved.sum()),
        "waits": _waits(wait[counted]),
        "by_team": by_team,
        "by_size": [
            {"least": least, "most": most, **_waits(wait[chosen])}
            for least, most in SIZES
            if (chosen := counted & (size >= least) & (size <= (most or size.max()))).any()
        ],
        "by_hour": [
            {"hour": at, **_waits(wait[chosen])} for at in range(HOURS) if (chosen := counted & (hour == at)).any()
        ],
        "fairness": round(float(slow.sum() ** 2 / (len(slow) * (slow**2).sum())), 4) if len(slow) else None,
        "slowdown": _mean(slowdown[counted]),
        "preemptions": played.preemptions,
        "most_evictions": max(played.evictions, default=0),
        "used_by_hour": used,
        "utilisation": round(float(np.mean(used)), 4) if used else None,
        "currency": history.currency,
        "bill": _bill(history, kept, held_s, counted),
        "energy": _energy(history, kept, held_s, counted),
        "played": {
            "row": list(kept), "started": started.tolist(), "wait": wait.tolist(), "ended": ended.tolist(),
            "evictions": played.evictions,
        },
    }  # fmt: skip


def _waits(wait: Ints) -> dict[str, Any]:
    """Count, mean and percentiles of waits in seconds; None where there are none."""
    if not len(wait):
        return {"requests": 0, "mean_s": None, "p50_s": None, "p95_s": None, "p999_s": None, "max_s": None}
    p50, p95, p999 = np.percentile(wait, [50, 95, 99.9], method="higher")
    return {
        "requests": len(wait),
        "mean_s": round(float(wait.mean()), 1),
        "p50_s": int(p50),
        "p95_s": int(p95),
        "p999_s": int(p999),
        "max_s": int(wait.max()),
    }


def _mean(values: Floats) -> float | None:
    return round(float(values.mean()), 3) if len(values) else None


def _held_by_hour(
    history: History, kept: Sequence[int], played: PlayedQueue, first: int, last: int
) -> list[float]:
    """Which part of all boards was held in each hour of the period, by shares of boards.

    What a request held before it was preempted is spread evenly from its coming to its last start.
    """
    hours = max(-(-(last - first) // 3600), 1)
    held = np.zeros(hours)
    slices = {p.name: p.share_milli for one in history.devices for p in one.profiles}
    for place, row in enumerate(kept):
        claim = history.claims[row]
        started, ended = played.started[place], played.ended[place]
        if not ended:
            continue
        share = slices.get(claim.profile, 1000) if claim.mode == "mig" else 1000
        share = claim.share_milli if claim.mode in SHARED_MODES else share
        milli = share * claim.count * max(claim.nodes, 1)
        _spread(held, started - first, ended - first, milli)
        came = int((claim.queued_at - history.zero).total_seconds())
        before_s = started - came - played.waited[place]
        if before_s:
            _spread(held, came - first, started - first, milli * before_s / (started - came))
    total = 1000 * len(history.devices) * 3600
    return [round(float(one), 4) for one in held / max(total, 1)]


def _spread(held: Floats, begin: int, end: int, milli: float) -> None:
    begin, end = max(begin, 0), min(end, len(held) * 3600)
    while begin < end:
        hour = begin // 3600
        stop = min(end, (hour + 1) * 3600)
        held[hour] += (stop - begin) * milli
        begin = stop


def _bill(
    history: History, kept: Iterable[int], held_s: Sequence[int], counted: Flags
) -> list[dict[str, Any]] | None:
    """Micro-units per team by the price of an hour; None without prices. Time run is billed, waiting is not.

    ``unpriced`` counts the requests of a team whose price is unknown: they are in no sum.
    """
    if not history.currency:
        return None
    micro, unpriced = [0] * len(history.teams), [0] * len(history.teams)
    for place, row in enumerate(kept):
        claim, price = history.claims[row], history.price_micro[row]
        if not counted[place]:
            continue
        if price is None:
            unpriced[claim.team_id - 1] += 1
            continue
        micro[claim.team_id - 1] += price * held_s[place] // 3600
    return [
        {"team": name, "micro": amount, "unpriced": unknown}
        for name, amount, unknown in zip(history.teams, micro, unpriced, strict=True)
        if amount or unknown
    ]


def _energy(
    history: History, kept: Iterable[int], held_s: Sequence[int], counted: Flags
) -> dict[str, int] | None:
    """Watt-hours of all time that requests held boards, by what their flavors draw; None where nobody knows any.

    ``unknown`` counts the requests of flavors whose draw is unknown: they are in no sum, nor are idle boards.
    """
    if not any(history.watts):
        return None
    joules = unknown = 0
    for place, row in enumerate(kept):
        watts = history.watts[row]
        if not counted[place]:
            continue
        if watts is None:
            unknown += 1
        else:
            joules += watts * held_s[place]
    return {"wh": joules // 3600, "unknown": unknown}
