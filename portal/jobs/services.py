"""Jobs: handed in, asked for as there is room, cancelled, tried again. What nodes report of them is in ``outcomes``.

Lock order as everywhere (lifecycle); a job's row is changed only where its state still is what was seen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from django.db import transaction
from django.db.models import Exists, OuterRef, Q
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.catalog.models import Flavor
from portal.common import outbox
from portal.common.errors import (
    BerthError,
    BudgetExceeded,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    TooManyWaiting,
)
from portal.common.live import EVENTS, publish_on_commit
from portal.common.sealing import JOBS, seal
from portal.fleet.services import raise_revision
from portal.jobs.digests import known_digest, resolve_soon
from portal.jobs.images import check_image
from portal.jobs.models import Job, JobArray, JobAttempt, Secret
from portal.jobs.selectors import may_manage_job, visible_jobs
from portal.jobs.spec import JobSpec, is_variable
from portal.jobs.states import ENDED_JOBS, OPEN_JOBS, UNENDED_ATTEMPTS, JobState
from portal.leases.lifecycle import release_locked
from portal.leases.models import Lease, LeaseRequest
from portal.leases.requests import PRIORITIES, RequestSpec, submit_request
from portal.leases.states import LIVE_LEASES, RequestState
from portal.leases.transitions import lock_leases, move_requests
from portal.teams.models import Role, Team
from portal.teams.selectors import Rights

# So many jobs of one array have requests at once: enough to fill a fleet, few enough to keep the queue readable.
ASKED_AT_ONCE: Final = 200
# So many of them as an array is handed in, while its owner waits for the answer; the feeder asks for the others.
ASKED_FIRST: Final = 16
FED_AT_ONCE: Final = 200
FEED: Final = "scheduler.tasks.feed_jobs"
MOST_SECRETS: Final = 100
_SIZE: Final = re.compile(r"(\d{1,4})\s?(GB|GiB|G)", re.IGNORECASE)


def submit_job(*, team: Team, actor: User, rights: Rights, spec: JobSpec, now: datetime) -> list[Job]:
    """Take a job, or one per index of its array, and ask for GPU time for it; returns them in order.

    Raises what a request raises, and Invalid for names that are not there; nothing is stored then.
    """
    flavor, count = flavor_of(spec)
    if spec.image:
        check_image(team=team, flavor=flavor, text=spec.image)
    earlier = _earlier(rights, spec)
    missing = set(spec.secrets) - set(
        Secret.objects.filter(user=actor, name__in=spec.secrets).values_list("name", flat=True)
    )
    if missing:
        raise Invalid(
            fields={
                "secrets": _("You have no secret %(name)s. Store it first.") % {"name": sorted(missing)[0]}
            }
        )
    with transaction.atomic():
        array = JobArray.objects.create(at_once=spec.at_once) if spec.array else None
        indices: list[int] | list[None] = spec.array or [None]
        kept = spec.kept()
        jobs = [
            Job(
                team=team,
                user=actor,
                name=spec.name,
                flavor=flavor,
                count=count,
                time_s=spec.time_s,
                spec=kept,
                array=array,
                index=index,
                retries_left=spec.retries,
                submitted_at=now,
                image_digest=known_digest(spec.image),
            )
            for index in indices
        ]
        Job.objects.bulk_create(jobs)
        resolve_soon(spec.image)
        if earlier:
            Job.after.through.objects.bulk_create(
                Job.after.through(from_job_id=job.pk, to_job_id=other.pk) for job in jobs for other in earlier
            )
        target = array.uid if array else jobs[0].uid
        record(actor, "job.submitted", target, at=now, team_id=team.pk, count=len(jobs))
        at_once = min(spec.at_once or ASKED_AT_ONCE, ASKED_AT_ONCE)
        is_due = all(other.state == JobState.SUCCEEDED for other in earlier)
        if not is_due:  # what cannot be had at all is said now, not when the other job is through
            _check(jobs[0], rights, now)
        due = min(at_once, len(jobs)) if is_due else 0
        for job in jobs[: min(due, ASKED_FIRST)]:
            try:
                ask_for(job, rights=rights, now=now)
            except BudgetExceeded:
                if job is jobs[0]:
                    raise
                break  # the rest of an array waits for the budget, as it does for room in the queue
        else:
            if due > ASKED_FIRST:
                outbox.nudge_on_commit(FEED)
    return jobs


def flavor_of(spec: JobSpec) -> tuple[Flavor, int]:
    """Return the flavor that a job means by its flavor, size or model, and how many; raises Invalid."""
    offered = Flavor.objects.filter(is_active=True).select_related("device_model")
    exact = offered.filter(slug=spec.gpu).first()
    if exact is not None:
        return exact, spec.count
    size = _SIZE.fullmatch(spec.gpu)
    if size:
        fitting = [
            one for one in offered if one.memory_mib >= int(size[1]) * 1000 * 1000 * 1000 * 0.95 // 2**20
        ]
        if fitting:
            return min(fitting, key=lambda one: (one.memory_mib, one.share_milli, one.slug)), spec.count
    wanted = spec.gpu.lower()
    whole = [one for one in offered if one.mode == "exclusive" and wanted in one.device_model.slug.lower()]
    if whole and wanted:
        return min(whole, key=lambda one: (one.memory_mib, one.slug)), spec.count
    names = ", ".join(sorted(one.slug for one in offered)[:12]) or "–"
    raise Invalid(
        fields={
            "resources": _("Nothing here is called “%(gpu)s”. There are: %(names)s.")
            % {"gpu": spec.gpu[:60], "names": names}
        }
    )


def _earlier(rights: Rights, spec: JobSpec) -> list[Job]:
    """Return the jobs that must succeed first: by their own names, or all of an array by its; raises Invalid."""
    found: list[Job] = []
    for uid in spec.after_ok:
        rows = (
            visible_jobs(rights).filter(array__uid=uid)
            if uid.startswith("arr-")
            else visible_jobs(rights).filter(uid=uid)
        )
        jobs = list(rows)
        if not jobs:
            raise Invalid(fields={"after_ok": _("There is no job %(uid)s.") % {"uid": uid[:40]}})
        if any(job.state in ENDED_JOBS and job.state != JobState.SUCCEEDED for job in jobs):
            raise Invalid(
                fields={"after_ok": _("%(uid)s has not succeeded, and will not.") % {"uid": uid[:40]}}
            )
        found += jobs
    return found


def request_spec(job: Job) -> RequestSpec:
    """Return what GPU time a job asks for."""
    return RequestSpec(
        flavor=job.flavor.slug,
        duration_s=job.time_s,
        count=job.count,
        priority=job.spec.get("priority", "normal") if job.spec.get("priority") in PRIORITIES else "normal",
        name=(job.name or job.uid)[:80],
        work="training",
        is_preemptible=bool(job.spec.get("is_preemptible")),
        project=job.spec.get("project", ""),
        tags=job.spec.get("tags", {}),
    )


def could_ask_for(job: Job, *, now: datetime) -> bool:
    """Say whether this job's owner may have GPU time for it without an approval; raises what asking would raise."""
    return _check(job, Rights(job.user), now)


