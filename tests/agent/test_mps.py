"""Opening shares by MPS over the simulated program, and what their programs get, by both protocols."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NotOfferedError, NvmlLikeError
from nodeagent.drivers.nvml.mps_seat import SOCKET_ROOM, keeps_memory, keeps_percent, let_pass
from nodeagent.drivers.simulated.mps_state import Limits
from nodeagent.drivers.simulated.world import SimulatedShell
from nodeagent.shell import Done, ProgramError
from tests.agent.mps_bench import CARD, OTHER, SLICE, Bench, share

EXCLUSIVE, DEFAULT = 3, 0


@pytest.fixture(params=[2, 3], ids=["classic", "named"])
def bench(tmp_path, request):
    return Bench(tmp_path, request.param)


@pytest.fixture
def classic(tmp_path):
    return Bench(tmp_path, 2)


@pytest.fixture
def named(tmp_path):
    return Bench(tmp_path, 3)


def refused(code: int):
    return pytest.raises(NvmlLikeError, match=errors.NAMES[code])


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


def test_only_the_user_is_let_in_and_root_keeps_all_that_is_there(bench):
    bench.open(share())

    (root,) = (bench.run_dir / "mps").iterdir()

    assert bench.owned == {str(root): (1001, 1001)}
    assert {path.stat().st_uid for path in root.rglob("*")} == {os.geteuid()}
    assert {(root / name).stat().st_mode & 0o7777 for name in ("p", "log", "log/s")} == {0o1733}
    assert (root / "of.json").stat().st_mode & 0o777 == 0o600
    assert all(str(root) in folder for folder in bench.mps.access(share()).folders)


def plant(root: Path, victim: Path) -> None:
    """Lay links where root's daemon opens its files."""
    for name in ("log/control.log", "log/server.log", "p/nvidia-cuda-mps-control.pid"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).unlink(missing_ok=True)
        (root / name).symlink_to(victim)


@pytest.mark.parametrize("is_folder", [False, True])
def test_daemon_opens_nothing_that_a_user_laid_in_its_way(bench, tmp_path, is_folder):
    bench.open(share())
    (root,) = (bench.run_dir / "mps").iterdir()
    bench.world.reboot()
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "control.log").write_text("precious")
    if is_folder:
        shutil.rmtree(root / "log")
        (root / "log").symlink_to(victim)
    else:
        plant(root, victim / "control.log")
    real = bench.shell.programs["nvidia-cuda-mps-control"]
    gates = []

    def careless(argv, stdin, env):
        if "-d" in argv:
            gates.append(root.stat().st_mode & 0o777)
            for folder, name in (
                ("LOG", "control.log"),
                ("LOG", "server.log"),
                ("PIPE", "nvidia-cuda-mps-control.pid"),
            ):
                Path(env[f"CUDA_MPS_{folder}_DIRECTORY"], name).write_text("root wrote here")
        return real(argv, stdin, env)

    bench.shell.programs["nvidia-cuda-mps-control"] = careless

    bench.open(share())

    assert (victim / "control.log").read_text() == "precious"
    assert gates == [0o700], "nobody passes before the daemon runs"
    assert (root / "log" / "control.log").read_text() == "root wrote here"


def test_a_user_is_let_in_though_the_agent_died_right_after_the_start(bench):
    bench.open(share())
    bench.owned.clear()

    bench.agent().open(share(), [share()])

    assert list(bench.owned.values()) == [(1001, 1001)]


def as_user(uid: int, folder: Path, *words: str) -> int:
    return subprocess.run(
        words, cwd=folder, user=uid, group=uid, extra_groups=[], capture_output=True, check=False
    ).returncode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes others")
def test_the_kernel_lets_this_user_in_and_no_other_and_nobody_replaces_what_is_roots(classic, monkeypatch):
    monkeypatch.setattr(classic, "own", let_pass)
    try:
        classic.agent().open(share(), [share()])
    except NvmlLikeError as no:
        pytest.skip(f"no access control lists here: {no}")
    (root,) = (classic.run_dir / "mps").iterdir()
    (root / "p" / "control").write_text("")
    (root / "p" / "control").chmod(0o666)
    mps, name = root.parent, root.name

    assert as_user(1001, mps, "test", "-w", f"{name}/p/control") == 0
    assert as_user(1002, mps, "test", "-e", f"{name}/p/control") != 0
    assert as_user(1001, mps, "touch", f"{name}/log/own") == 0
    for words in (
        ("rm", "-f", f"{name}/log/control.log"),
        ("ln", "-sfT", "/etc/x", f"{name}/log/control.log"),
    ):
        assert as_user(1001, mps, *words) != 0
    assert as_user(1001, mps, "mv", f"{name}/log", f"{name}/other") != 0
    assert as_user(1001, mps, "touch", f"{name}/mps.toml") != 0


