"""Events of the simulated library: sets that wait in a thread of their own and can be woken from any other."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, NamedTuple

import pynvml

from nodeagent.drivers import errors
from nodeagent.simulation.machine.device import NvmlDevice
from nodeagent.simulation.nvml.session import GPU, UNINITIALIZED, NvmlSession, number_of, reads, refuse

# Single and double bit memory errors, power state, XID, clock: what data center devices support.
SUPPORTED = 0x1F
# A storm beyond this many waiting events loses the oldest ones.
MOST_WAITING = 4096


class QueuedEvent(NamedTuple):
    """One event that waits to be fetched."""

    device: NvmlDevice
    generation: int
    kind: int
    data: int
    gi: int
    ci: int


class EventSet:
    """Devices and kinds of events that one waiter listens for, and what has come in."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.waiting: deque[QueuedEvent] = deque(maxlen=MOST_WAITING)
        self.wanted: dict[NvmlDevice, tuple[int, int]] = {}
        self.is_freed = False

    def hears(self, device: NvmlDevice, kind: int) -> bool:
        """Say whether events of this kind from this device are wanted; a reset ends what was registered before."""
        generation, kinds = self.wanted.get(device, (-1, 0))
        return bool(kinds & kind) and generation == device.generation

    def tell(self, device: NvmlDevice, kind: int, data: int, gi: int, ci: int) -> None:
        """Take in an event and wake the waiter."""
        with self.changed:
            self.waiting.append(QueuedEvent(device, device.generation, kind, data, gi, ci))
            self.changed.notify_all()

    def free(self) -> None:
        """Listen no more and wake the waiter."""
        with self.changed:
            self.is_freed = True
            self.wanted.clear()
            self.changed.notify_all()

    def fetch(self, timeout_s: float) -> QueuedEvent | None:
        """Return the next event, None when time is up or the set was freed."""
        ends = time.monotonic() + timeout_s
        with self.changed:
            while not self.waiting and not self.is_freed:
                left = ends - time.monotonic()
                if left <= 0 or not self.changed.wait(left):
                    break
            return self.waiting.popleft() if self.waiting and not self.is_freed else None


class EventCalls(NvmlSession):
    """Calls on event sets. Waiting holds no lock, so everything else goes on meanwhile."""

    def __init__(self, host: Any) -> None:
        """Begin without event sets."""
        super().__init__(host)
        self._sets: dict[int, EventSet] = {}

    def clear(self) -> None:
        """Drop every set too, and wake those who wait."""
        super().clear()
        for token in list(self._sets):
            self._drop(token)

    @reads
    def nvmlEventSetCreate(self) -> Any:
        """Return an empty set."""
        token, made = self.host.new_token(), EventSet()
        self._sets[token] = made
        self.host.listeners.add(made)
        return pynvml.cast(pynvml.c_void_p(token), pynvml.c_nvmlEventSet_t)

    @reads
    def nvmlDeviceGetSupportedEventTypes(self, handle: Any) -> int:
        """Return the kinds of events as bits."""
        self.whole(handle)
        return SUPPORTED

    @reads
    def nvmlDeviceRegisterEvents(self, handle: Any, kinds: int, event_set: Any) -> None:
        """Listen for events of a device; MIG devices and unknown kinds are NOT_SUPPORTED."""
        device, found = self.whole(handle), self._set(event_set)
        if kinds & ~SUPPORTED:
            raise refuse(errors.NOT_SUPPORTED)
        before = found.wanted.get(device, (device.generation, 0))
        kept = before[1] if before[0] == device.generation else 0
        found.wanted[device] = (device.generation, kept | kinds)

    def nvmlEventSetWait_v2(self, event_set: Any, timeout_ms: int) -> Any:
        """Return the next event, or raise TIMEOUT (10); GPU_IS_LOST when a registered device is gone by then."""
        self.host.enter("nvmlEventSetWait_v2", False)
        with self.host.lock:
            self._require_open()
            found = self._set(event_set)
        event = found.fetch(timeout_ms / 1000)
        with self.host.lock:
            self._require_open()
            if event is not None:
                return self._data(event)
            if found.is_freed:
                raise refuse(errors.INVALID_ARGUMENT)
            if any(device.gpu.is_lost for device in found.wanted):
                raise refuse(errors.GPU_IS_LOST)
        raise refuse(errors.TIMEOUT)

    nvmlEventSetWait = nvmlEventSetWait_v2

    @reads
    def nvmlEventSetFree(self, event_set: Any) -> None:
        """Give a set back; who waits on it is woken."""
        self._set(event_set)
        self._drop(number_of(event_set) or 0)

    def _require_open(self) -> None:
        if not self.is_open:
            raise refuse(UNINITIALIZED)

    def _set(self, event_set: Any) -> EventSet:
        found = self._sets.get(number_of(event_set) or 0)
        if found is None:
            raise refuse(errors.INVALID_ARGUMENT)
        return found

    def _drop(self, token: int) -> None:
        gone = self._sets.pop(token, None)
        if gone is not None:
            self.host.listeners.discard(gone)
            gone.free()

    def _data(self, event: QueuedEvent) -> Any:
        data = pynvml.c_nvmlEventData_t()
        if event.generation == event.device.generation:
            data.device = self.handle(GPU, event.device)
        data.eventType, data.eventData = event.kind, event.data
        data.gpuInstanceId, data.computeInstanceId = event.gi, event.ci
        return data
