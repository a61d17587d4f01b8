"""Every rule of a policy as people read it: its group, name, one line on what it does, and its value in words.

The keys are those of the body (docs/policies.md); the form, the page of a version and the comparison of two
versions are all made from this list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from portal.policies.faults import DAY_NAMES
from scheduler.engine.policy import WORKS

ORDER_TEXTS: dict[str, tuple[Any, Any]] = {
    "fifo": (gettext_lazy("First come, first served"), gettext_lazy("Whoever waits longest goes first.")),
    "priority_fifo": (
        gettext_lazy("Priority, then first come"),
        gettext_lazy("Higher priority first; among equals whoever waits longest."),
    ),
    "fair_tree": (
        gettext_lazy("Fair share over the team tree"),
        gettext_lazy("Teams and people that used less than their share lately go first."),
    ),
    "drf": (
        gettext_lazy("Dominant resource fairness"),
        gettext_lazy("The team whose largest part of any resource is smallest goes first."),
    ),
    "shortest": (
        gettext_lazy("Shortest first, with ageing"),
        gettext_lazy("Little predicted GPU time goes first; waiting counts more and more."),
    ),
    "default": (
        gettext_lazy("Hybrid"),
        gettext_lazy("Priority, then what is likely to end soon, softened by fair share and by waiting."),
    ),
    "guarantees_first": (
        gettext_lazy("Guarantees first"),
        gettext_lazy("What stays inside a team's guarantee goes first, then as the hybrid."),
    ),
}
PLACE_TEXTS: dict[str, tuple[Any, Any]] = {
    "default": (
        gettext_lazy("By price of what is left"),
        gettext_lazy("Keeps room for what requests usually look like. The best on public traces."),
    ),
    "prr": (
        gettext_lazy("By price of what is left (prr)"),
        gettext_lazy("The same as the default, by its own name."),
    ),
    "fgd": (gettext_lazy("Least fragmentation"), gettext_lazy("Strands as little room as possible.")),
    "best_fit": (gettext_lazy("Best fit"), gettext_lazy("Takes the node with the least room left over.")),
    "dot_product": (gettext_lazy("Dot product"), gettext_lazy("Matches what is asked with what is free.")),
    "gpu_packing": (gettext_lazy("GPU packing"), gettext_lazy("Fills devices and nodes in use first.")),
    "binpack": (gettext_lazy("Pack"), gettext_lazy("As few nodes as possible: others can sleep.")),
    "spread": (gettext_lazy("Spread"), gettext_lazy("As evenly as possible: cooler, but fewer whole nodes.")),
    "random": (gettext_lazy("Random"), gettext_lazy("Anywhere it fits; only to compare with.")),
}
BACKFILL_TEXTS: dict[str, tuple[Any, Any]] = {
    "none": (
        gettext_lazy("For nobody"),
        gettext_lazy("Whatever fits starts; large requests may wait long."),
    ),
    "easy": (
        gettext_lazy("For the first in the queue"),
        gettext_lazy("The first that does not fit gets a start that nobody behind it may delay."),
    ),
    "conservative": (
        gettext_lazy("For several in the queue"),
        gettext_lazy("The first few that do not fit get a start that nobody behind them may delay."),
    ),
}
# What a policy may choose. The other strategies of the engine are yardsticks for the replays: a version of older
# days that names one goes on deciding, a new one cannot.
OFFERED: dict[str, tuple[str, ...]] = {
    "order": ("default", "guarantees_first", "fair_tree", "drf", "priority_fifo", "fifo"),
    "place": ("default", "binpack", "spread"),
    "backfill": ("easy", "conservative", "none"),
}
WORK_NAMES: dict[str, Any] = {
    "interactive": gettext_lazy("Interactive"),
    "training": gettext_lazy("Training"),
    "inference": gettext_lazy("Inference"),
}


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """One rule: dotted key in the body, its kind, and the texts about it. ``unit`` follows a plain number.

    ``is_plain``: one of the few choices that every installation makes; the form folds the others away.
    """

    key: str
    group: str
    kind: str
    label: Any
    help: Any
    unit: Any = ""
    is_plain: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that belong together, with one line on what they are about."""

    name: str
    title: Any
    text: Any


