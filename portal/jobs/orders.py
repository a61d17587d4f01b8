"""What nodes are told to run: the orders that go out with leases until their jobs have begun."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Final

from django.conf import settings

from nodeagent.protocol.images import image_of
from nodeagent.protocol.jobs import JobOrder
from nodeagent.protocol.limits import MOST_JOB, MOST_JOBS
from portal.common.sealing import JOBS, unseal
from portal.common.sql import fetch, in_sql
from portal.jobs.models import Secret
from portal.jobs.spec import words_of
from portal.jobs.states import JobState

# A node ends a lease by itself so much later than the portal (portal.agents.desired); the job is asked before that.
NODE_SAFETY_S: Final = 5
_WAITING = in_sql((JobState.WAITING, JobState.STARTING))
ORDERS: Final = (
    "SELECT l.id, j.uid, j.user_id, j.index, a.uid, j.attempts, j.spec, j.time_s,"  # noqa: S608 (our own states)
    " coalesce((SELECT e.image_digest FROM jobs_jobattempt e WHERE e.job_id = j.id AND e.image_digest <> ''"
    " ORDER BY e.number LIMIT 1), '')"
    " FROM jobs_job j JOIN leases_lease l ON l.request_id = j.request_id"
    " LEFT JOIN jobs_jobarray a ON a.id = j.array_id"
    " LEFT JOIN jobs_jobattempt t ON t.lease_id = l.id"
    f" WHERE l.id = ANY(%s) AND j.state IN {_WAITING} AND coalesce(t.state, 'starting') = 'starting' ORDER BY l.id"
)


def orders_of(
    lease_ids: Collection[int], *, containers: bool = False, artifacts: bool = False
) -> dict[int, str]:
    """Return the orders of the jobs among these leases that have not begun, as far as one frame has room for them.

    The others follow with the next frame: each job that begins makes one. ``containers``: the node runs jobs in
    images; those are left out where it does not. ``artifacts``: it collects what a job leaves; where it does not, a job
    runs and leaves nothing. A later attempt gets the very image that the first one had.
    """
    found: dict[int, str] = {}
    room = MOST_JOBS
    for lease_id, uid, user_id, index, array, attempts, raw, time_s, digest in fetch(
        ORDERS, [list(lease_ids)]
    ):
        spec = raw if isinstance(raw, dict) else json.loads(raw)
        image = image_of(spec.get("image", ""))
        if image is not None and not containers:
            continue
        env = {**spec["env"], "BERTH_JOB": uid, "BERTH_ATTEMPT": str(max(1, attempts))}
        if index is not None:
            env |= {"BERTH_ARRAY": array, "BERTH_ARRAY_INDEX": str(index), "SLURM_ARRAY_TASK_ID": str(index)}
        order = JobOrder(
            words=tuple(words_of(spec["command"])),
            env=env,
            secrets=_secrets(user_id, spec["secrets"]),
            workdir=spec["workdir"],
            ask_before_s=NODE_SAFETY_S + min(settings.JOB_NOTICE_S, time_s // 2),
            artifacts=tuple(spec["artifacts"]) if artifacts else (),
            most_files=settings.JOB_ARTIFACT_FILES,
            most_bytes=settings.JOB_ARTIFACT_MIB * 1024 * 1024,
            image="" if image is None else image.pinned(image.digest or digest).text,
        )
        text = order.text()
        if len(text) > min(room, MOST_JOB):
            continue
        room -= len(text)
        found[lease_id] = text
    return found


def _secrets(user_id: int, names: Collection[str]) -> dict[str, str]:
    """Return the values that a job gets; one that was removed meanwhile is simply not there."""
    if not names:
        return {}
    rows = Secret.objects.filter(user_id=user_id, name__in=list(names))
    values = {row.name: unseal(bytes(row.sealed), purpose=JOBS, owner=user_id, name=row.name) for row in rows}
    return {name: value for name, value in values.items() if value is not None}
