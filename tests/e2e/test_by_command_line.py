"""The same by ``berth``: a lease asked for, entered by OpenSSH, filled by rsync, given back; a job and what it left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.deep

Run = Callable[..., subprocess.CompletedProcess[str]]
JOB = """
command: [sh, -c, 'echo begun; mkdir out; echo "made on $CUDA_VISIBLE_DEVICES" > out/made.txt']
resources: {gpu: h100-1g}
time: 5m
artifacts: ["out/**"]
"""


@pytest.fixture
def run(url: str, tmp_path: Path) -> Run:
    """Run a program as bob, with an empty home folder; it has to succeed unless its exit code is named."""
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path), "LANG": "C.UTF-8",
        "BERTH_URL": url, "NO_COLOR": "1",
    }  # fmt: skip

    def say(*words: str, typed: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            words, env=env, cwd=tmp_path, input=typed, capture_output=True, text=True, timeout=90, check=False,
            start_new_session=True,
        )  # fmt: skip
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done

    say("berth", "login", "--user", "bob", typed="berth-demo\n")
    return say


@pytest.mark.skipif(not shutil.which("ssh"), reason="it takes ssh")
def test_lease_is_asked_for_entered_filled_and_given_back(run: Run, tmp_path: Path) -> None:
    asked = run("berth", "request", "h100-1g", "--team", "perception", "--minutes", "15", "--wait", "--json")
    lease = json.loads(asked.stdout)["id"]

    shown = run("berth", "ssh", lease, "echo $BERTH_LEASE $CUDA_VISIBLE_DEVICES; exit 5", code=5).stdout
    assert shown.startswith(f"{lease} MIG-")
    run("berth", "ssh-config", "--write")
    if shutil.which("rsync"):
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "model.bin").write_bytes(os.urandom(500_000))
        ssh = f"ssh -F {tmp_path}/.ssh/config"  # OpenSSH looks for its own in the account's home, not in HOME
        run("rsync", "-a", "-e", ssh, "data/", f"{lease}.berth:in/")
        run("rsync", "-a", "-e", ssh, f"{lease}.berth:in/", "back/")
        assert (tmp_path / "back" / "model.bin").read_bytes() == (
            tmp_path / "data" / "model.bin"
        ).read_bytes()
    run("berth", "release", lease)

    assert "The lease is over" in run("berth", "ssh", lease, code=1).stderr
    assert lease in run("berth", "receipt", lease).stdout


def test_job_is_handed_in_followed_and_leaves_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)

    followed = run("berth", "submit", "job.yaml", "--team", "perception", "--follow", "--json")
    job = json.loads(followed.stdout.partition("\n")[2])["id"]
    run("berth", "job", "download", job, "--to", "got")

    assert followed.stdout.startswith("begun\n")
    assert (tmp_path / "got" / "out" / "made.txt").read_text().startswith("made on MIG-")
    assert run("berth", "logs", job).stdout == "begun\n"
