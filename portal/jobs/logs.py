"""The output of jobs as it is kept: objects of about a MiB in a storage, and the newest pieces as rows until then.

What an attempt has printed is stored without a gap from byte 0 on, but for what its node left out: a piece that
comes twice changes nothing, whoever was killed in between. Of more than ``settings.JOB_LOG_MIB`` the first tenth
and the last nine stay.
"""

from __future__ import annotations

import zlib
from datetime import datetime, timedelta
from typing import Final

from django.conf import settings
from django.core.files.base import ContentFile
from django.core.files.storage import Storage, storages
from django.db import transaction
from django.db.models import Sum

from nodeagent.protocol.jobs import TELL, ArtifactPiece, OutputPiece, Stored
from portal.common.live import LOGS, publish_on_commit
from portal.jobs.models import JobAttempt, LogObject, LogPiece
from portal.jobs.states import OPEN_ATTEMPTS
from portal.leases.models import Lease
from portal.leases.states import LIVE_LEASES

OBJECT: Final = 1024 * 1024
MOST_READ: Final = 256 * 1024
STORAGE: Final = "jobs"


@transaction.atomic
def store_piece(node_id: int, piece: OutputPiece, data: bytes, *, now: datetime) -> Stored:
    """Store a piece of a node's own job, once, and return how far its output is stored. Safe to repeat."""
    attempt = (
        JobAttempt.objects.select_for_update(of=("self",))
        .select_related("job")
        .filter(lease__uid=piece.lease, lease__generation=piece.generation, lease__node_id=node_id)
        .filter(ordinal=piece.ordinal)
        .first()
    )
    where = (piece.lease, piece.generation)
    if attempt is None:
        return Stored(*where, 0, is_done=not is_to_come(node_id, piece), ordinal=piece.ordinal)
    if piece.op == TELL or attempt.log_is_closed:
        return Stored(*where, attempt.log_size, attempt.log_is_closed, piece.ordinal)
    data = data[max(0, attempt.log_size - piece.offset) :]
    if data:
        begin = max(piece.offset, attempt.log_size)
        lines = data.count(b"\n")
        LogPiece.objects.create(
            attempt=attempt,
            offset=begin,
            size=len(data),
            first_line=attempt.log_lines,
            data=zlib.compress(data, 1),
        )
        attempt.log_size, attempt.log_lines = begin + len(data), attempt.log_lines + lines
    attempt.log_is_closed = piece.is_last and attempt.log_size >= piece.offset
    attempt.save(update_fields=["log_size", "log_lines", "log_is_closed"])
    if attempt.log_is_closed or _waits(attempt) >= OBJECT:
        _pack(attempt)
        _shorten(attempt)
    if data or attempt.log_is_closed:
        news = {"job": attempt.job.uid, "attempt": attempt.number, "size": attempt.log_size}
        publish_on_commit(LOGS, [news | {"at": now.timestamp()}])
    return Stored(*where, attempt.log_size, attempt.log_is_closed, piece.ordinal)


def is_to_come(node_id: int, piece: OutputPiece | ArtifactPiece) -> bool:
    """Say whether a lease may yet get the attempt that a piece is of."""
    return Lease.objects.filter(
        uid=piece.lease, generation=piece.generation, node_id=node_id, state__in=LIVE_LEASES
    ).exists()


def _waits(attempt: JobAttempt) -> int:
    """Return how many bytes are in pieces, at most."""
    if attempt.log_size < OBJECT:
        return attempt.log_size
    return attempt.log_pieces.aggregate(size=Sum("size", default=0))["size"]  # type: ignore[no-any-return]


def _pack(attempt: JobAttempt) -> None:
    """Make one object of the newest pieces. Its name is that of its place: a try that failed is written over."""
    pieces = list(attempt.log_pieces.order_by("offset"))
    if not pieces:
        return
    data = b"".join(_with_gaps(pieces))
    name = f"logs/{attempt.job_id}/{attempt.pk}-{pieces[0].offset}.z"
    _write(storages[STORAGE], name, zlib.compress(data, 6))
    LogObject.objects.create(
        attempt=attempt, offset=pieces[0].offset, size=len(data), first_line=pieces[0].first_line, name=name
    )
    attempt.log_pieces.filter(pk__in=[piece.pk for piece in pieces]).delete()


def _with_gaps(pieces: list[LogPiece]) -> list[bytes]:
    """Return the bytes of pieces, with a word in the place of what the node left out, of that very length."""
    found, at = [], pieces[0].offset
    for piece in pieces:
        if piece.offset > at:
            found.append(gap_text(piece.offset - at))
        found.append(zlib.decompress(bytes(piece.data)))
        at = piece.offset + piece.size
    return found


def gap_text(missing: int) -> bytes:
    """Return what stands for so many bytes that nobody has: as many, of which most are nothing to be shown."""
    said = f"\n… {missing} bytes left out\n".encode()
    return (said + b"\0" * missing)[:missing] if missing < OBJECT else said


def _write(storage: Storage, name: str, data: bytes) -> None:
    if storage.exists(name):
        storage.delete(name)
    storage.save(name, ContentFile(data))


def _shorten(attempt: JobAttempt) -> None:
    """Let go of the middle of an output that is longer than is kept."""
    most = settings.JOB_LOG_MIB * 1024 * 1024
    if attempt.log_size <= most:
        return
    begin, end = most // 10, attempt.log_size - (most - most // 10)
    for one in attempt.log_objects.filter(offset__gte=begin, offset__lt=end).order_by("offset"):
        if one.offset + one.size <= end:
            storages[STORAGE].delete(one.name)
            one.delete()


def read_log(attempt: JobAttempt, offset: int, most: int = MOST_READ) -> tuple[int, bytes]:
    """Return output from ``offset`` on, at most so much, and where it begins: what is not kept is passed over.

    Nothing is returned at the end of what is there.
    """
    one = attempt.log_objects.filter(offset__gt=offset - 16 * OBJECT).order_by("offset")
    for found in one:
        if found.offset + found.size > offset:
            with storages[STORAGE].open(found.name) as file:
                data = zlib.decompress(file.read())
            begin = max(offset, found.offset)
            return begin, data[begin - found.offset :][:most]
    pieces = []
    for piece in attempt.log_pieces.order_by("offset"):
        if piece.offset + piece.size > offset:
            pieces.append(piece)
            if sum(each.size for each in pieces) >= most:
                break
    if not pieces:
        return offset, b""
    # All at once: a reader that got a piece a call would fall behind a program that prints a line at a time.
    first, joined = pieces[0].offset, bytearray()
    for piece in pieces:
        if piece.offset != first + len(joined):
            break
        joined += zlib.decompress(bytes(piece.data))
    begin = max(offset, first)
    return begin, bytes(joined[begin - first :][:most])


def forget_logs(*, now: datetime) -> int:
    """Remove the output of attempts that ended long ago; returns how many objects. Safe to repeat."""
    before = now - timedelta(days=settings.JOB_LOG_DAYS)
    old = LogObject.objects.filter(attempt__ended_at__lt=before).exclude(attempt__state__in=OPEN_ATTEMPTS)
    gone = 0
    for one in old[:2000]:
        storages[STORAGE].delete(one.name)
        one.delete()
        gone += 1
    return gone