GROUPS = (
    Group(
        "order", gettext_lazy("Who goes first"), gettext_lazy("The order in which waiting requests get room.")
    ),
    Group("place", gettext_lazy("Where it runs"), gettext_lazy("Which node and device a request gets.")),
    Group(
        "backfill",
        gettext_lazy("Backfill reservations"),
        gettext_lazy("Small requests may pass large ones, but must not delay a start that was promised."),
    ),
    Group(
        "preempting",
        gettext_lazy("Preemption"),
        gettext_lazy("What must make room for others, and how gently. A team's guarantee is never touched."),
    ),
    Group("share", gettext_lazy("Sharing devices"), gettext_lazy("What leases on one device may share.")),
    Group(
        "pools",
        gettext_lazy("Pools by kind of work"),
        gettext_lazy(
            "Which part of the fleet each kind of work is entitled to. Idle parts may be used by others."
        ),
    ),
    Group(
        "sleep",
        gettext_lazy("Sleep of idle nodes"),
        gettext_lazy("When nodes that idle may sleep to save energy. They wake when somebody needs them."),
    ),
)
RULES = (
    PolicyRule("order", "order", "order", gettext_lazy("Order"), gettext_lazy("Who is served first."), is_plain=True),
    PolicyRule(
        "half_life_s", "order", "seconds", gettext_lazy("Half-life of use"),
        gettext_lazy("Fair share counts what was used lately. Shorter forgives sooner."),
    ),
    PolicyRule(
        "penalty_s", "order", "seconds", gettext_lazy("A start counts as used at once for"),
        gettext_lazy("So that many requests at once cannot pass before their use is counted."),
    ),
    PolicyRule(
        "ageing_s", "order", "seconds", gettext_lazy("Waiting counts double after"),
        gettext_lazy("With orders by length: shorter lets long requests start sooner."),
    ),
    PolicyRule(
        "keep_short", "order", "number", gettext_lazy("Keep free for short requests"),
        gettext_lazy("From 0 to 1, of the fleet: where they cannot be stopped, long requests leave this free."),
    ),
    PolicyRule(
        "pools.parts", "pools", "parts", gettext_lazy("Usual parts"),
        gettext_lazy("In any unit: 3, 1 and 1 is three fifths and two single fifths. All empty: no pools."),
    ),
    PolicyRule(
        "pools.times", "pools", "pool_times", gettext_lazy("Other parts at these times"),
        gettext_lazy("For instance more for interactive work by day. A time may go past midnight."),
    ),
    PolicyRule("pools.zone", "pools", "text", gettext_lazy("Their time zone"), gettext_lazy("Such as Europe/Berlin.")),
    PolicyRule(
        "place", "place", "place", gettext_lazy("Placement"), gettext_lazy("How room is chosen."), is_plain=True
    ),
    PolicyRule(
        "keep_better", "place", "number", gettext_lazy("Keep better devices free"),
        gettext_lazy("From 0 (look at room only) to 1: small requests stay off large and fast devices."),
    ),
    PolicyRule(
        "keep_empty", "place", "number", gettext_lazy("Keep nodes empty"),
        gettext_lazy("0: no matter. More leaves whole nodes idle, which can then sleep or take gangs."),
    ),
    PolicyRule(
        "keep_apart", "place", "number", gettext_lazy("Keep long and short requests apart"),
        gettext_lazy(
            "0: no matter. More puts long requests that cannot be stopped beside each other, away from short ones, "
            "so that nodes fall free as a whole."
        ),
    ),
    PolicyRule(
        "repartition", "place", "yes_no", gettext_lazy("Repartition idle devices"),
        gettext_lazy("Idle devices may change their pinned MIG layout for those who wait."),
    ),
    PolicyRule(
        "backfill", "backfill", "backfill", gettext_lazy("Promised starts"),
        gettext_lazy("Who gets a start in the future that is kept."), is_plain=True,
    ),
    PolicyRule(
        "depth", "backfill", "number", gettext_lazy("For how many requests"),
        gettext_lazy("So many hold such a start, from the head of the queue."),
    ),
    PolicyRule(
        "reserve_after_s", "backfill", "seconds", gettext_lazy("After a wait of"),
        gettext_lazy("Only a request that waited this long gets one. Longer uses the fleet better, shorter is kinder."),
    ),
    PolicyRule(
        "promise_p90", "backfill", "yes_no", gettext_lazy("Promise “9 of 10 start by”"),
        gettext_lazy(
            "The first such time told to a waiting request is a promise."
            " Refund rules say what a later start gives back."
        ),
    ),
    PolicyRule(
        "preempting.preemptible", "preempting", "yes_no", gettext_lazy("Preempt preemptible leases"),
        gettext_lazy("Leases that allowed it, at a lower price, make room for others."), is_plain=True,
    ),
    PolicyRule(
        "preempting.borrowed", "preempting", "yes_no", gettext_lazy("Reclaim what is borrowed"),
        gettext_lazy("Teams get their guarantee back from those of their cohort who borrowed it."), is_plain=True,
    ),
    PolicyRule(
        "preempting.by_score", "preempting", "yes_no", gettext_lazy("For better scores, too"),
        gettext_lazy(
            "Leases that allowed it also make room for requests that the order scores clearly better, such as short"
            " ones. Orders without scores ignore this."
        ), is_plain=True,
    ),
    PolicyRule(
        "preempting.interactive", "preempting", "yes_no", gettext_lazy("Interactive work as well"),
        gettext_lazy("Leases for interactive work go for better scores only where this is set."),
    ),
    PolicyRule(
        "preempting.factor", "preempting", "number", gettext_lazy("How much better"),
        gettext_lazy("A score must be so many times better: 1 for any better one, more preempts less."),
    ),
    PolicyRule(
        "preempting.least_run_s", "preempting", "seconds", gettext_lazy("Not before it ran"),
        gettext_lazy("A lease is left alone for this long."),
    ),
    PolicyRule(
        "preempting.grace_s", "preempting", "seconds", gettext_lazy("Time to save the work"),
        gettext_lazy("From the notice to the end of the lease."), is_plain=True,
    ),
    PolicyRule(
        "preempting.most_evictions", "preempting", "number", gettext_lazy("At most so many times"),
        gettext_lazy("A request that was preempted this often is left alone."),
    ),
    PolicyRule(
        "sleep.times", "sleep", "sleep_times", gettext_lazy("Sleep at these times"),
        gettext_lazy("None: nodes never sleep. A time may go past midnight."),
    ),
    PolicyRule(
        "sleep.after_s", "sleep", "seconds", gettext_lazy("Once idle for"),
        gettext_lazy("A node sleeps when nobody used it for this long."),
    ),
    PolicyRule("sleep.zone", "sleep", "text", gettext_lazy("Their time zone"), gettext_lazy("Such as Europe/Berlin.")),
    PolicyRule(
        "share_across_teams", "share", "yes_no", gettext_lazy("Teams may share a device"),
        gettext_lazy("Shares of one device may belong to different teams. MIG slices always may."), is_plain=True,
    ),
    PolicyRule(
        "mps_across_teams", "share", "yes_no", gettext_lazy("Under MPS, too"),
        gettext_lazy(
            "A fault of one program under MPS ends those of all others on the device. Counts only where teams may"
            " share a device."
        ),
    ),
    PolicyRule(
        "memory_factors", "share", "factors", gettext_lazy("Promise more memory than a device has"),
        gettext_lazy("In thousandths of the device's memory, per model: 1500 is half as much again. 1000: no more."),
    ),
)  # fmt: skip


