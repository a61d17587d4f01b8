"""Which idle nodes may sleep now, and which must wake: a pure function of the picture and the policy.

A node sleeps only when it holds nothing, has idled for ``after_s``, nothing booked comes soon, and enough idle
nodes of its models stay ready. It wakes when a claim that waits would get it, before what is booked on it
begins, when too few idle nodes are ready, and before the sleep time ends. Going to sleep looks further ahead
than waking does, so nothing that wakes a node was in sight when it fell asleep: nodes do not flap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, Literal
from zoneinfo import ZoneInfo

from scheduler.engine.model import Claim, Snapshot
from scheduler.engine.plan import plan
from scheduler.engine.policy import PolicyRules, Sleep, SleepTime
from scheduler.engine.sleeping_nodes import ASLEEP, awakened

# A node is woken so long before it is needed at a known time; waking takes seconds to a few minutes.
LEAD_S: Final = 300
MOST_CLAIMS: Final = 256
DAYS, MIDNIGHT = 7, 24 * 60

Rule = Literal["", "awake", "asleep"]


@dataclass(frozen=True, slots=True)
class NodePower:
    """A node that can sleep: what it was told last, since when it holds nothing, and an operator's word.

    ``idle_since`` is None while it holds something; it is not before it last became awake. ``rule`` "awake"
    keeps it awake, "asleep" lets it sleep at any time as soon as it holds nothing, until it is needed.
    """

    node_id: int
    is_asleep: bool = False
    idle_since: datetime | None = None
    rule: Rule = ""


@dataclass(frozen=True, slots=True)
class PowerOrders:
    """What to tell nodes now, as (node id, why), by node id.

    Why to sleep: "idle" or "operator". Why to wake: "claim", "booking", "held", "ready", "hours", "operator".
    """

    sleep: tuple[tuple[int, str], ...] = ()
    wake: tuple[tuple[int, str], ...] = ()


def orders(snapshot: Snapshot, policy: PolicyRules, power: Sequence[NodePower]) -> PowerOrders:
    """Decide which nodes to let sleep and which to wake, as of ``snapshot.taken_at``.

    ``power`` names the nodes that can sleep; others are left alone, and so are nodes that are silent or in
    maintenance. Same arguments, same orders.
    """
    return _Night(snapshot, policy, power).orders()


def allowed(sleep: Sleep, at: datetime) -> SleepTime | None:
    """The time that lets idle nodes sleep at this instant; None when none does.

    A time whose end is not after its begin runs past midnight and belongs to the day it began on. Where several
    hold the first one counts.
    """
    if not sleep.times:
        return None
    local = at.astimezone(ZoneInfo(sleep.zone))
    minute = local.hour * 60 + local.minute
    return next((time for time in sleep.times if _holds(time, local.weekday(), minute)), None)


def _holds(time: SleepTime, day: int, minute: int) -> bool:
    if time.from_minute < time.to_minute:
        return day in time.days and time.from_minute <= minute < time.to_minute
    since_yesterday = (day - 1) % DAYS in time.days and minute < time.to_minute
    return since_yesterday or (day in time.days and time.from_minute <= minute < MIDNIGHT)


class _Night:
    """The nodes of one picture, sorted into who holds something, who is needed and who is ready."""

    def __init__(self, snapshot: Snapshot, policy: PolicyRules, power: Sequence[NodePower]) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.now = snapshot.taken_at
        self.nodes = {node.id: node for node in snapshot.nodes}
        self.node_of = {device.id: device.node_id for device in snapshot.devices}
        self.models = _models(snapshot)
        self.busy = {self.node_of[h.device_id] for h in snapshot.held if h.device_id in self.node_of}
        away = {o.node_id for o in snapshot.outages if o.starts_at <= self.now < o.until}
        known = (p for p in power if p.node_id in self.nodes and p.node_id not in away)
        self.power = sorted(known, key=lambda p: p.node_id)

    def orders(self) -> PowerOrders:
        wake = self._wake()
        return PowerOrders(tuple(self._sleep(dict(wake))), tuple(wake))

    # Waking

    def _wake(self) -> list[tuple[int, str]]:
        """Who must wake and why, the first reason that holds; readiness looks at what the others leave."""
        asleep = [p for p in self.power if p.is_asleep and self._hears(p.node_id)]
        if not asleep:
            return []
        soon = self._booked_within(LEAD_S)
        wanted = self._claimed({p.node_id for p in asleep})
        found = {}
        for one in asleep:
            why = self._why_awake(one, soon, wanted)
            if why:
                found[one.node_id] = why
        self._make_ready([p for p in asleep if p.node_id not in found], found)
        return sorted(found.items())

    def _why_awake(self, one: NodePower, soon: set[int], wanted: set[int]) -> str:
        if one.node_id in self.busy:
            return "held"
        if one.rule == "awake":
            return "operator"
        if one.node_id in wanted:
            return "claim"
        if one.node_id in soon:
            return "booking"
        if one.rule != "asleep" and allowed(self.policy.sleep, self._in(LEAD_S)) is None:
            return "hours"
        return ""

    def _claimed(self, asleep: set[int]) -> set[int]:
        """The sleeping nodes that claims waiting now would get if all were awake.

        What grows only while boards idle wakes nobody. Only the first ``MOST_CLAIMS`` that could use one of
        these nodes at all are looked at, so that a long queue for other nodes costs nothing.
        """
        open_nodes = {i for i in asleep if self.nodes[i].blocked == ASLEEP}
        queue = tuple(islice(self._able(open_nodes), MOST_CLAIMS))
        if not queue:
            return set()
        turn = plan(replace(awakened(self.snapshot), queue=queue, growing=()), self.policy)
        latest = self._in(LEAD_S)
        return {
            self.node_of[slot.device_id]
            for grant in turn.grants
            if grant.starts_at is None or grant.starts_at <= latest
            for slot in grant.slots
        } & open_nodes

    def _able(self, nodes: set[int]) -> Iterator[Claim]:
        """The claims, in the order of the picture, that ask for a mode and model which these nodes have."""
        offers = {(d.model, mode) for d in self.snapshot.devices if d.node_id in nodes for mode in d.modes}
        modes = {mode for _, mode in offers}
        for claim in self.snapshot.queue:
            wanted = ((model, claim.mode) for model in claim.models)
            if claim.mode in modes if not claim.models else not offers.isdisjoint(wanted):
                yield claim

    def _make_ready(self, asleep: list[NodePower], found: dict[int, str]) -> None:
        """Wake so many more that each model has its idle nodes ready, in the order of their ids."""
        time = allowed(self.policy.sleep, self.now)
        if time is None:
            return
        ready = self._ready(("", ASLEEP))  # those being woken count
        for one in asleep:
            models = self.models.get(one.node_id, frozenset())
            is_short = any(ready[model] < time.awake for model in models)
            if one.rule != "asleep" and is_short and self.nodes[one.node_id].blocked == ASLEEP:
                found[one.node_id] = "ready"
                ready.update(models)

    # Sleeping

    def _sleep(self, waking: dict[int, str]) -> Iterable[tuple[int, str]]:
        booked = self._booked_within(2 * LEAD_S + self.policy.sleep.after_s)
        idle = [p for p in self.power if self._may_sleep(p, booked, waking)]
        sent = [(p.node_id, "operator") for p in idle if p.rule == "asleep"]
        awake = self._least_awake()
        if awake is not None:
            sent += self._spare([p for p in idle if not p.rule and self._has_idled(p)], dict(sent), awake)
        return sorted(sent)

    def _least_awake(self) -> int | None:
        """How many idle nodes of a model must stay ready, None where no node may fall asleep now.

        Not for a nap: the sleep time must hold for longer than falling asleep and waking takes.
        """
        sleep = self.policy.sleep
        time = allowed(sleep, self.now)
        lasts = allowed(sleep, self._in(LEAD_S + sleep.after_s)) is not None
        return time.awake if time is not None and lasts else None

    def _spare(self, idle: list[NodePower], sent: dict[int, str], awake: int) -> Iterable[tuple[int, str]]:
        """Those whose sleep leaves enough of each model ready; who has idled longest goes first."""
        ready = self._ready(("",), but=sent)
        for one in sorted(idle, key=lambda p: (p.idle_since or self.now, -p.node_id)):
            models = self.models.get(one.node_id, frozenset())
            if self.nodes[one.node_id].blocked:  # cordoned: nobody could start there anyway
                yield one.node_id, "idle"
            elif all(ready[model] > awake for model in models):
                ready.subtract(models)
                yield one.node_id, "idle"

    def _may_sleep(self, one: NodePower, booked: set[int], waking: dict[int, str]) -> bool:
        is_idle = one.idle_since is not None and one.node_id not in self.busy
        is_free = one.node_id not in booked and one.node_id not in waking
        is_up = not one.is_asleep and one.rule != "awake"
        return is_idle and is_free and is_up and self.nodes[one.node_id].blocked in ("", "cordoned")

    def _has_idled(self, one: NodePower) -> bool:
        return one.idle_since is not None and one.idle_since <= self._in(-self.policy.sleep.after_s)

    # What both look at

    def _ready(self, blocked: Sequence[str], but: Iterable[int] = ()) -> Counter[str]:
        """How many nodes of each model are idle and told to be awake, without those named.

        ``blocked`` says which words on a node leave it ready.
        """
        out = {p.node_id for p in self.power if p.is_asleep} | set(but) | self.busy
        found: Counter[str] = Counter()
        for node in self.snapshot.nodes:
            if node.id not in out and node.blocked in blocked:
                found.update(self.models.get(node.id, frozenset()))
        return found

    def _hears(self, node_id: int) -> bool:
        """Whether the node is there to be told: a silent one is not, a cordoned one is."""
        return self.nodes[node_id].blocked in ("", ASLEEP, "cordoned")

    def _booked_within(self, seconds: int) -> set[int]:
        latest = self._in(seconds)
        begins = (b for b in self.snapshot.bookings if b.starts_at <= latest)
        return {self.node_of[b.held.device_id] for b in begins if b.held.device_id in self.node_of}

    def _in(self, seconds: int) -> datetime:
        return self.now + timedelta(seconds=seconds)


def _models(snapshot: Snapshot) -> dict[int, frozenset[str]]:
    """The device models of each node, those of blocked devices aside."""
    found: dict[int, set[str]] = {}
    for device in snapshot.devices:
        if not device.blocked:
            found.setdefault(device.node_id, set()).add(device.model)
    return {node: frozenset(models) for node, models in found.items()}
