"""Batch jobs: the list with the form to run one, and the page of a job with its log."""

from __future__ import annotations

from django.conf import settings
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.common.clock import db_now
from portal.common.errors import BerthError, Invalid
from portal.jobs import services
from portal.jobs.artifacts import as_download, downloadable
from portal.jobs.log_views import log_page, log_start, raw_log, readable_job
from portal.jobs.models import Artifact
from portal.jobs.selectors import may_manage_job, may_read_log, visible_job, visible_jobs
from portal.jobs.spec import read_spec
from portal.jobs.states import ENDED_JOBS, JobState
from portal.jobs.words import progress_text
from portal.teams.models import Role
from portal.teams.selectors import visible_team
from portal.web.access import done, person, refused, rights_of
from portal.web.figures import duration_text
from portal.web.jobs.forms import JobForm, brought_along
from portal.web.jobs.rows import artifact_row, attempt_row, command_text, job_row

PER_PAGE = 25
MOST_FILES = 200
# Which field of the form a field of a job is.
FIELDS = {
    "resources": "gpu",
    "command": "command",
    "time": "time",
    "array": "array",
    "name": "name",
    "env": "env",
    "artifacts": "artifacts",
    "image": "image",
    "project": "project",
    "tags": "tags",
}


@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """List the jobs of one's teams; a POST hands one in."""
    rights = rights_of(request)
    asks = rights.has_anywhere(Role.RESEARCHER, Role.ADMIN)
    form = JobForm(request.POST or None, rights=rights, initial=brought_along(request.GET)) if asks else None
    if request.method == "POST" and form is not None and form.is_valid():
        made = _handed_in(request, form)
        if made is not None:
            return made
    rows = Paginator(visible_jobs(rights).order_by("-id"), PER_PAGE).get_page(request.GET.get("page"))
    context = {"rows": [job_row(job) for job in rows], "page": rows, "form": form}
    is_refused = form is not None and form.is_bound
    return render(request, "web/jobs.html", context, status=422 if is_refused else 200)


def _handed_in(request: HttpRequest, form: JobForm) -> HttpResponse | None:
    rights = rights_of(request)
    try:
        jobs = services.submit_job(
            team=visible_team(rights, form.cleaned_data["team"]),
            actor=person(request),
            rights=rights,
            spec=read_spec(form.raw()),
            now=db_now(),
        )
    except Invalid as error:
        for field, text in error.fields.items():
            named = FIELDS.get(field)
            form.add_error(named if named in form.fields else None, str(text))
        return None
    except BerthError as error:
        form.add_error(None, f"{error.detail} {error.next_step}")
        return None
    return redirect("web:job", jobs[0].uid) if len(jobs) == 1 else redirect("web:jobs")


@require_safe
def one(request: HttpRequest, uid: str) -> HttpResponse:
    """Show a job: how it went, its attempts, and what it prints."""
    rights = rights_of(request)
    job = visible_job(rights, uid)
    tries = [attempt_row(each) for each in job.tries.select_related("lease").order_by("-number")]
    is_over, may_read = job.state in ENDED_JOBS, may_read_log(rights, job)
    start = log_start(job)
    left = Artifact.objects.filter(attempt__job=job).select_related("attempt")
    files = list(left.order_by("-attempt__number", "left_out", "path")[: MOST_FILES + 1]) if may_read else []
    context = {
        "row": job_row(job),
        "job": job,
        "command": command_text(job) if may_read else "",
        "time_limit": duration_text(job.time_s),
        "tries": tries,
        "image": job.spec.get("image", ""),
        "progress": progress_text(job),
        "can_cancel": may_manage_job(rights, job) and not is_over,
        "can_retry": job.user_id == rights.user.pk and is_over and job.state != JobState.SUCCEEDED,
        "can_read_log": may_read,
        "files": [artifact_row(each, job) for each in files[:MOST_FILES]],
        "has_more_files": len(files) > MOST_FILES,
        "patterns": job.spec["artifacts"],
        "file_days": settings.JOB_ARTIFACT_DAYS,
        "start": start,
    }
    return render(request, "web/job.html", context)


@require_safe
def log(request: HttpRequest, uid: str) -> JsonResponse:
    """Answer some of what a job printed, for its page."""
    job = readable_job(rights_of(request), uid)
    given = {name: request.GET.get(name, "") for name in ("attempt", "offset")}
    numbers = {name: int(text) if text.isdecimal() and len(text) < 16 else 0 for name, text in given.items()}
    answer = {**log_page(job, numbers["attempt"] or None, numbers["offset"]), "state": str(job.state)}
    return JsonResponse(answer, headers={"Cache-Control": "no-store"})


@require_safe
def raw(request: HttpRequest, uid: str) -> StreamingHttpResponse:
    """Hand out what a job printed as a file."""
    return raw_log(readable_job(rights_of(request), uid), None, person(request).pk)


@require_safe
def artifact(request: HttpRequest, uid: str, artifact: int) -> StreamingHttpResponse:
    """Hand out a file that a job left."""
    return as_download(downloadable(readable_job(rights_of(request), uid), artifact), person(request).pk)


@require_POST
def cancel(request: HttpRequest, uid: str) -> HttpResponse:
    """End a job."""
    try:
        job = visible_job(rights_of(request), uid)
        services.cancel_job(job=job, actor=person(request), rights=rights_of(request), now=db_now())
    except BerthError as error:
        return refused(request, error, "web:job", uid)
    return done(request, _("The job is cancelled."), "web:job", uid)


@require_POST
def retry(request: HttpRequest, uid: str) -> HttpResponse:
    """Run a job again."""
    try:
        job = visible_job(rights_of(request), uid)
        services.retry_job(job=job, actor=person(request), rights=rights_of(request), now=db_now())
    except BerthError as error:
        return refused(request, error, "web:job", uid)
    return done(request, _("The job waits to be run again."), "web:job", uid)
