"""Whole devices and shares of them through the driver of real devices, on a simulated host."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from nodeagent.drivers import errors
from nodeagent.drivers.base import PartitionShape, Tenant
from nodeagent.drivers.errors import NotOfferedError
from nodeagent.drivers.nvml.shares.timeslice import TimeSlice
from nodeagent.drivers.shares import HeldShare, ShareBook
from nodeagent.host.shell import Done
from tests.agent.device_bench import SHARED_MODES, Bench, Crash, cgroup, move_in, refused, take


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


# The book


@pytest.mark.parametrize("mode", SHARED_MODES)
def test_a_share_is_found_again_by_its_owner_after_the_agent_starts_anew(bench, mode):
    made = take(bench, mode)

    again = bench.agent().observe(bench.device)

    assert again == [made]
    assert (made.lease, made.profile, made.size) == ("a.1.0", mode, 0)
    assert made.uuid.split("-")[0] == {"mps": "MPS", "memlimit": "MEM", "timeslice": "TS"}[mode]
    assert take(bench, mode) == made


def test_a_whole_device_keeps_its_owner_and_lets_nobody_else_in(bench):
    made = bench.driver.create(bench.device, PartitionShape("exclusive"), 0, "a.1.0")

    assert bench.agent().observe(bench.device) == [made]
    assert (made.uuid, made.profile, made.start, made.size) == (bench.device, "", 0, 8)
    with refused(errors.INSUFFICIENT_RESOURCES, "a.1.0 has all of the device"):
        bench.driver.create(bench.device, PartitionShape("exclusive"), 0, "b.1.0")
    with refused(errors.INSUFFICIENT_RESOURCES, "it serves all of the device"):
        take(bench, "timeslice", "b.1.0")
    bench.driver.destroy(bench.device)
    assert bench.driver.observe(bench.device) == []


def test_shares_of_an_earlier_boot_are_gone(bench):
    take(bench, "timeslice")
    bench.host.reboot()

    assert bench.agent().observe(bench.device) == []


def test_a_share_file_that_cannot_be_read_counts_as_nothing_and_is_told(bench, caplog):
    made = take(bench, "timeslice")
    folder = bench.run_dir / "shares"
    (folder / "TS-broken.json").write_text("{", encoding="utf-8")
    row = json.loads((folder / f"{made.uuid}.json").read_text(encoding="utf-8"))
    (folder / "TS-odd.json").write_text(json.dumps({**row, "share_milli": "all"}), encoding="utf-8")

    driver = bench.agent()

    assert driver.observe(bench.device) == [made]
    told = [fact for fact in driver.health() if fact.code == "share_unread"]
    assert [("broken" in fact.detail, "odd" in fact.detail) for fact in told] == [
        (True, False),
        (False, True),
    ]
    assert caplog.text.count("TS-broken.json is no share") == 1
    (folder / "TS-broken.json").unlink()
    assert [fact.detail for fact in driver.health() if fact.code == "share_unread"] == [told[1].detail]


def test_a_folder_that_cannot_be_written_refuses_before_anything_is_promised(bench):
    (bench.run_dir / "shares").write_text("a file where the folder should be", encoding="utf-8")

    with refused(errors.UNKNOWN, "let the agent write there"):
        take(bench, "timeslice")

    assert bench.driver.observe(bench.device) == []


@pytest.mark.parametrize(
    "name", ["share.put.before", "share.put.after", "share.drop.before", "share.drop.after"]
)
def test_a_crash_around_a_share_file_leaves_the_old_or_the_new(tmp_path, name):
    def crash(now: str) -> None:
        if now == name:
            raise Crash

    book = ShareBook(tmp_path, "boot", on_change=crash)
    share = HeldShare("TS-1", "GPU-1", "a.1.0", "timeslice")
    try:
        book.put(share)
        book.drop("TS-1")
    except Crash:
        pass
    left = ShareBook(tmp_path, "boot").on("GPU-1")

    assert left == ([share] if name in ("share.put.after", "share.drop.before") else [])
    assert not list(tmp_path.glob("*.new"))


# Room


def test_a_device_serves_one_mode_at_a_time(bench):
    take(bench, "timeslice")

    for mode in ("mps", "memlimit"):
        with refused(errors.INSUFFICIENT_RESOURCES, "one mode at a time"):
            take(bench, mode, "b.1.0")
    with refused(errors.INSUFFICIENT_RESOURCES):
        bench.driver.create(bench.device, PartitionShape("exclusive"), 0, "b.1.0")


def test_shares_never_add_up_to_more_than_the_device(bench):
    take(bench, "timeslice", "a.1.0", milli=600)

    with refused(errors.INSUFFICIENT_RESOURCES, "too little"):
        take(bench, "timeslice", "b.1.0", milli=401)
    take(bench, "timeslice", "b.1.0", milli=400)

    assert len(bench.driver.observe(bench.device)) == 2


def test_a_share_cannot_have_more_memory_than_the_device_nor_be_nothing(bench):
    with refused(errors.INSUFFICIENT_RESOURCES, "81559 MiB"):
        take(bench, "memlimit", mib=81_560)
    with refused(errors.INVALID_ARGUMENT):
        take(bench, "memlimit", mib=0)
    with refused(errors.INVALID_ARGUMENT):
        take(bench, "timeslice", milli=0, mib=0)

    assert bench.driver.observe(bench.device) == []


def test_a_device_takes_as_many_clients_as_its_board_and_no_more(bench):
    most = bench.driver.inventory()[0].max_clients
    for number in range(most):
        take(bench, "timeslice", f"{number}.1.0", milli=1)

    with refused(errors.INSUFFICIENT_RESOURCES, f"{most} shares are the most"):
        take(bench, "timeslice", "one-more.1.0", milli=1)


def test_shares_need_to_be_offered(tmp_path):
    bench = Bench(tmp_path, offer=None)

    with pytest.raises(NotOfferedError, match="name it in --offer"):
        take(bench, "mps")


def test_what_does_not_exist_has_no_access_no_tenant_and_no_processes(bench):
    gone = take(bench, "timeslice").uuid
    bench.driver.destroy(gone)

    bench.driver.destroy(gone)
    bench.driver.detach(gone, kill=True)
    assert bench.driver.processes(gone) == []
    for verb in (
        lambda: bench.driver.access(gone),
        lambda: bench.driver.attach(gone, Tenant("a")),
        lambda: bench.driver.confine(gone, "/x"),
    ):
        with refused(errors.NOT_FOUND):
            verb()


# Time slices


def test_the_first_share_in_time_sets_the_slice_and_the_last_one_gives_it_back(bench):
    first, second = move_in(bench, "timeslice"), move_in(bench, "timeslice", "b.1.0", "bob")
    assert bench.smi.policy(bench.device) == 2
    assert bench.changes.count("timeslice.after") == 1

    bench.driver.destroy(first.uuid)
    assert bench.smi.policy(bench.device) == 2
    bench.driver.destroy(second.uuid)

    assert bench.smi.policy(bench.device) == 0
    assert bench.driver.access(bench.device).env == {"CUDA_VISIBLE_DEVICES": bench.device}


def test_a_tool_that_does_not_list_slices_is_believed(bench):
    bench.smi.lists = False

    TimeSlice(bench.shell, 3).set(bench.device)

    assert bench.smi.policy(bench.device) == 3


def test_a_slice_that_was_set_and_does_not_hold_is_an_error(bench):
    def forgetful(argv: Sequence[str], stdin: str, env: Mapping[str, str]) -> Done:
        return Done(0) if "--set-timeslice" in argv else bench.smi(argv, stdin, env)

    bench.shell.programs["nvidia-smi"] = forgetful

    with refused(errors.UNKNOWN, "was set to medium and is default"):
        move_in(bench, "timeslice")


def test_without_its_tool_slices_are_not_offered_unless_the_default_will_do(tmp_path):
    bench = Bench(tmp_path)
    del bench.shell.programs["nvidia-smi"]

    assert "nvidia-smi is not installed" in bench.agent().inventory()[0].refusals["timeslice"]
    assert "timeslice" in bench.agent(timeslice=0).inventory()[0].modes
    move_in(bench, "timeslice")


def test_a_time_slice_that_the_tool_does_not_know_is_refused_at_once(bench):
    with pytest.raises(ValueError, match="0 \\(default\\) to 3"):
        TimeSlice(bench.shell, 4)


def test_a_device_in_an_exclusive_compute_mode_is_not_shared_in_time(bench):
    bench.host.devices[0].compute_mode = 3

    assert "nvidia-smi -c 0" in bench.agent().inventory()[0].refusals["timeslice"]


# MPS


def test_an_mps_share_leads_its_holder_to_a_daemon_with_its_limits(bench):
    made = move_in(bench, "mps", milli=300, mib=9_000)

    access = bench.driver.access(made.uuid)

    assert bench.driver.mps.daemons() == [(bench.device, "alice")]
    assert access.env["CUDA_MPS_PIPE_DIRECTORY"]
    assert "/dev/nvidia0" in access.nodes
    assert access.folders or access.binds
    program = bench.run("-", cgroup("a.1.0"), user="alice")
    assert bench.mps_program.connect(program, access.env, bench.device) == "mps"
    assert [(fact.pid, fact.is_mps) for fact in bench.driver.processes(made.uuid)] == [(program.pid, True)]


def test_the_daemon_of_a_user_ends_with_the_users_last_share(bench):
    first, second = move_in(bench, "mps"), move_in(bench, "mps", "b.1.0")

    bench.driver.detach(first.uuid, kill=True)
    bench.driver.destroy(first.uuid)
    assert bench.driver.mps.daemons() == [(bench.device, "alice")]
    bench.agent().destroy(second.uuid)

    assert bench.driver.mps.daemons() == []
    assert bench.host.world.processes == {}
    assert bench.driver.observe(bench.device) == []


def test_an_mps_share_with_a_client_stays_until_the_client_has_ended(bench):
    made = move_in(bench, "mps")
    program = bench.run("-", cgroup("a.1.0"), user="alice")
    bench.mps_program.connect(program, bench.driver.access(made.uuid).env, bench.device)

    with refused(errors.IN_USE, str(program.pid)):
        bench.driver.destroy(made.uuid)
    bench.driver.detach(made.uuid, kill=False)
    assert bench.mps_program.terminated == []
    bench.driver.detach(made.uuid, kill=True)
    assert bench.mps_program.terminated == [program.pid]
    bench.host.world.signal(program.pid, kill=True)
    bench.driver.destroy(made.uuid)

    assert bench.driver.observe(bench.device) == []


def test_mps_needs_an_account_and_leaves_nothing_where_there_is_none(bench):
    made = take(bench, "mps")

    with pytest.raises(NotOfferedError, match="no account charlie"):
        bench.driver.attach(made.uuid, Tenant("a", user="charlie"))
    with pytest.raises(NotOfferedError, match="names none"):
        bench.driver.attach(made.uuid, Tenant("a"))
    bench.driver.destroy(made.uuid)

    assert bench.driver.observe(bench.device) == []
    assert bench.driver.mps.daemons() == []


def test_without_its_program_mps_is_not_offered(tmp_path):
    bench = Bench(tmp_path)
    del bench.shell.programs["nvidia-cuda-mps-control"]

    (fact,) = bench.agent().inventory()

    assert "mps" not in fact.modes
    assert "not installed" in fact.refusals["mps"]
