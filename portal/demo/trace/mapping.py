"""From a row of the trace to a request: one table per question, all of them printed before a play."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from portal.demo.trace.rows import WHOLE_MILLI, Pod

LEAST_S, MOST_S = 2.0, 120.0
MARGIN_S = 60
WHOLE_NODE_GPUS = 8


@dataclass(frozen=True, slots=True)
class TracePerson:
    """A person of the demo and the team they ask for."""

    person: str
    team: str


@dataclass(frozen=True, slots=True)
class FlavorOffer:
    """A flavor as the portal offers it; ``share_milli`` of one device."""

    slug: str
    device_model: str
    mode: str
    share_milli: int
    max_count: int


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """What one row asks for. ``lifetime_s`` counts from activation; ``duration_s`` is asked for."""

    row: str
    asker: TracePerson
    flavor: str
    count: int
    priority: str
    lifetime_s: float
    duration_s: int

    def body(self) -> dict[str, Any]:
        """Return the body of the request."""
        return {
            "flavor": self.flavor,
            "count": self.count,
            "duration_s": self.duration_s,
            "team": self.asker.team,
            "priority": self.priority,
            "name": self.row,
        }


BOB, SEG = TracePerson("bob", "perception"), TracePerson("bob", "segmentation")
ALICE, ALICE_VISION = TracePerson("alice", "perception"), TracePerson("alice", "vision")
LANG, SPEECH = TracePerson("charlie", "language"), TracePerson("charlie", "speech")
# qos: (priority, who asks; the position of the row takes them in turn). High is for team admins only.
BY_QOS: dict[str, tuple[str, tuple[TracePerson, ...]]] = {
    "Guaranteed": ("high", (ALICE, ALICE_VISION)),
    "LS": ("normal", (BOB, LANG, ALICE_VISION, LANG)),
    "Burstable": ("normal", (SEG, SPEECH)),
    "BE": ("low", (LANG, BOB, LANG, SEG, SPEECH)),
}
# Only these teams' quotas hold four and more whole H100 at once.
LARGE_FROM = 4
LARGE_ASKERS = (BOB, LANG)
# Any of several models in gpu_spec will do; the first that the portal offers is taken.
BY_SPEC: dict[str, str] = {
    "V100M32": "a100-80gb",
    "V100M16": "a100-80gb",
    "P100": "a100-80gb",
    "G3": "h100-80gb",
    "G2": "h100-80gb",
    "A10": "l40s-48gb",
    "T4": "hygon-dcu-64gb",
}
# Without a model the row's position takes these in turn, as many turns as the fleet has such devices.
ANY_WHOLE = ("h100-80gb", "h100-80gb", "a100-80gb")


class MappingError(Exception):
    """The portal offers nothing for a row; the sentence says what is missing."""


def lifetime_s(pod: Pod, speed: float) -> float:
    """Return how long the lease is kept: the row's lifetime through ``speed``, from 2 to 120 seconds."""
    return min(MOST_S, max(LEAST_S, pod.lifetime_s / speed))


def offers_of(flavors: Iterable[Mapping[str, Any]]) -> list[FlavorOffer]:
    """Return the portal's flavors as its API lists them."""
    return [
        FlavorOffer(f["slug"], f["device_model"], f["mode"], f["share_milli"], f["max_count"])
        for f in flavors
    ]


class Mapper:
    """Turns rows into wishes, given what the portal offers."""

    def __init__(self, offers: Sequence[FlavorOffer], *, speed: float) -> None:
        self._offers = offers
        self._speed = speed

    def wish(self, pod: Pod, position: int) -> TraceRequest:
        """Return the wish of the row at a position among the rows with GPUs; raises MappingError."""
        priority, askers = BY_QOS.get(pod.qos, BY_QOS["BE"])
        if pod.num_gpu >= LARGE_FROM:
            askers, priority = LARGE_ASKERS, "normal"
        life = lifetime_s(pod, self._speed)
        return TraceRequest(
            row=pod.name[:80],
            asker=askers[position % len(askers)],
            flavor=self.flavor(pod, position),
            count=pod.num_gpu,
            priority=priority,
            lifetime_s=life,
            duration_s=math.ceil(life) + MARGIN_S,
        )

    def flavor(self, pod: Pod, position: int) -> str:
        """Return the slug of the flavor; raises MappingError when nothing covers the row."""
        fitting = [o for o in self._offers if o.max_count >= pod.num_gpu and self._covers(o, pod)]
        by_model = [o for o in fitting if o.device_model in self._models(pod)]
        fitting = by_model or fitting
        if not fitting:
            raise MappingError(
                f"row {pod.name}: no flavor covers {pod.num_gpu} × {pod.gpu_milli} thousandths of a GPU"
            )
        least = min(o.share_milli for o in fitting)
        equal = [o for o in fitting if o.share_milli == least]
        return self._in_turn(equal, position).slug

    def _covers(self, offer: FlavorOffer, pod: Pod) -> bool:
        if pod.gpu_milli == WHOLE_MILLI or pod.num_gpu > 1:
            is_whole = offer.mode == "exclusive"
            return is_whole and (pod.num_gpu < WHOLE_NODE_GPUS or offer.max_count >= WHOLE_NODE_GPUS)
        return offer.share_milli >= pod.gpu_milli

    def _models(self, pod: Pod) -> set[str]:
        wanted = [BY_SPEC[spec] for spec in pod.gpu_specs if spec in BY_SPEC]
        return set(wanted[:1])

    def _in_turn(self, equal: Sequence[FlavorOffer], position: int) -> FlavorOffer:
        by_model = {o.device_model: o for o in equal if o.mode == "exclusive"}
        turns = [by_model[model] for model in ANY_WHOLE if model in by_model] or equal
        return turns[position % len(turns)]


def tables() -> str:
    """Return the mapping as text: one table each for qos and gpu_spec."""
    lines = ["qos         priority  asked by, in turn by the row's position"]
    for qos, (priority, askers) in BY_QOS.items():
        names = ", ".join(f"{a.person} for {a.team}" for a in askers)
        lines.append(f"{qos:<11} {priority:<9} {names}")
    names = ", ".join(f"{a.person} for {a.team}" for a in LARGE_ASKERS)
    lines += [f"{LARGE_FROM}+ GPUs     normal    {names} (their quotas hold a whole node)", ""]
    lines.append("gpu_spec    demo model")
    lines += [f"{spec:<11} {model}" for spec, model in BY_SPEC.items()]
    lines.append(f"(none)      the smallest share that covers it; whole: {', '.join(ANY_WHOLE)} in turn")
    return "\n".join(lines)
