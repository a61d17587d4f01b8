"""Installing on a host: shown first, written when asked, the same twice, taken back whole."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nodeagent import install
from nodeagent.drivers.simulated.world import SimulatedShell
from nodeagent.install import (
    AGENT_FILE,
    LOGIN_FILE,
    ROOT_FILE,
    SLICE_FILE,
    Host,
    InstallError,
    files,
    login_rules,
    sudoers,
    uninstall,
    write,
)
from nodeagent.shell import Done

PROGRAM = "/opt/berth/bin/berth-agent run"
DEVICES = """\
Character devices:
  1 mem
  4 /dev/vc/0
  4 tty
  5 /dev/ptmx
 10 misc
136 pts
195 nvidia
195 nvidiactl
226 drm
236 nvidia-caps
508 nvidia-uvm

Block devices:
  8 sd
259 blkext
"""


@dataclass
class Machine:
    root: Path
    calls: list[list[str]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    code: int = 0

    def host(self, euid: int = 0) -> Host:
        return Host(SimulatedShell({"systemctl": self.systemctl}), self.root, lambda path: DEVICES, euid)

    def systemctl(self, argv, stdin, env) -> Done:
        self.calls.append(list(argv[1:]))
        return Done(self.code, err="Access denied")

    def write(self, *, close_logins: bool = False, euid: int = 0, program: str = PROGRAM) -> str:
        self.said.clear()
        write(
            self.host(euid),
            files(program, login_rules(lambda p: DEVICES), close_logins=close_logins),
            self.said.append,
        )
        return "\n".join(self.said)

    def text(self, path: str) -> str:
        return (self.root / path.lstrip("/")).read_text()

    def there(self) -> set[str]:
        return {f"/{path.relative_to(self.root)}" for path in self.root.rglob("*") if path.is_file()}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_writing_puts_the_unit_and_the_slice_there_and_leaves_logins_alone(machine):
    said = machine.write()

    assert machine.there() == {AGENT_FILE, SLICE_FILE}
    assert f"ExecStart={PROGRAM}\n" in machine.text(AGENT_FILE)
    assert machine.calls == [["daemon-reload"]]
    assert "+Restart=always" in said
    assert "systemctl enable --now berth-agent.service" in said


def test_writing_twice_changes_nothing_and_disturbs_nobody(machine):
    machine.write()
    machine.calls.clear()
    before = (machine.root / AGENT_FILE.lstrip("/")).stat()

    said = machine.write()

    assert "in place already" in said
    assert machine.calls == []
    assert (machine.root / AGENT_FILE.lstrip("/")).stat() == before


def test_a_change_is_shown_as_a_difference(machine):
    machine.write()

    said = machine.write(program="/usr/bin/berth-agent run")

    assert f"-ExecStart={PROGRAM}" in said
    assert "+ExecStart=/usr/bin/berth-agent run" in said
    assert "Restart=always" in machine.text(AGENT_FILE)


def test_logins_are_closed_only_when_asked(machine):
    machine.write(close_logins=True)

    rules = machine.text(LOGIN_FILE)
    assert "DevicePolicy=closed" in rules
    assert "nvidia" not in rules
    for kept in ("char-mem", "char-misc", "char-pts", "char-drm", "block-sd", "/dev/tty"):
        assert f"DeviceAllow={kept} rwm" in rules
    assert "DevicePolicy=auto" in machine.text(ROOT_FILE)


def test_render_nodes_are_cards_where_a_compute_driver_says_so():
    rules = login_rules(lambda path: DEVICES.replace("195 nvidia\n", "511 kfd\n"))

    assert "char-drm" not in rules
    assert "char-kfd" not in rules
    assert "char-misc" in rules


def test_only_root_writes_and_a_refusal_changes_nothing(machine):
    with pytest.raises(InstallError, match="takes root"):
        machine.write(euid=1000)
    with pytest.raises(InstallError, match="takes root"):
        uninstall(machine.host(1000), machine.said.append)

    assert machine.there() == set()
    assert machine.calls == []


def test_a_program_that_systemd_would_not_find_is_refused(machine):
    with pytest.raises(InstallError, match="absolute path"):
        machine.write(program="berth-agent run")

    assert machine.there() == set()


def test_uninstalling_stops_the_agent_first_and_removes_what_was_written(machine):
    machine.write(close_logins=True)
    (machine.root / "etc/systemd/system/other.service").write_text("[Service]")
    machine.calls.clear()

    uninstall(machine.host(), machine.said.append)

    assert machine.calls == [["disable", "--now", "berth-agent.service"], ["daemon-reload"]]
    assert machine.there() == {"/etc/systemd/system/other.service"}


def test_uninstalling_twice_is_success(machine):
    uninstall(machine.host(), machine.said.append)

    assert machine.calls == []


def test_nothing_is_removed_while_the_agent_cannot_be_stopped(machine):
    machine.write()
    machine.code = 1

    with pytest.raises(InstallError, match="nothing was removed: Access denied"):
        uninstall(machine.host(), machine.said.append)
    assert machine.there() == {AGENT_FILE, SLICE_FILE}


def test_showing_prints_every_file_and_changes_nothing(machine):
    install.show(machine.host(), files(PROGRAM, ["char-pts"], close_logins=True), machine.said.append)

    said = "\n".join(machine.said)
    for path in (AGENT_FILE, SLICE_FILE, LOGIN_FILE, ROOT_FILE):
        assert f"# {path}" in said
    assert "not there yet" in said
    assert sudoers(PROGRAM) in said
    assert machine.there() == set()


def test_the_sudoers_line_grants_entering_and_nothing_else():
    assert sudoers(PROGRAM) == "ALL ALL=(root) NOPASSWD: /opt/berth/bin/berth-agent enter *"


def test_the_command_prints_by_default(capsys, monkeypatch):
    parser = argparse.ArgumentParser()
    install.add_options(parser)

    code = install.run(parser.parse_args(["--program", PROGRAM]))

    assert code == 0
    assert "Nothing was changed" in capsys.readouterr().out


def test_the_command_says_what_it_refuses(capsys):
    parser = argparse.ArgumentParser()
    install.add_options(parser)

    code = install.run(parser.parse_args(["--program", "berth-agent"]))

    assert code == 1
    assert "give an absolute path" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here")
@pytest.mark.parametrize("path", [AGENT_FILE, SLICE_FILE])
def test_systemd_itself_finds_no_fault_with_the_units(machine, path):
    machine.write(program="/bin/true run")
    unit = machine.root / path.lstrip("/")

    said = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )

    assert (said.returncode, said.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here")
def test_systemd_itself_finds_no_fault_with_the_login_rules(machine):
    machine.write(close_logins=True)
    unit = machine.root / "berth-check.slice"
    unit.write_text(machine.text(LOGIN_FILE))

    said = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )

    assert (said.returncode, said.stderr) == (0, "")