def test_a_run_folder_without_access_lists_is_refused_with_what_to_do(bench, monkeypatch):
    def without(path, uid, gid):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(bench, "own", without)

    with pytest.raises(NvmlLikeError, match="access control lists, such as the tmpfs of /run"):
        bench.agent().open(share(), [share()])


def test_an_account_that_the_host_has_not_is_refused_with_its_sentence_and_nothing_is_made(bench):
    with pytest.raises(NotOfferedError, match="no account charlie: create it first"):
        bench.open(share(user="charlie"))

    assert not (bench.run_dir / "mps").exists()


@pytest.mark.parametrize("change", [{"memory_mib": 0}, {"share_milli": 0}, {"share_milli": 1001}])
def test_a_share_without_limits_is_refused(bench, change):
    with refused(errors.INVALID_ARGUMENT):
        bench.open(dataclasses.replace(share(), **change))

    assert bench.world.processes == {}


def test_a_share_of_somebody_else_does_not_pass_for_one_of_the_user(bench):
    with refused(errors.INVALID_ARGUMENT):
        bench.mps.open(share(), [share(), share("b", user="bob")])


def test_shares_never_round_up_to_more_than_the_device(bench):
    assert [share(milli=milli).percent for milli in (1, 9, 125, 333, 1000)] == [1, 1, 12, 33, 100]


def test_a_device_that_is_not_there_is_found_out_although_the_program_takes_every_word(bench):
    bench.cards.modes["GPU-gone"] = DEFAULT

    with refused(errors.UNKNOWN) as told:
        bench.open(share(device="GPU-gone"))

    assert "is the device there" in str(told.value)
    bench.mps.close("GPU-gone", "alice")
    assert (bench.mps.daemons(), bench.world.processes) == ([], {})


def test_a_limit_that_the_program_takes_and_does_not_keep_is_refused(bench):
    real = bench.shell.programs["nvidia-cuda-mps-control"]

    def forgetful(argv, stdin, env):
        if "set_device_pinned_mem_limit" in stdin or argv[1:3] == ["namespace", "set"]:
            return Done(0)
        return real(argv, stdin, env)

    bench.open(share(memory_mib=8192))
    bench.shell.programs["nvidia-cuda-mps-control"] = forgetful

    with pytest.raises(NotOfferedError, match="does not keep"):
        bench.open(share(memory_mib=4096))


def test_a_server_that_takes_its_time_is_waited_for(bench):
    bench.program.starting_looks = 20

    bench.open(share())

    assert bench.mps.state(CARD, "alice") == "active"
    assert bench.pauses


def test_a_daemon_that_never_answers_is_reported_with_where_to_look(bench):
    def mute(argv, stdin, env):
        return (
            Done(0, "server namespace")
            if "-h" in argv
            else Done(1, err="Cannot find MPS control daemon process")
        )

    bench.shell.programs["nvidia-cuda-mps-control"] = mute

    with refused(errors.UNKNOWN) as told:
        bench.open(share())

    assert "control.log" in str(told.value)
    assert sum(bench.pauses) < 15


def test_a_start_that_hangs_is_judged_by_whether_the_daemon_answers(bench):
    real = bench.shell.programs["nvidia-cuda-mps-control"]

    def hanging(argv, stdin, env):
        done = real(argv, stdin, env)
        if "-d" in argv:
            raise ProgramError("nvidia-cuda-mps-control did not answer within 20 s")
        return done

    bench.shell.programs["nvidia-cuda-mps-control"] = hanging

    bench.open(share())

    assert bench.mps.state(CARD, "alice") == "active"


def test_where_the_program_does_not_answer_nothing_is_taken_for_gone(bench):
    bench.open(share())
    process = bench.run(share())
    real = bench.shell.programs.pop("nvidia-cuda-mps-control")

    assert bench.mps.state(CARD, "alice") == ""
    for verb in (lambda: bench.mps.close(CARD, "alice"), lambda: bench.open(share())):
        with refused(errors.TIMEOUT):
            verb()

    bench.shell.programs["nvidia-cuda-mps-control"] = real
    assert bench.mps.clients(CARD, "alice") == [process.pid]


