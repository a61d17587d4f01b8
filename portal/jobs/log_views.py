"""The output of a job as pages, API and command line get it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from portal.common.downloads import Download
from portal.common.errors import NotFound
from portal.jobs.logs import read_log
from portal.jobs.models import Job, JobAttempt
from portal.jobs.selectors import may_read_log, visible_job
from portal.jobs.states import ENDED_JOBS
from portal.teams.selectors import Rights

LONGEST_CHARACTER: Final = 4
SHOWN_AT_ONCE: Final = 512 * 1024


def readable_job(rights: Rights, uid: str) -> Job:
    """Return a job whose output this person may read, or raise NotFound."""
    job = visible_job(rights, uid)
    if not may_read_log(rights, job):
        raise NotFound
    return job


def attempt_of(job: Job, number: int | None) -> JobAttempt | None:
    """Return an attempt by its number, the last one for None; raises NotFound for one that is not there."""
    found = job.tries.order_by("-number")
    attempt = found.first() if number is None else found.filter(number=number).first()
    if attempt is None and number is not None:
        raise NotFound
    return attempt


def log_page(job: Job, number: int | None, offset: int) -> dict[str, Any]:
    """Return some of an attempt's output as text, and where to go on. Bytes that are no UTF-8 become U+FFFD."""
    attempt = attempt_of(job, number)
    if attempt is None:
        return {"attempt": None, "offset": 0, "next": 0, "text": "", "is_done": job.state in ENDED_JOBS}
    begin, data = read_log(attempt, offset)
    is_end = begin + len(data) >= attempt.log_size
    if not (is_end and attempt.log_is_closed):
        data = whole_characters(data)
    return {
        "attempt": attempt.number,
        "offset": begin,
        "next": begin + len(data),
        "text": data.replace(b"\0", b"").decode(errors="replace"),
        "is_done": attempt.log_is_closed and begin + len(data) >= attempt.log_size,
    }


@dataclass(frozen=True, slots=True)
class LogStart:
    """Where a page begins to show an output: the byte, and the number of its line."""

    offset: int
    line: int


def log_start(job: Job) -> LogStart:
    """Return where to begin so that the end is soon seen: at a line, not far above the last MiB."""
    attempt = attempt_of(job, None)
    if attempt is None or attempt.log_size <= SHOWN_AT_ONCE:
        return LogStart(0, 1)
    last = (
        attempt.log_objects.filter(offset__lte=attempt.log_size - SHOWN_AT_ONCE).order_by("-offset").first()
    )
    return LogStart(0, 1) if last is None else LogStart(last.offset, last.first_line + 1)


def whole_characters(data: bytes) -> bytes:
    """Return bytes without a character of UTF-8 that is cut at their end."""
    for back in range(1, min(LONGEST_CHARACTER, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        needs = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return data[:-back] if needs > back else data
    return data


def raw_log(job: Job, number: int | None, person_id: int) -> Download:
    """Return an attempt's output as a file that no browser shows as anything else. Raises TooManyDownloads."""
    attempt = attempt_of(job, number)
    if attempt is None:
        raise NotFound
    answer = Download(_chunks(attempt), person_id=person_id, content_type="text/plain; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="{job.uid}-{attempt.number}.log"'
    return answer


def _chunks(attempt: JobAttempt) -> Iterator[bytes]:
    offset = 0
    while True:
        offset, data = read_log(attempt, offset)
        if not data:
            return
        yield data
        offset += len(data)
