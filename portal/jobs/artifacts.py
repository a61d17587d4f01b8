"""The files that jobs leave, as they are kept: in parts, each stored once, checked when the last has come.

They lie beside the output of jobs (portal.jobs.logs), are read by the same people, and go after
``settings.JOB_ARTIFACT_DAYS``. A node is believed as far as its own jobs' files, within the limits of the settings.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from django.conf import settings
from django.core.files.base import ContentFile
from django.core.files.storage import storages
from django.db import transaction
from django.db.models import Count, Q, QuerySet, Sum
from django.utils.http import content_disposition_header

from nodeagent.protocol.jobs import ALL_SENT, LEFT_OUT, ArtifactPiece, Stored
from portal.common.downloads import Download
from portal.common.errors import NotFound
from portal.jobs.logs import STORAGE, is_to_come
from portal.jobs.models import Artifact, ArtifactPart, Job, JobAttempt
from portal.jobs.states import OPEN_ATTEMPTS

# Beyond the files themselves: those that were left out and named, and the word that there were more.
MOST_LEFT_OUT: Final = 101
DAMAGED: Final = "damaged"
REMOVED_AT_ONCE: Final = 2000
# Files that this process reads once more at the moment: whoever brings one again meanwhile is told to wait.
_checked_now: set[int] = set()
_checked_lock = threading.Lock()


def store_artifact(node_id: int, piece: ArtifactPiece, data: bytes, *, now: datetime) -> Stored:
    """Store a piece of what a node's own job left, once, and return how far its file is stored. Safe to repeat.

    What is more than the settings allow is noted as left out. ``now`` is when it came.
    """
    attempt = JobAttempt.objects.filter(
        lease__uid=piece.lease, lease__generation=piece.generation, lease__node_id=node_id, ordinal=1
    ).first()  # no other job's files are collected: nothing follows one that leaves some
    if attempt is None:
        return Stored(piece.lease, piece.generation, 0, is_done=not is_to_come(node_id, piece))
    if attempt.artifacts_are_closed:
        return Stored(piece.lease, piece.generation, piece.size, is_done=True)
    if piece.op == ALL_SENT:
        JobAttempt.objects.filter(pk=attempt.pk).update(artifacts_are_closed=True)
        return Stored(piece.lease, piece.generation, 0, is_done=True)
    with transaction.atomic():
        artifact = _artifact_of(attempt, piece)
        if artifact is None or artifact.left_out or artifact.removed_at or artifact.is_checked:
            return Stored(piece.lease, piece.generation, piece.size, is_done=True)
        begin = artifact.stored
        data = data[max(0, begin - piece.offset) :] if piece.offset <= begin else b""
        data = data[: artifact.size - begin]
        if data:
            name = f"artifacts/{attempt.job_id}/{artifact.pk}-{begin}"
            _write(name, data)
            ArtifactPart.objects.create(artifact=artifact, offset=begin, size=len(data), name=name)
            artifact.stored += len(data)
            artifact.save(update_fields=["stored"])
    # Reading a large file once more takes minutes in a remote storage: outside, with no row locked, its bytes kept.
    is_done = artifact.stored == artifact.size and _check(artifact)
    return Stored(piece.lease, piece.generation, artifact.stored, is_done=is_done)


def _check(artifact: Artifact) -> bool:
    """Compare a file whose last part is stored with its digest; False where another thread is at it already.

    Safe to repeat after any error. The file is kept from then on, or noted as damaged.
    """
    with _checked_lock:
        if artifact.pk in _checked_now:
            return False
        _checked_now.add(artifact.pk)
    try:
        is_good = _digest(artifact) == artifact.sha256
        with transaction.atomic():
            same = Artifact.objects.select_for_update().filter(
                pk=artifact.pk, stored=artifact.size, left_out="", removed_at=None, is_checked=False
            )
            row = same.first()
            if row is not None and is_good:
                same.update(is_checked=True)
            elif row is not None:
                _remove_parts(row)
                same.update(left_out=DAMAGED, stored=0)
                artifact.stored = 0
        return True
    finally:
        with _checked_lock:
            _checked_now.discard(artifact.pk)


def _artifact_of(attempt: JobAttempt, piece: ArtifactPiece) -> Artifact | None:
    """Return the row of a file, made if need be and locked; None where there are too many already."""
    locked = Artifact.objects.select_for_update().filter(attempt=attempt, path=piece.path)
    artifact = locked.first()
    if artifact is not None:
        is_lost = piece.op == LEFT_OUT and not artifact.left_out and not artifact.is_checked
        if is_lost:  # by the node, on the way
            _remove_parts(artifact)
            artifact.left_out, artifact.stored = piece.why, 0
            artifact.save(update_fields=["left_out", "stored"])
        return artifact
    kept = attempt.artifacts.aggregate(
        all=Count("pk"), files=Count("pk", filter=Q(left_out="")), bytes=Sum("size", filter=Q(left_out=""))
    )
    if kept["all"] >= settings.JOB_ARTIFACT_FILES + MOST_LEFT_OUT:
        return None
    why = ""
    if piece.op == LEFT_OUT:
        why = piece.why or "unreadable"
    elif kept["files"] >= settings.JOB_ARTIFACT_FILES:
        why = "too_many"
    elif (kept["bytes"] or 0) + piece.size > settings.JOB_ARTIFACT_MIB * 1024 * 1024:
        why = "too_big"
    Artifact.objects.bulk_create(
        [Artifact(attempt=attempt, path=piece.path, size=piece.size, sha256=piece.sha256, left_out=why)],
        ignore_conflicts=True,
    )
    return locked.get()


def _write(name: str, data: bytes) -> None:
    """Store an object by its name; what a try that failed left there is written over."""
    storage = storages[STORAGE]
    if storage.exists(name):
        storage.delete(name)
    storage.save(name, ContentFile(data))


def _digest(artifact: Artifact) -> str:
    digest = hashlib.sha256()
    for data in read_artifact(artifact):
        digest.update(data)
    return digest.hexdigest()


def read_artifact(artifact: Artifact) -> Iterator[bytes]:
    """Yield what is stored of a file, part by part."""
    for part in artifact.parts.order_by("offset"):
        with storages[STORAGE].open(part.name) as file:
            yield file.read()


def _remove_parts(artifact: Artifact) -> None:
    """Remove a file's bytes, from the storage once it is sure that nobody looks for them there."""
    for part in artifact.parts.all():
        part.delete()
        transaction.on_commit(lambda name=part.name: storages[STORAGE].delete(name))  # type: ignore[misc]


