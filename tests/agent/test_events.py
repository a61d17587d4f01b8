from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from nodeagent.drivers.nvml.health import events
from nodeagent.drivers.nvml.health.events import DeviceEvent, EventWatch
from tests.agent import devices
from tests.agent.builder import FakeTime
from tests.agent.devices import WHOLE, Device, Devices, code


class Ear:
    """A watch whose turns a test takes itself; resting is counted, never slept."""

    def __init__(self, *devices: Device, **options: Any) -> None:
        self.library, self.time = Devices(*devices), FakeTime()
        self.watch = EventWatch(
            self.library, self.library.handles(), clock_ns=self.time, wait_ms=0, **options
        )
        self.watch._wanted.set()
        self.rests: list[float | None] = []
        self.watch._sleep = self.rests.append  # type: ignore[method-assign]

    def hear(self, turns: int = 1) -> list[DeviceEvent]:
        for _ in range(turns):
            self.watch.turn()
        return self.watch.drain()


def test_xid_is_heard_with_its_instance():
    device = Device("GPU-1")
    ear = Ear(device)
    ear.library.xid(device, 31, gi=3)
    ear.library.xid(device, 79)

    slice_fault, device_fault = ear.hear(2)

    assert slice_fault == DeviceEvent("GPU-1", 31, 3, None, ear.time.now)
    assert (device_fault.xid, device_fault.gi_id) == (79, None)
    assert ear.watch.drain() == []


def test_xid_is_heard_with_the_place_that_its_instance_has_at_that_moment():
    device = Device("GPU-1", starts={3: 4})
    ear = Ear(device)
    for start in (4, 4, 0):  # then its number was given to an instance elsewhere
        device.starts[3] = start
        ear.library.xid(device, 31, gi=3)
        ear.watch.turn()

    found = ear.watch.drain()

    assert [(event.gi_id, event.start, event.count) for event in found] == [(3, 4, 2), (3, 0, 1)]


@pytest.mark.parametrize("trouble", ["gone", "old driver"])
def test_place_of_an_instance_that_nobody_tells_is_unknown(trouble):
    device = Device("GPU-1", starts={} if trouble == "gone" else {3: 4})
    ear = Ear(device)
    ear.library.missing.update({"nvmlDeviceGetGpuInstanceById"} if trouble == "old driver" else ())
    ear.library.xid(device, 31, gi=3)

    (event,) = ear.hear()

    assert (event.gi_id, event.start) == (3, None)


@pytest.mark.parametrize(("mode", "gi"), [((0, 0), None), ((0, 1), None), (None, None), ((1, 1), 0)])
def test_instance_0_is_the_whole_device_where_the_device_has_no_instances(monkeypatch, mode, gi):
    device = Device("GPU-1")
    ear = Ear(device)
    monkeypatch.setitem(devices._ANSWERS, "nvmlDeviceGetMigMode", lambda *_: mode)
    ear.library.xid(device, 31, gi=0)

    (event,) = ear.hear()

    assert (event.gi_id, event.start) == (gi, None)


def test_memory_errors_are_told_apart_from_xids():
    device = Device("GPU-1")
    ear = Ear(device)
    for kind in (pynvml.nvmlEventTypeDoubleBitEccError, pynvml.nvmlEventTypeSingleBitEccError):
        ear.library.waiting.append(
            SimpleNamespace(
                device=device, eventType=kind, eventData=0, gpuInstanceId=WHOLE, computeInstanceId=WHOLE
            )
        )

    assert [(e.kind, e.xid) for e in ear.hear(2)] == [("ecc_uncorrected", None), ("ecc_corrected", None)]


def test_quiet_is_no_error_and_needs_no_rest():
    ear = Ear(Device("GPU-1"))

    assert ear.hear(5) == []
    assert ear.rests == []
    assert ear.watch.trouble == ""
    assert ear.library.calls["nvmlEventSetCreate"] == 1


def test_device_is_asked_only_for_events_that_it_has():
    few, none = Device("GPU-1", events=pynvml.nvmlEventTypeXidCriticalError), Device("GPU-2", events=0)
    ear = Ear(few, none)

    ear.hear()

    assert ear.library.sets == [{few}]
    assert (ear.watch.trouble, ear.watch.silent) == ("", {"GPU-2": "it has none"})


def test_pointers_to_one_device_are_the_same_device():
    memory = ctypes.c_int(7)
    first, second = ctypes.pointer(memory), ctypes.pointer(memory)

    assert first is not second
    assert events._name(first) == events._name(second)


def test_storm_is_counted_and_the_newest_is_kept():
    device = Device("GPU-1")
    ear = Ear(device)
    for _ in range(10_000):
        ear.library.xid(device, 31, gi=3)
    ear.library.xid(device, 79)

    storm, fall = ear.hear(10_001)

    assert (storm.xid, storm.count, fall.xid) == (31, 10_000, 79)


def test_storm_of_many_kinds_stays_within_bounds():
    device = Device("GPU-1")
    ear = Ear(device, most_kinds=10)
    for number in range(100):
        ear.library.xid(device, number)

    kept = ear.hear(100)

    assert [event.xid for event in kept] == list(range(90, 100))
    assert ear.watch.dropped == 90


