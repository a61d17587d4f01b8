"""The agent's Debian package: built, installed into a folder, started, upgraded, removed and purged."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.commands.install import files
from nodeagent.link.identity import KEY_FILE
from nodeagent.protocol.messages import DesiredLease, DesiredSlot
from tests.agent.fake_portal import FakePortal, listening
from tools.debian.__main__ import build

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed here"),
    pytest.mark.skipif(shutil.which("dpkg") is None, reason="dpkg is not installed here"),
]
UNIT = "usr/lib/systemd/system/berth-agent.service"
PATIENCE_S = 60
# What a script of the package asks of systemd, written down instead of carried out.
RECORDER = '#!/bin/sh\necho "$(basename "$0") $*" >> "$DPKG_ROOT/calls"\n'


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("package"))


class Host:
    """A folder that dpkg takes for a machine; nothing outside of it is touched."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "host"
        self.programs = folder / "programs"
        for place in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "run/systemd/system"):
            (self.root / place).mkdir(parents=True)
        (self.root / "var/lib/dpkg/status").touch()
        self.programs.mkdir()
        for name in ("systemctl", "deb-systemd-invoke"):
            (self.programs / name).write_text(RECORDER)
            (self.programs / name).chmod(0o755)

    def dpkg(self, *words: object) -> str:
        # Python and cryptography are the machine's own, so its list has to be ignored.
        forced = "--force-not-root,script-chrootless,depends,bad-path"
        done = subprocess.run(
            ["dpkg", f"--root={self.root}", f"--log={self.root}/log", forced, *map(str, words)],
            env={**os.environ, "PATH": f"{self.programs}:/usr/sbin:/usr/bin:/sbin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def calls(self) -> list[str]:
        """What systemd was asked since the last look."""
        path = self.root / "calls"
        said = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [line for line in said if "daemon-reload" not in line]

    def left(self) -> set[str]:
        """Everything of the agent, dpkg's own books left out."""
        found = (path.relative_to(self.root) for path in self.root.rglob("*") if "dpkg" not in str(path))
        return {str(path) for path in found if "berth" in str(path)}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def python() -> str:
    """The distribution's Python where it has what the package depends on; else the one of the tests."""
    probe = "import sys, cryptography; sys.exit(sys.version_info < (3, 11))"
    if Path("/usr/bin/python3").exists():
        done = subprocess.run(["/usr/bin/python3", "-I", "-c", probe], capture_output=True, check=False)
        if done.returncode == 0:
            return "/usr/bin/python3"
    return sys.executable


def test_the_same_tree_gives_the_same_bytes(package, tmp_path):
    assert build(tmp_path).read_bytes() == package.read_bytes()


def test_it_serves_every_machine_and_belongs_to_root(package):
    listed = subprocess.run(["dpkg-deb", "-c", package], capture_output=True, text=True, check=True).stdout

    assert package.name.endswith("_all.deb")
    assert {line.split()[1] for line in listed.splitlines()} == {"root/root"}
    assert [line for line in listed.splitlines() if line.endswith((".so", ".pyc"))] == []
    top = set(re.findall(r"/share/berth-agent/([^/\n]+)/", listed))
    assert {name for name in top if "." not in name} == {"nodeagent", "prometheus_client", "websockets"}


def test_it_brings_the_unit_that_install_would_write(package, host):
    host.dpkg("-i", package)

    units = files("/usr/bin/berth-agent run", [], close_logins=False)
    for path, text in units.items():
        assert (host.root / "usr/lib/systemd/system" / Path(path).name).read_text() == text


async def test_installed_it_starts_from_its_unit_enrols_and_serves_a_lease(package, host):
    host.dpkg("-i", package)
    state = host.root / "var/lib/berth-agent"
    (host.root / "etc/berth/token").write_text("once")
    line = next(one for one in (host.root / UNIT).read_text().splitlines() if one.startswith("ExecStart="))
    program, *words = shlex.split(line.partition("=")[2])
    portal = FakePortal()

    async with listening(portal) as port:
        settings = {
            "PATH": "/usr/bin:/bin",
            "BERTH_STATE_DIR": str(state),
            "BERTH_RUN_DIR": str(host.root / "run/berth-agent"),
            "BERTH_PORTAL_URL": f"ws://127.0.0.1:{port}",
            "BERTH_NODE": "gpu-01",
            "BERTH_ENROL_TOKEN_FILE": str(host.root / "etc/berth/token"),
            "BERTH_DRIVER": "simulated",
            # Isolated Python takes no notice of what would lead it to other modules.
            "PYTHONPATH": str(host.root / "nowhere"),
        }
        started = [
            python(),
            "-I",
            f"{host.root}{program}",
            *words,
            "--board=h100-80gb",
            "--count=2",
            "--modes=mig",
        ]
        agent = await asyncio.create_subprocess_exec(
            *started, cwd=host.root, env=settings, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(PATIENCE_S):
                while portal.socket is None and agent.returncode is None:
                    await asyncio.sleep(0.05)
            if agent.returncode is None:
                slot = DesiredSlot(portal.hellos[0].devices[0].uuid, "mig", 0, 1, 142, 9_984, "1g.10gb")
                await portal.desire(DesiredLease("a", 1, "vision", "bob", 3600, 30, (slot,)))
                await portal.phase("a", "ready")
        finally:
            if agent.returncode is None:
                agent.send_signal(signal.SIGTERM)
            _, said = await asyncio.wait_for(agent.communicate(), PATIENCE_S)

    assert agent.returncode == 0, said.decode()
    assert (state / KEY_FILE).exists()


def test_it_finds_no_web_stack_and_its_own_modules_first(package, host):
    host.dpkg("-i", package)
    script = (host.root / "usr/bin/berth-agent").read_text()
    probe = script.replace(
        "from nodeagent.cli import main", "import nodeagent, websockets, prometheus_client, pynvml"
    )
    probe = probe.replace(
        "sys.exit(main())", "print(*(m.__file__ for m in (nodeagent, websockets, prometheus_client, pynvml)))"
    )
    (host.root / "usr/bin/probe").write_text(probe)

    done = subprocess.run(
        [python(), "-I", host.root / "usr/bin/probe"], capture_output=True, text=True, check=True, cwd="/"
    )

    modules = str(host.root / "usr/share/berth-agent")
    assert [path.startswith(modules) for path in done.stdout.split()] == [True] * 4


def test_an_upgrade_keeps_settings_and_restarts_only_what_runs(package, host, tmp_path, monkeypatch):
    said = host.dpkg("-i", package)
    assert "systemctl enable --now berth-agent" in said
    assert host.calls() == []
    (host.root / "etc/berth/agent.env").write_text("BERTH_NODE=gpu-07\n")

    said = host.dpkg("-i", package)

    assert host.calls() == ["deb-systemd-invoke try-restart berth-agent.service"]
    assert "enable --now" not in said
    assert (host.root / "etc/berth/agent.env").read_text() == "BERTH_NODE=gpu-07\n"


def test_removing_stops_it_first_and_keeps_settings_and_state(package, host):
    host.dpkg("-i", package)
    state = host.root / "var/lib/berth-agent"
    state.mkdir(parents=True)
    (state / "node.key").write_text("key")
    cache = host.root / "usr/share/berth-agent/nodeagent/__pycache__"
    cache.mkdir()
    (cache / "cli.pyc").touch()
    host.calls()

    host.dpkg("-r", "berth-agent")

    assert host.calls() == ["deb-systemd-invoke stop berth-agent.service"]
    assert host.left() == {
        "etc/berth", "etc/berth/agent.env", "var/lib/berth-agent", "var/lib/berth-agent/node.key",
    }  # fmt: skip


def test_purging_leaves_nothing(package, host):
    host.dpkg("-i", package)
    state = host.root / "var/lib/berth-agent"
    state.mkdir(parents=True)
    (state / "node.key").write_text("key")

    host.dpkg("-P", "berth-agent")

    assert host.left() == set()


def test_a_token_beside_the_settings_outlives_a_purge(package, host):
    host.dpkg("-i", package)
    (host.root / "etc/berth/token").write_text("of somebody else")

    host.dpkg("-P", "berth-agent")

    assert host.left() == {"etc/berth", "etc/berth/token"}


@pytest.mark.skipif(shutil.which("lintian") is None, reason="lintian is not installed here")
def test_lintian_has_nothing_to_say(package):
    done = subprocess.run(
        ["lintian", "--allow-root", "--fail-on", "error,warning", package],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "")
