"""Going into a lease: who may, what moves, what comes along."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from nodeagent.commands import enter as entering
from nodeagent.commands.enter import Caller, EnterError, add_options, enter, session_env
from nodeagent.host.accounts import Account
from nodeagent.host.shell import Done
from tests.agent.systemd_bench import CGROUP, GRANT, PEOPLE, UNIT, Host, person

LOGIN = "/user.slice/user-1001.slice/session-3.scope"


@dataclass
class Session:
    """A host with alice's lease open, and a process that asks to go in."""

    host: Host = field(default_factory=Host)
    became: list[Account] = field(default_factory=list)
    executed: list[tuple[list[str], dict[str, str]]] = field(default_factory=list)
    pid: int = 0

    def __post_init__(self) -> None:
        self.host.agent().open(GRANT)
        self.pid = self.host.systemd.world.spawn(LOGIN, name="berth-agent").pid

    def ask(self, *command: str, uid: str | None = "1001", euid: int = 0, lease: str = "a") -> None:
        environ = {"TERM": "xterm", "LC_ALL": "de_DE", "LD_PRELOAD": "/tmp/x.so", "SUDO_COMMAND": "x"}
        if uid is not None:
            environ["SUDO_UID"] = uid
        caller = Caller(euid, self.pid, environ, self.become, self.execute)
        agent = self.host.agent()
        shell = self.host.shell
        enter(
            lease,
            command,
            caller=caller,
            runtime=agent,
            shell=shell,
            read=self.host.systemd.read,
            account=person,
        )

    def become(self, account: Account) -> None:
        assert self.cgroup.startswith("/berth.slice/"), (
            "root's rights are given up inside the lease, not before"
        )
        self.became.append(account)

    def execute(self, words: Sequence[str], env: Mapping[str, str]) -> None:
        assert self.became, "nothing of the holder's runs as root"
        self.executed.append((list(words), dict(env)))

    @property
    def cgroup(self) -> str:
        return self.host.systemd.world.processes[self.pid].cgroup


@pytest.fixture
def session() -> Session:
    return Session()


def test_a_holder_gets_a_shell_inside_the_lease(session):
    session.ask()

    assert session.cgroup == CGROUP
    assert session.became == [PEOPLE["alice"]]
    ((words, env),) = session.executed
    assert words == ["/bin/sh"]
    assert env["CUDA_VISIBLE_DEVICES"] == "MIG-1"
    assert (env["USER"], env["HOME"], env["TERM"]) == ("alice", "/home/alice", "xterm")
    assert "LD_PRELOAD" not in env
    assert "SUDO_COMMAND" not in env


def test_a_command_runs_as_it_was_given(session):
    session.ask("python", "train.py", "--epochs", "3")

    assert session.executed[0][0] == ["python", "train.py", "--epochs", "3"]


def test_what_entered_belongs_to_the_lease_and_ends_with_it(session):
    session.ask()
    agent = session.host.agent()

    assert session.pid in agent.pids(GRANT.key)
    assert agent.lease_of(session.pid) == GRANT.key
    agent.close(GRANT.key, kill=True)
    assert session.pid not in session.host.systemd.world.processes


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"uid": "1002"}, "lease a is alice's, not yours"),
        ({"euid": 1001}, "sudo berth-agent enter LEASE"),
        ({"uid": "alice"}, "which is no uid"),
        ({"lease": "b"}, "lease b is not open on this host"),
        ({"lease": "../a"}, "is not open on this host"),
    ],
)
def test_nobody_else_is_let_in_and_nothing_moves(session, facts, sentence):
    with pytest.raises(EnterError, match=sentence):
        session.ask(**facts)

    assert session.cgroup == LOGIN
    assert (session.became, session.executed) == ([], [])


def test_root_may_look_into_any_lease_and_becomes_its_holder_there(session):
    session.ask(uid=None)

    assert session.became == [PEOPLE["alice"]]


def test_a_lease_that_is_ending_lets_nobody_in(session):
    session.host.work(stubborn=True)
    session.host.agent().close(GRANT.key, kill=False)

    with pytest.raises(EnterError, match="is ending"):
        session.ask()
    assert session.cgroup == LOGIN


