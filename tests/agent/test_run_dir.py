"""The run folder: holders pass through it to what is theirs, private things stay private, looking makes nothing."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nodeagent import cli
from nodeagent.commands import opening
from nodeagent.commands.opening import impassable, make_run_dir, notices_of, open_host
from nodeagent.commands.options import UsageError
from nodeagent.drivers.boot_devices import BootDevices
from nodeagent.drivers.shares import HeldShare, ShareBook
from nodeagent.host.accounts import Account
from nodeagent.host.notices import notice_path, put_up
from nodeagent.runtimes.plain import PlainRuntime
from nodeagent.simulation.full_host import FullHost
from tests.agent.mps_bench import CARD, Bench, share
from tests.agent.test_runtime_doors import GRANT
from tests.conftest import REAL_RUN, touched


@pytest.fixture(autouse=True)
def strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def me(name: str) -> Account:
    return Account(os.getuid(), os.getgid(), f"/home/{name}", name)


def closed_below(run_dir: Path, path: Path) -> list[str]:
    """Return the folders from the run folder to a path that other accounts cannot pass."""
    way = [one for one in path.parents if one.is_relative_to(run_dir)]
    return [str(one) for one in way if not one.stat().st_mode & 0o001]


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_holders_pass_to_what_is_theirs_whatever_the_umask(tmp_path: Path) -> None:
    run_dir = tmp_path / "deep" / "run"
    make_run_dir(run_dir)
    BootDevices(run_dir / "cards.json", "boot").keep([])
    ShareBook(run_dir / "shares", "boot").put(HeldShare("MPS-1", CARD, "a.1", "mps"))

    variables = PlainRuntime(run_dir, account=me).open(GRANT).words["env_file"]
    bench = Bench(run_dir, 2)
    bench.open(share())
    pipes = Path(bench.mps.access(share()).env["CUDA_MPS_PIPE_DIRECTORY"])

    notice = notice_path(run_dir / "notices", "a")
    put_up(notice, lease="a", why="reclaim", ends_at=datetime.now(UTC))

    for path in (Path(variables), pipes.parent, notice):
        assert closed_below(run_dir, path) == []
    assert bench.owned == {str(pipes.parent): (1001, 1001)}, "its own user passes by the folder's access list"
    assert mode(run_dir) == 0o711
    assert mode(run_dir / "shares") == 0o700


def test_roll_that_comes_first_leaves_the_folder_passable(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    BootDevices(tmp_path / "run" / "cards.json", "boot").keep([])

    make_run_dir(tmp_path / "run")

    assert mode(tmp_path / "run") == 0o711


def test_folder_that_is_open_wider_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o1777)

    make_run_dir(tmp_path / "run")

    assert mode(tmp_path / "run") == 0o1777


def test_folder_that_cannot_be_made_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")

    with pytest.raises(UsageError, match="choose another with --run-dir"):
        make_run_dir(tmp_path / "run")


def test_way_that_is_closed_above_is_named(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    (tmp_path / "closed" / "run").mkdir()

    assert impassable(Path("/")) == ""
    assert impassable(tmp_path / "closed" / "run") in map(
        str, (*tmp_path.parents, tmp_path, tmp_path / "closed")
    )


def options(tmp_path: Path) -> argparse.Namespace:
    words = ["--driver", "nvml", "--runtime", "plain", "--node", "gpu-01", "--run-dir", str(tmp_path / "run")]
    return cli.parser({}).parse_args(words)


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FullHost:
    """Devices that the driver of real ones finds, with its files where it is told to keep them."""
    home = FullHost("gpu-01", ["a100-80gb"], tmp_path / "home", lambda: 0)

    def found(name: str, *, run_dir: Path, looks_only: bool, **facts: object) -> object:
        monkeypatch.setattr(FullHost, "run_dir", run_dir)
        return home.driver(looks_only=looks_only)

    monkeypatch.setattr(opening.registry, "open_real", found)
    return home


def test_start_by_hand_makes_a_folder_that_holders_pass(tmp_path: Path, devices: FullHost) -> None:
    given = options(tmp_path)

    open_host(given, tmp_path / "state").driver.inventory()

    assert mode(tmp_path / "run") == 0o711
    assert mode(notices_of(given, tmp_path / "state")) == 0o711


def test_looking_makes_no_folder(
    tmp_path: Path, devices: FullHost, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["check", "--driver", "nvml", "--runtime", "plain", "--node", "gpu-01"]
    words += ["--run-dir", str(tmp_path / "run"), "--state", str(tmp_path / "state")]

    assert cli.main(words, {}) == 0

    assert "MIG" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "state").exists()


def test_looking_changes_no_folder(tmp_path: Path, devices: FullHost) -> None:
    (tmp_path / "run").mkdir(mode=0o700)

    open_host(options(tmp_path), tmp_path / "state", looks_only=True).driver.inventory()

    assert mode(tmp_path / "run") == 0o700
    assert [path for path in (tmp_path / "run").rglob("*") if path.is_dir()] == []


def test_looking_at_simulated_devices_makes_no_state_folder(tmp_path: Path) -> None:
    words = ["check", "--driver", "simulated", "--board", "a100-80gb", "--node", "gpu-01"]

    assert cli.main([*words, "--state", str(tmp_path / "state")], {}) == 0

    assert not (tmp_path / "state").exists()


def test_no_test_may_change_the_run_folder_of_a_real_agent() -> None:
    """The guard itself (tests/conftest.py): what would write there is noted, what only reads is not."""
    with contextlib.suppress(OSError):
        Path(REAL_RUN, "none", "x").write_text("")
    with contextlib.suppress(OSError):
        Path(REAL_RUN, "none", "x").mkdir()
    with contextlib.suppress(OSError):
        Path(REAL_RUN, "none", "x").read_text()

    noted = [line.partition(" ")[0] for line in touched]
    touched.clear()
    assert noted == ["open", "os.mkdir"]