def _check(job: Job, rights: Rights, now: datetime) -> bool:
    """Raise what asking for this job would raise, and change nothing; False where it would await approval."""
    is_queued = False
    try:
        with transaction.atomic():
            asked = submit_request(
                team=job.team,
                actor=job.user,
                rights=rights,
                spec=request_spec(job),
                now=now,
                is_job=True,
                needs_containers=bool(job.spec.get("image")),
            )
            is_queued = asked.state == RequestState.QUEUED
            raise _Undo
    except _Undo:
        return is_queued


class _Undo(Exception):
    """Takes back what was only tried."""


def ask_for(job: Job, *, rights: Rights, now: datetime) -> bool:
    """Ask for a waiting job's GPU time; False where somebody did meanwhile. Raises what a request raises."""
    with transaction.atomic():
        request = submit_request(
            team=job.team,
            actor=job.user,
            rights=rights,
            spec=request_spec(job),
            now=now,
            is_job=True,
            needs_containers=bool(job.spec.get("image")),
        )
        won = Job.objects.filter(pk=job.pk, state=JobState.WAITING, request=None).update(request=request)
        if not won:
            transaction.set_rollback(True)
            return False
    job.request = request
    return True


def feed_jobs(*, now: datetime) -> int:
    """Ask for jobs whose turn it is: what they wait for has succeeded, and their array has room. Safe to repeat."""
    open_before = Job.objects.filter(before=OuterRef("pk")).exclude(state=JobState.SUCCEEDED)
    waiting = (
        Job.objects.filter(state=JobState.WAITING, request=None)
        .exclude(Exists(open_before))
        .select_related("team", "user", "flavor", "array")
        .order_by("id")
    )
    room: dict[int, int] = {}
    asked = 0
    for job in list(waiting[: FED_AT_ONCE * 5]):
        if asked >= FED_AT_ONCE:
            break
        if job.array is not None:
            left = room.setdefault(job.array.pk, _room_of(job.array))
            if left <= 0:
                continue
            room[job.array.pk] = left - 1
        try:
            asked += ask_for(job, rights=Rights(job.user), now=now)
        except (BudgetExceeded, TooManyWaiting):
            # It goes on waiting: for room in the queue, or for the budget of the next month.
            continue
        except BerthError as no:
            end_unbegun(job, why="refused", word=_sentence(no), now=now)
    return asked