def test_the_newest_generation_is_entered(session):
    session.host.agent().open(replace(GRANT, generation=2))

    session.ask()

    assert session.host.agent().lease_of(session.pid) == ("a", 2)


def test_a_process_that_did_not_move_executes_nothing(session):
    session.host.shell.programs["busctl"] = lambda argv, stdin, env: Done(0)

    with pytest.raises(EnterError, match="could not be moved"):
        session.ask()
    assert (session.became, session.executed) == ([], [])


def test_a_refusal_of_systemd_is_told_in_its_words(session):
    session.host.systemd.units[UNIT].properties["Delegate"] = "no"

    with pytest.raises(EnterError, match="non-delegated"):
        session.ask()


def test_a_host_without_busctl_says_so(session):
    del session.host.shell.programs["busctl"]

    with pytest.raises(EnterError, match="busctl is not installed"):
        session.ask()


def test_a_holder_whose_first_process_cannot_be_read_is_told_to_wait(session):
    session.host.systemd.units[UNIT].properties["Environment"] = ""

    with pytest.raises(EnterError, match="try again in a moment"):
        session.ask()
    assert session.cgroup == LOGIN


def test_the_lease_and_not_the_caller_says_where_the_devices_are():
    env = session_env(
        {"CUDA_VISIBLE_DEVICES": "MIG-1", "TERM": "dumb"}, PEOPLE["alice"], {"TERM": "xterm", "PATH": "/x"}
    )

    assert env["CUDA_VISIBLE_DEVICES"] == "MIG-1"
    assert env["PATH"] == "/usr/local/bin:/usr/bin:/bin"


@pytest.mark.parametrize(
    ("words", "command"),
    [(["a"], []), (["a", "--", "ls", "-l"], ["ls", "-l"]), (["a", "ls", "--all"], ["ls", "--all"])],
)
def test_options_after_the_lease_belong_to_the_command(words, command, monkeypatch):
    parser = argparse.ArgumentParser()
    add_options(parser)
    seen = []
    monkeypatch.setattr(entering, "enter", lambda lease, given, **facts: seen.append((lease, list(given))))

    entering.run(parser.parse_args(words))

    assert seen == [("a", command)]


def test_a_refusal_ends_with_a_sentence_and_an_exit_code(monkeypatch, capsys):
    def refuse(*words: object, **facts: object) -> None:
        raise EnterError("lease a is not open on this host")

    monkeypatch.setattr(entering, "enter", refuse)

    code = entering.run(argparse.Namespace(lease="a", command=[]))

    assert (code, capsys.readouterr().err) == (1, "berth-agent: lease a is not open on this host\n")


def test_a_command_that_is_not_there_is_named(monkeypatch, capsys):
    def missing(*words: object, **facts: object) -> None:
        raise FileNotFoundError("pyhton")

    monkeypatch.setattr(entering, "enter", missing)

    assert entering.run(argparse.Namespace(lease="a", command=["pyhton"])) == 127
    assert "pyhton was not found" in capsys.readouterr().err


def test_programs_run_as_root_get_nothing_of_the_callers_environment(monkeypatch, tmp_path):
    for name in ("busctl", "env"):
        (tmp_path / name).write_text("#!/bin/sh\necho planted\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    seen = []
    monkeypatch.setattr(
        entering, "enter", lambda lease, given, **facts: seen.append(facts["shell"].run(["env"]))
    )

    entering.run(argparse.Namespace(lease="a", command=[]))

    (done,) = seen
    assert set(done.out.split()) >= {f"PATH={entering.SAFE_PATH}", "LC_ALL=C"}
    assert "PYTHONPATH" not in done.out


GIVE_UP = """
import os
from nodeagent.host.accounts import Account
from nodeagent.commands.enter import become
os.chdir("/")
become(Account(65534, 65534, "/nonexistent", "nobody"))
print(os.getresuid(), os.getresgid(), 0 in os.getgroups())
try:
    os.setuid(0)
except PermissionError:
    print("for good")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to give up")
def test_roots_rights_are_given_up_for_good():
    said = subprocess.run([sys.executable, "-c", GIVE_UP], capture_output=True, text=True, check=True)

    assert said.stdout == "(65534, 65534, 65534) (65534, 65534, 65534) False\nfor good\n"
