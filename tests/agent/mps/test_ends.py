"""Ending work under MPS, faults, and what is left when shares go, by both protocols."""

from __future__ import annotations

from nodeagent.drivers import errors
from nodeagent.host.shell import Done
from nodeagent.simulation.programs.mps_state import Limits
from tests.agent.mps_bench import CARD, OTHER, SLICE, refused, share


def test_ending_clients_ends_their_work_first_and_only_theirs(bench):
    mine, other = share("a"), share("b")
    bench.open(mine, other)
    running, neighbour = bench.run(mine, is_busy=True), bench.run(other, is_busy=True)

    bench.mps.end_clients(mine, [running.pid])
    bench.world.signal(running.pid, kill=True)

    assert bench.program.terminated == [running.pid]
    assert bench.mps.clients(CARD, "alice") == [neighbour.pid]
    assert bench.mps.state(CARD, "alice") == "active"


def test_by_protocol_3_a_lease_ends_all_clients_of_its_namespace(named):
    named.open(share("a"), share("b"))
    running = named.run(share("a"), is_busy=True)

    named.mps.end_clients(share("a"), [])

    assert named.program.terminated == [running.pid]


def test_killing_a_busy_client_without_that_takes_the_others_along(bench):
    bench.open(share("a"), share("b"))
    running, _ = bench.run(share("a"), is_busy=True), bench.run(share("b"))

    bench.world.signal(running.pid, kill=True)

    assert bench.mps.state(CARD, "alice") == "fault"


def test_a_fault_keeps_newcomers_out_is_told_and_passes_with_the_clients(bench):
    bench.open(share())
    process = bench.run(share())
    bench.program.fault(process.pid)

    (fact,) = bench.mps.faults()
    with refused(errors.IN_USE) as told:
        bench.mps.open(share("b"), [share(), share("b")])
    bench.world.signal(process.pid, kill=True)
    bench.now += 10

    assert (fact.device, fact.code, fact.severity, fact.action) == (
        CARD,
        "mps_fault",
        "warning",
        "restart_workload",
    )
    assert str(process.pid) in str(told.value)
    assert bench.mps.faults() == []
    bench.mps.open(share("b"), [share(), share("b")])


def test_a_fault_on_a_slice_is_told_of_its_device(named):
    named.open(share(device=SLICE))
    named.program.fault(named.run(share(device=SLICE)).pid)

    assert [fact.device for fact in named.mps.faults()] == [CARD]


def test_daemons_are_not_asked_for_faults_at_every_turn(bench):
    bench.open(share())
    first = bench.mps.faults()
    bench.program.fault(bench.run(share()).pid)

    bench.now = 9.9
    soon = bench.mps.faults()
    bench.now = 10.0

    assert (first, soon) == ([], [])
    assert [fact.code for fact in bench.mps.faults()] == ["mps_fault"]


def test_a_daemon_that_died_is_told_and_made_anew(bench):
    bench.open(share())
    (daemon,) = bench.program.daemons.values()
    bench.world.signal(daemon.pid, kill=True)

    first = bench.mps.faults()
    bench.now += 10
    dead = (bench.mps.state(CARD, "alice"), [fact.code for fact in bench.mps.faults()], bench.mps.daemons())
    bench.open(share())
    bench.now += 10

    # One look could have fallen between the steps of an opening or a closing.
    assert first == []
    assert dead == ("stopped", ["mps_gone"], [])
    assert bench.mps.faults() == []
    assert bench.mps.state(CARD, "alice") == "active"


def test_a_server_that_died_is_started_again_with_its_limits(bench):
    bench.open(share())
    (server,) = bench.program.servers()
    bench.world.signal(server.pid, kill=True)

    bench.open(share())

    assert bench.program.limits(bench.run(share()).pid) == Limits(25, 8192)


def test_by_protocol_2_a_server_that_the_daemon_starts_by_itself_keeps_the_limits(classic):
    classic.open(share())
    (server,) = classic.program.servers()
    classic.world.signal(server.pid, kill=True)
    process = classic.world.spawn("/berth/a", user="alice")

    door = {"CUDA_MPS_PIPE_DIRECTORY": classic.mps.access(share()).env["CUDA_MPS_PIPE_DIRECTORY"]}
    classic.program.connect(process, door, CARD)

    assert classic.program.limits(process.pid) == Limits(25, 8192)