def test_questions_wait_for_seconds_only_since_a_hanging_daemon_would_hold_up_everything(bench, monkeypatch):
    waits = []
    real = SimulatedShell.run

    def timed(shell, argv, **how):
        waits.append((argv[1:2], how.get("timeout_s")))
        return real(shell, argv, **how)

    monkeypatch.setattr(SimulatedShell, "run", timed)
    bench.open(share())

    starting = [["-p"], ["-d"]]
    assert {wait_s for first, wait_s in waits if first not in starting} == {5.0}
    assert (["-d"], 20.0) in waits


def test_a_host_without_the_program_says_what_to_install(bench):
    del bench.shell.programs["nvidia-cuda-mps-control"]

    assert "compute utilities" in bench.mps.why_not()
    with pytest.raises(NotOfferedError, match="not installed"):
        bench.open(share())


def test_a_host_with_the_program_can_be_used(bench):
    assert bench.mps.why_not() == ""


def test_cards_before_volta_keep_no_limits_and_are_refused(bench):
    bench.cards.capability = (6, 0)

    with pytest.raises(NotOfferedError, match="Volta"):
        bench.open(share())

    assert bench.world.processes == {}


def test_a_run_folder_too_long_for_sockets_is_refused_before_anything_is_made(tmp_path):
    bench = Bench(tmp_path / ("x" * 60), 3, socket_room=SOCKET_ROOM)

    with refused(errors.INVALID_ARGUMENT) as told:
        bench.open(share())

    assert "shorter" in str(told.value)
    assert bench.world.processes == {}


def test_a_slice_has_a_daemon_of_its_own_by_protocol_2_even_on_a_new_driver(named):
    named.open(share(device=SLICE))

    process = named.run(share(device=SLICE))

    assert (process.gpu, process.gi) == (CARD, 7)
    assert next(iter(named.program.daemons.values())).protocol == 2
    assert named.cards.modes[CARD] == DEFAULT


def test_a_card_with_one_daemon_lets_nothing_past_it_and_opens_for_a_second_user(bench):
    bench.open(share())
    alone = bench.cards.modes[CARD]
    stray = bench.world.spawn("/user.slice", user="bob")
    past = bench.program.connect(stray, {}, CARD)

    bench.mps.open(share("b", user="bob"), [share("b", user="bob")])
    both = bench.cards.modes[CARD]
    bench.mps.close(CARD, "bob")
    again = bench.cards.modes[CARD]
    bench.mps.close(CARD, "alice")

    assert (alone, past, both, again, bench.cards.modes[CARD]) == (
        EXCLUSIVE,
        "refused",
        DEFAULT,
        EXCLUSIVE,
        DEFAULT,
    )


def test_a_wrong_pipe_folder_leads_outside_where_two_users_share_a_card(bench):
    bench.open(share())
    bench.mps.open(share("b", user="bob"), [share("b", user="bob")])
    stray = bench.world.spawn("/berth/a", user="alice")

    found = bench.program.connect(stray, {"CUDA_MPS_PIPE_DIRECTORY": "/nowhere"}, CARD)

    assert (found, stray.is_mps) == ("outside", False)


def test_cards_that_have_no_compute_modes_are_shared_all_the_same(bench):
    bench.cards.refusal = errors.NOT_SUPPORTED

    bench.open(share())

    assert bench.mps.daemons() == [(CARD, "alice")]


def test_without_the_right_to_set_modes_it_is_said_what_to_allow(bench):
    bench.cards.refusal = errors.NO_PERMISSION

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
    real, calls = bench.cards.nvmlDeviceGetComputeMode, []

    def stale_once(handle):
        calls.append(handle)
        if len(calls) == 1:
            raise bench.cards.NVMLError(errors.INVALID_ARGUMENT)
        return real(handle)

    bench.cards.nvmlDeviceGetComputeMode = stale_once

    bench.open(share())

    assert len(calls) == 2


@pytest.mark.parametrize(
    ("reply", "wanted", "kept"),
    [
        ("900M", 900, True),
        ("10G\n", 10240, True),
        ("1G", 1044, True),  # shown rounded down
        ("1G", 2048, False),
        ("2G", 1044, False),
        ("8192MB", 8192, True),
        ("1024K", 1, True),
        ("", 900, False),
        ("-", 900, False),
        ("0", 900, False),
        ("unlimited", 900, False),
    ],
)
def test_memory_limits_are_read_back_as_the_program_shows_them(reply, wanted, kept):
    assert keeps_memory(reply, wanted) is kept


@pytest.mark.parametrize(
    ("reply", "kept"), [("25.0", True), ("25", True), ("24.00", False), ("", False), ("all", False)]
)
def test_percentages_are_read_back_as_numbers(reply, kept):
    assert keeps_percent(reply, 25) is kept
