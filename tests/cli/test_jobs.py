from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from nodeagent.protocol.jobs import FILE, LEFT_OUT, ArtifactPiece
from portal.cli.jobs import exit_of
from portal.cli.sbatch import read_script
from portal.jobs.artifacts import store_artifact
from portal.jobs.models import Artifact, Job, JobAttempt
from portal.jobs.spec import read_spec
from portal.leases.models import Lease
from tests.jobs.test_jobs import hand_in
from tests.portal.builders import World

SCRIPT = """#!/bin/bash -l
# a comment
#SBATCH -J train --time=1-00:00:00
#SBATCH --gres=gpu:h100:2
#SBATCH --array=1-20%4   # four at once
#SBATCH -p long
#SBATCH --mail-type=END,FAIL
#SBATCH --dependency=afterok:job-1:job-2
#SBATCH --export=ALL,LR=1e-4

#SBATCH --mem=64G
echo "task $SLURM_ARRAY_TASK_ID"
#SBATCH -J too_late
"""


def test_script_for_sbatch_becomes_a_job_and_what_means_nothing_is_listed() -> None:
    script = read_script(SCRIPT)
    spec = read_spec({**script.job, "after_ok": []})

    assert script.ignored == ["--partition=long", "--mem=64G"]
    assert (spec.name, spec.time_s, spec.gpu, spec.count) == ("train", 86_400, "h100", 2)
    assert (len(spec.array), spec.at_once, spec.env, spec.notify) == (20, 4, {"LR": "1e-4"}, ["end", "fail"])
    assert script.job["after_ok"] == ["job-1", "job-2"]
    assert spec.command[:3] == ["/bin/sh", "-c", 'exec /bin/bash -l -c "$1"']
    assert spec.command[-1] == SCRIPT


def test_job_is_handed_in_listed_and_cancelled(berth: Any, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "command: python train.py\nresources: {gpu: h100-1g-10gb}\ntime: 1:00:00\nretries: {on: [exit:75]}\n"
    )

    made = berth("submit", str(file))
    uid = made.stdout.strip()
    listed = json.loads(berth("jobs", "--json").stdout)
    shown = berth("job", "show", uid)
    ended = berth("job", "cancel", uid)

    assert [one["id"] for one in listed] == [uid]
    assert (listed[0]["time_s"], listed[0]["state"]) == (3600, "waiting")
    assert "It has not begun." in shown.stderr
    assert "cancelled" in ended.stderr
    assert Job.objects.get().spec["retry_on"] == ["exit:75"]


def test_job_that_cannot_be_is_refused_field_by_field(berth: Any, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("comand: x\nresources: {gpu: nothing-like-it}\n")

    no = berth("submit", str(file))

    assert no.exit_code == 1
    assert "comand" in no.stderr
    assert "“command”" in no.stderr


def test_job_by_command_line_is_filed_as_it_says(berth: Any) -> None:
    made = berth("run", "--gpu", "10GB", "--tag", "paper=iclr", "--detach", "--", "true")
    refused = berth("run", "--gpu", "10GB", "--project", "EU-1", "--detach", "--", "true")

    assert made.exit_code == 0
    assert Job.objects.get().spec["tags"] == {"paper": "iclr"}
    assert "no project with this code" in refused.stderr


def test_script_and_secret_by_command_line(berth: Any, tmp_path: Path) -> None:
    file = tmp_path / "train.sh"
    file.write_text("#!/bin/bash\n#SBATCH --mem=1G\ntrue\n")

    no_gpu = berth("sbatch", str(file))
    made = berth("sbatch", str(file), "--gpu", "10GB")
    berth("secret", "set", "WANDB_KEY", typed="hunter-2\n")
    listed = berth("secret", "list")

    assert no_gpu.exit_code == 2
    assert made.stdout.startswith("job-")
    assert "ignored: --mem=1G" in made.stderr
    assert "WANDB_KEY" in listed.stdout
    assert "hunter" not in listed.stdout
    assert berth("secret", "remove", "WANDB_KEY").exit_code == 0


def test_exit_code_of_a_job_is_that_of_its_command() -> None:
    def ended(**more: Any) -> int:
        return exit_of({"state": "failed", "exit_code": None, "signal": None, **more})

    assert ended(state="succeeded", exit_code=0) == 0
    assert ended(exit_code=3) == 3
    assert ended(signal=9) == 137
    assert ended(state="timed_out", signal=15) == 124
    assert ended() == 1


def test_files_of_a_job_are_listed_downloaded_and_compared(
    berth: Any, world: World, tmp_path: Path, settings: Any, monkeypatch: Any
) -> None:
    options = {"location": str(tmp_path / "store")}
    settings.STORAGES = {
        **settings.STORAGES,
        "jobs": {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": options},
    }
    (job,) = hand_in(world, artifacts=["out/**"])
    world.turn()
    lease = Lease.objects.get(request=job.request)
    attempt = JobAttempt.objects.create(
        job=job, number=1, lease=lease, started_at=world.now, ended_at=world.now
    )
    digest = hashlib.sha256(b"model").hexdigest()
    for path, sha256, why in (("out/m", digest, ""), ("out/l", "", "no_file")):
        piece = ArtifactPiece(
            FILE if sha256 else LEFT_OUT, lease.uid, lease.generation, path, 5, sha256, why=why
        )
        store_artifact(lease.node_id, piece, b"model" if sha256 else b"", now=world.now)
    to = tmp_path / "results"

    listed = berth("job", "artifacts", job.uid)
    got = berth("job", "download", job.uid, "--to", str(to))
    again = berth("job", "download", job.uid, "out/m", "--to", str(to))

    assert (to / "out" / "m").read_bytes() == b"model"
    assert "out/m" in listed.stdout
    assert "More may come" in listed.stderr
    assert "out/l: Left out" in got.stderr
    assert (got.exit_code, again.exit_code) == (0, 2)
    assert "--force" in again.stderr
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").symlink_to(to)
    assert "leads through a link" in berth("job", "download", job.uid).stderr
    Artifact.objects.filter(path="out/m").update(sha256="0" * 64)
    damaged = berth("job", "download", job.uid, "--to", str(to), "--force")
    assert damaged.exit_code == 2
    assert [file.name for file in (to / "out").iterdir()] == ["m"]
    assert attempt.artifacts.count() == 2
