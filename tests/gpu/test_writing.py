"""What the agent relies on when it changes a device; every test leaves the device as it was (see conftest)."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from nodeagent.drivers import errors
from nodeagent.drivers.base import PartitionShape, Tenant
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.drivers.nvml.shares.memory import MOST_ROUNDING, NO_LIMIT
from tests.gpu.devices import USER, Device, simulated
from tests.gpu.guard import NotAllowedError, require_writable
from tests.gpu.holders import OUT_OF_MEMORY, NoHolderError
from tests.gpu.told import skip_if_it_may_not

MIB = 1024 * 1024
LIMIT_MIB = 2048
# Beside the program's own context there is room for the first, and never for the second.
WITHIN_MIB, BEYOND_MIB = 256, 4096
# A monitor holds the device open; the device is in a virtual machine that must be rebooted for it.
NOT_NOW = frozenset({errors.IN_USE, errors.RESET_REQUIRED})


def needs(device: Device, mode: str) -> None:
    """Skip where this host cannot offer a mode, with its own sentence."""
    fact = device.fact
    if mode not in fact.modes:
        pytest.skip(fact.refusals[mode])


def slice_up(device: Device) -> None:
    """Switch MIG on, or skip where that cannot be now."""
    needs(device, "mig")
    try:
        assert device.driver.set_mig_mode(device.uuid, True) == 0
    except NvmlLikeError as no:
        skip_if_it_may_not(no, beside=NOT_NOW)
        raise


def test_slices_are_made_at_exact_places_found_by_the_next_agent_and_removed(writable: Device) -> None:
    slice_up(writable)
    device, driver, made_at = writable.uuid, writable.driver, []

    for profile in writable.fact.profiles:
        for start in sorted({profile.starts[0], profile.starts[-1]}):
            began = time.perf_counter()
            made = driver.create(device, PartitionShape("mig", profile.name), start, "contract.1.0")
            took_s = time.perf_counter() - began
            assert (made.profile, made.start, made.size) == (profile.name, start, profile.slices)
            assert made.uuid.startswith("MIG-")
            with closing(writable.agent()) as other:
                assert other.observe(device) == [made]
            assert len(driver.access(made.uuid).nodes) == 5
            made_at.append([profile.name, start, writable.instances(), round(took_s, 2)])
            with pytest.raises(NvmlLikeError) as refused:
                driver.create(device, PartitionShape("mig", profile.name), start, "other.1.0")
            assert refused.value.code == errors.INSUFFICIENT_RESOURCES
            driver.destroy(made.uuid)
            driver.destroy(made.uuid)
            assert driver.observe(device) == []

    assert driver.set_mig_mode(device, False) == 0
    writable.notes["slices: name, start, instance, seconds"] = made_at


def test_what_is_made_at_the_same_place_again_is_found_by_its_new_name(writable: Device) -> None:
    slice_up(writable)
    device, driver = writable.uuid, writable.driver
    smallest = min(writable.fact.profiles, key=lambda profile: profile.slices)

    names = []
    for _ in range(2):
        made = driver.create(
            device, PartitionShape("mig", smallest.name), smallest.starts[-1], "contract.1.0"
        )
        assert [fact.uuid for fact in driver.observe(device)] == [made.uuid]
        names.append(made.uuid)
        driver.destroy(made.uuid)
    driver.set_mig_mode(device, False)

    # Either way is right: a lease's slice is known by device, size and place. Which it is, is news for the reference.
    writable.notes["the same place has the same uuid"] = names[0] == names[1]


def test_an_mps_daemon_starts_with_its_limits_and_ends(writable: Device) -> None:
    needs(writable, "mps")
    driver = writable.driver

    made = driver.create(writable.uuid, PartitionShape("mps", "", 0, 300, LIMIT_MIB), 0, "contract.1.0")
    driver.attach(made.uuid, Tenant("contract", user=USER))
    assert driver.mps.daemons() == [(writable.uuid, USER)]
    assert "CUDA_MPS_PIPE_DIRECTORY" in driver.access(made.uuid).env
    with closing(writable.agent()) as other:
        other.destroy(made.uuid)

    assert driver.mps.daemons() == []


def test_memory_limits_are_offered_where_the_driver_keeps_them_and_nowhere_else(writable: Device) -> None:
    fact, wanted, cgroup = writable.fact, LIMIT_MIB * MIB, cgroup_of_its_own(writable)
    try:
        writable.pass_on()
        code = writable.limit_memory(cgroup, wanted, wanted)
        if code == errors.FUNCTION_NOT_FOUND:
            pytest.skip(fact.refusals["memlimit"])
        found = writable.memory_limit(cgroup)
        writable.limit_memory(cgroup, 0, NO_LIMIT)
    finally:
        writable.drop_cgroup(cgroup)

    is_kept = code == 0 and not isinstance(found, int) and found[1] >= wanted
    said = f"setting a limit ended with {code}, then {found} was read"
    assert is_kept == ("memlimit" in fact.modes), (
        f"{said}; the agent: {fact.refusals.get('memlimit', 'offered')}"
    )


def test_a_memory_limit_holds_is_given_back_and_gone_at_the_end(writable: Device) -> None:
    needs(writable, "memlimit")
    driver, cgroup = writable.driver, cgroup_of_its_own(writable)
    try:
        made = driver.create(
            writable.uuid, PartitionShape("memlimit", "", 0, 300, LIMIT_MIB), 0, "contract.1.0"
        )
        driver.confine(made.uuid, cgroup)

        soft, hard = bounds(writable, cgroup)
        assert LIMIT_MIB * MIB <= hard <= LIMIT_MIB * MIB * MOST_ROUNDING
        assert 0 < soft <= hard
        writable.notes["memory limit asked for, soft, hard"] = [LIMIT_MIB * MIB, soft, hard]

        driver.detach(made.uuid, kill=True)
        assert bounds(writable, cgroup) == (0, hard), "the reservation is given back, the limit is kept"
        driver.destroy(made.uuid)
        assert is_unlimited(writable, cgroup)
    finally:
        writable.drop_cgroup(cgroup)


def test_a_program_gets_no_memory_beyond_its_limit_and_keeps_its_share_from_going(writable: Device) -> None:
    needs(writable, "memlimit")
    if writable.fact.memory_mib < LIMIT_MIB + 2 * BEYOND_MIB:
        pytest.skip("the device is too small to tell its own end from that of the limit")
    driver, cgroup = writable.driver, cgroup_of_its_own(writable)
    try:
        made = driver.create(
            writable.uuid, PartitionShape("memlimit", "", 0, 300, LIMIT_MIB), 0, "contract.1.0"
        )
        driver.confine(made.uuid, cgroup)
        with writable.hold(cgroup) as holder:
            assert holder.take(WITHIN_MIB) == 0
            assert holder.take(BEYOND_MIB) == OUT_OF_MEMORY
            assert [process.pid for process in driver.processes(made.uuid)] == [holder.pid]
            with pytest.raises(NvmlLikeError) as refused:
                driver.destroy(made.uuid)
            assert refused.value.code == errors.IN_USE
        for _ in range(50):
            if not driver.processes(made.uuid):
                break
            writable.wait(0.1)
        driver.destroy(made.uuid)
        assert is_unlimited(writable, cgroup)
    except NoHolderError as no:
        pytest.skip(str(no))
    finally:
        writable.drop_cgroup(cgroup)


def cgroup_of_its_own(device: Device) -> str:
    """Return a new cgroup, or skip where none can be made."""
    try:
        return device.cgroup()
    except OSError as no:
        pytest.skip(f"no cgroup can be made here: {no}")


def bounds(device: Device, cgroup: str) -> tuple[int, int]:
    """Return the (soft, hard) limit of a cgroup as the driver tells it, past the agent's own code."""
    found = device.memory_limit(cgroup)
    assert not isinstance(found, int), f"the limit cannot be read back ({found})"
    return found


