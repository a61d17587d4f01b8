"""The shapes of jobs (see ``responses``)."""

from __future__ import annotations

from rest_framework import serializers as s

from portal.api.responses import ResponseShape
from portal.jobs.states import JobState


class AttemptAnswer(ResponseShape):
    """One run of a job in a lease of its own. Null is unknown."""

    number = s.IntegerField()
    lease = s.CharField()
    state = s.ChoiceField(JobState.choices)
    started_at = s.DateTimeField()
    ended_at = s.DateTimeField(allow_null=True)
    exit_code = s.IntegerField(allow_null=True)
    signal = s.IntegerField(allow_null=True)
    outcome = s.CharField(allow_blank=True, help_text="How it ended, as a sentence.")
    peak_memory_mib = s.IntegerField(allow_null=True)
    ran_ms = s.IntegerField(allow_null=True)
    artifacts = s.IntegerField(help_text="How many files it left that are kept.")
    artifacts_are_closed = s.BooleanField(help_text="No more of them will come.")
    image_digest = s.CharField(allow_null=True, help_text="Of the image that it ran in.")


class JobAnswer(ResponseShape):
    """A batch job. How it ended is that of its last attempt; null is unknown."""

    id = s.CharField()
    name = s.CharField(allow_blank=True)
    state = s.ChoiceField(JobState.choices)
    team = s.SlugField()
    user = s.CharField()
    flavor = s.SlugField()
    count = s.IntegerField()
    time_s = s.IntegerField()
    array = s.CharField(allow_null=True)
    index = s.IntegerField(allow_null=True)
    attempts = s.IntegerField()
    retries_left = s.IntegerField()
    request = s.CharField(allow_null=True)
    submitted_at = s.DateTimeField()
    started_at = s.DateTimeField(allow_null=True)
    ended_at = s.DateTimeField(allow_null=True)
    exit_code = s.IntegerField(allow_null=True)
    signal = s.IntegerField(allow_null=True)
    outcome = s.CharField(allow_blank=True, help_text="How it ended, as a sentence.")
    peak_memory_mib = s.IntegerField(allow_null=True)
    ran_ms = s.IntegerField(allow_null=True)


class JobDetail(JobAnswer):
    """A job with what it runs and its attempts."""

    image = s.CharField(allow_null=True, help_text="What it runs in; null: the node's own programs.")
    image_digest = s.CharField(
        allow_null=True,
        help_text="What its tag meant when it was handed in; null: found out where it is fetched.",
    )
    progress = s.CharField(allow_blank=True, help_text="What happens while it waits, as far as is known.")
    command = s.JSONField()
    artifacts = s.ListField(child=s.CharField(), help_text="Patterns of the files that are collected.")
    secrets = s.ListField(child=s.CharField(), help_text="Names; values are shown nowhere.")
    tries = AttemptAnswer(many=True)
    can_manage = s.BooleanField()
    can_read_log = s.BooleanField()


class JobListed(JobAnswer):
    """A job in a list."""


class JobSubmitted(ResponseShape):
    """What was taken: one job, or an array of them."""

    id = s.CharField(help_text="Of the job, or of the array.")
    state = s.ChoiceField(JobState.choices)
    jobs = s.ListField(child=s.CharField())


class LogAnswer(ResponseShape):
    """Some of what an attempt printed."""

    attempt = s.IntegerField(allow_null=True, help_text="Null while the job has not begun.")
    offset = s.IntegerField(help_text="Where the text begins, in bytes.")
    next = s.IntegerField(help_text="Where to go on.")
    text = s.CharField(allow_blank=True)
    is_done = s.BooleanField(help_text="Nothing more will come of this attempt.")


class ArtifactAnswer(ResponseShape):
    """A file that an attempt left, or that was left out."""

    id = s.IntegerField()
    attempt = s.IntegerField()
    path = s.CharField(allow_blank=True, help_text="Below the working folder; blank: see `left_out`.")
    size = s.IntegerField(help_text="Bytes.")
    sha256 = s.CharField(allow_blank=True)
    can_download = s.BooleanField(help_text="All of it has come, and is kept.")
    left_out = s.CharField(allow_blank=True, help_text="Why it was not kept, as a sentence.")
    kept_until = s.DateTimeField(allow_null=True)
    removed_at = s.DateTimeField(allow_null=True)


class ImageFromAbove(ResponseShape):
    """A line of a team above."""

    team = s.SlugField()
    image = s.CharField()


class ImagesAnswer(ResponseShape):
    """The images that jobs of a team may run in, beside the site's own."""

    team = s.SlugField()
    images = s.ListField(child=s.CharField(), help_text="The team's own list.")
    from_above = ImageFromAbove(many=True)
    can_change = s.BooleanField()


class ImageOnNodes(ResponseShape):
    """An image that jobs find without a fetch."""

    image = s.CharField(help_text="As a job asked for it last.")
    digest = s.CharField(allow_null=True)
    size_mib = s.IntegerField()
    nodes = s.ListField(child=s.CharField())


class ImagesHereAnswer(ResponseShape):
    """The images that your jobs find on nodes."""

    images = ImageOnNodes(many=True)


class SecretAnswer(ResponseShape):
    """A secret without its value."""

    name = s.CharField()
    changed_at = s.DateTimeField()
