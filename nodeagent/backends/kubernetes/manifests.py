"""What is sent to the cluster for a lease: its claim and its Job, the namespace of its team and the quota there."""

from __future__ import annotations

from typing import Any, Final

from nodeagent.backends.base import LeaseOrder
from nodeagent.backends.kubernetes.quantities import quantity
from nodeagent.backends.kubernetes.settings import DRA, HAMI, KubernetesSettings

POOL: Final = "berth.dev/pool"
LEASE: Final = "berth.dev/lease"
GENERATION: Final = "berth.dev/generation"
USER: Final = "berth.dev/user"
NOTICE: Final = "berth.dev/notice"
QUOTA: Final = "berth"
REQUEST: Final = "unit"
WORK: Final = "work"
# A host that is silent for so long, beside the time in which the cluster finds that out, has lost its leases.
SILENT_S: Final = 60
FENCE_S: Final = 60
REMEMBERED_S: Final = 86_400
# Holds the units until it is asked to end; then passes that on to all programs, and waits until none is left.
HOLDER: Final = """\
trap 'trap "" TERM; kill -TERM -1; while kill -0 -1 2>/dev/null; do sleep 1; done; exit 0' TERM
while :; do sleep 3600 & wait $!; done
"""


def fence_s(order: LeaseOrder, pool: KubernetesSettings) -> int:
    """Return when the cluster itself ends a Job, in seconds from its creation: it may have waited for its hosts."""
    return max(1, order.ends_in_s) + pool.wait_s + FENCE_S


def labels_of(order: LeaseOrder, pool: KubernetesSettings) -> dict[str, str]:
    """Return what every object of a lease carries."""
    return {POOL: pool.pool_id, LEASE: order.lease, GENERATION: str(order.generation)}


def claim_of(order: LeaseOrder, pool: KubernetesSettings, namespace: str) -> dict[str, Any]:
    """Return the ResourceClaim of a lease: so many units of the first class that can give them."""
    wants: list[dict[str, Any]] = []
    for name in pool.classes:
        one: dict[str, Any] = {"deviceClassName": name, "allocationMode": "ExactCount", "count": order.units}
        if pool.expression:
            one["selectors"] = [{"cel": {"expression": pool.expression}}]
        if pool.share_mib:
            one["capacity"] = {"requests": {"memory": f"{pool.share_mib}Mi"}}
        wants.append(one)
    if len(wants) == 1:
        request: dict[str, Any] = {"name": REQUEST, "exactly": wants[0]}
    else:
        ordered = [{"name": f"choice-{number}", **one} for number, one in enumerate(wants)]
        request = {"name": REQUEST, "firstAvailable": ordered}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": order.name, "namespace": namespace, "labels": labels_of(order, pool)},
        "spec": {"devices": {"requests": [request]}},
    }


def job_of(
    order: LeaseOrder, pool: KubernetesSettings, namespace: str, misfits: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the Job of a lease: one pod that holds its units. ``misfits`` are hosts that it must not come to."""
    limits: dict[str, str] = {}
    if order.cpu_milli:
        limits["cpu"] = f"{order.cpu_milli}m"
    if order.memory_mib:
        limits["memory"] = f"{order.memory_mib}Mi"
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "tolerations": [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            *(
                {
                    "key": f"node.kubernetes.io/{word}", "operator": "Exists", "effect": "NoExecute",
                    "tolerationSeconds": SILENT_S,
                }
                for word in ("not-ready", "unreachable")
            ),
        ],
        "volumes": [
            {
                "name": "berth",
                "downwardAPI": {
                    "items": [
                        {"path": "notice", "fieldRef": {"fieldPath": f"metadata.annotations['{NOTICE}']"}}
                    ]
                },
            }
        ],
    }  # fmt: skip
    resources: dict[str, Any] = {}
    if pool.kind == DRA:
        pod["resourceClaims"] = [{"name": REQUEST, "resourceClaimName": order.name}]
        resources["claims"] = [{"name": REQUEST}]
    else:
        limits[pool.resource] = str(order.units)
    if pool.kind == HAMI:
        pod["schedulerName"] = "hami-scheduler"
        if pool.share_mib:
            limits[f"{pool.resource}mem"] = str(pool.share_mib)
        if pool.cores:
            limits[f"{pool.resource}cores"] = str(pool.cores)
    if limits:
        resources["limits"] = limits
    if pool.nodes:
        pod["nodeSelector"] = dict(pool.nodes)
    if misfits:
        keeps_off = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(misfits)}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [keeps_off]}]}
        pod["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    pod["containers"] = [
        {
            "name": WORK,
            "image": pool.image,
            "command": ["/bin/sh", "-c", HOLDER],
            "env": [{"name": "BERTH_LEASE", "value": order.lease}],
            "resources": resources,
            "volumeMounts": [{"name": "berth", "mountPath": "/run/berth", "readOnly": True}],
        }
    ]
    told = {"labels": labels_of(order, pool), "annotations": {USER: order.user}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": order.name, "namespace": namespace, **told},
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "activeDeadlineSeconds": fence_s(order, pool),
            "ttlSecondsAfterFinished": REMEMBERED_S,
            "podReplacementPolicy": "Failed",
            "template": {"metadata": told, "spec": pod},
        },
    }


def namespace_of(name: str) -> dict[str, Any]:
    """Return the namespace of a team: pods there get no rights on their host."""
    levels = {"pod-security.kubernetes.io/enforce": "baseline", "app.kubernetes.io/managed-by": "berth"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": levels}}


def quota_of(pool: KubernetesSettings, namespace: str, units: int) -> dict[str, Any]:
    """Return the fence of a namespace behind Berth's own quota.

    Only these names count anything: ``requests.`` before a resource, and a class with its suffix (a quota on the bare
    name of a resource is accepted and counts nothing).
    """
    if pool.kind == DRA:
        hard = {f"{name}.deviceclass.resource.k8s.io/devices": str(units) for name in pool.classes}
    else:
        hard = {f"requests.{pool.resource}": str(units)}
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": f"{QUOTA}-{pool.node.lower().replace('_', '-')}", "namespace": namespace},
        "spec": {"hard": hard},
    }


def difference(sent: Any, kept: Any, path: str = "") -> str:
    """Return where what the cluster keeps differs from what was sent, "" where it has all of it.

    What the cluster adds of its own (defaults) is no difference; in lists every entry counts. Amounts such as 8000m
    and 8 are one: the server may write them anew.
    """
    if isinstance(sent, dict):
        if not isinstance(kept, dict):
            return path
        found = (difference(value, kept.get(name), f"{path}.{name}") for name, value in sent.items())
        return next((one for one in found if one), "")
    if isinstance(sent, list):
        if not isinstance(kept, list) or len(kept) != len(sent):
            return path
        pairs = enumerate(zip(sent, kept, strict=True))
        found = (difference(one, other, f"{path}[{number}]") for number, (one, other) in pairs)
        return next((one for one in found if one), "")
    return "" if sent == kept or _is_same_amount(sent, kept) else path


def _is_same_amount(sent: Any, kept: Any) -> bool:
    one, other = quantity(sent), quantity(kept)
    return one is not None and one == other