def value_at(body: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key of a whole body."""
    value: Any = body
    for part in key.split("."):
        value = value[part]
    return value


def length(seconds: int) -> str:
    """Return a length of time exactly, e.g. "1 d 12 h"."""
    texts = ((86_400, _("%(n)d d")), (3600, _("%(n)d h")), (60, _("%(n)d min")), (1, _("%(n)d s")))
    found, left = [], seconds
    for size, text in texts:
        count, left = divmod(left, size)
        if count:
            found.append(text % {"n": count})
    return " ".join(found) or _("%(n)d s") % {"n": 0}


def in_words(rule: PolicyRule, value: Any) -> list[str]:
    """Return a value as people read it; one line each where it is a list."""
    return _WORDS[rule.kind](value, rule)


def days_text(days: list[int]) -> str:
    """Return days of the week, e.g. "Monday to Friday" or "Saturday, Sunday"."""
    names = [str(name) for name in DAY_NAMES.values()]
    if days == list(range(7)):
        return _("every day")
    if len(days) > 2 and days == list(range(days[0], days[-1] + 1)):
        return _("%(first)s to %(last)s") % {"first": names[days[0]], "last": names[days[-1]]}
    return ", ".join(names[day] for day in days)


def parts_text(parts: Mapping[str, int]) -> str:
    """Return parts with their percentage, e.g. "Interactive 60 %, Training 40 %"."""
    total = sum(parts.values())
    if not total:
        return _("no pools")
    shown = [(WORK_NAMES[work], parts[work] * 100 / total) for work in WORKS if work in parts]
    return ", ".join(f"{name} {percent:.3g} %" for name, percent in shown)


def _named(texts: dict[str, tuple[Any, Any]]) -> Callable[[Any, PolicyRule], list[str]]:
    return lambda value, _rule: [str(texts[value][0]) if value in texts else str(value)]


def _number(value: Any, rule: PolicyRule) -> list[str]:
    return [
        f"{value:.12g} {rule.unit}".strip() if isinstance(value, float) else f"{value} {rule.unit}".strip()
    ]


def _pool_times(value: Any, _rule: PolicyRule) -> list[str]:
    return [f"{_when(time)}: {parts_text(time['parts'])}" for time in value] or [_("none")]


def _sleep_times(value: Any, _rule: PolicyRule) -> list[str]:
    return [
        f"{_when(time)}: "
        + ngettext("%(n)d idle node stays awake", "%(n)d idle nodes stay awake", time["awake"])
        % {"n": time["awake"]}
        for time in value
    ] or [_("never")]


def _when(time: Mapping[str, Any]) -> str:
    return f"{days_text(time['days'])} {time['from']}–{time['to']}"


def _factors(value: Any, _rule: PolicyRule) -> list[str]:
    return [f"{model}: {factor / 10:g} %" for model, factor in sorted(value.items())] or [_("no")]


_WORDS: dict[str, Callable[[Any, PolicyRule], list[str]]] = {
    "order": _named(ORDER_TEXTS),
    "place": _named(PLACE_TEXTS),
    "backfill": _named(BACKFILL_TEXTS),
    "yes_no": lambda value, _rule: [_("yes") if value else _("no")],
    "number": _number,
    "text": lambda value, _rule: [str(value)],
    "seconds": lambda value, _rule: [length(value)],
    "parts": lambda value, _rule: [parts_text(value)],
    "pool_times": _pool_times,
    "sleep_times": _sleep_times,
    "factors": _factors,
}
