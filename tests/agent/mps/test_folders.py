"""The folders through which programs reach MPS: who may enter them, and what nobody can lay in them."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.drivers.nvml.mps.daemon import SOCKET_ROOM, let_pass
from tests.agent.mps_bench import Bench, refused, share


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


def test_a_run_folder_too_long_for_sockets_is_refused_before_anything_is_made(tmp_path):
    bench = Bench(tmp_path / ("x" * 60), 3, socket_room=SOCKET_ROOM)

    with refused(errors.INVALID_ARGUMENT) as told:
        bench.open(share())

    assert "shorter" in str(told.value)
    assert bench.world.processes == {}