def is_unlimited(device: Device, cgroup: str) -> bool:
    """Say whether a cgroup has no limit any more: it reads so, or there is none to read."""
    found = device.memory_limit(cgroup)
    if isinstance(found, int):
        return found in (errors.NOT_FOUND, errors.NOT_SUPPORTED)
    return found == (0, NO_LIMIT)


# Refusing to write at all: proven everywhere


def test_nothing_is_written_without_being_asked_for(tmp_path: Path) -> None:
    with pytest.raises(NotAllowedError, match="--allow-gpu-writes"):
        require_writable(simulated(tmp_path), allowed=False)


def test_nothing_is_written_by_anybody_but_root(tmp_path: Path) -> None:
    with pytest.raises(NotAllowedError, match="as root"):
        require_writable(simulated(tmp_path, is_root=False), allowed=True)


def test_a_device_in_use_is_not_written_to(tmp_path: Path) -> None:
    device = simulated(tmp_path)
    assert device.host is not None
    pid = device.host.world.spawn("/user.slice", gpu=device.uuid).pid

    with pytest.raises(NotAllowedError, match=f"in use by {pid}"):
        require_writable(device, allowed=True)


def test_a_device_with_anything_on_it_is_not_written_to(tmp_path: Path) -> None:
    device = simulated(tmp_path)
    device.driver.create(device.uuid, PartitionShape("exclusive"), 0, "somebody.1.0")

    with pytest.raises(NotAllowedError, match="stands on"):
        require_writable(device, allowed=True)


def test_a_device_in_another_mode_is_not_written_to(tmp_path: Path) -> None:
    device = simulated(tmp_path)
    device.driver.set_mig_mode(device.uuid, True)

    with pytest.raises(NotAllowedError, match="MIG is on"):
        require_writable(device, allowed=True)
    device.driver.set_mig_mode(device.uuid, False)
    require_writable(device, allowed=True)
    device.library.nvmlDeviceSetComputeMode(device.handle, 3)
    with pytest.raises(NotAllowedError, match="compute mode 3"):
        require_writable(device, allowed=True)
