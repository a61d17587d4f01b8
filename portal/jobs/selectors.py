"""Reading jobs: what a person may see and do, by the team that a job belongs to."""

from __future__ import annotations

from django.db.models import Q, QuerySet

from portal.common.errors import NotFound
from portal.jobs.models import Job
from portal.teams.models import Role
from portal.teams.selectors import Rights, below


def visible_jobs(rights: Rights) -> QuerySet[Job]:
    """Return the jobs of teams this person belongs to (or oversees)."""
    return Job.objects.filter(
        below(rights.teams_with(Role.values), "team__") if rights.held else Q(pk__in=[])
    ).select_related("team", "user", "flavor", "request", "array")


def visible_job(rights: Rights, uid: str) -> Job:
    """Return a job by its name, or raise NotFound also when it is out of sight."""
    found = visible_jobs(rights).filter(uid=uid).first()
    if found is None:
        raise NotFound
    return found


def may_manage_job(rights: Rights, job: Job) -> bool:
    """Say whether this person may cancel the job: its owner, a team admin, an operator."""
    return job.user_id == rights.user.pk or rights.has(job.team, Role.ADMIN, Role.OPERATOR)


def may_read_log(rights: Rights, job: Job) -> bool:
    """Say whether this person may read what a job prints: its owner and the team's admins."""
    return job.user_id == rights.user.pk or rights.has(job.team, Role.ADMIN)
