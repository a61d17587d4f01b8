"""Opening shares by MPS over the simulated program, and what their programs get, by both protocols."""

from __future__ import annotations

from nodeagent.drivers import errors
from nodeagent.simulation.programs.mps_state import Limits
from tests.agent.mps_bench import CARD, DEFAULT, EXCLUSIVE, OTHER, SLICE, Bench, refused, share


def test_a_share_is_served_by_a_daemon_of_its_device_and_user_and_a_program_gets_its_limits(bench):
    bench.open(share())

    process = bench.run(share())

    assert bench.mps.daemons() == [(CARD, "alice")]
    assert (process.is_mps, process.gpu) == (True, CARD)
    assert bench.program.limits(process.pid) == Limits(25, 8192)
    assert bench.mps.clients(CARD, "alice") == [process.pid]
    assert bench.mps.state(CARD, "alice") == "active"


def test_opening_again_changes_nothing(bench):
    bench.open(share())
    before = bench.picture()

    bench.agent().open(share(), [share()])

    assert bench.picture() == before


def test_two_leases_of_one_user_share_a_daemon_and_each_keeps_to_its_own_limits(bench):
    small, large = share("a", 200, 4096), share("b", 500, 20480)

    bench.open(small, large)

    assert len(bench.mps.daemons()) == 1
    assert bench.program.limits(bench.run(small).pid) == Limits(20, 4096)
    assert bench.program.limits(bench.run(large).pid) == Limits(50, 20480)


def test_a_larger_share_reaches_a_server_that_runs_already(bench):
    small, large = share("a", 200, 4096), share("b", 500, 20480)
    bench.open(small)
    bench.run(small)

    bench.open(small, large)

    assert bench.program.limits(bench.run(large).pid) == Limits(50, 20480)


def test_by_protocol_2_a_program_without_its_variables_reaches_the_largest_share_of_its_user_and_no_more(
    classic,
):
    small, large = share("a", 200, 4096), share("b", 500, 20480)
    classic.open(small, large)
    process = classic.world.spawn("/berth/a", user="alice")

    classic.program.connect(
        process, {"CUDA_MPS_PIPE_DIRECTORY": classic.mps.access(small).env["CUDA_MPS_PIPE_DIRECTORY"]}, CARD
    )

    assert classic.program.limits(process.pid) == Limits(50, 20480)


def test_by_protocol_3_variables_of_a_program_cannot_widen_its_namespace(named):
    named.open(share())
    process = named.world.spawn("/berth/a", user="alice")
    env = named.mps.access(share()).env | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100"}

    named.program.connect(process, env, CARD)

    assert named.program.limits(process.pid) == Limits(25, 8192)


def test_by_protocol_3_the_default_namespace_is_too_small_to_work_in(named):
    named.open(share())
    process = named.world.spawn("/berth/a", user="alice")
    folder = named.mps.access(share()).env["CUDA_MPS_PIPE_DIRECTORY"].rpartition("/")[0]

    named.program.connect(process, {"CUDA_MPS_PIPE_DIRECTORY": folder}, CARD)

    assert named.program.limits(process.pid) == Limits(1, 1)


def test_an_entry_for_a_device_that_a_program_does_not_see_drops_its_memory_limits(bench):
    bench.open(share())
    process = bench.world.spawn("/berth/a", user="alice")
    env = bench.mps.access(share()).env | {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{OTHER}=1G"}

    bench.program.connect(process, env, CARD)

    assert bench.program.limits(process.pid).memory_mib is None


def test_a_slice_has_a_daemon_of_its_own_by_protocol_2_even_on_a_new_driver(named):
    named.open(share(device=SLICE))

    process = named.run(share(device=SLICE))

    assert (process.gpu, process.gi) == (CARD, 7)
    assert next(iter(named.program.daemons.values())).protocol == 2
    assert named.devices.modes[CARD] == DEFAULT


def test_a_device_with_one_daemon_lets_nothing_past_it_and_opens_for_a_second_user(bench):
    bench.open(share())
    alone = bench.devices.modes[CARD]
    stray = bench.world.spawn("/user.slice", user="bob")
    past = bench.program.connect(stray, {}, CARD)

    bench.mps.open(share("b", user="bob"), [share("b", user="bob")])
    both = bench.devices.modes[CARD]
    bench.mps.close(CARD, "bob")
    again = bench.devices.modes[CARD]
    bench.mps.close(CARD, "alice")

    assert (alone, past, both, again, bench.devices.modes[CARD]) == (
        EXCLUSIVE,
        "refused",
        DEFAULT,
        EXCLUSIVE,
        DEFAULT,
    )


def test_a_wrong_pipe_folder_leads_outside_where_two_users_share_a_device(bench):
    bench.open(share())
    bench.mps.open(share("b", user="bob"), [share("b", user="bob")])
    stray = bench.world.spawn("/berth/a", user="alice")

    found = bench.program.connect(stray, {"CUDA_MPS_PIPE_DIRECTORY": "/nowhere"}, CARD)

    assert (found, stray.is_mps) == ("outside", False)


def test_devices_that_have_no_compute_modes_are_shared_all_the_same(bench):
    bench.devices.refusal = errors.NOT_SUPPORTED

    bench.open(share())

    assert bench.mps.daemons() == [(CARD, "alice")]


def test_without_the_right_to_set_modes_it_is_said_what_to_allow(bench):
    bench.devices.refusal = errors.NO_PERMISSION

    with refused(errors.NO_PERMISSION) as told:
        bench.open(share())

    assert "root" in str(told.value)


def test_a_daemon_of_an_older_driver_is_spoken_to_in_its_own_protocol(classic):
    classic.open(share())
    classic.program.newest = 3

    classic.agent().open(share("b"), [share(), share("b")])

    assert classic.mps.state(CARD, "alice") == "active"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in classic.mps.access(share("b")).env


def test_access_before_opening_is_refused(bench):
    with refused(errors.NOT_FOUND):
        bench.mps.access(share())


def test_the_environment_names_the_device_by_uuid_and_protocol_3_sets_no_limit_that_could_be_dropped(
    tmp_path,
):
    old, new = Bench(tmp_path / "2", 2), Bench(tmp_path / "3", 3)
    for bench in (old, new):
        bench.open(share())

    env, other = old.mps.access(share()).env, new.mps.access(share()).env

    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"{CARD}=8192M"
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert env["CUDA_VISIBLE_DEVICES"] == other["CUDA_VISIBLE_DEVICES"] == CARD
    assert not {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"} & set(other)


def test_a_stale_handle_is_looked_up_again(bench):
    bench.open(share())
    real, calls = bench.devices.nvmlDeviceGetComputeMode, []

    def stale_once(handle):
        calls.append(handle)
        if len(calls) == 1:
            raise bench.devices.NVMLError(errors.INVALID_ARGUMENT)
        return real(handle)

    bench.devices.nvmlDeviceGetComputeMode = stale_once

    bench.open(share())

    assert len(calls) == 2
