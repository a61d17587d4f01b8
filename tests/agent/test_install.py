"""Installing on a host: shown first, written when asked, the same twice, taken back whole."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nodeagent.commands import install
from nodeagent.commands.install import (
    AGENT_FILE,
    LOGIN_FILE,
    ROOT_FILE,
    SLICE_FILE,
    InstallError,
    InstallHost,
    files,
    login_rules,
    sudoers,
    uninstall,
    write,
)
from nodeagent.host.shell import Done
from nodeagent.simulation.machine.world import SimulatedShell

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
    devices: str = DEVICES

    def host(self, euid: int = 0) -> InstallHost:
        return InstallHost(
            SimulatedShell({"systemctl": self.systemctl}), self.root, lambda path: self.devices, euid
        )

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
    assert "BERTH_ENROL_TOKEN_FILE" in said
    assert re.search(r"^Before=nvidia-dcgm.service ", machine.text(AGENT_FILE), re.MULTILINE)


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


def test_units_that_a_package_brought_are_left_to_it(machine):
    machine.write()
    packaged = machine.root / "usr/lib/systemd/system"
    packaged.mkdir(parents=True)
    for path in (AGENT_FILE, SLICE_FILE):
        (machine.root / path.lstrip("/")).rename(packaged / Path(path).name)
    before = machine.there()

    said = machine.write()

    assert "in place already" in said
    assert machine.there() == before
    assert "+ExecStart=/usr/bin/berth-agent run" in machine.write(program="/usr/bin/berth-agent run")
    assert AGENT_FILE in machine.there()


def test_logins_are_closed_only_when_asked(machine):
    machine.write(close_logins=True)

    rules = machine.text(LOGIN_FILE)
    assert "DevicePolicy=closed" in rules
    assert "nvidia" not in rules
    for kept in ("char-mem", "char-misc", "char-pts", "char-drm", "block-sd", "/dev/tty"):
        assert f"DeviceAllow={kept} rwm" in rules
    assert "DevicePolicy=auto" in machine.text(ROOT_FILE)


def test_render_nodes_are_devices_where_a_compute_driver_says_so():
    rules = login_rules(lambda path: DEVICES.replace("195 nvidia\n", "511 kfd\n"))

    assert "char-drm" not in rules
    assert "char-kfd" not in rules
    assert "char-misc" in rules


@pytest.mark.parametrize("name", ["devdrv-cdev", "vdevdrv-cdev", "davinci_manager", "hisi_hdc", "hycu"])
def test_devices_of_every_vendor_are_kept_from_logins(name):
    rules = login_rules(lambda path: DEVICES.replace("195 nvidia\n", f"235 {name}\n"))

    assert f"char-{name}" not in rules
    assert "char-misc" in rules


def test_a_hygon_host_gets_the_folder_that_its_tool_writes_into(machine):
    machine.write()
    assert not (machine.root / "etc/vdev").exists()

    machine.devices = DEVICES.replace("195 nvidia\n", "240 mkfd\n")
    said = machine.write()

    assert "ReadWritePaths=-/etc/vdev\n" in machine.text(AGENT_FILE)
    assert (machine.root / "etc/vdev").is_dir()
    assert "made /etc/vdev" in said
    assert "made /etc/vdev" not in machine.write()


def in_home(machine: Machine, kind: str) -> str:
    """Install a program of which something lies in a home; returns its path."""
    path = script(machine.root / ("home/bob/berth/bin" if kind == "script" else "opt/berth/bin"))
    python = machine.root / "root/.pyenv/bin/python3"
    python.parent.mkdir(parents=True)
    python.write_text("")
    if kind == "interpreter":
        path.write_text("#!/root/.pyenv/bin/python3\nimport sys\n")
    if kind == "interpreter of a long path":
        path.write_text("#!/bin/sh\n'''exec' \"/root/.pyenv/bin/python3\" \"$0\" \"$@\"\n' '''\nimport sys\n")
    if kind in ("link", "source"):
        path.write_text("#!/opt/berth/bin/python\nimport sys\n")
    if kind == "link":
        path.with_name("python").symlink_to("../../../root/.pyenv/bin/python3")
    if kind == "source":
        path.with_name("python").write_text("")
        site = machine.root / "opt/berth/lib/python3.11/site-packages"
        site.mkdir(parents=True)
        (site / "berth.pth").write_text("import x\n/home/bob/berth\n")
    return f"/{path.relative_to(machine.root)}"


@pytest.mark.parametrize("kind", ["script", "interpreter", "interpreter of a long path", "link", "source"])
def test_a_program_that_the_unit_could_not_see_is_refused_with_what_to_do(machine, kind):
    program = in_home(machine, kind)
    before = machine.there()

    with pytest.raises(InstallError, match=r"ProtectHome=yes.*venv /opt/berth.*Nothing was changed"):
        machine.write(program=program)
    install.show(machine.host(), files(program, [], close_logins=False), machine.said.append)

    assert machine.there() == before
    assert any("would not be written" in line for line in machine.said)


@pytest.mark.parametrize(
    "text",
    ["#!/opt/berth/bin/python\n", "#!/usr/bin/env python3\n", "#!/bin/sh\nexec true\n", "\x7fELF", "#!\n"],
)
def test_a_program_outside_of_homes_is_installed(machine, text):
    path = script(machine.root / "opt/berth/bin")
    path.write_text(text)
    path.with_name("python").symlink_to("../../../usr/bin/python3")

    machine.write()

    assert "ProtectHome=yes" in machine.text(AGENT_FILE)


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
    assert "sudoers.d/berth" in said
    assert machine.there() == set()


def test_the_sudoers_line_grants_entering_and_nothing_else():
    first, second = sudoers(PROGRAM).splitlines()

    assert second == "ALL ALL=(root) NOPASSWD: NOSETENV: /opt/berth/bin/berth-agent enter *"
    assert first.startswith("Defaults!/opt/berth/bin/berth-agent env_reset, !setenv, secure_path=")


def test_options_of_the_unit_stay_out_of_the_sudoers_line(machine):
    program = "/opt/berth/bin/berth-agent run --driver nvml --node 'gpu 01'"
    machine.write(program=program)

    assert f'ExecStart={PROGRAM} --driver nvml --node "gpu 01"\n' in machine.text(AGENT_FILE)
    assert sudoers(program) == sudoers(PROGRAM) == sudoers("/opt/berth/bin/berth-agent")


@pytest.mark.parametrize(
    "program",
    [
        "/usr/bin/python3 -m nodeagent run",
        "/usr/bin/python3 -I -m nodeagent",
        "/usr/bin/python3 /opt/x.py",
        "/usr/bin/python3",
        "/usr/bin/python3 run",
        "/opt/berth/bin/berth-agent enter",
        "/opt/berth/bin/berth-agent, /bin/sh",
        "/opt/b*/berth-agent",
        "/opt/berth/bin/berth-agent 'run",
        "",
    ],
)
def test_a_program_that_others_could_fill_is_refused_for_unit_and_sudo(machine, program):
    with pytest.raises(InstallError):
        machine.write(program=program)
    with pytest.raises(InstallError):
        sudoers(program)

    assert machine.there() == set()


def script(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "berth-agent"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_script_that_was_started_is_the_program(tmp_path):
    path = script(tmp_path / "bin")

    assert install.program_words(str(path), "/usr/bin/python3") == str(path)


def test_a_start_by_module_finds_the_script_beside_its_python(tmp_path):
    path = script(tmp_path / "bin")

    assert install.program_words("/src/nodeagent/__main__.py", str(path.with_name("python"))) == str(path)


def test_without_a_script_nothing_is_made_up(tmp_path):
    with pytest.raises(InstallError, match="name it with --program"):
        install.program_words("/src/nodeagent/__main__.py", str(tmp_path / "python"))


def test_a_program_that_only_its_installer_can_change_is_safe(tmp_path):
    assert install.unsafe(script(tmp_path / "bin"), os.geteuid()) == ""


@pytest.mark.parametrize(("part", "mode"), [("bin/berth-agent", 0o775), ("bin", 0o777), ("bin", 0o775)])
def test_a_program_that_others_can_write_gets_no_sudoers_line(machine, part, mode):
    script(machine.root / "opt/berth/bin")
    install.show(machine.host(os.geteuid()), files(PROGRAM, [], close_logins=False), machine.said.append)
    assert any("NOPASSWD" in line for line in machine.said)
    machine.said.clear()
    (machine.root / "opt/berth" / part).chmod(mode)

    install.show(machine.host(os.geteuid()), files(PROGRAM, [], close_logins=False), machine.said.append)

    said = "\n".join(machine.said)
    assert "NOPASSWD" not in said
    assert "can be written by others" in said


def test_a_program_of_somebody_else_is_not_safe(tmp_path, monkeypatch):
    path = script(tmp_path / "bin")
    whose = os.stat(path).st_uid
    if whose == 0:
        os.chown(path, 1001, 1001)
        whose = 1001

    assert f"belongs to uid {whose}" in install.unsafe(path, whose + 1)


def test_a_link_is_as_safe_as_what_it_leads_to(tmp_path):
    real = script(tmp_path / "open")
    (tmp_path / "bin").mkdir()
    link = tmp_path / "bin" / "berth-agent"
    link.symlink_to(real)
    (tmp_path / "open").chmod(0o777)

    assert str(tmp_path / "open") in install.unsafe(link, os.geteuid())


def test_a_program_that_is_not_there_gets_no_sudoers_line(machine):
    assert "NOPASSWD" not in machine.write()


@pytest.mark.skipif(shutil.which("visudo") is None, reason="visudo is not installed here")
def test_sudo_itself_reads_the_lines(tmp_path):
    (tmp_path / "berth").write_text(f"{sudoers(PROGRAM)}\n")

    said = subprocess.run(
        ["visudo", "-cf", str(tmp_path / "berth")], capture_output=True, text=True, check=False
    )

    assert said.returncode == 0, said.stderr


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
    machine.write(program=f"{script(machine.root / 'bin')} run")
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
