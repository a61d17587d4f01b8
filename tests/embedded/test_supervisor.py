from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from portal.embedded.errors import CannotStart
from portal.embedded.process import LOG_LIMIT_BYTES, Program, cut_when_long, describe_exit, last_lines
from portal.embedded.supervisor import StopAsked, Supervisor

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    before = {signum: signal.getsignal(signum) for signum in SIGNALS}
    made = Supervisor(tmp_path, lambda: None)
    yield made
    made.stop([[*made.running]])
    signal.set_wakeup_fd(-1)
    for signum, handler in before.items():
        signal.signal(signum, handler)


def forever() -> int:
    signal.pause()
    return 0


def eventually(supervisor: Supervisor, what: str, ready) -> None:
    supervisor.wait_for(ready, what, within_s=60)


def test_a_killed_child_is_named_and_comes_back(
    supervisor: Supervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    first = supervisor.start(Program("worker", forever)).pid
    os.kill(first, signal.SIGKILL)

    eventually(supervisor, "worker", lambda: supervisor.running.get("worker", first) != first)

    said = capsys.readouterr().out
    assert "worker     died (SIGKILL)" in said
    assert "starts again in 0.5 s" in said


def test_the_last_words_of_a_dying_child_reach_the_terminal(
    supervisor: Supervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    def complain() -> int:
        print("no GPU on this planet")
        return 3

    with pytest.raises(CannotStart, match="whole output is in"):
        supervisor.run_once(Program("migrate", complain), within_s=60)

    said = capsys.readouterr().out
    assert "exit status 3" in said
    assert "no GPU on this planet" in said


def test_a_child_that_raises_leaves_its_traceback_in_its_log(supervisor: Supervisor, tmp_path: Path) -> None:
    def fall() -> int:
        raise RuntimeError("fell over")

    with pytest.raises(CannotStart):
        supervisor.run_once(Program("seed", fall), within_s=60)

    assert "RuntimeError: fell over" in (tmp_path / "seed.log").read_text()


def test_groups_stop_one_after_the_other(supervisor: Supervisor, tmp_path: Path) -> None:
    def until_told(name: str):
        def run() -> int:
            signal.signal(signal.SIGTERM, lambda *_: None)
            (tmp_path / name).touch()
            signal.pause()
            with (tmp_path / "order").open("a") as order:
                order.write(name)
            return 0

        return run

    for name in ("a", "b", "c"):
        supervisor.start(Program(name, until_told(name)))
        eventually(supervisor, name, (tmp_path / name).exists)

    supervisor.stop([["c"], ["a"], ["b"]])

    assert (tmp_path / "order").read_text() == "cab"
    assert supervisor.running == {}


def test_a_child_that_will_not_stop_is_killed_in_the_end(
    supervisor: Supervisor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def deaf() -> int:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (tmp_path / "deaf").touch()
        while True:
            signal.pause()

    supervisor.start(Program("deaf", deaf, stop_within_s=0.2))
    eventually(supervisor, "deaf", (tmp_path / "deaf").exists)

    supervisor.stop([["deaf"]])

    assert "deaf       does not stop, is killed" in capsys.readouterr().out


def test_what_a_crashed_child_left_in_its_session_goes_with_it(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    def with_pool() -> int:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        (tmp_path / "pool").write_text(str(pid))
        signal.pause()
        return 0

    first = supervisor.start(Program("worker", with_pool)).pid
    eventually(
        supervisor, "worker", lambda: (tmp_path / "pool").exists() and (tmp_path / "pool").read_text() != ""
    )
    pool = int((tmp_path / "pool").read_text())

    os.kill(first, signal.SIGKILL)
    eventually(supervisor, "worker", lambda: supervisor.running.get("worker", first) != first)

    assert not is_alive(pool)


def test_ctrl_c_interrupts_a_wait(supervisor: Supervisor) -> None:
    os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(StopAsked):
        supervisor.wait_for(lambda: False, "web", within_s=60)


def test_a_child_that_cannot_be_helped_is_named_and_left_alone(
    supervisor: Supervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ""

    def told() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return "not started again" in said

    supervisor.start(Program("gpu-01", lambda: 3, final=(3,)))
    supervisor.wait_for(told, "the news", within_s=60)

    assert "gpu-01     died (exit status 3)" in said
    assert supervisor.running == {}


def test_one_ctrl_c_that_arrives_twice_does_not_hurry_the_children(
    supervisor: Supervisor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def slow() -> int:
        signal.signal(signal.SIGTERM, lambda *_: None)
        (tmp_path / "slow").touch()
        signal.pause()
        time.sleep(0.8)
        return 0

    supervisor.start(Program("worker", slow))
    eventually(supervisor, "worker", (tmp_path / "slow").exists)

    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
    supervisor.stop([["worker"]])

    assert "is killed" not in capsys.readouterr().out


def test_a_child_that_dies_again_and_again_ends_the_wait_for_it(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("portal.embedded.restart.FIRST_DELAY_S", 0.01)
    supervisor.start(Program("web", lambda: 1))

    with pytest.raises(CannotStart, match="`web` is not ready"):
        supervisor.wait_for(lambda: False, "web", within_s=60)

    assert capsys.readouterr().out.count("died (exit status 1)") == 4


def test_killing_the_supervisor_itself_leaves_no_child(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        lone = Supervisor(tmp_path, lambda: None)
        child = lone.start(Program("web", forever))
        (tmp_path / "child").write_text(str(child.pid))
        lone.watch()
        os._exit(0)
    while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
        os.sched_yield()
    child_pid = int((tmp_path / "child").read_text())

    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

    until = time.monotonic() + 60
    while is_alive(child_pid) and time.monotonic() < until:
        os.sched_yield()
    assert not is_alive(child_pid)


def test_a_long_log_is_cut_while_its_child_goes_on_writing(tmp_path: Path) -> None:
    log = tmp_path / "web.log"
    with log.open("ab") as writer:
        writer.write(b"x" * (LOG_LIMIT_BYTES + 1))
        writer.flush()

        cut_when_long(log)
        writer.write(b"after\n")

    assert log.read_bytes() == b"after\n"
    assert log.with_name("web.log.1").stat().st_size == LOG_LIMIT_BYTES + 1


def test_last_lines_of_a_log_that_never_was_are_none(tmp_path: Path) -> None:
    assert last_lines(tmp_path / "never.log") == []


@pytest.mark.parametrize(
    ("code", "text"), [(0, "exit status 0"), (1, "exit status 1"), (-9, "SIGKILL"), (-70, "signal 70")]
)
def test_an_exit_is_told_in_words(code: int, text: str) -> None:
    assert describe_exit(code) == text


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