def feed_soon(job: Job) -> None:
    """Once the transaction is through, ask for what this job's end makes room for: without waiting for the clock."""
    others = Job.objects.filter(state=JobState.WAITING, request=None)
    if others.filter(Q(array=job.array_id) & ~Q(array=None) | Q(after=job.pk)).exists():
        outbox.nudge_on_commit(FEED)


def _room_of(array: JobArray) -> int:
    most = min(array.at_once or ASKED_AT_ONCE, ASKED_AT_ONCE)
    return most - array.jobs.filter(state__in=OPEN_JOBS, request__isnull=False).count()


def _sentence(no: BerthError) -> str:
    fields = getattr(no, "fields", None)
    return str(next(iter(fields.values())) if fields else no.detail)[:300]


def end_unbegun(job: Job, *, why: str, word: str = "", now: datetime, state: str = JobState.FAILED) -> bool:
    """End a job that waits; False where it does not any more."""
    won = Job.objects.filter(pk=job.pk, state=JobState.WAITING).update(
        state=state, why=why, word=word[:300], ended_at=now
    )
    if won:
        announce_job(job, state, at=now)
    return bool(won)


@transaction.atomic
def cancel_job(*, job: Job, actor: User, rights: Rights, now: datetime) -> Job:
    """End a job at somebody's wish: its request is withdrawn, or its lease released. Safe to repeat.

    One that was handed to a node, to follow another in its lease, is taken from there; the other one goes on.
    """
    require_manage(rights, job)
    won = 0
    for _again in range(3):  # it may be handed to a node just now: then its request is another one
        asked = job.request_id
        _give_up_place(job, actor=actor, now=now)
        won = Job.objects.filter(pk=job.pk, request=asked, state__in=OPEN_JOBS).update(
            state=JobState.CANCELLED, why="cancelled", ended_at=now
        )
        job.refresh_from_db()
        if won or job.state not in OPEN_JOBS:
            break
    if won:
        over = {"state": JobState.CANCELLED, "why": "cancelled", "ended_at": now}
        job.tries.filter(state=JobState.WAITING).update(**over, started_at=now)  # it had no time of its lease
        job.tries.filter(state__in=UNENDED_ATTEMPTS).update(**over)
        record(actor, "job.cancelled", job.uid, at=now, team_id=job.team_id)
        announce_job(job, JobState.CANCELLED, at=now)
        feed_soon(job)
    return job


