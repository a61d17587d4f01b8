"""The pages of batch jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nodeagent.protocol.jobs import LOG, OutputPiece
from nodeagent.protocol.messages import ImageFact, NodeImages
from portal.fleet.images import store_images
from portal.fleet.models import Node, NodeImage
from portal.jobs.logs import store_piece
from portal.jobs.models import Job
from portal.teams.models import Project
from tests.jobs.test_jobs import JobReport, desk, hand_in, says, started  # noqa: F401
from tests.portal.builders import World

pytestmark = pytest.mark.django_db
FORM = {
    "command": "python train.py",
    "gpu": "h100-1g-10gb",
    "team": "perception",
    "time": "2h",
    "name": "n",
    "array": "",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, settings: Any) -> None:
    settings.STORAGES = {
        **settings.STORAGES,
        "jobs": {
            "BACKEND": "django.core.files.storage.FileSystemStorage",
            "OPTIONS": {"location": str(tmp_path)},
        },
    }


def test_job_is_run_from_the_form_and_shown(world: World, signed_in: Any) -> None:
    bob = signed_in("bob")

    made = bob.post("/jobs/", FORM)
    job = Job.objects.get()

    assert made["Location"] == f"/jobs/{job.uid}/"
    assert (job.spec["command"], job.time_s) == ("python train.py", 7200)
    page = bob.get(made["Location"]).content.decode()
    assert "It has not begun" in page
    assert "python train.py</pre>" in page
    assert "python train.py" not in signed_in("operator").get(made["Location"]).content.decode()
    assert job.uid in bob.get("/jobs/").content.decode()


def test_job_is_filed_under_a_project_from_the_form(world: World, signed_in: Any) -> None:
    Project.objects.create(team=world.team("perception"), code="EU-4711", name="Vision", created_at=world.now)
    bob = signed_in("bob")

    assert "EU-4711" in bob.get("/jobs/").text
    assert bob.post("/jobs/", FORM | {"tags": "no value"}).status_code == 422
    assert bob.post("/jobs/", FORM | {"project": "EU-4711", "tags": "paper=iclr"}).status_code == 302

    spec = Job.objects.get().spec
    assert (spec["project"], spec["tags"]) == ("EU-4711", {"paper": "iclr"})


def test_images_of_nodes_are_shown_to_whose_jobs_find_them(world: World, signed_in: Any) -> None:
    node = Node.objects.get(name="gpu-01")
    facts = (ImageFact("oci:lab/torch:2", "", 2048, "bob"), ImageFact("a.b/x:1", "sha256:1", 5, "charlie"))
    store_images(node.pk, NodeImages(node.epoch, facts, 2053, 4096))
    store_images(node.pk, NodeImages(node.epoch + 1, (), 0, None))  # of an enrolment that is over

    page, operator = (
        signed_in("bob").get("/jobs/").content.decode(),
        signed_in("operator").get("/cluster/gpu-01/"),
    )

    assert "oci:lab/torch:2" in page
    assert "2 GiB" in page
    assert "a.b/x:1" not in page
    theirs = signed_in("charlie").get("/api/v1/jobs/images/").json()["images"]
    assert theirs == [{"image": "a.b/x:1", "digest": "sha256:1", "size_mib": 5, "nodes": ["gpu-01"]}]
    assert "2 GiB of 4 GiB" in operator.content.decode()
    store_images(node.pk, NodeImages(node.epoch, (), 0, None))
    assert not NodeImage.objects.exists()


def test_what_was_chosen_on_the_form_for_gpu_time_comes_along(world: World, signed_in: Any) -> None:
    bob = signed_in("bob")
    page = bob.get("/jobs/", {"flavor": "h100-1g-10gb", "team": "perception", "duration": "90 min"}).text
    bob.post("/jobs/", {**FORM, "env": "LR=1e-4\n\nNAME = a=b"})

    assert 'value="1:30:00"' in page
    assert '<option value="h100-1g-10gb" selected>' in page
    assert Job.objects.get().spec["env"] == {"LR": "1e-4", "NAME": " a=b"}
    refused = bob.post("/jobs/", {**FORM, "env": "LR"})
    assert refused.status_code == 422
    assert "one variable in each line" in refused.text


def test_what_cannot_be_used_is_said_beside_its_field_and_kept(world: World, signed_in: Any) -> None:
    bob = signed_in("bob")

    answer = bob.post("/jobs/", {**FORM, "time": "soon", "array": "9-1"})
    shown = answer.content.decode()

    assert answer.status_code == 422
    assert "Write the time like" in shown
    assert "Write an array like" in shown
    assert "python train.py" in shown
    assert not Job.objects.exists()


def test_log_is_for_the_owner_and_the_teams_admins(world: World, desk: Any, signed_in: Any) -> None:  # noqa: F811
    job, lease = started(world, desk)
    store_piece(lease.node_id, OutputPiece(LOG, lease.uid, 1, 0, True), b"<b>hello</b>\n", now=world.now)
    says(desk, lease, "gone", JobReport("exited", exit=3, ran_ms=1500, peak_mib=64))

    page = signed_in("bob").get(f"/jobs/{job.uid}/").content.decode()
    log = signed_in("alice").get(f"/jobs/{job.uid}/log/?offset=0").json()
    raw = signed_in("bob").get(f"/jobs/{job.uid}/log/raw/")

    receipt = signed_in("bob").get(f"/leases/{lease.uid}/").content.decode()
    assert "exit code 3" in receipt
    assert job.uid in receipt
    assert "64 MiB" in receipt
    assert "exit code 3" in page
    assert "64 MiB" in page
    assert (log["text"], log["is_done"], log["state"]) == ("<b>hello</b>\n", True, "failed")
    assert raw["X-Content-Type-Options"] == "nosniff"
    charlie = signed_in("charlie")
    for path in ("", "log/", "log/raw/"):
        assert charlie.get(f"/jobs/{job.uid}/{path}").status_code == 404
    for path in ("cancel/", "retry/"):
        charlie.post(f"/jobs/{job.uid}/{path}")
    assert Job.objects.get().state == "failed"


def test_job_is_cancelled_and_run_again_from_its_page(world: World, signed_in: Any) -> None:
    bob = signed_in("bob")
    (job,) = hand_in(world)

    bob.post(f"/jobs/{job.uid}/cancel/")
    assert Job.objects.get().state == "cancelled"
    bob.post(f"/jobs/{job.uid}/retry/")

    assert Job.objects.get().state == "waiting"


def test_list_asks_as_much_of_the_database_for_many_jobs_as_for_one(
    world: World, signed_in: Any, django_assert_max_num_queries: Any
) -> None:
    hand_in(world, array="1-20")
    bob = signed_in("bob")
    bob.get("/jobs/")

    with django_assert_max_num_queries(16):
        bob.get("/jobs/")
