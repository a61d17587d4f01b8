"""What a Job, its pods and its claim say about a lease."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from nodeagent.backends.base import ENDING, OVER, RUNNING, WAITING, ClusterJob
from nodeagent.backends.kubernetes.counting import MIB, results_of
from nodeagent.backends.kubernetes.manifests import NOTICE, POOL, REQUEST, USER, WORK
from nodeagent.backends.kubernetes.quantities import dig, instant, listed, quantity, whole
from nodeagent.backends.kubernetes.settings import DRA, HAMI, KubernetesSettings

# A pod that was asked to end, and may take its time until the agent itself ends it.
ASKED_S: Final = 86_399
GIVEN_BY_HAMI: Final = "hami.io/vgpu-devices-allocated"
NOTICE_PATH: Final = ("metadata", "annotations", NOTICE)

_DISRUPTED: Final = {
    "PreemptionByScheduler": "cluster_preempted",
    "DeletionByTaintManager": "host_lost",
    "DeletionByPodGC": "host_lost",
    "DeletionByDeviceTaintManager": "device_lost",
    "EvictionByEvictionAPI": "cluster_ended",
    "TerminationByKubelet": "cluster_ended",
}
_NEVER: Final = {
    # It stops at an object that it cannot make sense of, and looks at that again and again.
    "SchedulerError": "not_offered",
    "InvalidImageName": "cluster_refused",
}
_REFUSED_BY_HOST: Final = ("UnexpectedAdmissionError", "OutOfnvidia.com/gpu")

Tree = Mapping[str, Any]


def read_lease(
    name: str, namespace: str, job: Tree | None, pods: Iterable[Tree], ended: Tree | None
) -> ClusterJob:
    """Return what is known of one Job; units are not read back yet. ``ended``: the last words of a pod that is gone."""
    alive = [one for one in pods if not _is_over(one)]
    over = [one for one in pods if _is_over(one)]
    pod = alive[0] if alive else over[0] if over else ended
    found = ClusterJob(
        name, f"{namespace}/{name}", WAITING,
        is_ours=True,
        user=str(dig(job or pod, "metadata", "annotations", USER, otherwise="")),
        host=str(dig(pod, "spec", "nodeName", otherwise="")),
        started_at=instant(dig(_status(pod), "state", "running", "startedAt"))
        or instant(dig(_status(pod), "state", "terminated", "startedAt")),
    )  # fmt: skip
    if alive:
        return _living(found, job, alive[0])
    finished = _condition(job, "Failed") or _condition(job, "Complete")
    is_new = not (
        dig(job, "status", "failed") or dig(job, "status", "succeeded") or finished or over or ended
    )
    if job is not None and is_new and dig(job, "metadata", "deletionTimestamp") is None:
        return replace(found, reason="NoPodYet", host="", started_at=None)
    return _over(found, pod, finished)


def _living(found: ClusterJob, job: Tree | None, pod: Tree) -> ClusterJob:
    """Return the state of a pod that is there."""
    running = dig(pod, "status", "phase") == "Running" and dig(_status(pod), "state", "running") is not None
    if dig(pod, "metadata", "deletionTimestamp") is not None:
        is_asked = dig(pod, "metadata", "deletionGracePeriodSeconds") == ASKED_S
        if not is_asked:
            code, why = _disruption(pod)
            if not code and _condition(job, "FailureTarget").get("reason") != "DeadlineExceeded":
                code, why = "removed_by_other", "somebody deleted it"
            return replace(
                found, phase=ENDING, reason=why or "its own deadline", code=code or "cluster_ended"
            )
    if running:
        return replace(found, phase=RUNNING, reason="Running")
    if (
        dig(pod, "status", "phase") == "Running"
    ):  # its container has ended, which the pod will say in a moment
        return replace(found, phase=ENDING, reason="Terminating")
    waiting = dig(_status(pod), "state", "waiting", otherwise={})
    placed = _condition(pod, "PodScheduled")
    if placed.get("status") == "False":
        reason, said = str(placed.get("reason", "")), str(placed.get("message", ""))
    else:
        reason, said = str(waiting.get("reason", "")) or "Pending", str(waiting.get("message", ""))
    waits = replace(found, reason=f"{reason}: {said}" if said else reason, started_at=None)
    if reason in _NEVER:
        return replace(
            waits, code=_NEVER[reason], detail=f"the cluster can never start it: {reason}: {said}"[:600]
        )
    return waits


def _over(found: ClusterJob, pod: Tree | None, finished: Tree) -> ClusterJob:
    ended_at = instant(dig(_status(pod), "state", "terminated", "finishedAt"))
    code, why = _disruption(pod) if pod is not None else ("", "")
    reason = str(finished.get("reason", ""))
    if reason == "DeadlineExceeded":
        code, why = "cluster_ended", "the Job's own deadline was reached"
    elif dig(_status(pod), "state", "terminated", "reason") == "OOMKilled":
        code, why = "out_of_memory", "OOMKilled"
    elif not code and str(dig(pod, "status", "reason", otherwise="")).startswith(_REFUSED_BY_HOST):
        code, why = "not_as_asked", f"its host refused it: {dig(pod, 'status', 'message', otherwise='')}"
    elif not code and dig(pod, "status", "reason"):
        code, why = (
            "cluster_ended",
            f"{dig(pod, 'status', 'reason')}: {dig(pod, 'status', 'message', otherwise='')}",
        )
    elif not code and pod is not None and dig(pod, "metadata", "deletionTimestamp") is not None:
        code, why = "removed_by_other", "somebody deleted its pod"
    elif not code:
        why = str(finished.get("message", "")) or "its Job is over"
    code = code or "cluster_ended"
    return replace(
        found,
        phase=OVER,
        reason=reason or why,
        code=code,
        detail=f"{found.job}: {why}"[:600],
        ended_at=ended_at,
    )


def given(
    pool: KubernetesSettings, pod: Tree, claim: Tree | None, uuids: Mapping[tuple[str, str, str], str]
) -> tuple[str, ...]:
    """Return the units that a running pod was given, by name, as the cluster says; what is less than a unit is none."""
    if pool.kind == DRA:
        names = [one.get("name") for one in listed(pod, "spec", "resourceClaims")]
        asks = [
            one for part in listed(pod, "spec", "containers") for one in listed(part, "resources", "claims")
        ]
        if claim is None or REQUEST not in names or not any(one.get("name") == REQUEST for one in asks):
            return ()  # the pod runs without it
        return tuple(_name_of(one, uuids) for one in results_of(claim) if _is_a_unit(pool, one))
    host, uid = str(dig(pod, "spec", "nodeName")), str(dig(pod, "metadata", "uid"))[:8]
    work = next((one for one in listed(pod, "spec", "containers") if one.get("name") == WORK), {})
    count = whole(dig(work, "resources", "limits", pool.resource, otherwise="0"))
    if pool.kind != HAMI:
        return tuple(f"{host}/{uid}-{number}" for number in range(count))
    found = [
        part.split(",")
        for container in str(dig(pod, "metadata", "annotations", GIVEN_BY_HAMI, otherwise="")).split(";")
        for part in container.split(":")
        if part.count(",") >= 3
    ]
    enough = [one for one in found if whole(one[2]) >= pool.share_mib]
    return tuple(f"{host}/{one[0]}/{uid}-{number}" for number, one in enumerate(enough))


def _is_a_unit(pool: KubernetesSettings, result: Tree) -> bool:
    if str(result.get("request")).partition("/")[0] != REQUEST:
        return False
    if not pool.share_mib:
        return True
    memory = quantity(dig(result, "consumedCapacity", "memory"))
    return memory is not None and memory >= pool.share_mib * MIB


def _name_of(result: Tree, uuids: Mapping[tuple[str, str, str], str]) -> str:
    key = str(result.get("driver")), str(result.get("pool")), str(result.get("device"))
    share = f"/{str(result.get('shareID'))[:8]}" if result.get("shareID") else ""
    return f"{key[1]}/{uuids.get(key, key[2])}{share}"


def is_of_pool(one: Tree | None, pool_id: str) -> bool:
    """Say whether this agent made an object."""
    return bool(dig(one, "metadata", "labels", POOL) == pool_id)


def _is_over(pod: Tree) -> bool:
    return dig(pod, "status", "phase") in ("Succeeded", "Failed")


def _status(pod: Tree | None) -> Tree:
    """Return what the pod says of the container that holds the units."""
    return next((one for one in listed(pod, "status", "containerStatuses") if one.get("name") == WORK), {})


def _condition(one: Tree | None, kind: str) -> Tree:
    for condition in listed(one, "status", "conditions"):
        if condition.get("type") == kind and (kind == "PodScheduled" or condition.get("status") == "True"):
            return condition
    return {}


def _disruption(pod: Tree) -> tuple[str, str]:
    """Return why the cluster ends a pod: a code and its own words, "" where it says nothing of that."""
    said = _condition(pod, "DisruptionTarget")
    reason = str(said.get("reason", ""))
    return (
        (_DISRUPTED.get(reason, "cluster_ended"), f"{reason}: {said.get('message', '')}")
        if reason
        else ("", "")
    )