def _give_up_place(job: Job, *, actor: User, now: datetime) -> None:
    """Release the lease that a job runs in, or withdraw the request that waits for it."""
    if job.request_id is None:
        return
    there = Lease.objects.filter(request=job.request_id, state__in=LIVE_LEASES)
    leases = lock_leases(there.values_list("pk", flat=True))
    if JobAttempt.objects.filter(job=job, lease__in=leases, state=JobState.WAITING).exists():
        raise_revision([lease.node_id for lease in leases])
        return
    locked = LeaseRequest.objects.select_for_update().get(pk=job.request_id)
    if locked.state == RequestState.GRANTED and not leases:  # granted while we waited for it
        leases = lock_leases(there.values_list("pk", flat=True))
    others = JobAttempt.objects.filter(lease__in=leases).exclude(job=job)
    if not Job.objects.filter(pk=job.pk, state__in=OPEN_JOBS).exists() and others.exists():
        return  # it is over, and what runs there now is another one's
    for lease in leases:
        lease.request = locked
        release_locked(lease, actor=actor, now=now)
    if locked.state in (RequestState.QUEUED, RequestState.AWAITING_APPROVAL):
        move_requests([locked], RequestState.WITHDRAWN, at=now)


@transaction.atomic
def retry_job(*, job: Job, actor: User, rights: Rights, now: datetime) -> Job:
    """Run a job that did not succeed once more, in a new lease, at the usual price; raises Conflict for any other."""
    if job.user_id != actor.pk:
        require_manage(rights, job)
        raise Forbidden(_("Only who handed a job in runs it again."))
    if job.spec.get("image"):
        check_image(team=job.team, flavor=job.flavor, text=job.spec["image"])
    again = Job.objects.filter(
        pk=job.pk, state__in=(JobState.FAILED, JobState.CANCELLED, JobState.TIMED_OUT, JobState.LOST)
    ).update(
        state=JobState.WAITING, request=None, ended_at=None, why="", word="", exit_code=None, signal=None
    )
    if not again:
        raise Conflict(_("Only a job that ended without success is run again."))
    job.refresh_from_db()
    ask_for(job, rights=rights, now=now)
    record(actor, "job.retried", job.uid, at=now, team_id=job.team_id)
    announce_job(job, JobState.WAITING, at=now)
    return job


def require_manage(rights: Rights, job: Job) -> None:
    """Raise NotFound or Forbidden for somebody who may not end this job."""
    if not rights.has(job.team, *Role.values):
        raise NotFound
    if not may_manage_job(rights, job):
        raise Forbidden(_("Only its owner, a team admin or an operator ends a job."))


def announce_job(job: Job, state: str, *, at: datetime, lease: str = "") -> None:
    """Tell the browsers that look, once the transaction is through."""
    publish_on_commit(
        EVENTS,
        [
            {
                "event": f"job.{state}",
                "job": job.uid,
                "lease": lease,
                "request": "",
                "team": job.team_id,
                "user": job.user_id,
                "state": str(state),
                "at": at.isoformat(),
            }
        ],
    )


# Secrets


def store_secret(*, user: User, name: str, value: str, now: datetime) -> None:
    """Keep a value for one's jobs under a name; one that is there is replaced. Raises Invalid."""
    fields = {}
    if not is_variable(name) or len(name) > 80:
        fields["name"] = _("Use letters, digits and underscores, as in WANDB_KEY.")
    if not 1 <= len(value) <= 4096 or "\0" in value:
        fields["value"] = _("A secret has 1 to 4096 characters.")
    others = Secret.objects.filter(user=user).exclude(name=name)
    if not fields and others.count() >= MOST_SECRETS:
        fields["name"] = _("You have %(n)d secrets already. Remove one first.") % {"n": MOST_SECRETS}
    if fields:
        raise Invalid(fields=fields)
    with transaction.atomic():
        Secret.objects.update_or_create(
            user=user,
            name=name,
            defaults={"sealed": seal(value, purpose=JOBS, owner=user.pk, name=name), "changed_at": now},
        )
        record(user, "secret.stored", name, at=now)


@transaction.atomic
def remove_secret(*, user: User, name: str, now: datetime) -> None:
    """Forget a secret; raises NotFound where there is none."""
    gone, _rows = Secret.objects.filter(user=user, name=name).delete()
    if not gone:
        raise NotFound
    record(user, "secret.removed", name, at=now)


def secrets_of(user: User) -> Sequence[Secret]:
    """Return a person's secrets, without their values."""
    return list(Secret.objects.filter(user=user).defer("sealed"))
