from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from portal.catalog.models import Flavor
from portal.common.ids import array_uid, job_uid
from portal.jobs.states import ATTEMPT_STATES, JobState
from portal.leases.models import Lease, LeaseRequest
from portal.teams.models import Team


class JobArray(models.Model):
    """Jobs that were handed in together, one per index; ``at_once`` 0 is as many at once as there is room for."""

    uid = models.CharField(max_length=24, default=array_uid, unique=True)
    at_once = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        return self.uid


class ImageList(models.Model):
    """The images that jobs of a team and of the teams below it may run in (portal.jobs.images)."""

    team = models.OneToOneField(Team, on_delete=models.CASCADE, related_name="image_list")
    names = ArrayField(models.CharField(max_length=300), default=list, blank=True)
    changed_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"images of {self.team_id}"


class Job(models.Model):
    """A program to be run once in a lease; the jobs of an array may follow each other in one.

    ``spec`` is what was handed in, checked and complete (portal.jobs.spec); values of secrets are not in it.
    ``request`` is the request of its present or last attempt, None while nothing is asked for: other jobs come first,
    or its array may not have more at once. Jobs that follow each other in a lease have that lease's request. How it
    ended is that of its last attempt; None is unknown.
    """

    uid = models.CharField(max_length=24, default=job_uid, unique=True)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="jobs", db_index=False)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="jobs", db_index=False
    )
    name = models.CharField(max_length=80, blank=True)
    flavor = models.ForeignKey(Flavor, on_delete=models.PROTECT, related_name="+", db_index=False)
    count = models.PositiveSmallIntegerField(default=1)
    time_s = models.PositiveIntegerField()
    spec = models.JSONField()
    state = models.CharField(max_length=12, choices=JobState.choices, default=JobState.WAITING)
    request = models.ForeignKey(
        LeaseRequest, null=True, blank=True, on_delete=models.PROTECT, related_name="jobs"
    )
    array = models.ForeignKey(JobArray, null=True, blank=True, on_delete=models.PROTECT, related_name="jobs")
    index = models.PositiveIntegerField(null=True, blank=True)
    after = models.ManyToManyField("self", symmetrical=False, related_name="before", blank=True)
    attempts = models.PositiveSmallIntegerField(default=0)
    retries_left = models.PositiveSmallIntegerField(default=0)
    submitted_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    exit_code = models.PositiveSmallIntegerField(null=True, blank=True)
    signal = models.PositiveSmallIntegerField(null=True, blank=True)
    why = models.CharField(max_length=40, blank=True)
    word = models.CharField(max_length=300, blank=True)
    peak_memory_mib = models.PositiveIntegerField(null=True, blank=True)
    ran_ms = models.BigIntegerField(null=True, blank=True)
    image_digest = models.CharField(max_length=80, blank=True, default="")
    image_asked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["team", "-id"], name="job_by_team"),
            models.Index(fields=["user", "-id"], name="job_by_user"),
            models.Index(
                fields=["id"],
                name="job_to_ask_for",
                condition=Q(state=JobState.WAITING, request__isnull=True),
            ),
            models.Index(
                fields=["state"],
                name="job_open",
                condition=Q(state__in=(JobState.WAITING, JobState.STARTING, JobState.RUNNING)),
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["array", "index"], name="array_has_an_index_once", condition=~Q(array=None)
            ),
            models.CheckConstraint(condition=Q(state__in=JobState.values), name="job_state_known"),
            models.UniqueConstraint(
                fields=["request"],
                name="one_running_job_per_request",
                condition=Q(state__in=(JobState.STARTING, JobState.RUNNING)),
            ),
            models.CheckConstraint(
                condition=~Q(state__in=(JobState.STARTING, JobState.RUNNING)) | Q(request__isnull=False),
                name="job_that_runs_has_a_request",
            ),
            models.CheckConstraint(
                condition=Q(image_digest="") | Q(image_digest__regex=r"^sha256:[0-9a-f]{64}$"),
                name="job_image_is_a_digest",
            ),
        ]

    def __str__(self) -> str:
        return self.uid


