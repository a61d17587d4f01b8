"""What is refused or waited for when shares are opened by MPS: wrong wishes, programs that lack, lie or hang."""

from __future__ import annotations

import dataclasses

import pytest

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NotOfferedError
from nodeagent.drivers.nvml.mps.daemon import keeps_memory, keeps_percent
from nodeagent.host.shell import Done, ProgramError
from nodeagent.simulation.machine.world import SimulatedShell
from tests.agent.mps_bench import CARD, DEFAULT, refused, share


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
    bench.devices.modes["GPU-gone"] = DEFAULT

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


def test_devices_before_volta_keep_no_limits_and_are_refused(bench):
    bench.devices.capability = (6, 0)

    with pytest.raises(NotOfferedError, match="Volta"):
        bench.open(share())

    assert bench.world.processes == {}


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
