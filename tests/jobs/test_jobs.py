"""Jobs in the portal: handed in, begun with their lease, ended with it, tried again by rule."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from nodeagent.protocol.jobs import order_of
from nodeagent.protocol.messages import ARTIFACTS, JobReport, LeaseReport
from portal.agents.desired import desired_state
from portal.common import outbox
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.fleet.models import Node
from portal.jobs import outcomes
from portal.jobs.models import Job, JobAttempt, Secret
from portal.jobs.selectors import visible_job, visible_jobs
from portal.jobs.services import ASKED_FIRST, FEED, cancel_job, feed_jobs, retry_job, store_secret, submit_job
from portal.jobs.spec import read_spec
from portal.jobs.states import ATTEMPT_NEXT, ATTEMPT_STATES, JOB_NEXT, JobState
from portal.jobs.words import outcome_text
from portal.leases import lifecycle
from portal.leases.labels import requests_labels
from portal.leases.models import Lease, LeaseRequest
from portal.leases.transitions import lock_leases
from portal.teams.models import Project
from tests.agents.test_reports import Desk, ready
from tests.portal.builders import World

pytestmark = pytest.mark.django_db
JOB = {"command": ["python", "train.py"], "resources": {"gpu": "h100-1g-10gb"}, "time": 3600}


@pytest.fixture
def desk(world: World) -> Desk:
    Node.objects.update(features=["jobs"])
    return Desk(world)


def hand_in(world: World, who: str = "bob", **more: Any) -> list[Job]:
    return submit_job(
        team=world.team("perception"), actor=world.user(who), rights=world.rights(who),
        spec=read_spec({**JOB, **more}), now=world.now,
    )  # fmt: skip


def started(world: World, desk: Desk, **more: Any) -> tuple[Job, Lease]:
    """Return a job that runs in its lease."""
    (job,) = hand_in(world, **more)
    world.turn()
    lease = Lease.objects.get(request=job.request)
    says(desk, lease, "ready", JobReport("running"))
    job.refresh_from_db()
    return job, lease


def says(desk: Desk, lease: Lease, phase: str, job: JobReport | None, **more: Any) -> None:
    if phase == "ready":
        entry = ready(lease)
        desk.say(LeaseReport(entry.lease, entry.generation, "ready", entry.access, job=job))
    else:
        desk.say(LeaseReport(lease.uid, lease.generation, phase, job=job, **more))


def test_order_goes_out_with_the_lease_until_the_job_has_begun(world: World, desk: Desk) -> None:
    store_secret(user=world.user("bob"), name="WANDB_KEY", value="hunter-2", now=world.now)
    (job,) = hand_in(world, env={"LR": "1e-4"}, secrets=["WANDB_KEY"], workdir="~/project")
    world.turn()
    lease = Lease.objects.get(request=job.request)

    order = order_of(desired_state(lease.node_id, now=world.now, features=["jobs"]).leases[0].job)
    says(desk, lease, "ready", JobReport("running"))

    assert order.words == ("python", "train.py")
    assert (order.env["LR"], order.secrets, order.workdir) == ("1e-4", {"WANDB_KEY": "hunter-2"}, "~/project")
    assert desired_state(lease.node_id, now=world.now, features=["jobs"]).leases[0].job == ""
    assert "hunter-2" not in json.dumps(Job.objects.get().spec)
    assert b"hunter-2" not in bytes(Secret.objects.get().sealed)


def test_usage_of_a_job_is_filed_as_the_job_says(world: World) -> None:
    team = world.team("perception")
    Project.objects.create(team=team, code="EU-4711", name="Vision", created_at=world.now)

    jobs = hand_in(world, project="EU-4711", tags={"paper": "iclr"}, array="1-2")

    rows = requests_labels([job.request_id for job in jobs])
    assert [(row.project.code, row.tags) for row in rows.values()] == [("EU-4711", {"paper": "iclr"})] * 2
    for wrong, field in (
        ({"project": "EU-1"}, "project"),
        ({"tags": {"P": "x"}}, "tags"),
        ({"tags": 3}, "tags"),
    ):
        with pytest.raises(Invalid) as refused:
            hand_in(world, **wrong)
        assert set(refused.value.fields) == {field}
    assert Job.objects.count() == 2


def test_agent_that_collects_no_files_is_not_told_of_any(world: World, desk: Desk) -> None:
    (job,) = hand_in(world, artifacts=["out/**"])
    world.turn()
    node = Lease.objects.get(request=job.request).node_id

    older, newer = (
        desired_state(node, now=world.now, features=features).leases[0].job
        for features in (["jobs"], ["jobs", ARTIFACTS])
    )

    assert not {"artifacts", "most_files", "most_bytes"} & json.loads(older).keys()
    assert order_of(newer).artifacts == ("out/**",)


def test_older_agent_is_not_sent_what_it_would_refuse_and_its_lease_is_given_back(
    world: World, desk: Desk
) -> None:
    Node.objects.update(features=[])
    (job,) = hand_in(world)
    world.turn()
    lease = Lease.objects.get(request=job.request)

    assert desired_state(lease.node_id, now=world.now).leases[0].job == ""
    says(desk, lease, "ready", None)

    job.refresh_from_db()
    lease.refresh_from_db()
    assert (job.state, job.why, lease.state) == ("failed", "no_jobs", "ending")


def test_lease_goes_the_moment_the_job_ends_and_the_receipt_says_how(world: World, desk: Desk) -> None:
    job, lease = started(world, desk)
    assert (job.state, job.attempts) == ("running", 1)

    says(desk, lease, "draining", JobReport("exited", exit=0, peak_mib=512, ran_ms=1234))

    job.refresh_from_db()
    lease.refresh_from_db()
    assert (job.state, job.exit_code, job.peak_memory_mib, job.ran_ms) == ("succeeded", 0, 512, 1234)
    assert (lease.state, lease.end_reason) == ("ending", "released")
    assert lease.ended_at is not None


def test_job_that_begins_and_ends_between_two_reports_is_whole(world: World, desk: Desk) -> None:
    (job,) = hand_in(world)
    world.turn()
    lease = Lease.objects.get(request=job.request)

    says(desk, lease, "gone", JobReport("exited", exit=3, ran_ms=5), active_ms=6)

    job.refresh_from_db()
    lease.refresh_from_db()
    assert (job.state, job.exit_code, job.attempts) == ("failed", 3, 1)
    assert (lease.state, lease.end_reason) == ("ended", "released")
    assert LeaseRequest.objects.get(pk=lease.request_id).state == "fulfilled"


def test_report_that_comes_twice_changes_nothing_more(world: World, desk: Desk) -> None:
    _job, lease = started(world, desk)
    says(desk, lease, "draining", JobReport("exited", exit=75, ran_ms=5))
    first = Job.objects.get().ended_at

    says(desk, lease, "draining", JobReport("exited", exit=75, ran_ms=5))

    assert Job.objects.get().ended_at == first
    assert JobAttempt.objects.count() == 1


def test_exit_code_that_asks_for_another_run_gets_one_in_a_new_lease_as_often_as_allowed(
    world: World, desk: Desk
) -> None:
    job, lease = started(world, desk, retries={"max": 1, "on": ["exit:75"]})
    says(desk, lease, "gone", JobReport("exited", exit=75, ran_ms=5))
    assert (Job.objects.get().state, Job.objects.get().request) == ("waiting", None)

    feed_jobs(now=world.now)
    world.turn()
    second = Lease.objects.exclude(pk=lease.pk).get()
    says(desk, second, "ready", JobReport("running"))
    says(desk, second, "gone", JobReport("exited", exit=75, ran_ms=5))
    feed_jobs(now=world.now)

    job.refresh_from_db()
    assert (job.state, job.attempts, job.exit_code) == ("failed", 2, 75)
    assert list(job.tries.values_list("number", "state")) == [(1, "failed"), (2, "failed")]


def test_preempted_and_lost_attempts_come_back_with_the_whole_time(world: World, desk: Desk) -> None:
    job, lease = started(world, desk)
    with transaction.atomic():
        lifecycle.fail_leases(
            lock_leases([lease.pk]), at=world.now + timedelta(minutes=5), fault="gpu_lost: xid 79"
        )
    world.gone(lease, at=world.now + timedelta(minutes=6))

    outcomes.settle(now=world.now + timedelta(minutes=6))
    feed_jobs(now=world.now + timedelta(minutes=6))

    job.refresh_from_db()
    assert (job.state, job.retries_left) == ("waiting", 2)
    assert job.request.state == "queued"
    assert job.request.remaining_s == 3600
    assert LeaseRequest.objects.get(pk=lease.request_id).state == "fulfilled"
    assert job.tries.get().why == "node_lost"


def test_job_whose_time_is_up_timed_out(world: World, desk: Desk) -> None:
    job, lease = started(world, desk)
    late = Lease.objects.get().not_after + timedelta(seconds=1)
    lifecycle.expire_due(now=late)

    outcomes.settle(now=late)
    says(desk, lease, "draining", JobReport("exited", signal=15, ran_ms=3_600_000, is_asked=True))

    job.refresh_from_db()
    assert (job.state, outcome_text(job)) == ("timed_out", "Its time was up (124).")
    assert job.tries.get().signal == 15


@pytest.mark.parametrize(("exit_code", "state"), [(143, "failed"), (0, "succeeded")])
def test_job_that_fills_its_scratch_folder_fails_with_a_sentence_unless_it_was_done(
    world: World, desk: Desk, exit_code: int, state: str
) -> None:
    job, lease = started(world, desk, retries={"max": 3, "on": ["node_lost", "exit:143"]})

    says(
        desk, lease, "draining", JobReport("exited", exit=exit_code, is_asked=True, ran_ms=9),
        reason="scratch_full", detail="its scratch folder holds 61 GiB; this node gives 50 GiB",
    )  # fmt: skip

    job.refresh_from_db()
    lease.refresh_from_db()
    sentence = "It had more in its scratch folder than the node gives."
    assert (job.state, outcome_text(job)) == (state, sentence if state == "failed" else outcome_text(job))
    assert (lease.state, lease.end_reason) == ("ending", "scratch_full")
    assert LeaseRequest.objects.get(pk=lease.request_id).state == "granted"  # nothing is asked for again
    says(desk, lease, "gone", None, reason="scratch_full")
    assert LeaseRequest.objects.get(pk=lease.request_id).state == "fulfilled"


def test_job_whose_node_told_nothing_of_it_before_its_full_lease_was_gone_fails_too(
    world: World, desk: Desk
) -> None:
    job, lease = started(world, desk)
    desk.say(LeaseReport(lease.uid, lease.generation, "gone", reason="scratch_full"))

    outcomes.settle(now=world.now)

    job.refresh_from_db()
    assert (job.state, job.why) == ("failed", "scratch")


def test_cancelled_job_takes_its_request_or_its_lease_back(world: World, desk: Desk) -> None:
    running, lease = started(world, desk)
    (waiting,) = hand_in(world)
    for job in (running, waiting, waiting):
        cancel_job(job=job, actor=world.user("bob"), rights=world.rights("bob"), now=world.now)

    assert set(Job.objects.values_list("state", flat=True)) == {"cancelled"}
    assert Lease.objects.get(pk=lease.pk).end_reason == "released"
    assert LeaseRequest.objects.get(pk=waiting.request_id).state == "withdrawn"
    assert running.tries.get().state == "cancelled"


def test_array_has_as_bulk_requests_as_it_may_have_at_once(world: World, desk: Desk) -> None:
    jobs = hand_in(world, array="1-5%2")
    assert [job.request is not None for job in jobs] == [True, True, False, False, False]

    world.turn()
    lease = Lease.objects.get(request=jobs[0].request)
    order = order_of(desired_state(lease.node_id, now=world.now, features=["jobs"]).leases[0].job)
    says(desk, lease, "gone", JobReport("exited", exit=0, ran_ms=1))
    feed_jobs(now=world.now)

    assert order.env["BERTH_ARRAY_INDEX"] == order.env["SLURM_ARRAY_TASK_ID"] == "1"
    assert Job.objects.filter(request__isnull=False, state="waiting").count() == 2


def test_long_array_asks_for_its_first_jobs_at_once_and_for_the_others_by_the_feeder(
    world: World, monkeypatch: Any, django_capture_on_commit_callbacks: Any
) -> None:
    said: list[str] = []
    monkeypatch.setattr(outbox, "nudge", said.append)
    with django_capture_on_commit_callbacks(execute=True):
        hand_in(world, array="1-20")
    asked = Job.objects.filter(request__isnull=False)

    assert (asked.count(), FEED in said) == (ASKED_FIRST, True)
    assert feed_jobs(now=world.now) == 20 - ASKED_FIRST
    assert asked.count() == 20


@pytest.mark.parametrize(("more", "nudged"), [({"array": "1-2%1"}, [FEED]), ({"array": "1-2"}, []), ({}, [])])
def test_array_is_refilled_when_one_of_its_jobs_ends(
    world: World,
    desk: Desk,
    more: dict[str, str],
    nudged: list[str],
    monkeypatch: Any,
    django_capture_on_commit_callbacks: Any,
) -> None:
    said: list[str] = []
    monkeypatch.setattr(outbox, "nudge", said.append)
    job = hand_in(world, **more)[0]
    world.turn()
    lease = Lease.objects.get(request=job.request)
    says(desk, lease, "ready", JobReport("running"))
    said.clear()

    with django_capture_on_commit_callbacks(execute=True):
        says(desk, lease, "gone", JobReport("exited", exit=0, ran_ms=1))

    assert [topic for topic in said if topic == FEED] == nudged


def test_job_waits_for_another_and_fails_with_it(world: World, desk: Desk) -> None:
    first, lease = started(world, desk)
    (second,) = hand_in(world, after_ok=[first.uid])
    feed_jobs(now=world.now)
    assert Job.objects.get(pk=second.pk).request is None

    says(desk, lease, "gone", JobReport("exited", exit=1, ran_ms=1))
    outcomes.settle(now=world.now)

    second.refresh_from_db()
    assert (second.state, second.why) == ("failed", "after")


def test_job_follows_one_that_succeeded(world: World, desk: Desk) -> None:
    first, lease = started(world, desk)
    (second,) = hand_in(world, after_ok=[first.uid])
    says(desk, lease, "gone", JobReport("exited", exit=0, ran_ms=1))

    feed_jobs(now=world.now)

    assert Job.objects.get(pk=second.pk).request is not None


def test_only_its_owner_runs_a_failed_job_again(world: World, desk: Desk) -> None:
    job, lease = started(world, desk)
    with pytest.raises(Conflict):
        retry_job(job=job, actor=world.user("bob"), rights=world.rights("bob"), now=world.now)
    says(desk, lease, "gone", JobReport("exited", exit=1, ran_ms=1))
    job.refresh_from_db()

    with pytest.raises(Forbidden):
        retry_job(job=job, actor=world.user("alice"), rights=world.rights("alice"), now=world.now)
    retry_job(job=job, actor=world.user("bob"), rights=world.rights("bob"), now=world.now)

    assert (job.state, job.request.state) == ("waiting", "queued")


def test_charlie_sees_no_job_and_ends_none(world: World, desk: Desk) -> None:
    (job,) = hand_in(world)
    rights = world.rights("charlie")

    assert not visible_jobs(rights).exists()
    with pytest.raises(NotFound):
        visible_job(rights, job.uid)
    with pytest.raises(NotFound):
        cancel_job(job=job, actor=world.user("charlie"), rights=rights, now=world.now)
    with pytest.raises(Invalid):
        submit_job(
            team=world.team("language"), actor=world.user("charlie"), rights=rights,
            spec=read_spec({**JOB, "after_ok": [job.uid]}), now=world.now,
        )  # fmt: skip


def test_request_that_is_turned_down_ends_its_job(world: World, desk: Desk) -> None:
    (job,) = hand_in(world)
    LeaseRequest.objects.filter(pk=job.request_id).update(state="withdrawn")

    outcomes.settle(now=world.now)

    job.refresh_from_db()
    assert (job.state, job.why) == ("cancelled", "request")


@pytest.mark.parametrize(
    ("report", "state", "sentence"),
    [
        (JobReport("exited", exit=127, why="command", word="pyhton"), "failed", "“pyhton” was not found"),
        (JobReport("exited", exit=126, why="workdir", word="/x"), "failed", "The working directory /x"),
        (JobReport("exited", exit=126, ran_ms=1), "failed", "Its log says which."),
        (JobReport("exited", signal=9, ran_ms=1), "failed", "It was killed (137), not by"),
        (JobReport("exited", signal=9, is_oom=True, ran_ms=1), "failed", "It ran out of memory (137)"),
        (JobReport("exited", signal=15, ran_ms=1), "failed", "asked to stop, and did (143)"),
        (JobReport("exited", exit=75, ran_ms=1), "failed", "asked to be run again (75)"),
        (JobReport("exited", exit=143, ran_ms=1, is_asked=True), "timed_out", "Its time was up (124)"),
        (JobReport("lost", why="vanished"), "lost", "vanished"),
    ],
)
def test_each_end_is_said_in_words(
    world: World, desk: Desk, report: JobReport, state: str, sentence: str
) -> None:
    job, lease = started(world, desk, retries=0)

    says(desk, lease, "draining", report)

    job.refresh_from_db()
    assert job.state == state
    assert sentence in outcome_text(job)


def test_database_refuses_steps_that_the_table_has_not(world: World, desk: Desk) -> None:
    job, _lease = started(world, desk)
    attempt = job.tries.get()
    for model, row, table, states in (
        (Job, job, JOB_NEXT, JobState.values),
        (JobAttempt, attempt, ATTEMPT_NEXT, [str(one) for one in ATTEMPT_STATES]),
    ):
        for was in states:
            for to in states:
                if to == was:
                    continue
                with transaction.atomic():
                    with connection.cursor() as cursor:
                        cursor.execute("SET LOCAL session_replication_role = replica")
                        model.objects.filter(pk=row.pk).update(state=was)
                        cursor.execute("SET LOCAL session_replication_role = origin")
                    if to in table.get(was, ()):
                        model.objects.filter(pk=row.pk).update(state=to)
                    else:
                        with pytest.raises(IntegrityError), transaction.atomic():
                            model.objects.filter(pk=row.pk).update(state=to)
                    transaction.set_rollback(True)
