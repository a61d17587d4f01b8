"""MIG through the driver of real devices, on a simulated host that answers as NVML does."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nodeagent.drivers import errors
from nodeagent.drivers.base import PartitionShape
from nodeagent.simulation.nvml import SimulatedNvml
from tests.agent.device_bench import Bench, Crash, refused

CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"
CREATE_CI = "nvmlGpuInstanceCreateComputeInstance"
DESTROY_CI = "nvmlComputeInstanceDestroy"
DESTROY = "nvmlGpuInstanceDestroy"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


# Made and listed


def test_a_slice_stands_exactly_where_it_was_asked_for(bench):
    device = bench.switch_on()

    made = bench.slice("3g.40gb", 4)

    assert (made.device, made.profile, made.start, made.size) == (device, "3g.40gb", 4, 4)
    assert made.uuid.startswith("MIG-")
    assert bench.agent().observe(device) == [made]


def test_a_slice_is_reached_by_its_two_capability_nodes_and_not_by_those_that_manage(bench):
    bench.switch_on()
    made = bench.slice("1g.10gb", 2)
    instance = next(iter(bench.host.devices[0].gpu.instances.values()))
    minors = dict(
        line.split() for line in bench.host.read("/proc/driver/nvidia-caps/mig-minors").splitlines()
    )

    access = bench.driver.access(made.uuid)

    gi, ci = minors[f"gpu0/gi{instance.id}/access"], minors[f"gpu0/gi{instance.id}/ci0/access"]
    assert access.env == {"CUDA_VISIBLE_DEVICES": made.uuid}
    assert access.nodes == (
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia0",
        f"/dev/nvidia-caps/nvidia-cap{gi}",
        f"/dev/nvidia-caps/nvidia-cap{ci}",
    )
    assert not {"1", "2"} & {gi, ci}


def test_seven_small_slices_fill_a_device_and_an_eighth_is_refused(bench):
    bench.switch_on()
    made = {bench.slice("1g.10gb", start).uuid for start in range(7)}

    assert len(made) == 7
    with refused(errors.INSUFFICIENT_RESOURCES, "making 2g.20gb at 4"):
        bench.slice("2g.20gb", 4)
    assert len(bench.places()) == 7


@pytest.mark.parametrize("start", [1, 3, 7, 63])
def test_a_place_that_the_size_does_not_have_is_refused_before_anything_is_touched(bench, start):
    bench.switch_on()

    with refused(errors.INVALID_ARGUMENT, "it can at 0, 4"):
        bench.slice("3g.40gb", start)

    assert bench.changes == []


def test_a_size_that_the_device_does_not_have_is_refused_with_those_it_has(bench):
    bench.switch_on()

    with refused(errors.INVALID_ARGUMENT, "it has 1g.10gb"):
        bench.slice("1g.5gb", 0)

    assert bench.changes == []


def test_slices_need_mig_on_and_whole_devices_need_it_off(bench):
    with refused(errors.NOT_SUPPORTED, "MIG is off"):
        bench.slice("1g.10gb", 0)
    device = bench.switch_on()
    with refused(errors.NOT_SUPPORTED, "MIG is on"):
        bench.driver.create(device, PartitionShape("exclusive"), 0, "a.1.0")


def test_what_others_made_is_listed_alike(bench):
    device = bench.switch_on()
    bench.host.add_foreign(0, "2g.20gb", 2)
    half = bench.host.add_foreign(0, "1g.10gb", 6, is_half=True)

    whole, halved = bench.driver.observe(device)

    assert (whole.profile, whole.start, whole.size, whole.lease) == ("2g.20gb", 2, 2, "")
    assert (halved.uuid, halved.profile, halved.start) == (f"{device}/gi{half.id}", "1g.10gb", 6)


def test_a_part_of_an_instance_is_never_taken_for_the_whole_of_it(bench):
    device = bench.switch_on()
    instance = bench.host.add_foreign(0, "3g.40gb", 0, is_half=True)
    library = SimulatedNvml(bench.host)
    library.nvmlInit()
    gi = library.nvmlDeviceGetGpuInstanceById(library.nvmlDeviceGetHandleByIndex(0), instance.id)
    one = library.nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, 0, 0)
    library.nvmlGpuInstanceCreateComputeInstance(gi, one.id)
    library.nvmlGpuInstanceCreateComputeInstance(gi, one.id)

    facts = bench.driver.observe(device)

    assert [(fact.profile, fact.start, fact.size) for fact in facts] == [("part-of-3g.40gb", 0, 4)] * 2
    with refused(errors.IN_USE, "is on the same GPU instance"):
        bench.driver.destroy(facts[0].uuid)
    assert len(bench.driver.observe(device)) == 2


# Half made, removed


def test_a_refused_compute_instance_leaves_a_half_made_slice_and_says_so(bench):
    device = bench.switch_on()
    bench.host.faults.refusals[CREATE_CI] = deque([errors.INSUFFICIENT_RESOURCES])

    with refused(errors.INSUFFICIENT_RESOURCES, "a GPU instance at 4 was made and is left"):
        bench.slice("3g.40gb", 4)

    (half,) = bench.driver.observe(device)
    assert half.uuid.startswith(f"{device}/gi")
    bench.driver.destroy(half.uuid)
    assert bench.slice("3g.40gb", 4).start == 4


def test_a_half_made_slice_cannot_be_handed_out(bench):
    device = bench.switch_on()
    half = bench.host.add_foreign(0, "1g.10gb", 0, is_half=True)

    with refused(errors.NOT_FOUND):
        bench.driver.access(f"{device}/gi{half.id}")
    assert bench.driver.processes(f"{device}/gi{half.id}") == []


def test_removing_twice_and_removing_what_never_was_succeed(bench):
    bench.switch_on()
    made = bench.slice("2g.20gb", 0)

    bench.driver.destroy(made.uuid)
    bench.driver.destroy(made.uuid)
    bench.driver.destroy("MIG-00000000-0000-5000-8000-000000000000")
    bench.driver.set_mig_mode(bench.device, False)
    bench.driver.destroy(made.uuid)

    assert bench.places() == []


@pytest.mark.parametrize("code", [errors.NOT_FOUND, errors.NOT_SUPPORTED])
def test_an_instance_that_vanishes_while_it_is_removed_is_gone(bench, code):
    bench.switch_on()
    made = bench.slice("2g.20gb", 0)
    bench.driver.observe(bench.device)
    bench.host.remove_foreign(0, 0)
    bench.host.add_foreign(0, "2g.20gb", 0)  # the same place, made anew by somebody else: same UUID
    for call in (DESTROY_CI, DESTROY):
        bench.host.faults.refusals[call] = deque([code])

    with refused(errors.IN_USE, "still listed"):
        bench.driver.destroy(made.uuid)
    bench.host.remove_foreign(0, 0)
    bench.driver.destroy(made.uuid)

    assert bench.places() == []


def test_a_slice_with_a_process_stays(bench):
    bench.switch_on()
    made = bench.slice("2g.20gb", 0)
    instance = next(iter(bench.host.devices[0].gpu.instances))
    process = bench.run(gi=instance)

    with refused(errors.IN_USE, str(process.pid)):
        bench.driver.destroy(made.uuid)

    assert [fact.uuid for fact in bench.driver.observe(bench.device)] == [made.uuid]
    bench.host.world.signal(process.pid, kill=True)
    bench.driver.destroy(made.uuid)
    assert bench.places() == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", [CREATE, CREATE_CI, DESTROY_CI, DESTROY])
def test_a_crash_at_any_change_ends_in_the_same_state_after_the_next_try(bench, call, when):
    device = bench.switch_on()
    neighbour = bench.slice("3g.40gb", 4)

    def make() -> str:
        driver = bench.agent()
        found = next((fact for fact in driver.observe(device) if fact.start == 0), None)
        if found is not None and found.uuid.startswith(f"{device}/gi"):
            driver.destroy(found.uuid)
            found = None
        return (found or driver.create(device, PartitionShape("mig", "2g.20gb"), 0, "b.1.0")).uuid

    def clear() -> None:
        driver = bench.agent()
        for fact in driver.observe(device):
            if fact.start == 0:
                driver.destroy(fact.uuid)

    bench.crash_at = f"{call}.{when}"
    for _ in range(2):
        try:
            made = make()
            assert sorted(bench.places()) == [("2g.20gb", 0, 2), ("3g.40gb", 4, 4)]
            clear()
        except Crash:
            continue
    made = make()

    assert made != neighbour.uuid
    assert sorted(bench.places()) == [("2g.20gb", 0, 2), ("3g.40gb", 4, 4)]
    assert not bench.crash_at


# The mode


def test_the_mode_changes_on_an_empty_device_and_is_told_at_once(bench):
    assert bench.driver.inventory()[0].mig_enabled is False

    assert bench.driver.set_mig_mode(bench.device, True) == 0

    assert bench.driver.inventory()[0].mig_enabled is True
    assert bench.driver.set_mig_mode(bench.device, True) == 0


def test_the_mode_stays_while_anything_is_on_the_device(bench):
    process = bench.run()
    with refused(errors.IN_USE, str(process.pid)):
        bench.driver.set_mig_mode(bench.device, True)
    bench.host.world.signal(process.pid, kill=True)
    bench.driver.create(bench.device, PartitionShape("exclusive"), 0, "a.1.0")
    with refused(errors.IN_USE, "a.1.0 holds exclusive"):
        bench.driver.set_mig_mode(bench.device, True)
    bench.driver.destroy(bench.device)
    bench.switch_on()
    half = bench.host.add_foreign(0, "1g.10gb", 0, is_half=True)
    with refused(errors.IN_USE, f"/gi{half.id} stands on it"):
        bench.driver.set_mig_mode(bench.device, False)

    assert bench.changes == []
    assert bench.driver.inventory()[0].mig_enabled is True


def test_a_monitor_keeps_an_ampere_device_in_its_mode_and_nothing_stays_pending(tmp_path):
    bench = Bench(tmp_path, "a100-40gb")
    bench.host.hold_open(0)

    with refused(errors.IN_USE, "stop monitors"):
        bench.driver.set_mig_mode(bench.device, True)

    assert bench.host.devices[0].gpu.mig_mode() == (False, False)
    bench.host.release(0)
    assert bench.driver.set_mig_mode(bench.device, True) == 0


def test_our_own_event_thread_does_not_keep_an_ampere_device_busy(tmp_path, monkeypatch):
    wait = SimulatedNvml.nvmlEventSetWait_v2
    monkeypatch.setattr(SimulatedNvml, "nvmlEventSetWait_v2", lambda lib, chosen, ms: wait(lib, chosen, 10))
    bench = Bench(tmp_path, "a100-40gb")
    driver = bench.agent(listens=True)
    try:
        assert driver.set_mig_mode(bench.device, True) == 0
        assert bench.host.devices[0].gpu.mig_enabled
    finally:
        driver.close()


def test_a_passed_through_ampere_device_says_that_it_waits_for_a_reset(tmp_path):
    bench = Bench(tmp_path, "a100-40gb")
    bench.host.devices[0].gpu.is_passthrough = True

    with refused(errors.RESET_REQUIRED, "in a VM: when that is rebooted"):
        bench.driver.set_mig_mode(bench.device, True)

    assert bench.host.devices[0].gpu.mig_mode() == (False, True)


# Asked of one device


def test_mode_of_one_device_is_read_without_touching_its_neighbour(tmp_path):
    bench = Bench(tmp_path, "h100-80gb", "h100-80gb")
    first, second = (device.uuid for device in bench.host.devices)
    bench.driver.set_mig_mode(first, True)
    bench.host.lose(second)

    assert bench.driver.mig_mode(first) is True

    bench.driver.set_mig_mode(first, False)

    assert bench.driver.mig_mode(first) is False


def test_device_without_mig_or_one_that_is_lost_tells_no_mode(tmp_path):
    bench = Bench(tmp_path, "l40s", "h100-80gb")
    plain, lost = (device.uuid for device in bench.host.devices)
    bench.host.lose(lost)

    assert [bench.driver.mig_mode(uuid) for uuid in (plain, lost, "GPU-nowhere")] == [None, None, None]


# Boards side by side


@pytest.mark.parametrize(
    "boards",
    [("a30-24gb", "a100-40gb"), ("rtx-pro-6000-blackwell-96gb", "h100-80gb")],
    ids=["ampere", "blackwell-hopper"],
)
@pytest.mark.parametrize("is_turned", [False, True], ids=["as-listed", "turned"])
def test_boards_whose_numbers_mean_other_sizes_are_cut_beside_each_other(tmp_path, boards, is_turned):
    bench = Bench(tmp_path, *(reversed(boards) if is_turned else boards))
    driver, devices = bench.driver, [device.uuid for device in bench.host.devices]
    sizes = {fact.uuid: fact.profiles for fact in driver.inventory()}
    shared = [{one.profile_id: one.slices for one in sizes[uuid]} for uuid in devices]
    assert any(shared[1].get(number, slices) != slices for number, slices in shared[0].items())
    for uuid in devices:
        driver.set_mig_mode(uuid, True)

    for uuid in devices:
        for size in sizes[uuid]:
            made = driver.create(uuid, PartitionShape("mig", size.name), size.starts[0], "a.1.0")

            assert (made.profile, made.size) == (size.name, size.slices)
            assert driver.observe(uuid) == [made]
            driver.destroy(made.uuid)
            assert driver.observe(uuid) == []


def test_two_devices_change_their_mode_side_by_side_and_a_third_is_measured_meanwhile(tmp_path, monkeypatch):
    bench = Bench(tmp_path, "h100-80gb", "h100-80gb", "h100-80gb")
    driver = bench.agent(listens=True)
    first, second, third = [device.uuid for device in bench.host.devices]
    both, measured, switch = threading.Barrier(3), threading.Event(), driver._mig.switch

    def slowly(handle: object, enabled: bool) -> None:
        both.wait(60)
        assert measured.wait(60)
        switch(handle, enabled)

    monkeypatch.setattr(driver._mig, "switch", slowly)
    try:
        with ThreadPoolExecutor(2) as threads:
            changes = [threads.submit(driver.set_mig_mode, uuid, True) for uuid in (first, second)]
            both.wait(60)
            seen = {sample.device: sample.memory_used_mib for sample in driver.metrics().devices}
            measured.set()
            done = [change.result(10) for change in changes]
        after = {sample.device: sample.memory_used_mib for sample in driver.metrics().devices}
    finally:
        driver.close()

    assert done == [0, 0]
    assert (seen[first], seen[second]) == (None, None)
    assert seen[third] is not None
    assert None not in after.values()
