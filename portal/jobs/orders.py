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
from portal.jobs.spec import may_follow, words_of
from portal.jobs.states import JobState
from portal.leases.states import RequestState

# A node ends a lease by itself so much later than the portal (portal.agents.desired); the job is asked before that.
NODE_SAFETY_S: Final = 5
# The first job of a lease has no attempt before it is ready; one that follows has one from when it was handed over.
ORDERS: Final = (
    "SELECT d.lease_id, j.uid, j.user_id, j.index, a.uid, d.number, j.spec, j.time_s,"  # noqa: S608 (our own states)
    " coalesce((SELECT e.image_digest FROM jobs_jobattempt e WHERE e.job_id = j.id AND e.image_digest <> ''"
    " ORDER BY e.number LIMIT 1), j.image_digest), d.ordinal,"
    " EXISTS (SELECT 1 FROM jobs_job w LEFT JOIN leases_leaserequest r ON r.id = w.request_id"
    f"  WHERE w.array_id = j.array_id AND w.state = '{JobState.WAITING}' AND w.id <> j.id"
    f"  AND coalesce(r.state, '{RequestState.QUEUED}') = '{RequestState.QUEUED}')"
    " AND NOT EXISTS (SELECT 1 FROM leases_leaserequest o JOIN catalog_flavor g ON g.id = o.flavor_id"
    f"  WHERE o.state = '{RequestState.QUEUED}' AND (o.author_id <> j.user_id OR o.team_id <> j.team_id)"
    "  AND g.device_model_id = (SELECT f.device_model_id FROM catalog_flavor f WHERE f.id = j.flavor_id)) FROM ("
    " SELECT t.lease_id, t.job_id, t.number, t.ordinal FROM jobs_jobattempt t WHERE t.lease_id = ANY(%s)"
    f"  AND t.state IN {in_sql((JobState.WAITING, JobState.STARTING))}"
    " UNION ALL SELECT l.id, j.id, j.attempts + 1, 1 FROM leases_lease l JOIN jobs_job j ON j.request_id = l.request_id"
    f"  WHERE l.id = ANY(%s) AND j.state = '{JobState.WAITING}'"
    "  AND NOT EXISTS (SELECT 1 FROM jobs_jobattempt t WHERE t.lease_id = l.id)"
    ") d JOIN jobs_job j ON j.id = d.job_id LEFT JOIN jobs_jobarray a ON a.id = j.array_id"
    " ORDER BY d.lease_id, d.ordinal DESC"
)


def orders_of(
    lease_ids: Collection[int], *, containers: bool = False, artifacts: bool = False, follow: bool = False
) -> dict[int, str]:
    """Return the orders of the jobs among these leases that have not begun, as far as one frame has room for them.

    The others follow with the next frame: each job that begins makes one. ``containers``: the node runs jobs in
    images; those are left out where it does not. ``artifacts``: it collects what a job leaves; where it does not, a job
    runs and leaves nothing. ``follow``: it runs one job after another in a lease, each for its own time. A job
    gets the image that its tag meant when it was handed in, or where nobody could say so, a later attempt the one of
    the first.
    """
    found: dict[int, str] = {}
    room = MOST_JOBS
    ids = list(lease_ids)
    for lease_id, uid, user_id, index, array, number, raw, time_s, digest, ordinal, more in fetch(
        ORDERS, [ids, ids]
    ):
        spec = raw if isinstance(raw, dict) else json.loads(raw)
        image = image_of(spec.get("image", ""))
        if image is not None and not containers:
            continue
        env = {**spec["env"], "BERTH_JOB": uid, "BERTH_ATTEMPT": str(number)}
        if index is not None:
            env |= {"BERTH_ARRAY": array, "BERTH_ARRAY_INDEX": str(index), "SLURM_ARRAY_TASK_ID": str(index)}
        notice_s = min(settings.JOB_NOTICE_S, time_s // 2)
        order = JobOrder(
            words=tuple(words_of(spec["command"])),
            env=env,
            secrets=_secrets(user_id, spec["secrets"]),
            workdir=spec["workdir"],
            ask_before_s=NODE_SAFETY_S + notice_s,
            artifacts=tuple(spec["artifacts"]) if artifacts else (),
            most_files=settings.JOB_ARTIFACT_FILES,
            most_bytes=settings.JOB_ARTIFACT_MIB * 1024 * 1024,
            image="" if image is None else image.pinned(image.digest or digest).text,
            ordinal=ordinal if follow else 1,
            limit_s=time_s if follow else 0,
            notice_s=notice_s if follow else 0,
            is_followed=more and follow and may_follow(spec),
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
