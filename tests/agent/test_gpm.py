from __future__ import annotations

import pytest

from nodeagent.drivers.nvml.library.figures import Activity, LostError
from nodeagent.drivers.nvml.telemetry.gpm import APART_NS, Gpm
from tests.agent.devices import Device, Devices

BUSY = (62.5, 50.0, 25.0, 12.5)


@pytest.fixture
def device() -> Device:
    return Device("GPU-1", has_gpm=True, gpm={None: BUSY, 3: BUSY, 4: (0.0, 0.0, 0.0, 0.0)})


def test_one_sample_alone_says_nothing_and_the_second_does(device):
    gpm = Gpm(Devices(device))

    assert gpm.read("GPU-1", device, 3, 0) is None
    assert gpm.read("GPU-1", device, 3, APART_NS) == Activity(*BUSY)
    assert gpm.read("GPU-1", device, 4, APART_NS) is None


def test_samples_closer_than_a_tenth_of_a_second_are_not_compared(device):
    library = Devices(device)
    gpm = Gpm(library)
    gpm.read("GPU-1", device, None, 0)
    gpm.read("GPU-1", device, None, APART_NS)
    asked = library.calls["nvmlGpmSampleGet"]

    assert gpm.read("GPU-1", device, None, APART_NS + 1) == Activity(*BUSY)
    assert library.calls["nvmlGpmSampleGet"] == asked


def test_two_buffers_take_turns_and_are_given_back(device):
    library = Devices(device)
    gpm = Gpm(library)

    for turn in range(10):
        gpm.read("GPU-1", device, 3, turn * APART_NS)

    assert library.calls["nvmlGpmSampleAlloc"] == 2
    gpm.close()
    assert library.buffers == set()


def test_instance_that_is_gone_leaves_no_buffer_behind(device):
    library = Devices(device)
    gpm = Gpm(library)
    for turn in range(3):
        gpm.read("GPU-1", device, 3, turn * APART_NS)
        gpm.read("GPU-1", device, 4, turn * APART_NS)

    del device.gpm[3]

    assert gpm.read("GPU-1", device, 3, 9 * APART_NS) is None
    assert len(library.buffers) == 2
    gpm.keep(())
    assert library.buffers == set()


def test_next_tenant_of_a_place_is_not_compared_with_the_last_one(device):
    gpm = Gpm(Devices(device))
    gpm.read("GPU-1", device, 3, 0)

    gpm.forget("GPU-1", 3)

    assert gpm.read("GPU-1", device, 3, APART_NS) is None


def test_new_handle_after_a_reset_starts_afresh(device):
    again = Device("GPU-1", has_gpm=True, gpm={3: BUSY})
    library = Devices(device, again)
    gpm = Gpm(library)
    gpm.read("GPU-1", device, 3, 0)

    assert gpm.read("GPU-1", again, 3, APART_NS) is None
    assert len(library.buffers) == 1


def test_lost_device_says_so_and_leaves_no_buffer_behind(device):
    library = Devices(device)
    gpm = Gpm(library)
    gpm.read("GPU-1", device, 3, 0)
    gpm.read("GPU-1", device, 3, APART_NS)

    device.is_lost = True
    with pytest.raises(LostError):
        gpm.read("GPU-1", device, 3, 3 * APART_NS)
    gpm.forget("GPU-1")

    assert library.buffers == set()


def test_support_is_asked_of_the_device_once(device):
    old = Device("GPU-2")
    library = Devices(device, old)
    gpm = Gpm(library)

    assert [gpm.is_supported("GPU-1", device) for _ in range(3)] == [True] * 3
    assert not gpm.is_supported("GPU-2", old)
    assert library.calls["nvmlGpmQueryDeviceSupport"] == 2


def test_metric_that_was_not_computed_is_unknown(device):
    device.gpm[3] = (float("nan"), -1.0, 25.0, 12.5)
    gpm = Gpm(Devices(device))
    gpm.read("GPU-1", device, 3, 0)

    assert gpm.read("GPU-1", device, 3, APART_NS) == Activity(None, None, 25.0, 12.5)


def test_a_little_more_than_all_is_all(device):
    device.gpm[3] = (100.2, 100.0, 99.9, 0.0)
    gpm = Gpm(Devices(device))
    gpm.read("GPU-1", device, 3, 0)

    assert gpm.read("GPU-1", device, 3, APART_NS) == Activity(100.0, 100.0, 99.9, 0.0)