def test_by_protocol_3_a_server_made_anew_has_no_room_in_its_default_namespace_either(named):
    named.open(share())
    (server,) = named.program.servers()
    named.world.signal(server.pid, kill=True)

    named.open(share())

    (daemon,) = named.program.daemons.values()
    assert daemon.spaces["default"] == Limits(1, 1)


def test_by_protocol_3_a_server_on_another_device_is_not_taken_for_ours(named):
    named.open(share())
    (server,) = named.program.servers()
    server.device = OTHER

    with refused(errors.UNKNOWN) as told:
        named.open(share())

    assert "not the one asked for" in str(told.value)


def test_by_protocol_3_a_lost_server_does_not_count_as_working(named):
    named.open(share())
    (server,) = named.program.servers()
    named.world.signal(server.pid, kill=True)

    assert named.mps.state(CARD, "alice") == "stopped"


def test_a_daemon_with_clients_does_not_close_and_says_who_they_are(bench):
    bench.open(share())
    process = bench.run(share())

    with refused(errors.IN_USE) as told:
        bench.mps.close(CARD, "alice")
    bench.world.signal(process.pid, kill=True)
    bench.mps.close(CARD, "alice")

    assert str(process.pid) in str(told.value)
    assert (bench.mps.daemons(), bench.world.processes) == ([], {})
    assert list((bench.run_dir / "mps").iterdir()) == []


def test_closing_what_is_gone_is_success(bench):
    bench.mps.close(CARD, "alice")
    bench.open(share())
    bench.world.reboot()

    bench.mps.close(CARD, "alice")

    assert bench.mps.state(CARD, "alice") == "stopped"


def test_a_daemon_that_ignores_quitting_is_no_success(bench):
    bench.open(share())
    real = bench.shell.programs["nvidia-cuda-mps-control"]
    deaf = lambda argv, stdin, env: Done(0) if "quit" in stdin or "-q" in argv else real(argv, stdin, env)  # noqa: E731
    bench.shell.programs["nvidia-cuda-mps-control"] = deaf

    with refused(errors.TIMEOUT):
        bench.mps.close(CARD, "alice")

    assert bench.mps.daemons() == [(CARD, "alice")]


def test_releasing_a_large_share_narrows_what_is_left_of_the_user(bench):
    small, large = share("a", 200, 4096), share("b", 500, 20480)
    bench.open(small, large)

    bench.mps.release(large, [small])

    assert bench.mps.daemons() == [(CARD, "alice")]
    assert bench.program.limits(bench.run(small).pid) == Limits(20, 4096)
    stray = bench.world.spawn("/berth/b", user="alice")
    env = bench.mps.access(large).env
    found = bench.program.connect(stray, env, CARD)
    # By protocol 3 the lease's own door is gone; by protocol 2 the common one allows the smaller share.
    assert found == "refused" or bench.program.limits(stray.pid) == Limits(20, 4096)


def test_releasing_the_last_share_ends_the_daemon(bench):
    bench.open(share())

    bench.mps.release(share(), [share()])

    assert bench.mps.daemons() == []


def test_by_protocol_3_a_namespace_with_clients_is_not_taken_away(named):
    named.open(share("a"), share("b"))
    process = named.run(share("a"))

    with refused(errors.IN_USE) as told:
        named.mps.release(share("a"), [share("b")])

    assert str(process.pid) in str(told.value)


def test_by_protocol_3_namespaces_of_leases_long_gone_are_swept(named):
    named.open(share("a"), share("b"))

    named.mps.open(share("b"), [share("b")])

    (daemon,) = named.program.daemons.values()
    assert len(daemon.spaces) == 2


def test_a_share_ends_also_when_its_server_is_gone_and_none_can_be_started(bench):
    small, large = share("a", 200, 4096), share("b", 500, 20480)
    bench.open(small, large)
    bench.program.where = {OTHER: (OTHER, None)}.get  # the device has fallen off the bus
    for server in bench.program.servers():
        bench.world.signal(server.pid, kill=True)

    bench.mps.release(large, [small])
    one_left = bench.mps.daemons()
    bench.mps.release(small, [])

    assert one_left == [(CARD, "alice")]
    assert (bench.mps.daemons(), bench.world.processes) == ([], {})


def test_a_share_that_ended_without_its_server_leaves_no_door_when_there_is_one_again(named):
    named.open(share("a"), share("b"))
    (server,) = named.program.servers()
    named.world.signal(server.pid, kill=True)

    named.mps.release(share("a"), [share("b")])
    named.open(share("b"))

    (daemon,) = named.program.daemons.values()
    assert len(daemon.spaces) == 2
