"""Batch jobs over HTTP: hand in, look, cancel, run again; and the secrets that they get."""

from __future__ import annotations

from typing import Any

from django.http import StreamingHttpResponse
from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.accounts.models import Scope
from portal.api.describe import call, query
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Empty, Text
from portal.api.filters import JobFilters
from portal.api.idempotency import once
from portal.api.pagination import Pages
from portal.api.representations import Row
from portal.api.requests import team_to_ask_for
from portal.api.responses_jobs import (
    ArtifactAnswer,
    JobDetail,
    JobListed,
    JobSubmitted,
    LogAnswer,
    SecretAnswer,
)
from portal.api.wire import instant
from portal.common.clock import db_now
from portal.common.errors import Invalid
from portal.jobs import services
from portal.jobs.artifacts import as_download, downloadable, kept_files, kept_until
from portal.jobs.log_views import attempt_of, log_page, raw_log, readable_job
from portal.jobs.models import Artifact, Job, JobAttempt
from portal.jobs.selectors import may_manage_job, may_read_log, visible_job, visible_jobs
from portal.jobs.spec import read_spec
from portal.jobs.words import left_out_text, outcome_text, progress_text
from portal.teams.selectors import Rights

TAG = "jobs"


class JobBody(Body):
    """A job as docs/batch.md has it. ``team`` may be left out by somebody who asks for one team only."""

    job = serializers.JSONField(help_text="The fields of a job: command, resources, time, env and so on.")
    team = Text(most=50, required=False)


class SecretBody(Body):
    """The value of a secret; it is never shown again."""

    value = Text(most=4096, trim_whitespace=False)


class JobsEndpoint(Endpoint):
    """The batch jobs of one's teams."""

    write_scope = Scope.LEASE_WRITE
    parameters = JobFilters.names()

    @call("List jobs", answer=JobListed, is_list=True, parameters=JobFilters.parameters(), tag=TAG)
    def get(self, request: Request) -> Response:
        """List the batch jobs of one's teams, newest first."""
        pages = Pages()
        found = pages.page(self.narrow(visible_jobs(self.rights), JobFilters), request)
        return Response(pages.answer([job_row(job) for job in found]))

    @call(
        "Submit a job", body=JobBody, answer=JobSubmitted, status=201,
        refusals=(400, 404, 409, 415, 422, 429, 503), tag=TAG,
    )  # fmt: skip
    @once
    def post(self, request: Request) -> Response:
        """Hand in a batch job, or an array of them. 201 means accepted and kept."""
        values = self.take(JobBody)
        jobs = services.submit_job(
            team=team_to_ask_for(self.rights, values.get("team")),
            actor=self.person,
            rights=self.rights,
            spec=read_spec(values["job"]),
            now=db_now(),
        )
        uid = jobs[0].array.uid if jobs[0].array else jobs[0].uid
        answer = {"id": uid, "state": str(jobs[0].state), "jobs": [job.uid for job in jobs]}
        return Response(answer, status=201, headers={"Location": f"/api/v1/jobs/{jobs[0].uid}/"})


class OneJob(Endpoint):
    """One job."""

    @call("Read a job", answer=JobDetail, refusals=(404,), tag=TAG)
    def get(self, request: Request, uid: str) -> Response:
        """Read a job with its attempts and how each ended."""
        return Response(job_detail(self.rights, visible_job(self.rights, uid)))


class CancelJob(Endpoint):
    """End a job."""

    write_scope = Scope.LEASE_WRITE

    @call("Cancel a job", body=Empty, answer=JobDetail, refusals=(404, 409, 422), tag=TAG)
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Cancel a job: its request is withdrawn, or its lease released at once. Safe to repeat."""
        self.take(Empty)
        job = visible_job(self.rights, uid)
        services.cancel_job(job=job, actor=self.person, rights=self.rights, now=db_now())
        return Response(job_detail(self.rights, visible_job(self.rights, uid)))


class RetryJob(Endpoint):
    """Run a job again."""

    write_scope = Scope.LEASE_WRITE

    @call("Retry a job", body=Empty, answer=JobDetail, refusals=(404, 409, 422, 429), tag=TAG)
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Run a job that did not succeed once more, in a new lease at the usual price."""
        self.take(Empty)
        job = visible_job(self.rights, uid)
        services.retry_job(job=job, actor=self.person, rights=self.rights, now=db_now())
        return Response(job_detail(self.rights, visible_job(self.rights, uid)))


class JobLog(Endpoint):
    """What a job prints."""

    parameters = frozenset({"attempt", "offset"})

    @call(
        "Read the log of a job", answer=LogAnswer, refusals=(404,), tag=TAG,
        parameters=(
            query("attempt", "Number of the attempt; the last one when left out.", int),
            query("offset", "Where to go on: `next` of the answer before.", int),
        ),
    )  # fmt: skip
    def get(self, request: Request, uid: str) -> Response:
        """Read what a job printed, up to 256 KiB at a time; ask again from `next` until `is_done`.

        What was left out, for printing too fast or too much, is passed over: `offset` is where `text` begins.
        """
        job = readable_job(self.rights, uid)
        numbers = {name: _number(request, name) for name in ("attempt", "offset")}
        return Response(log_page(job, numbers["attempt"], numbers["offset"] or 0))


