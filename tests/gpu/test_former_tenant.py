"""Whether a program finds in a device's memory what the one before it left there.

The first fills all memory there is with one word and ends; the next takes all there is and writes nothing. Real
devices only tell it; the simulated ones prove that the test sees a driver that clears nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from nodeagent.drivers.base import PartitionShape
from tests.gpu.devices import Device, simulated
from tests.gpu.holders import Holder, NoHolderError
from tests.gpu.test_reading import processes
from tests.gpu.test_writing import slice_up

# What the next program does not get, its own context and pieces that are too small aside.
MOST_UNSEEN = 0.1
LOOKS, PAUSE_S = 50, 0.1


def traces(
    device: Device,
    former: Callable[[], AbstractContextManager[Holder]],
    new: Callable[[], AbstractContextManager[Holder]],
    between: Callable[[], None] = lambda: None,
) -> int:
    """Return how many words of a former program a new one finds; skips where none can be started."""
    word = secrets.randbits(32) | 0x01010101  # no byte of it is zero
    try:
        with former() as holder:
            filled_mib, words = holder.fill(word)
        for _ in range(LOOKS):
            if not device.driver.processes(device.uuid):
                break
            device.wait(PAUSE_S)
        between()
        with new() as holder:
            seen_mib, found = holder.find(word)
    except NoHolderError as no:
        pytest.skip(str(no))
    device.notes[f"former tenant in {device.mig_modes}: MiB filled, MiB seen, words filled, words found"] = [
        filled_mib, seen_mib, words, found,
    ]  # fmt: skip
    assert filled_mib > 0
    assert seen_mib >= filled_mib * (1 - MOST_UNSEEN), "too little was looked at to say anything"
    return found


def test_nothing_of_a_former_program_is_found_on_a_whole_device(device: Device) -> None:
    if processes(device) or device.is_sliced:
        pytest.skip("the device is in use; all of its memory is needed")

    assert traces(device, lambda: device.hold(""), lambda: device.hold("")) == 0


def test_nothing_of_a_former_lease_is_found_in_a_slice_at_the_same_place(writable: Device) -> None:
    slice_up(writable)
    profile = writable.fact.profiles[0]
    shape, start = PartitionShape("mig", profile.name), profile.starts[0]
    made = [writable.driver.create(writable.uuid, shape, start, "contract.1.0")]

    def another() -> None:
        writable.driver.destroy(made.pop().uuid)
        made.append(writable.driver.create(writable.uuid, shape, start, "contract.2.0"))

    def held() -> AbstractContextManager[Holder]:
        return writable.hold_slice(made[0].uuid)

    assert traces(writable, held, held, another) == 0
    writable.driver.destroy(made[0].uuid)


def test_a_driver_that_clears_nothing_is_seen(short_path: Path) -> None:
    device = simulated(short_path, leaves_memory=True)

    assert traces(device, lambda: device.hold(""), lambda: device.hold("")) > 0
