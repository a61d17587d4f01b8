"""Jobs of an array that follow each other in a lease: handed over, begun, taken back, paid for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from nodeagent.protocol.jobs import order_of
from nodeagent.protocol.messages import JOBS_FOLLOW, JobReport, LeaseReport
from portal.agents.desired import desired_state
from portal.billing.models import UsageRecord
from portal.budgets.services import BudgetSpec, ThresholdSpec, make_budget
from portal.budgets.wallets import move_by_hand
from portal.fleet.models import Node
from portal.jobs import following, outcomes
from portal.jobs.models import Job, JobAttempt
from portal.jobs.services import ask_for, cancel_job, feed_jobs
from portal.leases import lifecycle
from portal.leases.models import Lease, LeaseRequest
from portal.leases.transitions import lock_leases
from portal.web.leases.job_shares import job_parts
from tests.agents.test_reports import Desk, ready
from tests.billing.test_wallets import balance, prepaid
from tests.jobs.test_jobs import hand_in
from tests.portal.builders import World

pytestmark = pytest.mark.django_db
FEATURES = ["jobs", JOBS_FOLLOW]
ONE, TWO, THREE = (JobReport("running", ordinal=n) for n in (1, 2, 3))


@pytest.fixture
def desk(world: World) -> Desk:
    Node.objects.update(features=FEATURES)
    return Desk(world)


def says(desk: Desk, lease: Lease, phase: str, job: JobReport, before: JobReport | None = None) -> None:
    access = ready(lease).access if phase == "ready" else ()
    desk.say(LeaseReport(lease.uid, lease.generation, phase, access, job=job, job_before=before))


def begun(world: World, desk: Desk, **more: Any) -> tuple[list[Job], Lease]:
    """Return an array of three of which one at a time runs: the first does, in its lease."""
    jobs = hand_in(world, array="1-3%1", time=600, **more)
    world.turn()
    lease = Lease.objects.get(request=jobs[0].request)
    says(desk, lease, "ready", ONE)
    return jobs, lease


def ended(ordinal: int, code: int = 0) -> JobReport:
    return JobReport("exited", exit=code, ran_ms=1000, ordinal=ordinal)


def states(jobs: list[Job]) -> list[str]:
    for job in jobs:
        job.refresh_from_db()
    return [str(job.state) for job in jobs]


def test_jobs_of_an_array_follow_each_other_in_a_lease_that_each_pays_its_part_of(
    world: World, desk: Desk, client: Any
) -> None:
    jobs, lease = begun(world, desk)
    order = order_of(desired_state(lease.node_id, now=world.now, features=FEATURES).leases[0].job)
    assert (order.ordinal, order.env["BERTH_ARRAY_INDEX"], order.limit_s) == (2, "2", 600)
    assert states(jobs) == ["running", "waiting", "waiting"]

    says(desk, lease, "ready", TWO, ended(1))
    assert states(jobs) == ["succeeded", "running", "waiting"]
    says(desk, lease, "ready", THREE, ended(2, 3))
    says(desk, lease, "ready", THREE, ended(2, 3))  # heard twice
    says(desk, lease, "draining", ended(3), ended(2, 3))
    lease.refresh_from_db()

    assert states(jobs) == ["succeeded", "failed", "succeeded"]
    assert [job.exit_code for job in jobs] == [0, 3, 0]
    assert (lease.state, lease.end_reason) == ("ending", "released")
    assert {job.request_id for job in jobs} == {lease.request_id}
    assert lease.activated_at is not None
    for ordinal, start_s in ((1, 0), (2, 10.9), (3, 30.2)):
        at = lease.activated_at + timedelta(seconds=start_s)
        JobAttempt.objects.filter(ordinal=ordinal).update(started_at=at)
    # 60 seconds of a whole device, the last 20 at twice the price
    records = [UsageRecord(seconds=40, share_milli=1000, micro_per_hour=36_000_000),
               UsageRecord(seconds=20, share_milli=1000, micro_per_hour=72_000_000)]  # fmt: skip
    parts = job_parts(lease, records)
    assert [one.attempt.job for one in parts] == jobs
    assert [one.seconds for one in parts] == [10, 20, 30]
    assert [one.micro for one in parts] == [100_000, 200_000, 500_000]
    says(desk, lease, "gone", ended(3), ended(2, 3))
    UsageRecord.objects.all().delete()
    Lease.objects.update(is_metered=True)  # as the receipt finds it
    client.force_login(world.user("bob"))
    shown = client.get(f"/leases/{lease.uid}/").content.decode()
    told = client.get(f"/api/v1/leases/{lease.uid}/receipt/").json()
    assert [one["id"] for one in told["jobs"]] == [job.uid for job in jobs]
    assert told["jobs"][1]["outcome"] == "It ended with exit code 3."
    assert all(job.uid in shown for job in jobs)
    assert not LeaseRequest.objects.filter(state="queued").exists()


def test_nothing_follows_while_others_wait_or_the_lease_must_go(world: World, desk: Desk) -> None:
    hand_in(world, array="1-3%1", time=600)
    world.turn()
    lease = Lease.objects.get()
    world.submit("alice")

    says(desk, lease, "ready", ONE)

    assert desired_state(lease.node_id, now=world.now, features=FEATURES).leases[0].job == ""
    assert JobAttempt.objects.count() == 1


@pytest.mark.parametrize("is_tried_anew", [False, True])
def test_lost_right_stops_what_follows_as_soon_as_it_is_tried_anew(
    world: World, desk: Desk, monkeypatch: Any, is_tried_anew: bool
) -> None:
    jobs, lease = begun(world, desk)
    world.user("bob").memberships.all().delete()
    if is_tried_anew:
        monkeypatch.setattr(following, "TRIED_FOR", timedelta(0))

    says(desk, lease, "ready", TWO, ended(1))

    assert JobAttempt.objects.filter(job=jobs[2]).exists() is not is_tried_anew


@pytest.mark.parametrize(("ends", "comes_again"), [("drained", True), ("clean", True), ("lost", False)])
def test_job_that_was_handed_over_and_never_begun_waits_anew(
    world: World, desk: Desk, ends: str, comes_again: bool
) -> None:
    jobs, lease = begun(world, desk, retries={"max": 0, "on": []})
    if ends == "drained":  # its node says so with how the one before ended
        says(desk, lease, "draining", ended(1))
    else:
        with transaction.atomic():
            locked = lock_leases([lease.pk])
            if ends == "lost":  # nobody knows whether it began
                lifecycle.fail_leases(locked, at=world.now, fault="the node has not been heard")
            else:
                lifecycle.end_leases(locked, reason="released", at=world.now)
        if ends == "clean":
            outcomes.settle(now=world.now)
            assert JobAttempt.objects.filter(state="waiting").count() == 1  # its node may have begun it
            says(desk, lease, "gone", JobReport("exited", signal=9, ran_ms=5))
    outcomes.settle(now=world.now)
    outcomes.settle(now=world.now)

    jobs[1].refresh_from_db()
    assert jobs[1].state == ("waiting" if comes_again else "lost")
    assert jobs[1].attempts == (0 if comes_again else 1)
    if comes_again:
        assert jobs[1].request_id is None
        assert feed_jobs(now=world.now) == 1


def test_cancelled_job_that_was_handed_over_is_taken_from_its_node_and_the_one_before_goes_on(
    world: World, desk: Desk
) -> None:
    jobs, lease = begun(world, desk)
    cancel_job(job=jobs[1], actor=world.user("bob"), rights=world.rights("bob"), now=world.now)
    lease.refresh_from_db()
    assert (states(jobs), lease.state) == (["running", "cancelled", "waiting"], "active")
    assert desired_state(lease.node_id, now=world.now, features=FEATURES).leases[0].job == ""

    says(desk, lease, "ready", TWO, ended(1))  # its node began it before it heard

    lease.refresh_from_db()
    assert (states(jobs), lease.state) == (["succeeded", "cancelled", "waiting"], "ending")


def test_cancelling_an_ended_job_leaves_the_lease_to_the_one_that_runs_there_now(
    world: World, desk: Desk
) -> None:
    jobs, lease = begun(world, desk)
    says(desk, lease, "ready", TWO, ended(1))

    cancel_job(job=jobs[0], actor=world.user("bob"), rights=world.rights("bob"), now=world.now)

    lease.refresh_from_db()
    assert (states(jobs)[:2], lease.state) == (["succeeded", "running"], "active")


def test_lease_is_made_longer_for_what_follows_and_never_into_the_flavors_longest(
    world: World, desk: Desk
) -> None:
    _jobs, lease = begun(world, desk)
    lease.refresh_from_db()
    assert lease.activated_at is not None
    assert lease.not_after == lease.activated_at + timedelta(seconds=600 + 120)

    longest = lease.flavor.max_duration_s
    Lease.objects.filter(pk=lease.pk).update(
        activated_at=lease.activated_at - timedelta(seconds=longest),
        starts_at=lease.starts_at - timedelta(days=9),
    )
    Lease.objects.filter(pk=lease.pk).update(not_after=lease.activated_at + timedelta(seconds=650))
    says(desk, lease, "ready", TWO, ended(1))

    assert JobAttempt.objects.filter(state="waiting").count() == 0


def test_database_refuses_two_jobs_at_once_in_a_lease_and_one_of_another_array(
    world: World, desk: Desk
) -> None:
    jobs, lease = begun(world, desk)
    (other,) = hand_in(world, time=600)
    first = {"lease": lease, "number": 1, "started_at": world.now}

    for job, ordinal, state in ((jobs[2], 3, "running"), (jobs[2], 3, "waiting"), (other, 3, "succeeded")):
        with pytest.raises(IntegrityError), transaction.atomic():
            JobAttempt.objects.create(job=job, ordinal=ordinal, state=state, **first)


@pytest.mark.parametrize("short", ["", "wallet", "budget"])
def test_job_follows_another_as_long_as_wallet_and_budget_cover_the_time(
    world: World, desk: Desk, short: str
) -> None:
    finance = {
        "team": world.team("perception"),
        "actor": world.user("finance"),
        "rights": world.rights("finance"),
    }
    wallet = prepaid(world, "perception", 1.4)  # a whole H100 costs 3.60 an hour: 0.60 for each job's 600 s
    jobs = hand_in(world, array="1-3%1", time=600, resources={"gpu": "h100"})
    world.turn()
    assert balance(wallet) == (800_000, 600_000)
    ask_for(jobs[1], rights=world.rights("bob"), now=world.now)
    # The first lease has to be made longer by two minutes, for 0.12.
    if short == "wallet":
        move_by_hand(**finance, kind="pay_out", amount_micro=700_000, reference="back", now=world.now)
    if short == "budget":
        since = world.now.date().replace(day=1)
        spec = BudgetSpec(700_000, since, thresholds=(ThresholdSpec(100, "block"),))
        make_budget(**finance, spec=spec, now=world.now)

    lease = Lease.objects.get()
    says(desk, lease, "ready", ONE)

    handed = desired_state(lease.node_id, now=world.now, features=FEATURES).leases[0].job
    asked = LeaseRequest.objects.get(pk=jobs[1].request_id)
    if short:
        assert (handed, asked.state) == ("", "queued")
        assert wallet.holds.get().amount_micro == 600_000
    else:
        assert (order_of(handed).ordinal, asked.state) == (2, "withdrawn")
        assert balance(wallet) == (680_000, 720_000)
