"""A labelled, simulated set of windows: honest work with its pauses, and ways to look busy without working.

Every window is made from a seed by a model of what the workload does second by second, boiled down to minutes as the
portal stores them. Devices differ in what they tell: all of it, utilisation and power, or utilisation alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from portal.idle.judging import MeasuredWindow, MinuteSample

MINUTES = 60
IDLE_W, LIMIT_W, HELD_W = 70.0, 700.0, 45.0  # an H100; a context raises its clocks and power without any work
Load = tuple[float, float, float, float]  # util, sm, tensor, bandwidth in percent, over a minute
NOTHING: Load = (0.0, 0.0, 0.0, 0.0)
HONEST = (
    "training",
    "small_model",
    "data_stalls",
    "inference_bursts",
    "notebook",
    "checkpoints",
    "night_pause",
)
GAMING = ("sleep", "memory_only", "keep_alive", "heavy_keep_alive", "tiny_loop")
# What a device tells beside utilisation and memory: activity inside it and power, power alone, nothing.
TELLS = ("all", "power", "util")
# Without activity or power nothing contradicts a full utilisation: such a loop cannot be told from work.
CANNOT_BE_TOLD = {("tiny_loop", "util")}


@dataclass(frozen=True, slots=True)
class Labelled:
    """A window, what made it and what its device told."""

    kind: str
    tells: str
    window: MeasuredWindow

    @property
    def is_idle(self) -> bool:
        return self.kind in GAMING


def labelled_windows(*, seed: int, each: int) -> Iterator[Labelled]:
    """Yield ``each`` windows of every kind on every kind of device."""
    chance = random.Random(seed)
    for kind in (*HONEST, *GAMING):
        for tells in TELLS:
            for _n in range(each if (kind, tells) not in CANNOT_BE_TOLD else 0):
                yield Labelled(kind, tells, _window(kind, tells, chance))


def _window(kind: str, tells: str, chance: random.Random) -> MeasuredWindow:
    minutes: list[MinuteSample | None] = []
    load = _MODELS[kind](chance)
    memory = 0 if kind == "sleep" else chance.randint(700, 60_000)
    held_w = 0.0 if kind == "sleep" else HELD_W
    for n in range(MINUTES):
        if chance.random() < 0.01:  # a minute that was lost
            minutes.append(None)
            continue
        util, sm, tensor, bandwidth = load(n)
        power = IDLE_W + held_w + (LIMIT_W - IDLE_W - held_w) * max(0.8 * sm, 0.6 * bandwidth) / 100
        power = round(power + chance.gauss(0, 1.5), 2)
        shows = tells == "all"
        minutes.append(
            MinuteSample(
                util=round(util, 2),
                memory_mib=memory,
                sm=round(sm, 2) if shows else None,
                tensor=round(tensor, 2) if shows else None,
                bandwidth=round(bandwidth, 2) if shows else None,
                power_w=power if tells != "util" else None,
            )
        )
    processes = chance.choice((None, 1)) if memory else chance.choice((None, 0))
    return MeasuredWindow(minutes, IDLE_W, LIMIT_W, processes)


def _part(chance: random.Random, least: float, most: float, *, dense: float = 0.6) -> Load:
    """Return a minute of real kernels: utilisation above SM activity, both above what tensor cores do."""
    sm = chance.uniform(least, most)
    return (
        min(100.0, sm * chance.uniform(1.1, 1.8)),
        sm,
        sm * dense * chance.random(),
        sm * chance.uniform(0.3, 0.9),
    )


def _training(chance: random.Random) -> Callable[[int], Load]:
    level = chance.uniform(35, 95)
    return lambda _n: _part(chance, level * 0.9, level)


def _small_model(chance: random.Random) -> Callable[[int], Load]:
    level = chance.uniform(6, 20)
    return lambda _n: _part(chance, level * 0.6, level, dense=0.1)


def _data_stalls(chance: random.Random) -> Callable[[int], Load]:
    """Mostly waiting for data: some minutes are empty, others see a few batches."""
    return lambda _n: NOTHING if chance.random() < 0.6 else _part(chance, 3, 25)


def _inference_bursts(chance: random.Random) -> Callable[[int], Load]:
    """Calls come by chance, a few an hour up to several a minute, each for some seconds."""
    an_hour = chance.choice((6, 20, 90, 300))

    def load(_n: int) -> Load:
        calls = sum(chance.random() < an_hour / 3600 for _second in range(60))
        busy_s = min(60.0, sum(chance.uniform(2, 8) for _call in range(calls)))
        level = chance.uniform(40, 80) * busy_s / 60
        return min(100.0, busy_s / 0.6), level, level * 0.3, level * 0.8

    return load


def _notebook(chance: random.Random) -> Callable[[int], Load]:
    """A person thinks, then runs a cell for ten seconds up to some minutes."""
    state = {"left": 0.0, "next": chance.uniform(0, 12)}

    def load(n: int) -> Load:
        if n >= state["next"]:
            state["left"], state["next"] = chance.uniform(0.2, 3), n + chance.uniform(4, 25)
        busy = min(1.0, state["left"])
        state["left"] -= busy
        level = chance.uniform(25, 80) * busy
        return min(100.0, level * 1.3), level, level * 0.2, level * 0.5

    return load


def _checkpoints(chance: random.Random) -> Callable[[int], Load]:
    """Training that stops for minutes to write its state."""
    every, lasts, level = chance.randint(10, 30), chance.randint(2, 9), chance.uniform(40, 90)
    return lambda n: NOTHING if n % every < lasts else _part(chance, level * 0.8, level)


def _night_pause(chance: random.Random) -> Callable[[int], Load]:
    """A run that pauses for up to 50 of 60 minutes between two stages."""
    begins, lasts = chance.randint(0, 9), chance.randint(30, 50)
    return lambda n: NOTHING if begins <= n < begins + lasts else _part(chance, 20, 90)


def _still(_chance: random.Random) -> Callable[[int], Load]:
    return lambda _n: NOTHING


def _keep_alive(chance: random.Random) -> Callable[[int], Load]:
    """A short kernel each minute, so that nobody says that nothing runs."""
    lasts_s = chance.uniform(0.01, 1.0)
    return lambda _n: (lasts_s / 0.6, lasts_s / 0.6 * chance.uniform(0.3, 0.9), 0.0, chance.uniform(0, 0.2))


def _heavy_keep_alive(chance: random.Random) -> Callable[[int], Load]:
    """A kernel over the whole device for up to three seconds of each minute, on data that stays where it is."""
    lasts_s = chance.uniform(0.5, 3.0)

    def load(_n: int) -> Load:
        part = lasts_s / 0.6 * chance.gauss(1, 0.02)
        return part, part * chance.uniform(0.97, 1.0), 0.0, chance.uniform(0, 0.5)

    return load


def _tiny_loop(chance: random.Random) -> Callable[[int], Load]:
    """One block in an endless loop: the device shows 100 % and does nothing."""
    level = chance.uniform(0.3, 1.4)
    return lambda _n: (
        chance.uniform(97, 100),
        level * chance.uniform(0.95, 1.05),
        0.0,
        chance.uniform(0, 0.3),
    )


_MODELS: dict[str, Callable[[random.Random], Callable[[int], Load]]] = {
    "training": _training,
    "small_model": _small_model,
    "data_stalls": _data_stalls,
    "inference_bursts": _inference_bursts,
    "notebook": _notebook,
    "checkpoints": _checkpoints,
    "night_pause": _night_pause,
    "sleep": _still,
    "memory_only": _still,
    "keep_alive": _keep_alive,
    "heavy_keep_alive": _heavy_keep_alive,
    "tiny_loop": _tiny_loop,
}