class RawLog(Endpoint):
    """What a job printed, as a file."""

    parameters = frozenset({"attempt"})

    @call(
        "Download the log of a job", media_type="text/plain", refusals=(404,), tag=TAG,
        parameters=(query("attempt", "Number of the attempt; the last one when left out.", int),),
    )  # fmt: skip
    def get(self, request: Request, uid: str) -> StreamingHttpResponse:
        """Download what a job printed, byte for byte but for what was left out and masked."""
        job = readable_job(self.rights, uid)
        return raw_log(job, _number(request, "attempt"), self.person.pk)


class JobArtifacts(Endpoint):
    """The files that a job left."""

    parameters = frozenset({"attempt"})

    @call(
        "List the artifacts of a job", answer=ArtifactAnswer, is_list=True, refusals=(404,), tag=TAG,
        parameters=(query("attempt", "Number of the attempt; the last one when left out.", int),),
    )  # fmt: skip
    def get(self, request: Request, uid: str) -> Response:
        """List the files that an attempt left, and those that were left out, newest first."""
        attempt = attempt_of(readable_job(self.rights, uid), _number(request, "attempt"))
        pages = Pages()
        found = Artifact.objects.filter(attempt=attempt).select_related("attempt")
        return Response(pages.answer([_artifact_row(one) for one in pages.page(found, request)]))


class OneArtifact(Endpoint):
    """One file that a job left."""

    @call("Download an artifact", media_type="application/octet-stream", refusals=(404,), tag=TAG)
    def get(self, request: Request, uid: str, artifact: int) -> StreamingHttpResponse:
        """Download a file that a job left; its ETag is its SHA-256."""
        return as_download(downloadable(readable_job(self.rights, uid), artifact), self.person.pk)


def _artifact_row(one: Artifact) -> Row:
    is_kept = not one.left_out and one.removed_at is None
    return {
        "id": one.pk,
        "attempt": one.attempt.number,
        "path": one.path,
        "size": one.size,
        "sha256": one.sha256,
        "can_download": one.is_checked,
        "left_out": left_out_text(one),
        "kept_until": instant(kept_until(one.attempt)) if is_kept else None,
        "removed_at": instant(one.removed_at),
    }


class Secrets(Endpoint):
    """One's own secrets."""

    @call("List secrets", answer=SecretAnswer, is_list=True, tag=TAG)
    def get(self, request: Request) -> Response:
        """List the names of one's secrets; their values are shown nowhere."""
        rows = [
            {"name": one.name, "changed_at": instant(one.changed_at)}
            for one in services.secrets_of(self.person)
        ]
        return Response({"next": None, "results": rows})


class OneSecret(Endpoint):
    """One secret of one's own."""

    write_scope = Scope.LEASE_WRITE

    @call("Store a secret", body=SecretBody, answer=SecretAnswer, refusals=(422,), tag=TAG)
    def put(self, request: Request, name: str) -> Response:
        """Store a value that one's jobs get as a variable of this name. One that is there is replaced."""
        now = db_now()
        services.store_secret(user=self.person, name=name, value=self.take(SecretBody)["value"], now=now)
        return Response({"name": name, "changed_at": instant(now)})

    @call("Remove a secret", status=204, refusals=(404,), tag=TAG)
    def delete(self, request: Request, name: str) -> Response:
        """Forget a secret. Jobs that have begun keep what they got."""
        services.remove_secret(user=self.person, name=name, now=db_now())
        return Response(status=204)


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 15):
        raise Invalid(fields={name: _("Give a whole number.")})
    return int(text)


def job_row(job: Job) -> Row:
    """Return a job; its relations must be at hand."""
    return {
        "id": job.uid,
        "name": job.name,
        "state": str(job.state),
        "team": job.team.slug,
        "user": job.user.username,
        "flavor": job.flavor.slug,
        "count": job.count,
        "time_s": job.time_s,
        "array": job.array.uid if job.array else None,
        "index": job.index,
        "attempts": job.attempts,
        "retries_left": job.retries_left,
        "request": job.request.uid if job.request else None,
        "submitted_at": instant(job.submitted_at),
        "started_at": instant(job.started_at),
        "ended_at": instant(job.ended_at),
        **_outcome(job),
    }


def _outcome(one: Job | JobAttempt) -> Row:
    return {
        "exit_code": one.exit_code,
        "signal": one.signal,
        "outcome": outcome_text(one),
        "peak_memory_mib": one.peak_memory_mib,
        "ran_ms": one.ran_ms,
    }


def job_detail(rights: Rights, job: Job) -> Row:
    """Return a job with what it runs and its attempts; the command is for those who may read its log."""
    may_read = may_read_log(rights, job)
    kept = kept_files(job.tries.all())
    tries: list[dict[str, Any]] = [
        {
            "number": one.number,
            "lease": one.lease.uid,
            "state": str(one.state),
            "started_at": instant(one.started_at),
            "ended_at": instant(one.ended_at),
            **_outcome(one),
            "artifacts": kept.get(one.pk, (0, 0))[0],
            "artifacts_are_closed": one.artifacts_are_closed,
            "image_digest": one.image_digest or None,
        }
        for one in job.tries.select_related("lease")
    ]
    return {
        **job_row(job),
        "image": job.spec.get("image") or None,
        "image_digest": job.image_digest or None,
        "progress": progress_text(job),
        "command": job.spec["command"] if may_read else None,
        "artifacts": job.spec["artifacts"] if may_read else [],
        "secrets": job.spec["secrets"] if may_read else [],
        "tries": tries,
        "can_manage": may_manage_job(rights, job),
        "can_read_log": may_read,
    }
