"""Points at which a drill breaks a process: where they are, and that they do nothing anywhere else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.cli import USAGE, main
from nodeagent.protocol import failpoints
from portal.common.failpoints import POINTS, FailpointReached, failpoint

ROOT = Path(__file__).parents[2]


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Path]:
    failpoints.arm(tmp_path)
    yield tmp_path
    failpoints.arm(None)


def test_every_point_of_the_code_is_listed_and_every_listed_one_is_there() -> None:
    found = set()
    for folder in ("portal", "scheduler", "nodeagent"):
        for file in (ROOT / folder).rglob("*.py"):
            text = file.read_text()
            found |= set(re.findall(r'failpoint\("([a-z_.]+)"\)', text))
            if "simulation" in file.parts:
                found |= {f"driver.{name}" for name in re.findall(r'faults\.point\("([a-z_.]+)"\)', text)}

    passed = {name for name in found if not name.startswith("driver.")}
    assert passed == {name for name in POINTS if not name.startswith("driver.")}
    assert set(POINTS) <= found


def test_a_point_without_a_drill_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "turn.committed").write_text("raise")

    failpoint("turn.committed")

    assert (tmp_path / "turn.committed").exists()


def test_an_order_is_carried_out_once_and_leaves_a_mark(orders: Path) -> None:
    (orders / "turn.committed").write_text("raise")

    with pytest.raises(FailpointReached):
        failpoint("turn.committed")
    failpoint("turn.committed")

    (mark,) = orders.iterdir()
    assert mark.name.startswith(f"turn.committed.hit.{os.getpid()}.")


def test_an_order_to_die_ends_the_process(orders: Path) -> None:
    (orders / "turn.committed").write_text("kill")
    code = "from portal.common.failpoints import failpoint; failpoint('turn.committed'); print('alive')"
    env = {**os.environ, "BERTH_DRILL": "1", "BERTH_FAILPOINTS": str(orders)}

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, check=False)

    assert (done.returncode, done.stdout) == (-9, b"")


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"BERTH_FAILPOINTS": "/nowhere"}, "it is for drills"),
        (
            {"BERTH_FAILPOINTS": "/nowhere", "BERTH_DRILL": "1", "BERTH_ALLOWED_HOSTS": "berth.example.org"},
            "answers this machine alone",
        ),
    ],
)
def test_a_portal_that_people_use_does_not_start_with_failpoints(more: dict[str, str], reason: str) -> None:
    env = {**os.environ, **more}

    done = subprocess.run(
        [sys.executable, "-c", "import portal.settings"],
        cwd=ROOT, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode != 0
    assert reason in done.stderr


@pytest.mark.parametrize("driver", ["simulated", "auto"])
def test_an_agent_of_real_cards_does_not_start_with_failpoints(
    driver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BERTH_FAILPOINTS", str(tmp_path))
    if driver == "auto":
        monkeypatch.setenv("BERTH_DRILL", "1")

    code = main(["--portal", "ws://127.0.0.1:1", "--state", str(tmp_path), "--driver", driver], {})

    assert code == USAGE
    assert "it is for drills" in capsys.readouterr().err