def test_lost_device_is_noted_once_and_the_others_are_still_heard():
    lost, well = Device("GPU-1"), Device("GPU-2")
    ear = Ear(lost, well)
    ear.hear()
    lost.is_lost = True

    first = ear.hear(5)
    ear.library.xid(well, 13)
    second = ear.hear()

    assert [(e.device, e.kind) for e in first] == [("GPU-1", "lost")]
    assert [(e.device, e.xid) for e in second] == [("GPU-2", 13)]
    assert ear.library.sets == [{well}]


def test_host_whose_only_device_is_lost_is_not_asked_in_a_hurry():
    device = Device("GPU-1")
    ear = Ear(device)
    ear.hear()
    device.is_lost = True

    ear.hear(10)

    assert [rest for rest in ear.rests if rest] == sorted(rest for rest in ear.rests if rest)
    assert ear.rests[-1] == events.MOST_REST_S
    assert "no device gives events" in ear.watch.trouble


def test_device_that_came_back_is_heard_again():
    device = Device("GPU-1")
    ear = Ear(device)
    ear.hear()
    device.is_lost = True
    ear.hear(3)

    device.is_lost = False
    ear.library.xid(device, 45)

    assert [e.xid for e in ear.hear(2)] == [45]
    assert ear.watch.trouble == ""


def test_device_that_came_back_beside_others_is_heard_again_within_a_minute():
    lost, well = Device("GPU-1"), Device("GPU-2")
    ear = Ear(lost, well)
    ear.hear()
    lost.is_lost = True
    ear.hear(3)
    lost.is_lost = False

    ear.hear(3)
    early = [set(one) for one in ear.library.sets]
    ear.time.advance(61)
    ear.hear(3)

    assert (early, ear.library.sets) == ([{well}], [{lost, well}])


def test_devices_listed_anew_after_a_reset_are_heard():
    device, fresh = Device("GPU-1"), Device("GPU-1")
    ear = Ear(device, fresh)
    handles = {"GPU-1": device}
    ear.watch._handles = handles
    ear.hear()

    ear.hear(3)
    sets = ear.library.calls["nvmlEventSetCreate"]
    handles["GPU-1"] = fresh
    ear.hear()

    assert (sets, ear.library.sets) == (1, [{fresh}])


def test_driver_without_events_says_so():
    ear = Ear(Device("GPU-1"))
    ear.library.missing.add("nvmlEventSetCreate")

    ear.hear(3)

    assert "gives no events" in ear.watch.trouble
    assert ear.rests == [1.0, 2.0, 4.0]


def test_unknown_refusal_of_waiting_takes_a_rest_and_starts_afresh():
    device = Device("GPU-1")
    ear = Ear(device)
    ear.library.waiting.append(code(999))

    ear.hear()
    told = ear.watch.trouble
    ear.hear(2)

    assert "trying again" in told
    assert (ear.rests, ear.watch.trouble) == ([1.0], "")
    assert len(ear.library.sets) == 1


@pytest.fixture
def device() -> Device:
    return Device("GPU-1")


@pytest.fixture
def library(device):
    return Devices(device)


@pytest.fixture
def watch(library):
    watch = EventWatch(library, library.handles(), clock_ns=FakeTime(), wait_ms=5)
    yield watch
    library.woken.set()
    watch.close()
    assert not watch._thread or not watch._thread.is_alive()


def test_thread_hears_and_lets_go_of_all_devices_while_paused(device, library, watch):
    heard = threading.Event()
    keep = watch._keep
    watch._keep = lambda event: (keep(event), heard.set())
    watch.start()
    watch.start()
    library.xid(device, 94)
    assert heard.wait(30)

    watch.pause()
    assert library.sets == []
    assert watch.trouble == ""
    heard.clear()
    watch.resume()
    library.xid(device, 95)

    assert heard.wait(30)
    assert [event.xid for event in watch.drain()] == [94, 95]


def test_pause_lasts_until_everybody_who_asked_for_it_is_through(device, library, watch):
    watch.start()
    with watch.paused():
        with watch.paused():
            inside = list(library.sets)
        between = list(library.sets)
        assert not watch._wanted.is_set()

    assert (inside, between) == ([], [])
    assert watch._wanted.is_set()


def test_pause_that_lasts_longer_than_a_change_of_mode_is_a_trouble_until_it_is_over():
    now = [100.0]
    ear = Ear(Device("GPU-1"), clock_s=lambda: now[0])
    ear.watch.pause()
    now[0] += 9
    soon = ear.watch.trouble
    now[0] += 1
    late = ear.watch.trouble

    ear.watch.resume()
    over = ear.watch.trouble
    with ear.watch.paused():
        again = ear.watch.trouble

    assert (soon, over, again) == ("", "", "")
    assert "no device may be listened to" in late


def test_thread_that_died_is_a_trouble_that_can_be_told(library, watch):
    def broken(chosen: object, ms: int) -> None:
        raise RuntimeError("no memory")

    library.wait = broken
    watch._nvml = SimpleNamespace(NVMLError=pynvml.NVMLError, nvmlEventSetCreate=lambda: broken(None, 0))

    watch.start()
    assert watch._thread is not None
    watch._thread.join(30)

    assert watch.trouble == "listening to events failed: RuntimeError: no memory"
    watch.pause()
    assert not watch._thread.is_alive()


def test_events_not_fetched_survive_the_end_of_the_thread(device, library, watch):
    heard = threading.Event()
    keep = watch._keep
    watch._keep = lambda event: (keep(event), heard.set())
    watch.start()
    library.xid(device, 48)
    assert heard.wait(30)

    watch.close()

    assert [event.xid for event in watch.drain()] == [48]
    assert library.sets == []
