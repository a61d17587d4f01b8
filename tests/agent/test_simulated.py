"""The simulated device answers as nvml.h says, and keeps what it holds over an agent's restart."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from nodeagent.drivers import errors
from nodeagent.drivers.base import PartitionShape, Tenant
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.protocol.boards import all_boards, board, device_facts
from nodeagent.protocol.messages import DeviceFact
from nodeagent.simulation.devices.driver import SimulatedDriver
from nodeagent.simulation.faults import Faults
from nodeagent.simulation.hardware import SimulatedGpu
from nodeagent.simulation.load import PATTERNS, load_at
from tests.agent.builder import FakeTime

G1, G1ME, G1X2, G2, G3, G4, G7 = 19, 20, 15, 14, 9, 5, 0


@pytest.fixture
def gpu() -> SimulatedGpu:
    return SimulatedGpu(board("h100-80gb"), mig_enabled=True)


def code_of(call, *args) -> int:
    with pytest.raises(NvmlLikeError) as refused:
        call(*args)
    return refused.value.code


def test_changes_need_root(gpu):
    gpu.is_root = False

    assert code_of(gpu.set_mig_mode, False) == errors.NO_PERMISSION
    assert code_of(gpu.create_gpu_instance, G1, 0) == errors.NO_PERMISSION
    assert code_of(gpu.possible_placements, G1) == errors.NO_PERMISSION


def test_board_without_mig_supports_none_of_it():
    gpu = SimulatedGpu(board("l40s"))

    assert code_of(gpu.mig_mode) == errors.NOT_SUPPORTED
    assert code_of(gpu.set_mig_mode, True) == errors.NOT_SUPPORTED
    assert code_of(gpu.profile_info, 0) == errors.NOT_SUPPORTED
    assert gpu.max_mig_device_count() == 0


@pytest.mark.parametrize(
    ("model", "clients", "passthrough", "status"),
    [
        ("a100-80gb", 1, False, errors.IN_USE),
        ("a100-80gb", 0, True, errors.RESET_REQUIRED),
        ("a100-80gb", 0, False, 0),
        ("h100-80gb", 1, False, 0),
    ],
)
def test_mig_switch_succeeds_but_says_whether_it_took_effect(model, clients, passthrough, status):
    gpu = SimulatedGpu(board(model), clients=clients, is_passthrough=passthrough)

    assert gpu.set_mig_mode(True) == status
    assert gpu.mig_mode() == (status == 0, True)


def test_with_mig_off_instances_are_not_supported(gpu):
    gpu.mig_enabled = False

    assert code_of(gpu.remaining_capacity, G1) == errors.NOT_SUPPORTED
    assert code_of(gpu.create_gpu_instance, G1, 0) == errors.NOT_SUPPORTED
    assert code_of(gpu.gpu_instances, G1) == errors.NOT_SUPPORTED
    assert code_of(gpu.gpu_instance_by_id, 7) == errors.NOT_SUPPORTED
    assert gpu.possible_placements(G3) == [(0, 4), (4, 4)]


def test_profiles_are_asked_for_by_enum_and_answered_with_another_number(gpu):
    assert gpu.profile_info(0).profile_id == G1
    assert code_of(gpu.profile_info, 15) == errors.NOT_SUPPORTED
    assert code_of(gpu.profile_info, 18) == errors.INVALID_ARGUMENT


def test_unknown_profile_or_place_is_an_invalid_argument(gpu):
    assert code_of(gpu.create_gpu_instance, 99, 0) == errors.INVALID_ARGUMENT
    assert code_of(gpu.create_gpu_instance, G3, 2) == errors.INVALID_ARGUMENT


def test_overlap_and_maximum_are_insufficient_resources(gpu):
    gpu.create_gpu_instance(G3, 0)
    gpu.create_gpu_instance(G1ME, 4)

    assert code_of(gpu.create_gpu_instance, G3, 0) == errors.INSUFFICIENT_RESOURCES
    assert code_of(gpu.create_gpu_instance, G1, 3) == errors.INSUFFICIENT_RESOURCES
    assert code_of(gpu.create_gpu_instance, G1ME, 5) == errors.INSUFFICIENT_RESOURCES


def test_instance_is_destroyed_from_inside_out(gpu):
    instance = gpu.create_gpu_instance(G2, 4)
    compute = gpu.create_compute_instance(instance)
    instance.pids = [4711]

    assert code_of(gpu.destroy_gpu_instance, instance) == errors.IN_USE
    assert code_of(gpu.destroy_compute_instance, instance, compute) == errors.IN_USE
    instance.pids = []
    gpu.destroy_compute_instance(instance, compute)
    gpu.destroy_gpu_instance(instance)

    assert code_of(gpu.destroy_gpu_instance, instance) == errors.INVALID_ARGUMENT
    assert code_of(gpu.gpu_instance_by_id, instance.id) == errors.NOT_FOUND


def test_half_made_instance_is_listed_but_is_no_mig_device(gpu):
    instance = gpu.create_gpu_instance(G1, 0)

    assert gpu.gpu_instances(G1) == [instance]
    assert code_of(gpu.mig_device_by_index, 0) == errors.NOT_FOUND


def test_utilisation_is_refused_while_mig_is_on(gpu):
    assert code_of(gpu.utilization_rates) == errors.NOT_SUPPORTED


def test_lost_gpu_answers_nothing_else(gpu):
    gpu.is_lost = True

    assert code_of(gpu.mig_mode) == errors.GPU_IS_LOST
    assert code_of(gpu.create_gpu_instance, G1, 0) == errors.GPU_IS_LOST


def test_instance_ids_are_those_of_published_listings(gpu):
    ids = {(3, 4): gpu.create_gpu_instance(G3, 4).id, (2, 0): gpu.create_gpu_instance(G2, 0).id}
    ids[(1, 3)] = gpu.create_gpu_instance(G1, 3).id

    assert ids == {(3, 4): 1, (2, 0): 3, (1, 3): 10}


def test_remaining_capacity_counts_what_still_fits(gpu):
    gpu.create_gpu_instance(G3, 4)

    assert [gpu.remaining_capacity(p) for p in (G1, G1X2, G2, G3, G4, G7)] == [4, 2, 2, 1, 1, 0]


def layouts(model: str, names: set[str]) -> set[frozenset[tuple[str, int]]]:
    """Return every set of placed instances that the device accepts, by trying them all."""
    kinds = [p for p in board(model).profiles if p.name in names]
    found: set[frozenset[tuple[str, int]]] = set()

    def extend(gpu: SimulatedGpu, here: frozenset[tuple[str, int]]) -> None:
        if here in found:
            return
        found.add(here)
        for kind in kinds:
            for start in kind.starts:
                try:
                    instance = gpu.create_gpu_instance(kind.profile_id, start)
                except NvmlLikeError:
                    continue
                extend(gpu, here | {(kind.name, start)})
                gpu.destroy_gpu_instance(instance)

    extend(SimulatedGpu(board(model), mig_enabled=True), frozenset())
    return found - {frozenset()}


@pytest.mark.parametrize(
    ("model", "names", "expected"),
    [
        ("h100-80gb", {"1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"}, 298),
        ("h100-80gb", {"1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"}, 723),
        ("a30-24gb", {"1g.6gb", "2g.12gb", "4g.24gb"}, 26),
    ],
)
def test_layouts_accepted_are_exactly_those_known(model, names, expected):
    assert len(layouts(model, names) | {frozenset()}) == expected


def facts(model: str = "l40s-48gb", modes: tuple[str, ...] = ()) -> tuple[DeviceFact, ...]:
    return device_facts("gpu-03", model, 1, modes)


def driver(tmp_path: Path, model: str = "l40s-48gb", boot: str = "b", **knobs) -> SimulatedDriver:
    return SimulatedDriver(facts(model), tmp_path, boot, clock=FakeTime(), **knobs)


def share(mode: str, milli: int, memory_mib: int) -> PartitionShape:
    return PartitionShape(mode, "", 0, milli, memory_mib)


def test_shares_are_checked_against_the_board_compute_and_other_modes(tmp_path):
    device = driver(tmp_path)
    gpu = device.inventory()[0].uuid
    device.create(gpu, share("mps", 600, 20_000), 0, "a")

    for too_much in (share("mps", 500, 100), share("mps", 100, 60_000), share("memlimit", 10, 10)):
        assert code_of(device.create, gpu, too_much, 0, "b") == errors.INSUFFICIENT_RESOURCES
    assert code_of(device.create, gpu, PartitionShape("exclusive"), 0, "b") == errors.INSUFFICIENT_RESOURCES


def test_memory_limits_of_shares_may_add_up_to_more_than_the_board_has(tmp_path):
    device = driver(tmp_path)
    gpu = device.inventory()[0].uuid
    device.create(gpu, share("mps", 500, 40_000), 0, "a")

    device.create(gpu, share("mps", 500, 40_000), 0, "b")

    assert len(device.observe(gpu)) == 2


def test_number_of_shares_is_bounded(tmp_path):
    device = driver(tmp_path, "hygon-dcu-64gb")
    dcu = device.inventory()[0].uuid
    for tenant in range(4):
        device.create(dcu, share("memlimit", 100, 1000), 0, f"t{tenant}")

    assert code_of(device.create, dcu, share("memlimit", 100, 1000), 0, "t4") == errors.INSUFFICIENT_RESOURCES


def test_making_the_same_share_twice_makes_one(tmp_path):
    device = driver(tmp_path)
    gpu = device.inventory()[0].uuid

    first = device.create(gpu, share("mps", 600, 20_000), 0, "a")
    again = device.create(gpu, share("mps", 600, 20_000), 0, "a")

    assert first == again
    assert device.observe(gpu) == [first]


def test_mode_that_the_node_does_not_offer_is_not_supported(tmp_path):
    device = SimulatedDriver(facts(modes=("mps",)), tmp_path, "b")

    assert (
        code_of(device.create, facts()[0].uuid, PartitionShape("exclusive"), 0, "a") == errors.NOT_SUPPORTED
    )


def test_destroying_what_is_gone_is_success(tmp_path):
    driver(tmp_path).destroy("MIG-nowhere")


def test_partition_with_a_process_is_in_use_until_it_left(tmp_path):
    device = driver(tmp_path, "h100-80gb")
    gpu = device.inventory()[0].uuid
    device.set_mig_mode(gpu, True)
    made = device.create(gpu, PartitionShape("mig", "1g.10gb", 1), 0)
    device.attach(made.uuid, Tenant("a", "steady"))

    assert len(device.processes(made.uuid)) == 1
    assert code_of(device.destroy, made.uuid) == errors.IN_USE
    device.detach(made.uuid, kill=False)
    assert device.processes(made.uuid) == []
    device.destroy(made.uuid)

    assert device.observe(gpu) == []


def test_new_process_finds_the_hardware_as_it_was(tmp_path):
    device = driver(tmp_path, "h100-80gb")
    gpu = device.inventory()[0].uuid
    device.set_mig_mode(gpu, True)
    made = [device.create(gpu, PartitionShape("mig", "2g.20gb", 2), start) for start in (0, 2)]
    device.attach(made[0].uuid, Tenant("a", "steady"))
    device.destroy(made[1].uuid)

    again = driver(tmp_path, "h100-80gb")

    assert again.observe(gpu) == [made[0]]
    assert len(again.processes(made[0].uuid)) == 1
    assert again.inventory()[0].mig_enabled is True


def test_torn_last_line_of_the_hardware_file_does_no_harm(tmp_path):
    device = driver(tmp_path)
    made = device.create(device.inventory()[0].uuid, share("mps", 100, 1000), 0, "a")
    with (tmp_path / "hardware.jsonl").open("a") as out:
        out.write('{"op":"sha')

    assert driver(tmp_path).observe(made.device) == [made]


def test_catalogue_lists_the_shapes_of_the_allowed_modes(tmp_path):
    device = SimulatedDriver(facts("h100-80gb", ("mig", "exclusive")), tmp_path, "b")

    shapes = {
        (offer.shape.mode, offer.shape.profile) for offer in device.catalogue(device.inventory()[0].uuid)
    }

    assert ("exclusive", "") in shapes
    assert ("mig", "3g.40gb") in shapes
    assert not any(mode == "mps" for mode, _ in shapes)


def test_seeded_faults_repeat(tmp_path):
    def refused(folder: str) -> list[bool]:
        (tmp_path / folder).mkdir()
        device = driver(tmp_path / folder, faults=Faults(rate=0.4, seed=7))
        gpu, seen = device.inventory()[0].uuid, []
        for number in range(20):
            try:
                device.create(gpu, share("mps", 10, 10), 0, f"t{number}")
                seen.append(False)
            except NvmlLikeError:
                seen.append(True)
        return seen

    first, second = refused("one"), refused("two")

    assert first == second
    assert {True, False} == set(first)


@pytest.mark.parametrize("pattern", [*PATTERNS, "", "unheard-of"])
def test_load_is_a_smooth_function_of_time_and_seed(pattern):
    curve = [load_at(pattern, "s", t / 10) for t in range(6000)]

    assert curve == [load_at(pattern, "s", t / 10) for t in range(6000)]
    assert all(0 <= load.util_percent <= 100 and 0 <= load.memory_part <= 1 for load in curve)
    assert max(abs(a.util_percent - b.util_percent) for a, b in itertools.pairwise(curve)) < 12


def test_patterns_look_like_what_they_stand_for():
    mean = {p: sum(load_at(p, "s", t).util_percent for t in range(2000)) / 2000 for p in PATTERNS}

    assert mean["steady"] > 75
    assert 15 < mean["bursty"] < 75
    assert mean["idle"] < 1
    assert mean["dummy_loop"] > 98


def test_tenants_differ():
    assert load_at("bursty", "a", 50) != load_at("bursty", "b", 50)


@pytest.mark.parametrize("model", list(all_boards()))
def test_every_board_can_be_simulated_or_says_why_not(model, tmp_path):
    if board(model).memory_mib is None:
        with pytest.raises(ValueError, match="unknown"):
            device_facts("n", model, 1)
        return

    device = SimulatedDriver(device_facts("n", model, 2), tmp_path, "b")

    assert [fact.model for fact in device.inventory()] == [model, model]


def test_device_tells_its_mig_mode_until_it_is_lost(tmp_path):
    device = driver(tmp_path, "h100-80gb")
    gpu = device.inventory()[0].uuid

    told = [device.mig_mode(gpu)]
    device.set_mig_mode(gpu, True)
    told.append(device.mig_mode(gpu))
    device.lose(gpu)

    assert [*told, device.mig_mode(gpu)] == [False, True, None]


def test_device_whose_board_has_no_mig_tells_no_mode(tmp_path):
    device = driver(tmp_path, "l40s")

    assert device.mig_mode(device.inventory()[0].uuid) is None
