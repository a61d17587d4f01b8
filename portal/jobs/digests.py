"""What the tag of a job's image meant when the job was handed in: asked of its registry, and kept.

So a job that waits for a day, all jobs of an array and each further attempt run in one image, whatever the tag means
by then. Handing a job in never waits for a registry: the row is the work, and asking comes right after. What cannot be
asked about (the site's own folder, a registry that wants a password or does not answer) gets its digest where it is
fetched, as the first attempt did before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Final

from asgiref.sync import async_to_sync
from django.conf import settings
from django.db import transaction
from django.db.models import F, Max, Q

from nodeagent.protocol.images import LAYOUT, LOCAL, image_of
from portal.common import outbox
from portal.common.sql import fetch
from portal.jobs.models import Job
from portal.jobs.registry import UnresolvedError, digest_of
from portal.jobs.states import JobState

log = logging.getLogger(__name__)

RESOLVE: Final = "scheduler.tasks.resolve_digests"
AT_ONCE: Final = 16
# A worker that asks does no turn of the scheduler: so long at most, and never two workers at a time.
ALL_WITHIN_S: Final = 8
ASKING_LOCK: Final = 422_776_367_991
AGAIN_AFTER: Final = timedelta(seconds=30)
# A registry that is down for longer is asked by the node: by then most jobs have begun.
GIVEN_UP_AFTER: Final = timedelta(minutes=10)
# Images that name no registry, or a digest already, are never asked about.
_UNRESOLVED: Final = Job.objects.filter(state=JobState.WAITING, attempts=0, image_digest="").exclude(
    Q(spec__image="") | Q(spec__image__startswith=LAYOUT) | Q(spec__image__startswith=f"{LOCAL}/")
)


def known_digest(text: str) -> str:
    """Return the digest that a job's image names by itself, "" where only its registry knows."""
    image = image_of(text)
    return "" if image is None else image.digest


def resolve_soon(text: str) -> None:
    """Have the image of new jobs asked about once the transaction is through."""
    image = image_of(text)
    if (
        settings.RESOLVE_IMAGES
        and image is not None
        and not (image.is_layout or image.is_local or image.digest)
    ):
        outbox.nudge_on_commit(RESOLVE)


def resolve_digests(*, now: datetime) -> int:
    """Ask registries what waiting jobs' tags mean, and keep it; returns how many images. Safe to repeat.

    Each image is asked about once for all jobs that name it, side by side with others. The transaction that is open
    meanwhile, for ``ALL_WITHIN_S`` at most, holds no row: a job that has begun or got its digest in the meantime is
    left as it is. While one worker asks, others return at once; what was handed in since is nudged again at the end.
    Call outside a transaction.
    """
    if not settings.RESOLVE_IMAGES:
        return 0
    with transaction.atomic():
        if not fetch("SELECT pg_try_advisory_xact_lock(%s)", [ASKING_LOCK])[0][0]:
            return 0
        texts = _due(now)[:AT_ONCE]
        if not texts:
            return 0
        for text, digest in zip(texts, async_to_sync(_ask_all)(texts), strict=True):
            # A job that somebody is changing begins, or is asked about again.
            free = _UNRESOLVED.filter(spec__image=text).select_for_update(skip_locked=True).order_by("pk")
            pks = list(free.values_list("pk", flat=True))
            Job.objects.filter(pk__in=pks).update(image_digest=digest, image_asked_at=now)
    if set(_due(now)) - set(texts):
        outbox.nudge(RESOLVE)
    return len(texts)


def _due(now: datetime) -> list[str]:
    """Return the images to ask about, those that nobody has asked about before others."""
    unresolved = _UNRESOLVED.filter(submitted_at__gt=now - GIVEN_UP_AFTER).filter(
        Q(image_asked_at=None) | Q(image_asked_at__lt=now - AGAIN_AFTER)
    )
    rows = unresolved.values_list("spec__image").annotate(asked_at=Max("image_asked_at"))
    return [text for text, _at in rows.order_by(F("asked_at").asc(nulls_first=True), "spec__image")]


async def _ask_all(texts: Sequence[str]) -> list[str]:
    """Ask side by side; who is not through in time keeps its tag for now."""
    threads = ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="registry")
    tasks = [asyncio.create_task(_ask(text, threads)) for text in texts]
    _done, late = await asyncio.wait(tasks, timeout=ALL_WITHIN_S)
    for task in late:
        task.cancel()
    # A thread that still looks up a name ends by its own time-out; nobody waits for it.
    threads.shutdown(wait=False, cancel_futures=True)
    return ["" if task in late else task.result() for task in tasks]


async def _ask(text: str, threads: ThreadPoolExecutor) -> str:
    """Return what an image's tag means, "" where that cannot be found out; never raises, for the others' sake."""
    image = image_of(text)
    assert image is not None
    try:
        return await digest_of(image, threads)
    except UnresolvedError as no:
        log.info("image %s keeps its tag until it is fetched: %s", text, no)
    except Exception:
        log.exception("image %s could not be asked about", text)
    return ""
