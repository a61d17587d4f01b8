"""Cards that answer what a test sets on them, behind the names of pynvml; everything else is NOT_SUPPORTED."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

MIB = 1024 * 1024
WHOLE = 0xFFFFFFFF


def code(number: int) -> pynvml.NVMLError:
    return pynvml.NVMLError(number)


@dataclass(eq=False)
class Card:
    """One card or MIG device and its figures; None is not supported."""

    uuid: str
    util: int | None = None
    used_mib: int | None = 0
    power_mw: int | None = None
    limit_mw: int | None = None
    heat: int | None = None
    energy_mj: int | None = None
    has_gpm: bool = False
    gpm: dict[int | None, tuple[float, ...]] = field(default_factory=dict)
    running: list[SimpleNamespace] = field(default_factory=list)
    graphics: list[SimpleNamespace] = field(default_factory=list)
    mps: list[SimpleNamespace] = field(default_factory=list)
    load: Any = None
    rows: tuple[int, int, int, int] | None = None
    recovery: int | None = None
    ecc: int | None = None
    reasons: int | None = None
    events: int = 0xB
    starts: dict[int, int] = field(default_factory=dict)
    is_lost: bool = False


def process(pid: int, mib: int | None, gi: int = WHOLE) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=None if mib is None else mib * MIB, gpuInstanceId=gi)


def load(pid: int, sm: int, at_us: int) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, smUtil=sm, memUtil=0, timeStamp=at_us)


class Cards:
    """The library. ``calls`` counts by name, ``buffers`` are the GPM samples that nobody has freed."""

    NVMLError = pynvml.NVMLError

    def __init__(self, *cards: Card) -> None:
        self.cards = cards
        self.calls: dict[str, int] = {}
        self.buffers: set[int] = set()
        self.waiting: deque[Any] = deque()
        self.woken = threading.Event()
        self.sets: list[set[Card]] = []
        self.missing: set[str] = set()
        self._next = 0

    def handles(self) -> dict[str, Card]:
        return {card.uuid: card for card in self.cards}

    def __getattr__(self, name: str) -> Any:
        answer = _ANSWERS.get(name)
        if answer is None:
            constant = getattr(pynvml, name)
            if not callable(constant) or isinstance(constant, type):
                return constant

        def call(*args: Any) -> Any:
            self.calls[name] = self.calls.get(name, 0) + 1
            if name in self.missing or answer is None:
                raise code(13 if name in self.missing else 3)
            if args and isinstance(args[0], Card) and args[0].is_lost:
                raise code(15)
            value = answer(self, *args)
            if value is None:
                raise code(3)
            return value

        return call

    def alloc(self) -> SimpleNamespace:
        self._next += 1
        self.buffers.add(self._next)
        return SimpleNamespace(id=self._next, taken=None)

    def free(self, buffer: SimpleNamespace) -> int:
        self.buffers.remove(buffer.id)
        return 0

    def sample(self, card: Card, gi: int | None, buffer: SimpleNamespace) -> SimpleNamespace | None:
        if gi not in card.gpm:
            return None
        buffer.taken = card.gpm[gi]
        return buffer

    def compare(self, query: SimpleNamespace) -> SimpleNamespace:
        assert query.sample1.id != query.sample2.id
        for metric, value in zip(query.metrics, query.sample2.taken, strict=False):
            metric.value = value
        return query

    def event_set(self) -> set[Card]:
        self.sets.append(set())
        return self.sets[-1]

    def register(self, card: Card, mask: int, chosen: set[Card]) -> int:
        assert mask
        assert mask & ~card.events == 0
        chosen.add(card)
        return 0

    def free_set(self, chosen: set[Card]) -> int:
        self.sets = [one for one in self.sets if one is not chosen]
        return 0

    def wait(self, chosen: set[Card], ms: int) -> Any:
        if any(card.is_lost for card in chosen):
            raise code(15)
        if not self.waiting:
            self.woken.wait(ms / 1000)
            self.woken.clear()
        if not self.waiting:
            raise code(10)
        event = self.waiting.popleft()
        if isinstance(event, Exception):
            raise event
        return event

    def xid(self, card: Card, number: int, gi: int = WHOLE) -> None:
        """Let the card say something; wakes who waits."""
        kind = pynvml.nvmlEventTypeXidCriticalError
        self.waiting.append(
            SimpleNamespace(
                device=card, eventType=kind, eventData=number, gpuInstanceId=gi, computeInstanceId=WHOLE
            )
        )
        self.woken.set()


def _query() -> SimpleNamespace:
    metrics = [SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(4)]
    return SimpleNamespace(version=0, numMetrics=0, sample1=None, sample2=None, metrics=metrics)


def _processes(card: Card, since: int) -> Any:
    if isinstance(card.load, Exception):
        raise card.load
    return card.load


def _instance(card: Card, gi: int) -> SimpleNamespace:
    if gi not in card.starts:
        raise code(6)
    return SimpleNamespace(placement=SimpleNamespace(start=card.starts[gi], size=1))


def _recovery(card: Card) -> list[SimpleNamespace] | None:
    if card.recovery is None:
        return None
    return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=card.recovery))]


_ANSWERS: dict[str, Any] = {
    "nvmlDeviceGetUUID": lambda lib, card: card.uuid,
    "nvmlDeviceGetUtilizationRates": lambda lib, card: (
        None if card.util is None else SimpleNamespace(gpu=card.util)
    ),
    "nvmlDeviceGetMemoryInfo": lambda lib, card, version=None: (
        None if card.used_mib is None else SimpleNamespace(used=card.used_mib * MIB)
    ),
    "nvmlDeviceGetPowerUsage": lambda lib, card: card.power_mw,
    "nvmlDeviceGetEnforcedPowerLimit": lambda lib, card: card.limit_mw,
    "nvmlDeviceGetTemperature": lambda lib, card, sensor: card.heat,
    "nvmlDeviceGetTotalEnergyConsumption": lambda lib, card: card.energy_mj,
    "nvmlGpmQueryDeviceSupport": lambda lib, card: SimpleNamespace(isSupportedDevice=int(card.has_gpm)),
    "nvmlGpmSampleAlloc": Cards.alloc,
    "nvmlGpmSampleFree": Cards.free,
    "nvmlGpmSampleGet": lambda lib, card, buffer: lib.sample(card, None, buffer),
    "nvmlGpmMigSampleGet": Cards.sample,
    "nvmlGpmMetricsGet": Cards.compare,
    "c_nvmlGpmMetricsGet_t": lambda lib: _query(),
    "nvmlDeviceGetComputeRunningProcesses": lambda lib, card: card.running,
    "nvmlDeviceGetGraphicsRunningProcesses": lambda lib, card: card.graphics,
    "nvmlDeviceGetMPSComputeRunningProcesses": lambda lib, card: card.mps,
    "nvmlDeviceGetProcessUtilization": lambda lib, card, since: _processes(card, since),
    "nvmlDeviceGetRemappedRows": lambda lib, card: card.rows,
    "nvmlDeviceGetFieldValues": lambda lib, card, ids: _recovery(card),
    "nvmlDeviceGetTotalEccErrors": lambda lib, card, kind, counter: card.ecc,
    "nvmlDeviceGetCurrentClocksEventReasons": lambda lib, card: card.reasons,
    "nvmlDeviceGetGpuInstanceById": lambda lib, card, gi: _instance(card, gi),
    "nvmlGpuInstanceGetInfo": lambda lib, instance: instance,
    "nvmlEventSetCreate": Cards.event_set,
    "nvmlEventSetFree": Cards.free_set,
    "nvmlDeviceGetSupportedEventTypes": lambda lib, card: card.events,
    "nvmlDeviceRegisterEvents": Cards.register,
    "nvmlEventSetWait_v2": Cards.wait,
}
