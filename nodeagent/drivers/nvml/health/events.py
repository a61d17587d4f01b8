"""What devices say by themselves (XID and ECC events), heard in a thread of its own.

One event set for all devices, registered on the devices, never on MIG devices: NVML takes no events there and names
the instance in the event. The thread sleeps inside NVML and wakes five times a second to see whether
it must stop or let go.

Where an instance lies is asked at once: a second later it may be gone, and its number that of another one elsewhere.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from nodeagent.drivers.errors import FUNCTION_NOT_FOUND, GPU_IS_LOST, NOT_SUPPORTED, TIMEOUT

log = logging.getLogger(__name__)

XID: Final = "xid"
ECC_CORRECTED: Final = "ecc_corrected"
ECC_UNCORRECTED: Final = "ecc_uncorrected"
LOST: Final = "lost"

WAIT_MS: Final = 200  # as long a pause takes; five calls a second cost nothing that can be measured
FIRST_REST_S: Final = 1.0
MOST_REST_S: Final = 60.0
MOST_KINDS: Final = 512
LOOK_AGAIN_NS: Final = 60_000_000_000
WHOLE: Final = 0xFFFFFFFF
PAUSE_S: Final = 2 * WAIT_MS / 1000 + 3
# A device changes its MIG mode within seconds; a longer pause is told, since faults of all devices go unheard.
MOST_PAUSE_S: Final = 10.0


LONG_PAUSE: Final = (
    f"a device has been changing its MIG mode for {MOST_PAUSE_S:.0f} s and more, and meanwhile no device"
    " may be listened to; what they report is lost, so look into the kernel log for XIDs"
)


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """Something a device said: ``xid`` for kind "xid", else None; ``gi_id`` None concerns the whole device.

    ``start`` is the memory slice where the instance begins, None where that is not known. The same thing said again
    before anybody asked is one event with a ``count`` and the time of the newest.
    """

    device: str
    xid: int | None
    gi_id: int | None
    ci_id: int | None
    at_ns: int
    kind: str = XID
    count: int = 1
    start: int | None = None


class EventWatch:
    """Listens until ``close``; ``pause`` lets go of all devices, so that this agent is not the one that uses them."""

    def __init__(
        self,
        library: Any,
        handles: Mapping[str, Any],
        clock_ns: Callable[[], int],
        *,
        wait_ms: int = WAIT_MS,
        most_kinds: int = MOST_KINDS,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the devices by uuid (handles exchanged in it are taken up) and a wall clock in ns. ``start`` begins.

        ``clock_s`` never goes back; it tells how long a pause lasts.
        """
        self._nvml = library
        self._handles = handles
        self._clock_ns = clock_ns
        self._clock_s = clock_s
        self._wait_ms = wait_ms
        self._most_kinds = most_kinds
        self._lock = threading.Lock()
        self._queue: dict[tuple[str, str, int | None, int | None, int | None], DeviceEvent] = {}
        self._dropped = 0
        self._pauses = 0
        self._paused_at = 0.0
        self._set: Any = None
        self._names: dict[Any, str] = {}
        self._lost: set[str] = set()
        self._silent: dict[str, str] = {}
        self._listed: dict[str, Any] = {}
        self._is_stale = False
        self._registered_ns = 0
        self._rest_s = 0.0
        self._trouble = ""
        self._wanted = threading.Event()
        self._parked = threading.Event()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to listen; safe to repeat."""
        if self._thread is None:
            self._wanted.set()
            self._thread = threading.Thread(target=self._run, name="nvml-events", daemon=True)
            self._thread.start()

    def pause(self) -> None:
        """Let go of all devices; returns when that is done, or a few seconds later when the driver hangs.

        Several may pause at once; it is over when each of them has called ``resume``.
        """
        with self._lock:
            self._pauses += 1
            if self._pauses == 1:
                self._paused_at = self._clock_s()
                # Cleared first: what the thread said before this call does not count.
                self._parked.clear()
                self._wanted.clear()
                self._wake.set()
        if self._thread is None or not self._thread.is_alive():
            return
        if not self._parked.wait(PAUSE_S):
            log.warning("waiting for events hangs inside the driver: this agent still keeps the devices open")

    def resume(self) -> None:
        """Listen again, to the devices as they are listed now, unless somebody else still needs the pause."""
        with self._lock:
            self._pauses = max(0, self._pauses - 1)
            if self._pauses == 0:
                self._is_stale = True
                self._wanted.set()
                self._wake.set()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause for as long as this lasts."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def close(self) -> None:
        """End the thread; events not fetched stay fetchable."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(PAUSE_S)

    def drain(self) -> list[DeviceEvent]:
        """Return what was said since the last call, oldest first, and forget it."""
        with self._lock:
            events, self._queue = list(self._queue.values()), {}
        return events

    @property
    def dropped(self) -> int:
        """How many events of a storm were counted but not kept."""
        return self._dropped

    @property
    def trouble(self) -> str:
        """Return why nobody listens although somebody should, "" when all is well or paused for a moment."""
        thread = self._thread
        if thread is not None and not thread.is_alive() and not self._stop.is_set():
            return self._trouble or "the thread that listens to events has ended"
        if self._wanted.is_set():
            return self._trouble
        is_long = self._pauses > 0 and self._clock_s() - self._paused_at >= MOST_PAUSE_S
        return LONG_PAUSE if is_long else ""

    @property
    def silent(self) -> dict[str, str]:
        """The devices that give no events although they answer, with the reason."""
        return dict(self._silent)

    def turn(self) -> None:
        """Wait for one event at most; the thread does nothing but this."""
        if not self._wanted.is_set():
            self._let_go()
            self._parked.set()
            self._sleep(None)
            return
        if self._is_stale or self._is_listed_anew():
            self._is_stale = False
            self._let_go()
        if self._set is None and not self._register():
            self._rest()
            return
        try:
            data = self._nvml.nvmlEventSetWait_v2(self._set, self._wait_ms)
        except self._nvml.NVMLError as no:
            self._refused(no)
            return
        self._rest_s, self._trouble = 0.0, ""
        self._heard(data)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.turn()
        except Exception as no:
            self._trouble = f"listening to events failed: {type(no).__name__}: {no}"
            log.exception("events of the devices are no longer heard")
        finally:
            self._let_go()
            self._parked.set()

    def _refused(self, no: Any) -> None:
        """Deal with an error of waiting: quiet is none, a lost device leaves the set, anything else takes a rest."""
        if no.value == TIMEOUT:
            self._rest_s, self._trouble = 0.0, ""
            # A device that was lost may be back.
            self._is_stale = bool(self._lost) and self._clock_ns() - self._registered_ns >= LOOK_AGAIN_NS
            return
        self._let_go()
        if no.value != GPU_IS_LOST:
            self._trouble = f"the driver does not let us wait for events ({no}); trying again"
            self._rest()
            return
        before = len(self._lost)
        self._find_lost()
        if len(self._lost) == before:
            # It does not say which one: never ask again at once.
            self._rest()

    def _find_lost(self) -> None:
        """Note, once each, the devices that do not answer any more."""
        for uuid, handle in dict(self._handles).items():
            try:
                self._nvml.nvmlDeviceGetUUID(handle)
                self._nvml.nvmlDeviceGetMemoryInfo(handle)
            except self._nvml.NVMLError as no:
                if no.value == GPU_IS_LOST:
                    self._note_lost(uuid)

    def _note_lost(self, uuid: str) -> None:
        if uuid not in self._lost:
            self._lost.add(uuid)
            self._keep(DeviceEvent(uuid, None, None, None, self._clock_ns(), LOST))

    def _register(self) -> bool:
        """Make a set of all devices that have events; says whether there is one."""
        nvml = self._nvml
        try:
            fresh = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as no:
            self._trouble = f"the driver gives no events ({no})"
            return False
        names: dict[Any, str] = {}
        self._silent = {}
        self._registered_ns = self._clock_ns()
        self._listed = dict(self._handles)
        for uuid, handle in self._listed.items():
            try:
                mask = self._mask() & nvml.nvmlDeviceGetSupportedEventTypes(handle)
                if mask:
                    nvml.nvmlDeviceRegisterEvents(handle, mask, fresh)
                    names[_name(handle)] = uuid
                    self._lost.discard(uuid)
                else:
                    self._silent[uuid] = "it has none"
            except nvml.NVMLError as no:
                if no.value == GPU_IS_LOST:
                    self._note_lost(uuid)
                else:
                    self._silent[uuid] = str(no)
        if not names:
            self._free(fresh)
            why = "; ".join(f"{uuid}: {said}" for uuid, said in self._silent.items())
            self._trouble = f"no device gives events ({why or 'none answers'})"
            return False
        self._set, self._names, self._trouble = fresh, names, ""
        return True

    def _is_listed_anew(self) -> bool:
        """Say whether handles were exchanged: a reset ends what was registered on the old ones."""
        now = dict(self._handles)
        return self._set is not None and (
            len(now) != len(self._listed) or any(now.get(u) is not h for u, h in self._listed.items())
        )

    def _mask(self) -> int:
        nvml = self._nvml
        return int(
            nvml.nvmlEventTypeXidCriticalError
            | nvml.nvmlEventTypeDoubleBitEccError
            | nvml.nvmlEventTypeSingleBitEccError
        )

    def _heard(self, data: Any) -> None:
        uuid = self._names.get(_name(data.device)) or self._ask_name(data.device)
        if uuid is None:
            log.warning("an event of a device that is not listed was dropped: %s", data)
            return
        nvml, kind = self._nvml, int(data.eventType)
        gi, ci = _instance(data.gpuInstanceId), _instance(data.computeInstanceId)
        if gi == 0 and not self._is_sliced(uuid):
            gi = ci = None  # drivers name instance 0 on devices that have none: the whole device is meant
        if kind & nvml.nvmlEventTypeXidCriticalError:
            event = DeviceEvent(uuid, int(data.eventData), gi, ci, self._clock_ns())
            self._keep(event if gi is None else replace(event, start=self._start_of(uuid, gi)))
        elif kind & nvml.nvmlEventTypeDoubleBitEccError:
            self._keep(DeviceEvent(uuid, None, gi, ci, self._clock_ns(), ECC_UNCORRECTED))
        elif kind & nvml.nvmlEventTypeSingleBitEccError:
            self._keep(DeviceEvent(uuid, None, gi, ci, self._clock_ns(), ECC_CORRECTED))

    def _is_sliced(self, uuid: str) -> bool:
        """Say whether a device's MIG mode is on; where it cannot be told now, its events stay as they came."""
        handle = self._handles.get(uuid)
        try:
            return handle is None or bool(self._nvml.nvmlDeviceGetMigMode(handle)[0])
        except AttributeError:  # a binding so old that it lacks the call
            return False
        except self._nvml.NVMLError as no:
            return int(getattr(no, "value", 0)) not in (NOT_SUPPORTED, FUNCTION_NOT_FOUND)

    def _start_of(self, uuid: str, gi_id: int) -> int | None:
        """Return where an instance of a device begins, None where the device does not tell."""
        nvml, handle = self._nvml, self._handles.get(uuid)
        if handle is None:
            return None
        try:
            found = nvml.nvmlDeviceGetGpuInstanceById(handle, gi_id)
            return int(nvml.nvmlGpuInstanceGetInfo(found).placement.start)
        except (nvml.NVMLError, AttributeError):  # a binding so old that it lacks the call
            return None

    def _ask_name(self, handle: Any) -> str | None:
        try:
            name = self._nvml.nvmlDeviceGetUUID(handle)
        except self._nvml.NVMLError:
            return None
        uuid = name.decode() if isinstance(name, bytes) else str(name)
        return uuid if uuid in self._handles else None

    def _keep(self, event: DeviceEvent) -> None:
        """Queue an event; the same one again is counted, and of too many kinds the oldest goes."""
        key = (event.device, event.kind, event.xid, event.gi_id, event.start)
        with self._lock:
            earlier = self._queue.pop(key, None)
            self._queue[key] = event if earlier is None else replace(event, count=earlier.count + 1)
            if len(self._queue) > self._most_kinds:
                oldest = self._queue.pop(next(iter(self._queue)))
                self._dropped += oldest.count

    def _rest(self) -> None:
        self._rest_s = min(MOST_REST_S, self._rest_s * 2 or FIRST_REST_S)
        self._sleep(self._rest_s)

    def _sleep(self, seconds: float | None) -> None:
        if not self._stop.is_set():
            self._wake.wait(seconds)
        self._wake.clear()

    def _let_go(self) -> None:
        if self._set is not None:
            self._free(self._set)
        self._set, self._names = None, {}

    def _free(self, chosen: Any) -> None:
        try:
            self._nvml.nvmlEventSetFree(chosen)
        except self._nvml.NVMLError as no:
            log.warning("an event set could not be given back: %s", no)


def _instance(number: int) -> int | None:
    return None if number == WHOLE else int(number)


def _name(handle: Any) -> Any:
    """Return what tells handles apart: two pointers to one device are different objects in Python."""
    try:
        return ctypes.cast(handle, ctypes.c_void_p).value
    except (ctypes.ArgumentError, TypeError):
        return handle
