"""What an agent may do on devices and can know of them: rights, devices that go away, processes; simulated."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nodeagent.drivers import errors
from nodeagent.drivers.base import PartitionShape
from nodeagent.drivers.errors import NotOfferedError
from nodeagent.drivers.nvml.inventory import modes as offers
from nodeagent.drivers.nvml.inventory.identity import board_of
from nodeagent.drivers.nvml.inventory.modes import ModeOffers
from nodeagent.drivers.nvml.library.calls import NvmlCalls
from nodeagent.drivers.nvml.mig.profiles import MigSize, MigSizes, read_sizes
from nodeagent.protocol.boards import BoardModel, board
from nodeagent.simulation.machine.host import SimulatedHost
from nodeagent.simulation.nvml import SimulatedNvml
from tests.agent.device_bench import Bench, refused


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


# Who may, and what can be known


def test_without_root_sizes_come_from_the_table_and_mig_is_not_offered(tmp_path):
    bench = Bench(tmp_path, is_root=False)

    (fact,) = bench.driver.inventory()

    assert (fact.profiles[0].name, fact.profiles[0].starts) == ("1g.10gb", (0, 1, 2, 3, 4, 5, 6))
    assert "exclusive" in fact.modes
    assert "run the agent as root" in fact.refusals["mig"]
    with pytest.raises(NotOfferedError, match="run the agent as root"):
        bench.driver.set_mig_mode(bench.device, True)


def test_without_root_a_device_in_slices_is_not_offered_whole_and_its_slices_fill_it(tmp_path):
    bench = Bench(tmp_path)
    bench.switch_on()
    made = bench.slice("1g.10gb", 3)
    bench.host.is_root = False

    (fact,) = bench.agent().inventory()
    (seen,) = bench.driver.observe(bench.device)

    assert fact.modes == ()
    assert "switch it off" in fact.refusals["exclusive"]
    assert (seen.uuid, seen.profile, seen.start, seen.size) == (made.uuid, "unknown", 0, 8)


def test_places_of_the_table_are_found_by_size_and_not_by_the_number_that_drivers_change():
    host = SimulatedHost(["a30-24gb"], is_root=False)
    library = SimulatedNvml(host)
    library.nvmlInit()
    told = library.nvmlDeviceGetGpuInstanceProfileInfo

    def as_older_drivers_number_them(handle: Any, enum: int, version: int = 2) -> Any:
        info = told(handle, enum, version)
        info.id, info.name = info.id + 100, b""
        return info

    library.nvmlDeviceGetGpuInstanceProfileInfo = as_older_drivers_number_them  # type: ignore[method-assign]

    sizes = read_sizes(NvmlCalls(library), library.nvmlDeviceGetHandleByIndex(0), board("a30-24gb"))

    small = sizes.named("1g.6gb")
    assert small is not None
    assert small.fact is not None
    assert (small.id, small.fact.starts, sizes.refused) == (114, (0, 1, 2, 3), errors.NO_PERMISSION)


def test_an_agent_with_the_capability_to_configure_needs_no_root_for_slices(tmp_path):
    bench = Bench(tmp_path)
    bench.switch_on()
    bench.host.is_root = False
    bench.host.allow_instances()

    made = bench.agent().create(bench.device, PartitionShape("mig", "1g.10gb"), 3, "a.1.0")

    assert bench.driver.observe(bench.device) == [made]


def test_a_host_that_hides_capability_minors_offers_no_slices_and_guesses_none(tmp_path):
    bench = Bench(tmp_path)
    bench.switch_on()
    made = bench.slice("1g.10gb", 0)
    bench.host.hidden.add("/proc/driver/nvidia-caps/mig-minors")

    (fact,) = bench.agent().inventory()

    assert "mig-minors cannot be read" in fact.refusals["mig"]
    with refused(errors.NOT_FOUND, "mig-minors cannot be read"):
        bench.driver.access(made.uuid)


def test_a_driver_that_does_not_know_places_is_too_old_rather_than_forbidden(tmp_path):
    bench = Bench(tmp_path, missing={"nvmlDeviceGetGpuInstancePossiblePlacements"})

    (fact,) = bench.driver.inventory()

    assert "install a newer driver" in fact.refusals["mig"]
    assert "exclusive" in fact.modes


def told(known: BoardModel | None, *, ended: int = 0, places: int = 0) -> str:
    """Return what is said of a board whose driver ended its list of sizes, or told no places, with a code."""
    bench = ModeOffers.__new__(ModeOffers)
    sizes = MigSizes((MigSize(19, "1g.10gb", 1, 7, None),) if places else (), places, ended)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offers, "board_of", lambda *_: known)
        patch.setattr(ModeOffers, "_modes", lambda *_: (0, 0))
        object.__setattr__(bench, "calls", SimpleNamespace(ask=lambda *_: None, library=None))
        return bench._no_mig(object(), sizes)


@pytest.mark.parametrize("code", [errors.NO_PERMISSION, errors.GPU_IS_LOST, errors.UNKNOWN, errors.TIMEOUT])
def test_a_newer_driver_is_asked_for_only_where_the_driver_is_too_old(code: int) -> None:
    known, strange = board("a100-96gb"), None

    assert "newer driver" in told(known, ended=errors.FUNCTION_NOT_FOUND)
    assert "newer driver" in told(known, ended=errors.INVALID_ARGUMENT)
    assert "newer driver" not in told(strange, ended=errors.INVALID_ARGUMENT)
    assert "newer driver" not in told(known, ended=code)
    assert "newer driver" not in told(known, places=code)


@pytest.mark.parametrize(
    ("number", "name"), [(0x20B6, "a100-96gb"), (0x3182, "b300-269gb"), (0x31C2, "gb300-278gb")]
)
def test_boards_are_known_by_the_numbers_of_nvidias_tables(number: int, name: str) -> None:
    pci = SimpleNamespace(pciDeviceId=number << 16 | 0x10DE)
    library = SimpleNamespace(nvmlDeviceGetPciInfo=lambda _: pci, NVMLError=RuntimeError)

    found = board_of(library, object())

    assert found is not None
    assert found.id == name
    assert [p.nvml_enum for p in found.profiles] == [0, 7, 9, 1, 2, 3, 4]


def test_a_board_without_mig_says_so(tmp_path):
    bench = Bench(tmp_path, "l40s-48gb")

    (fact,) = bench.driver.inventory()

    assert (fact.mig_enabled, fact.profiles) == (None, ())
    assert "no MIG" in fact.refusals["mig"]
    with pytest.raises(NotOfferedError, match="no MIG"):
        bench.driver.create(bench.device, PartitionShape("mig", "1g.10gb"), 0, "a.1.0")


def test_the_usual_offer_is_whole_devices_and_slices(tmp_path):
    bench = Bench(tmp_path, offer=None)

    (fact,) = bench.driver.inventory()

    assert fact.modes == ("exclusive", "mig")
    assert all("--offer" in fact.refusals[mode] for mode in ("mps", "memlimit", "timeslice"))
    offers = {(offer.shape.mode, offer.shape.profile) for offer in bench.driver.catalogue(bench.device)}
    assert ("mig", "7g.80gb") in offers
    assert ("exclusive", "") in offers


# Devices that go away


def test_a_lost_device_refuses_by_itself_and_the_others_go_on(tmp_path):
    bench = Bench(tmp_path, "h100-80gb", "h100-80gb")
    first, second = (device.uuid for device in bench.host.devices)
    bench.driver.set_mig_mode(second, True)
    bench.host.lose(0)

    with refused(errors.GPU_IS_LOST, "fallen off the bus"):
        bench.driver.observe(first)
    made = bench.driver.create(second, PartitionShape("mig", "1g.10gb"), 0, "a.1.0")

    assert bench.driver.observe(second) == [made]
    assert [fact.uuid for fact in bench.driver.inventory()] == [first, second]
    reading = {sample.device: sample.power_w for sample in bench.driver.metrics().devices}
    assert reading[first] is None
    assert reading[second] is not None
    assert [(fact.device, fact.code) for fact in bench.driver.health()] == [(first, "79")]


def test_a_slice_on_a_lost_device_is_not_called_gone(bench):
    bench.switch_on()
    made = bench.slice("1g.10gb", 0)
    bench.host.lose(0)

    with refused(errors.GPU_IS_LOST):
        bench.driver.destroy(made.uuid)
    with refused(errors.GPU_IS_LOST):
        bench.driver.processes(made.uuid)


def test_a_device_that_was_lost_before_the_agent_started_is_told_as_it_was(tmp_path):
    bench = Bench(tmp_path, "h100-80gb", "l40s-48gb")
    bench.switch_on()
    made = bench.slice("1g.10gb", 0)
    before = bench.driver.inventory()
    bench.host.lose(0)

    driver = bench.agent()

    assert [fact.uuid for fact in driver.inventory()] == [fact.uuid for fact in before]
    assert driver.inventory()[0].profiles == before[0].profiles
    assert [(fact.device, fact.code) for fact in driver.health()] == [(bench.device, "79")]
    with refused(errors.GPU_IS_LOST):
        driver.destroy(made.uuid)
    with refused(errors.GPU_IS_LOST):
        bench.agent().observe(bench.device)


def test_a_device_that_was_lost_when_the_agent_started_is_as_good_as_any_once_it_is_back(tmp_path):
    bench = Bench(tmp_path, "h100-80gb", "h100-80gb")
    before = bench.driver.inventory()
    bench.host.lose(0)
    driver = bench.agent()
    meanwhile = driver.inventory()

    bench.host.device(0).gpu.is_lost = False
    bench.host.reset(0)
    driver.set_mig_mode(bench.device, True)
    bench.host.add_foreign(0, "1g.10gb", 3)
    made = bench.slice("3g.40gb", 4)

    assert {fact.link_domain for fact in before} == {"nvlink-0"}
    assert [fact.link_domain for fact in meanwhile] == [fact.link_domain for fact in before]
    assert bench.places() == [("1g.10gb", 3, 1), ("3g.40gb", 4, 4)]
    driver.destroy(made.uuid)
    assert [fact.profiles for fact in driver.inventory()] == [fact.profiles for fact in before]


def test_a_lost_device_does_not_keep_slices_of_another_from_being_removed(tmp_path):
    bench = Bench(tmp_path, "h100-80gb", "h100-80gb")
    bench.switch_on()
    made = bench.slice("1g.10gb", 0)
    bench.host.faults.refusals["nvmlGpuInstanceDestroy"] = deque([errors.IN_USE])
    with refused(errors.IN_USE):
        bench.driver.destroy(made.uuid)
    bench.host.lose(1)

    driver = bench.agent()
    driver.destroy(made.uuid)
    (half,) = driver.observe(bench.device)
    driver.destroy(half.uuid)

    assert driver.observe(bench.device) == []
    assert bench.agent().processes(made.uuid) == []
    bench.driver.destroy(made.uuid)


def test_a_lost_device_that_nobody_remembers_is_told_and_nothing_on_it_called_gone(bench):
    bench.switch_on()
    made = bench.slice("1g.10gb", 0)
    bench.host.lose(0)
    (bench.run_dir / "cards.json").unlink()

    driver = bench.agent()

    assert driver.inventory() == []
    assert [(fact.device, fact.code, fact.action) for fact in driver.health()] == [
        ("", "card_silent", "reboot_node")
    ]
    with refused(errors.GPU_IS_LOST):
        driver.destroy(made.uuid)


@pytest.mark.parametrize("text", ["", "[]", '{"boot_id": 1}', "{"])
def test_a_list_of_devices_that_cannot_be_read_is_written_anew(bench, text):
    path = bench.run_dir / "cards.json"
    path.write_text(text, encoding="utf-8")

    assert bench.agent().inventory()[0].uuid == bench.device
    assert bench.device in path.read_text(encoding="utf-8")


def test_after_a_reset_the_device_is_found_again(bench):
    bench.switch_on()
    gone = bench.slice("1g.10gb", 0)
    bench.host.reset(0)

    assert bench.driver.observe(bench.device) == []
    assert bench.driver.processes(gone.uuid) == []
    bench.driver.set_mig_mode(bench.device, True)
    assert bench.slice("1g.10gb", 0).uuid == gone.uuid


def test_a_reboot_leaves_no_slice_and_hopper_without_its_mode(bench):
    bench.switch_on()
    bench.slice("1g.10gb", 0)
    bench.host.reboot()

    driver = bench.agent()

    assert driver.observe(bench.device) == []
    assert driver.inventory()[0].mig_enabled is False


# Processes


def test_processes_of_a_slice_are_its_own_and_known_by_name(bench):
    bench.switch_on()
    mine, other = bench.slice("1g.10gb", 0), bench.slice("1g.10gb", 1)
    by_start = {i.start: i.id for i in bench.host.devices[0].gpu.instances.values()}
    worker = bench.run(gi=by_start[0], name="train", memory_mib=700)
    drawer = bench.run(gi=by_start[0], name="viewer", is_graphics=True)
    stranger = bench.run(gi=by_start[1], name="serve")

    found = {fact.pid: fact for fact in bench.driver.processes(mine.uuid)}

    assert set(found) == {worker.pid, drawer.pid}
    assert (found[worker.pid].name, found[worker.pid].memory_mib) == ("train", 700)
    assert [fact.pid for fact in bench.driver.processes(other.uuid)] == [stranger.pid]
    assert {fact.pid for fact in bench.driver.processes(bench.device)} == {
        worker.pid,
        drawer.pid,
        stranger.pid,
    }


def test_a_device_that_does_not_list_processes_is_no_device_without_them(bench):
    bench.host.faults.refusals["nvmlDeviceGetComputeRunningProcesses"] = deque([errors.UNKNOWN])

    with refused(errors.UNKNOWN, "listing processes"):
        bench.driver.processes(bench.device)
