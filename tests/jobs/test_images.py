"""Jobs in images: who may use which, what nodes are told, and what the portal makes of their answers."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.protocol.images import IMAGE_WHYS, image_of
from nodeagent.protocol.jobs import order_of
from nodeagent.protocol.messages import JobReport
from portal.agents.desired import desired_state
from portal.billing.metering import meter_all
from portal.billing.models import UsageRecord
from portal.common.errors import Forbidden, Invalid
from portal.fleet.models import Node
from portal.jobs.images import allowed_images, is_pattern, matches, store_allowed_images
from portal.jobs.models import Job, JobAttempt
from portal.jobs.services import retry_job
from portal.jobs.words import outcome_text, progress_text
from portal.leases.models import Lease
from tests.agents.test_reports import Desk
from tests.jobs.test_jobs import hand_in, says
from tests.portal.builders import World, make_node

pytestmark = pytest.mark.django_db
DIGEST, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
IMAGE = "registry.example/ml/pytorch:2.9"
FEATURES = ["jobs", "containers"]


@pytest.fixture
def desk(world: World) -> Desk:
    Node.objects.update(features=FEATURES)
    allow(world, "registry.example/ml/*")
    return Desk(world)


def allow(world: World, *names: str, team: str = "vision", who: str = "alice") -> None:
    store_allowed_images(team=world.team(team), rights=world.rights(who), names=names, now=world.now)


def granted(world: World, **more: Any) -> tuple[Job, Lease]:
    (job,) = hand_in(world, **{"image": IMAGE, **more})
    world.turn()
    return job, Lease.objects.get(request=job.request)


def order(world: World, lease: Lease, features: list[str] = FEATURES) -> str:
    return desired_state(lease.node_id, now=world.now, features=features).leases[0].job


@pytest.mark.parametrize(
    ("pattern", "image", "fits"),
    [
        ("registry.example/ml/*", "registry.example/ml/pytorch:2", True),
        ("registry.example/ml/*", "registry.example/mlx/pytorch:2", False),
        ("registry.example/*", "registry.example.evil.example/x:1", False),
        ("registry.example/ml/pytorch", f"registry.example/ml/pytorch@{DIGEST}", True),
        ("registry.example/ml/pytorch:2", "registry.example/ml/pytorch:2", True),
        ("registry.example/ml/pytorch:2", "registry.example/ml/pytorch:3", False),
        (f"registry.example/a@{DIGEST}", f"registry.example/a@{DIGEST}", True),
        (f"registry.example/a@{DIGEST}", "registry.example/a:1", False),
        ("registry.example/a:1", f"registry.example/a:1@{DIGEST}", False),
        ("registry.example/a:latest", f"registry.example/a@{DIGEST}", False),
        (f"registry.example/a:1@{DIGEST}", f"registry.example/a:1@{DIGEST}", True),
        ("registry.example/a:latest", "registry.example/a", True),
    ],
)
def test_line_of_a_list_allows_what_it_says(pattern: str, image: str, fits: bool) -> None:
    found = image_of(image)
    assert found is not None
    assert is_pattern(pattern)
    assert matches(pattern, found) is fits


@pytest.mark.parametrize("text", ["*", "/*", "pytorch", "registry.example/a:1/*", "a b", "registry.example/"])
def test_line_that_means_nothing_is_refused(text: str, world: World) -> None:
    with pytest.raises(Invalid, match=r".*") as no:
        allow(world, text)
    assert text[:10] in str(no.value.fields["images"])


def test_team_decides_for_itself_and_those_below(world: World, desk: Desk) -> None:
    allow(world, "registry.example/own", team="perception")

    assert [(one.name, one.team.slug) for one in allowed_images(world.team("perception"))] == [
        ("registry.example/own", "perception"), ("registry.example/ml/*", "vision"),
    ]  # fmt: skip
    with pytest.raises(Forbidden):
        allow(world, "registry.example/x", team="perception", who="bob")


def test_image_that_is_on_no_list_is_refused_by_its_name(world: World, desk: Desk) -> None:
    for image in ("registry.example/other:1", "localhost/mine:1"):
        with pytest.raises(Invalid) as no:
            hand_in(world, image=image)
        assert image in str(no.value.fields["image"])
    hand_in(world, image="oci:pytorch:2.9")
    with pytest.raises(Invalid):
        hand_in(world, image="pytorch")


def test_image_is_refused_where_no_node_runs_containers(world: World, desk: Desk) -> None:
    Node.objects.update(features=["jobs"])

    with pytest.raises(Invalid) as no:
        hand_in(world, image=IMAGE)

    assert "Podman" in str(no.value.fields["image"])


def test_digest_is_kept_and_a_later_attempt_gets_that_very_image(world: World, desk: Desk) -> None:
    job, lease = granted(world)
    assert order_of(order(world, lease)).image == IMAGE
    assert order(world, lease, ["jobs"]) == ""

    says(desk, lease, "ready", JobReport("running", digest=DIGEST))
    says(desk, lease, "draining", JobReport("exited", exit=1, digest=OTHER))
    job.refresh_from_db()
    assert JobAttempt.objects.get().image_digest == DIGEST
    desk.say()
    retry_job(job=job, actor=world.user("bob"), rights=world.rights("bob"), now=world.now)
    world.turn()
    job.refresh_from_db()
    again = Lease.objects.get(request=job.request)

    assert order_of(order(world, again)).image == f"registry.example/ml/pytorch@{DIGEST}"


def test_waiting_for_an_image_is_told_and_costs_nothing(world: World, desk: Desk) -> None:
    job, lease = granted(world)

    says(desk, lease, "preparing", JobReport("waiting", why="pulling", word="3 layers"))

    job.refresh_from_db()
    lease.refresh_from_db()
    assert "3 layers" in progress_text(job)
    assert (job.state, lease.state, lease.activated_at) == ("waiting", "preparing", None)


@pytest.mark.parametrize("why", IMAGE_WHYS)
def test_image_that_cannot_be_had_ends_the_job_in_a_sentence_and_costs_nothing(
    world: World, desk: Desk, why: str
) -> None:
    job, lease = granted(world)

    says(desk, lease, "draining", JobReport("exited", exit=126, why=why, word="it said so"), active_ms=0)

    job.refresh_from_db()
    lease.refresh_from_db()
    attempt = JobAttempt.objects.get()
    assert (job.state, attempt.state, attempt.log_is_closed) == ("failed", "failed", True)
    assert "it said so" in outcome_text(job) or why == "no_containers"
    assert (lease.state, lease.activated_at) == ("cleaning", None)
    meter_all(now=world.now)
    assert not UsageRecord.objects.filter(lease=lease).exists()


def test_lease_on_a_node_without_containers_is_given_back_unpaid(world: World, desk: Desk) -> None:
    job, lease = granted(world)
    Node.objects.update(features=["jobs"])

    says(desk, lease, "preparing", None)

    job.refresh_from_db()
    lease.refresh_from_db()
    assert (job.state, job.why, lease.activated_at) == ("failed", "no_containers", None)


def test_job_in_an_image_goes_to_a_node_that_runs_containers(world: World, desk: Desk) -> None:
    _first, lease = granted(world)
    taken = lease.node
    Node.objects.filter(pk=taken.pk).update(features=["jobs"])
    make_node("gpu-99", "h100-80gb", 1, ("mig",), now=world.now)
    Node.objects.filter(name="gpu-99").update(features=FEATURES)

    placed = [granted(world)[1].node.name for _ in range(3)]

    assert set(placed) == {"gpu-99"}
    assert taken.name != "gpu-99"


@pytest.mark.parametrize("how", ["running", "ended while it was away"])
def test_container_job_that_began_goes_on_where_its_agent_comes_back_without_containers(
    world: World, desk: Desk, how: str
) -> None:
    job, lease = granted(world)
    if how == "running":
        says(desk, lease, "ready", JobReport("running", digest=DIGEST))
    Node.objects.update(features=["jobs"])

    if how == "running":
        says(desk, lease, "ready", JobReport("running", digest=DIGEST))
        job.refresh_from_db()
        assert (job.state, job.why) == ("running", "")
    says(desk, lease, "draining", JobReport("exited", exit=0, digest=DIGEST, ran_ms=5))

    job.refresh_from_db()
    lease.refresh_from_db()
    assert (job.state, job.why, lease.activated_at is None) == ("succeeded", "", False)


def test_what_is_no_digest_is_not_kept(world: World, desk: Desk) -> None:
    _job, lease = granted(world)
    says(desk, lease, "ready", JobReport("running", digest="<script>"))

    assert JobAttempt.objects.get().image_digest == ""