def forget_artifacts(*, now: datetime) -> int:
    """Remove the files of attempts that ended long ago; that they were there stays known. Safe to repeat."""
    before = now - timedelta(days=settings.JOB_ARTIFACT_DAYS)
    old = Artifact.objects.filter(attempt__ended_at__lt=before, removed_at=None, left_out="").exclude(
        attempt__state__in=OPEN_ATTEMPTS
    )
    gone = 0
    for artifact in old[:REMOVED_AT_ONCE]:
        with transaction.atomic():
            _remove_parts(artifact)
            Artifact.objects.filter(pk=artifact.pk).update(removed_at=now, stored=0, is_checked=False)
        gone += 1
    return gone


def kept_until(attempt: JobAttempt) -> datetime | None:
    """Return until when an attempt's files are kept, None while it runs."""
    return attempt.ended_at and attempt.ended_at + timedelta(days=settings.JOB_ARTIFACT_DAYS)


def kept_files(attempts: QuerySet[JobAttempt]) -> dict[int, tuple[int, int]]:
    """Return of each of these attempts how many files of it are kept, and their bytes; nothing for one without."""
    rows = (
        Artifact.objects.filter(attempt__in=attempts, left_out="", removed_at=None)
        .order_by()
        .values_list("attempt")
        .annotate(Count("pk"), Sum("size"))
    )
    return {attempt: (files, size) for attempt, files, size in rows}


def downloadable(job: Job, pk: int) -> Artifact:
    """Return a file of a job that can be downloaded, or raise NotFound."""
    found = Artifact.objects.filter(attempt__job=job, pk=pk, is_checked=True).first()
    if found is None:
        raise NotFound
    return found


def as_download(artifact: Artifact, person_id: int) -> Download:
    """Return a file as one that no browser shows: whatever is in it, it is none of the portal's pages.

    Raises TooManyDownloads.
    """
    answer = Download(read_artifact(artifact), person_id=person_id, content_type="application/octet-stream")
    answer["Content-Disposition"] = content_disposition_header(
        as_attachment=True, filename=artifact.path.rpartition("/")[2]
    )
    answer["Content-Length"] = str(artifact.size)
    answer["ETag"] = f'"{artifact.sha256}"'
    return answer