class JobAttempt(models.Model):
    """One run of a job in a lease, which runs one at a time: ``ordinal`` counts them there, from 1.

    One that is waiting was handed to the node to follow the one that runs there: a lease has one such at most, and a
    job at most one attempt that is not over.
    ``log_size`` counts the bytes of output that are stored, without a gap but for what the node left out;
    ``log_is_closed``: nothing more will come. ``artifacts_are_closed``: what it left has all come.
    ``image_digest`` is that of the image it ran in, "" for none or unknown.
    """

    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="tries", db_index=False)
    number = models.PositiveSmallIntegerField()
    lease = models.ForeignKey(Lease, on_delete=models.PROTECT, related_name="tries", db_index=False)
    ordinal = models.PositiveIntegerField(default=1)
    state = models.CharField(max_length=12, choices=JobState.choices, default=JobState.STARTING)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    exit_code = models.PositiveSmallIntegerField(null=True, blank=True)
    signal = models.PositiveSmallIntegerField(null=True, blank=True)
    why = models.CharField(max_length=40, blank=True)
    word = models.CharField(max_length=300, blank=True)
    peak_memory_mib = models.PositiveIntegerField(null=True, blank=True)
    ran_ms = models.BigIntegerField(null=True, blank=True)
    log_size = models.BigIntegerField(default=0)
    log_lines = models.BigIntegerField(default=0)
    log_is_closed = models.BooleanField(default=False)
    artifacts_are_closed = models.BooleanField(default=False)
    image_digest = models.CharField(max_length=80, blank=True, default="")

    class Meta:
        ordering = ["job", "number"]
        indexes = [
            models.Index(
                fields=["id"],
                name="attempt_open",
                condition=Q(state__in=(JobState.WAITING, JobState.STARTING, JobState.RUNNING)),
            )
        ]
        constraints = [
            models.UniqueConstraint(fields=["job", "number"], name="attempt_number_once"),
            models.UniqueConstraint(
                fields=["job"],
                name="one_open_attempt_per_job",
                condition=Q(state__in=(JobState.WAITING, JobState.STARTING, JobState.RUNNING)),
            ),
            models.UniqueConstraint(fields=["lease", "ordinal"], name="attempt_ordinal_once"),
            models.UniqueConstraint(
                fields=["lease"],
                name="one_open_attempt_per_lease",
                condition=Q(state__in=(JobState.STARTING, JobState.RUNNING)),
            ),
            models.UniqueConstraint(
                fields=["lease"], name="one_next_attempt_per_lease", condition=Q(state=JobState.WAITING)
            ),
            models.CheckConstraint(
                condition=Q(state__in=[str(state) for state in ATTEMPT_STATES]), name="attempt_state_known"
            ),
            models.CheckConstraint(
                condition=Q(image_digest="") | Q(image_digest__regex=r"^sha256:[0-9a-f]{64}$"),
                name="attempt_image_is_a_digest",
            ),
        ]

    def __str__(self) -> str:
        return f"attempt {self.number} of {self.job_id}"


class LogPiece(models.Model):
    """The newest output of an attempt, deflated, until there is enough for an object."""

    attempt = models.ForeignKey(
        JobAttempt, on_delete=models.CASCADE, related_name="log_pieces", db_index=False
    )
    offset = models.BigIntegerField()
    size = models.PositiveIntegerField()
    first_line = models.BigIntegerField()
    data = models.BinaryField()

    class Meta:
        ordering = ["offset"]
        constraints = [models.UniqueConstraint(fields=["attempt", "offset"], name="log_piece_once")]

    def __str__(self) -> str:
        return f"{self.size} bytes at {self.offset}"


class LogObject(models.Model):
    """Where a part of an attempt's output lies in the storage; ``size`` counts what it unfolds to."""

    attempt = models.ForeignKey(
        JobAttempt, on_delete=models.CASCADE, related_name="log_objects", db_index=False
    )
    offset = models.BigIntegerField()
    size = models.PositiveIntegerField()
    first_line = models.BigIntegerField()
    name = models.CharField(max_length=200)

    class Meta:
        ordering = ["offset"]
        constraints = [models.UniqueConstraint(fields=["attempt", "offset"], name="log_object_once")]

    def __str__(self) -> str:
        return self.name


class Artifact(models.Model):
    """A file that an attempt left, named by its path below the working folder; or that it was left out, and why.

    ``stored`` of its ``size`` bytes have come; ``sha256`` is that of the whole file, and ``is_checked`` once what is
    stored was found to be that. With ``left_out`` there are no bytes; without a path, ``size`` counts files that were
    left out unnamed.
    """

    attempt = models.ForeignKey(
        JobAttempt, on_delete=models.CASCADE, related_name="artifacts", db_index=False
    )
    path = models.CharField(max_length=300, blank=True)
    size = models.BigIntegerField()
    stored = models.BigIntegerField(default=0)
    sha256 = models.CharField(max_length=64, blank=True)
    left_out = models.CharField(max_length=40, blank=True)
    is_checked = models.BooleanField(default=False)
    removed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["attempt", "path"]
        constraints = [
            models.UniqueConstraint(fields=["attempt", "path"], name="artifact_path_once"),
            models.CheckConstraint(
                condition=Q(stored__gte=0, stored__lte=models.F("size")), name="artifact_stored_fits"
            ),
            models.CheckConstraint(
                condition=Q(stored=0) | Q(left_out="", removed_at=None), name="artifact_gone_has_no_bytes"
            ),
            models.CheckConstraint(
                condition=Q(is_checked=False) | Q(stored=models.F("size"), left_out="", removed_at=None),
                name="artifact_checked_is_whole",
            ),
        ]

    def __str__(self) -> str:
        return self.path


class ArtifactPart(models.Model):
    """Where some bytes of an artifact lie in the storage."""

    artifact = models.ForeignKey(Artifact, on_delete=models.CASCADE, related_name="parts", db_index=False)
    offset = models.BigIntegerField()
    size = models.PositiveIntegerField()
    name = models.CharField(max_length=200)

    class Meta:
        ordering = ["offset"]
        constraints = [models.UniqueConstraint(fields=["artifact", "offset"], name="artifact_part_once")]

    def __str__(self) -> str:
        return self.name


class Secret(models.Model):
    """A value that a person's jobs get as a variable, and nobody reads: encrypted, shown nowhere."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="secrets")
    name = models.CharField(max_length=80)
    sealed = models.BinaryField()
    changed_at = models.DateTimeField()

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["user", "name"], name="secret_named_once")]

    def __str__(self) -> str:
        return self.name
