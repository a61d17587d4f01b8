"""Shares in use: what was taken from them is put back at the next look, and nothing that works is touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from nodeagent.drivers import errors
from nodeagent.drivers.nvml.health.repairs import ShareDefect
from nodeagent.drivers.nvml.mps.daemon import MpsShare
from nodeagent.drivers.nvml.mps.servers import KEEP_EVERY_S
from nodeagent.host.shell import Done, ProgramError
from nodeagent.simulation.programs.mps_state import Limits
from tests.agent.mps_bench import CARD, DEFAULT, EXCLUSIVE, OTHER, Bench, refused, share


def look(
    bench: Bench,
    one: MpsShare,
    *others: MpsShare,
    after_s: float = KEEP_EVERY_S,
    outside: Sequence[int] = (),
    servers: Sequence[int] = (),
) -> list[ShareDefect] | None:
    bench.now += after_s
    return bench.mps.keep(one, [one, *others], outside=lambda: outside, servers=lambda: servers)


def _never(argv: Sequence[str], stdin: str, env: Mapping[str, str]) -> Done:
    raise ProgramError("it did not answer")


def codes(lacks: list[ShareDefect] | None) -> list[tuple[str, bool]]:
    return [(lack.code, lack.is_mended) for lack in lacks or ()]


def kill_daemon(bench: Bench) -> None:
    for daemon in bench.program.daemons.values():
        bench.world.signal(daemon.pid, kill=True)


def kill_server(bench: Bench) -> None:
    for server in bench.program.servers():
        bench.world.signal(server.pid, kill=True)


def test_a_share_that_has_all_it_needs_is_looked_at_and_left_alone(bench):
    bench.open(share("a"), share("b", 500, 20_480))
    busy = bench.run(share("a"), is_busy=True)
    before = bench.picture()
    changes: list[str] = []
    bench.watch(changes.append)

    assert look(bench, share("a"), share("b", 500, 20_480)) == []
    assert (bench.picture(), changes) == (before, [])
    assert bench.mps.clients(CARD, "alice") == [busy.pid]


def test_a_daemon_that_died_is_started_again_at_the_same_place_with_the_limits_of_all_its_shares(bench):
    small, large = share("a"), share("b", 500, 20_480)
    bench.open(small, large)
    doors = [bench.mps.access(one) for one in (small, large)]
    kill_daemon(bench)

    found = look(bench, small, large)

    assert codes(found) == [("mps_restarted", True)]
    assert [bench.mps.access(one) for one in (small, large)] == doors
    assert bench.program.limits(bench.run(small).pid) == Limits(25, 8192)
    assert bench.program.limits(bench.run(large).pid) == Limits(50, 20_480)
    assert bench.devices.modes[CARD] == EXCLUSIVE
    assert look(bench, small, large) == []


def test_a_new_agent_starts_a_daemon_again_that_died_while_none_was_there(bench):
    bench.open(share())
    kill_daemon(bench)

    bench.agent()

    assert codes(look(bench, share())) == [("mps_restarted", True)]
    assert bench.mps.daemons() == [(CARD, "alice")]


def test_a_lost_server_is_made_again_with_all_its_limits_and_the_daemon_stays(bench):
    bench.open(share("a"), share("b"))
    (daemon,) = bench.program.daemons.values()
    kill_server(bench)

    found = look(bench, share("a"), share("b"))

    assert codes(found) == [("mps_restarted", True)]
    assert [one.pid for one in bench.program.daemons.values()] == [daemon.pid]
    assert bench.program.limits(bench.run(share("b")).pid) == Limits(25, 8192)


def test_while_the_server_of_before_still_works_nothing_is_started_and_that_is_told(bench):
    bench.open(share())
    kill_daemon(bench)
    assert bench.mps.daemons() == []

    found = look(bench, share(), servers=[4711])
    later = look(bench, share())

    assert codes(found) == [("mps_gone", False)]
    assert "4711" in found[0].detail
    assert codes(later) == [("mps_restarted", True)]


def test_limits_that_somebody_widened_are_set_again(bench):
    bench.open(share())
    (daemon,) = bench.program.daemons.values()
    daemon.percent = 100.0
    daemon.spaces = dict.fromkeys(daemon.spaces, Limits())

    found = look(bench, share())

    assert codes(found) == [("limit_gone", True)]
    assert bench.program.limits(bench.run(share()).pid) == Limits(25, 8192)


def test_a_compute_mode_that_somebody_changed_is_put_back(bench):
    bench.open(share())
    bench.devices.modes[CARD] = DEFAULT

    found = look(bench, share())

    assert codes(found) == [("compute_mode", True)]
    assert bench.devices.modes[CARD] == EXCLUSIVE


def test_a_compute_mode_stays_while_programs_work_outside_mps_and_they_are_named(bench):
    bench.open(share())
    bench.devices.modes[CARD] = DEFAULT

    found = look(bench, share(), outside=[4711])
    meanwhile = bench.devices.modes[CARD]
    later = look(bench, share())

    assert (codes(found), meanwhile) == ([("compute_mode", False)], DEFAULT)
    assert "4711" in found[0].detail
    assert (codes(later), bench.devices.modes[CARD]) == ([("compute_mode", True)], EXCLUSIVE)


def test_a_device_whose_mode_cannot_be_changed_is_no_news_at_each_look(bench):
    bench.devices.refusal = errors.NOT_SUPPORTED
    bench.open(share())

    assert bench.devices.modes[CARD] == DEFAULT
    assert look(bench, share()) == []


def test_two_users_keep_the_device_open_for_both_also_while_one_daemon_is_down(bench):
    mine, theirs = share("a"), share("b", user="bob")
    bench.open(mine)
    bench.open(theirs)
    kill_daemon(bench)
    assert bench.mps.daemons() == []

    first = look(bench, mine)
    mode = bench.devices.modes[CARD]
    second = look(bench, theirs)

    assert (codes(first), codes(second)) == ([("mps_restarted", True)], [("mps_restarted", True)])
    assert (mode, bench.devices.modes[CARD]) == (DEFAULT, DEFAULT)
    bench.devices.modes[CARD] = EXCLUSIVE
    # Letting more programs in disturbs nobody.
    assert codes(look(bench, mine, outside=[4711])) == [("compute_mode", True)]


def test_a_fault_is_left_alone_and_so_is_a_daemon_that_does_not_answer_which_is_said(bench):
    bench.open(share())
    bench.program.fault(bench.run(share()).pid)
    in_fault = look(bench, share())
    bench.shell.programs["nvidia-cuda-mps-control"] = _never

    before = bench.picture()["programs"]

    assert in_fault == []
    with refused(errors.TIMEOUT):
        look(bench, share())
    assert bench.picture()["programs"] == before


def test_shares_are_not_looked_at_twice_in_one_moment(bench):
    bench.open(share("a"), share("b"))
    at_once = look(bench, share("a"), share("b"), after_s=0)
    first = look(bench, share("a"), share("b"))
    kill_daemon(bench)

    assert (at_once, first) == (None, [])
    assert look(bench, share("b"), share("a"), after_s=1) is None
    assert codes(look(bench, share("b"), share("a"))) == [("mps_restarted", True)]


def test_what_cannot_be_put_right_is_tried_less_and_less_and_said_each_time(bench):
    bench.open(share())
    kill_daemon(bench)
    bench.program.where = {OTHER: (OTHER, None)}.get  # no server starts on the device any more
    tries: list[str] = []
    bench.watch(tries.append)

    said = []
    for _ in range(120):
        with refused(errors.UNKNOWN) as told:
            look(bench, share(), after_s=5)
        said.append(str(told.value))
    starts = sum(
        name in ("mps.start.before", "mps.server.create.before", "mps.server.start.before") for name in tries
    )
    bench.program.where = {CARD: (CARD, None)}.get

    assert "no MPS server starts" in said[-1]
    assert len(set(said)) == 1
    assert 1 < starts < 12
    assert codes(look(bench, share(), after_s=300)) == [("mps_restarted", True)]
    assert bench.program.limits(bench.run(share()).pid) == Limits(25, 8192)


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_agent_that_dies_while_putting_right_leaves_nothing_half_done_to_the_next(bench, when):
    class Death(BaseException):
        pass

    names: list[str] = []
    bench.open(share())
    kill_daemon(bench)
    bench.watch(names.append)
    look(bench, share())
    wanted = bench.picture()

    for point in [name for name in names if name.endswith(when)]:
        left = [point]

        def die(name: str, left: list[str] = left) -> None:
            if left == [name]:
                left.clear()
                raise Death(name)

        bench.watch(lambda name: None)
        kill_daemon(bench)
        bench.watch(die)
        with pytest.raises(Death):
            look(bench, share())
        bench.agent()
        look(bench, share())

        assert bench.picture() == wanted
