"""A pool of a Kubernetes cluster: a lease is one Job, known by its name, checked before it counts as ready."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Any, Final

from nodeagent.backends.base import (
    ENDING,
    OVER,
    RUNNING,
    BackendAwayError,
    BackendRefusedError,
    ClusterJob,
    LeaseOrder,
    PoolFacts,
    whole_devices,
)
from nodeagent.backends.kubernetes.client import KubernetesClient, NameTakenError, NotThereError
from nodeagent.backends.kubernetes.counting import by_names, by_slices
from nodeagent.backends.kubernetes.kubeconfig import server_of
from nodeagent.backends.kubernetes.manifests import (
    FENCE_S,
    NOTICE,
    POOL,
    claim_of,
    difference,
    job_of,
    namespace_of,
    quota_of,
)
from nodeagent.backends.kubernetes.mirror import Mirror, Name
from nodeagent.backends.kubernetes.quantities import dig, instant, listed
from nodeagent.backends.kubernetes.reading import ASKED_S, given, is_of_pool, read_lease
from nodeagent.backends.kubernetes.settings import DRA, LABEL, KubernetesSettings
from nodeagent.protocol.messages import DeviceFact

OLDEST: Final = (1, 34)
PROBE_EVERY_S: Final = 2.0
EVENTS_EVERY_S: Final = 10.0
ALL_JOBS: Final = "/apis/batch/v1/jobs"
ALL_CLAIMS: Final = "/apis/resource.k8s.io/v1/resourceclaims"


class KubernetesBackend:
    """Speaks to the cluster by its API. Its own words for the cluster are names and the label of the pool."""

    name = "kubernetes"

    def __init__(
        self,
        client: KubernetesClient,
        settings: KubernetesSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._pool, self._clock = client, settings, clock
        self.cluster, self.version = server_of(client.login), "unknown"
        own = f"{POOL}={settings.pool_id}"
        self._jobs = Mirror(client, ALL_JOBS, selector=own)
        self._pods = Mirror(client, "/api/v1/pods", selector=own)
        self._nodes = Mirror(client, "/api/v1/nodes", kept=_of_node)
        running = "status.phase!=Succeeded,status.phase!=Failed"
        self._held = (
            Mirror(client, ALL_CLAIMS, kept=_of_claim) if settings.kind == DRA
            else Mirror(client, "/api/v1/pods", fields=running, kept=_of_pod)
        )  # fmt: skip
        self._slices = Mirror(client, "/apis/resource.k8s.io/v1/resourceslices")
        self._probed_at: float | None = None
        self._ready_namespaces: set[str] = set()
        self._checked: dict[str, tuple[str, ...]] = {}
        self._why: dict[Name, tuple[float, str]] = {}
        self._units = self._ours = self._most_on_one = 0
        self._misfits: tuple[str, ...] = ()

    @property
    def mirrors(self) -> tuple[Mirror, ...]:
        """Return the copies that are kept of the cluster."""
        slices = (self._slices,) if self._pool.kind == DRA else ()
        return self._jobs, self._pods, self._nodes, self._held, *slices

    def close(self) -> None:
        """Stop watching the cluster."""
        for one in self.mirrors:
            one.close()

    def reachable(self) -> None:
        """Ask the server for its version; raises BackendAwayError, and BackendRefusedError for one that is too old."""
        try:
            told = self._api.get("/version")
        except NotThereError as no:
            raise BackendAwayError("the server has no /version: is this the API of Kubernetes?") from no
        self._probed_at = self._clock()
        self.version = str(told.get("gitVersion", "unknown"))[:40]
        numbers = [str(told.get(name, "")).rstrip("+") for name in ("major", "minor")]
        if all(one.isdecimal() for one in numbers) and tuple(map(int, numbers)) < OLDEST:
            raise BackendRefusedError(
                "too_old", f"the cluster runs {self.version}, and 1.34 is what is needed"
            )

    def remember(self, cluster: str, most_on_one: int) -> None:
        """Take what was known of the cluster when it answered last, for a start while it is away."""
        self.cluster, self._most_on_one = cluster, most_on_one

    def facts(self) -> PoolFacts:
        """Count the pool's units from the copies of hosts, slices, claims and pods."""
        self._probe()
        pool = self._pool
        nodes = {name: one for (_none, name), one in self._nodes.objects().items()}
        others = [one for one in self._held.objects().values() if not is_of_pool(one, pool.pool_id)]
        if pool.kind == DRA:
            classes = {name: self._class(name) for name in pool.classes}
            known = {name: one for name, one in classes.items() if one is not None}
            found = by_slices(pool, known, self._slices.objects().values(), others, nodes)
        else:
            found = by_names(pool, nodes, others)
        facts = found.facts
        self._misfits, self._units, self._most_on_one = found.misfits, facts.units, facts.most_on_one
        return replace(facts, used=facts.used + self._ours)

    def devices(self, units: int) -> tuple[DeviceFact, ...]:
        """Return the pool's units; each is a whole device, which is all that is told apart."""
        pool = self._pool
        return whole_devices(f"kubernetes:{pool.node}", units, pool.vendor, pool.model, pool.memory_mib)

    def ensure(self, order: LeaseOrder) -> ClusterJob:
        """Return the lease's Job, creating it with its claim where there is none of its name."""
        pool = self._pool
        namespace = pool.namespace.replace("{team}", order.team)
        if not LABEL.fullmatch(namespace):
            said = (
                f"{namespace!r} is no name of a namespace: name one with --kube-namespace, or rename the team"
            )
            raise BackendRefusedError("not_allowed", said)
        if self._most_on_one and order.units > self._most_on_one:
            said = f"{order.units} units are more than one host has ({self._most_on_one}), and a lease is one pod"
            raise BackendRefusedError("not_offered", said)
        claims, jobs = (
            f"{_of('resource.k8s.io/v1', namespace)}/resourceclaims",
            f"{_of('batch/v1', namespace)}/jobs",
        )
        wanted = job_of(order, pool, namespace, self._misfits)
        try:
            self._prepare(namespace)
            changed = ""
            if pool.kind == DRA:
                asked = claim_of(order, pool, namespace)
                claim, _is_new = self._created(claims, asked)
                changed = difference(asked["spec"], dig(claim, "spec"), "spec")
            job, is_new = self._created(jobs, wanted)
        except NotThereError as no:
            self._ready_namespaces.discard(namespace)
            raise BackendRefusedError("cluster_refused", f"{namespace}: {no}", is_passing=True) from no
        except BackendRefusedError as no:
            if not no.is_passing:
                self.end(f"{namespace}/{order.name}", asks=False)
            raise
        if not is_new:  # an earlier try may have had another end, and other hosts to keep off
            del wanted["spec"]["activeDeadlineSeconds"]
            wanted["spec"]["template"]["spec"].pop("affinity", None)
        changed = changed or difference(wanted["spec"], dig(job, "spec"), "spec")
        if changed:
            self.end(f"{namespace}/{order.name}", asks=False)
            said = f"{changed} is not what was sent, so a webhook of the cluster changes it; let it pass over objects"
            raise BackendRefusedError("job_changed", f"{said} with the label {POOL}")
        self._jobs.put(job)
        return read_lease(order.name, namespace, job, self._pods_of(namespace, order.name), None)

    def observe(self, names: Collection[str], *, strays: bool = False) -> tuple[ClusterJob, ...]:
        """Return the Jobs of these names. One that runs is checked: what it was given is read back.

        ``strays`` takes away the claims that Jobs left behind, too: they count in quotas for as long as they exist.
        """
        self._probe()
        names = set(names)
        jobs, pods = self._jobs.objects(), self._pods.objects()
        held = self._held.objects() if self._pool.kind == DRA else {}
        by_job: dict[Name, list[dict[str, Any]]] = {name: [] for name in jobs}
        for pod in pods.values():
            by_job.setdefault(_job_of_pod(pod), []).append(pod)
        for key, claim in held.items():
            # Its pod is gone and it is still given to somebody: the host may still run what it ran.
            if (
                key not in by_job
                and is_of_pool(claim, self._pool.pool_id)
                and dig(claim, "status", "allocation")
            ):
                by_job[key] = []
        ended = {_job_of_pod(one): one for one in list(self._pods.ended.values())}
        found: list[ClusterJob] = []
        for (namespace, name), own in sorted(by_job.items()):
            if name in names or strays:
                key = namespace, name
                found.append(self._look(key, jobs.get(key), own, ended.get(key), held.get(key)))
        lacking = names - {one.name for one in found}
        found += [one for each in sorted(lacking) for one in self._asked_for(each)]
        self._ours = sum(one.units or 0 for one in found if one.phase in (RUNNING, ENDING))
        if strays:
            self._sweep(
                held, {(one.job.partition("/")[0], one.name) for one in found if one.phase != OVER}, names
            )
        return tuple(found)

    def extend(self, job: str, ends_in_s: int) -> None:
        """Move a Job's own deadline so that it ends it in so many seconds and a minute, by the cluster's clock."""
        path = _path(job)
        try:
            told, headers = self._api.call("GET", path)
            began = instant(dig(told, "status", "startTime"))
            if began is None:
                return  # it is over, or was never begun: what ended it is observed
            # The server's own clock says how long it has run; the agent's may be anything.
            ran_s = max(0, int(parsedate_to_datetime(headers["Date"]).timestamp()) - began)
            self._api.patch(path, {"spec": {"activeDeadlineSeconds": ran_s + max(1, ends_in_s) + FENCE_S}})
        except NotThereError:
            return
        except (TypeError, ValueError) as no:
            raise BackendAwayError("the API server's answer has no date") from no

    def tell(self, job: str) -> None:
        """Write into /run/berth/notice of its pods that the lease will end; kubelet brings it within a minute or so."""
        namespace, _, name = job.partition("/")
        for pod in self._pods_of(namespace, name):
            change = {"metadata": {"annotations": {NOTICE: "this lease will be ended: save your work"}}}
            try:
                self._api.patch(_pod_path(pod), change)
            except NotThereError:
                continue

    def end(self, job: str, *, asks: bool) -> None:
        """Delete a Job, its pods and its claim; with ``asks`` only ask the programs in it to end, in their own time."""
        namespace, _, name = job.partition("/")
        if not asks:
            self._api.delete(_path(job))
        for pod in self._pods_of(namespace, name):
            if not asks:
                self._api.delete(_pod_path(pod), grace_s=1)
            elif dig(pod, "metadata", "deletionTimestamp") is None:
                self._api.delete(_pod_path(pod), grace_s=ASKED_S)
        if not asks and self._pool.kind == DRA:
            self._api.delete(f"{_of('resource.k8s.io/v1', namespace)}/resourceclaims/{name}")

    # What each of them needs

    def _probe(self) -> None:
        """Find out whether the server answers, where that was not asked a moment ago: a watch is silent either way."""
        if self._probed_at is None or self._clock() - self._probed_at >= PROBE_EVERY_S:
            self._probed_at = None
            self.reachable()

    def _class(self, name: str) -> list[str] | None:
        """Return the selectors of a device class, None where there is no such class."""
        try:
            told = self._api.get(f"/apis/resource.k8s.io/v1/deviceclasses/{name}")
        except NotThereError:
            return None
        return [str(dig(one, "cel", "expression", otherwise="")) for one in listed(told, "spec", "selectors")]

    def _prepare(self, namespace: str) -> None:
        """See that a team's namespace is there, with its fence. Where the agent may not make it, it must be there."""
        if namespace in self._ready_namespaces:
            return
        try:
            self._api.get(f"/api/v1/namespaces/{namespace}")
        except NotThereError:
            try:
                self._api.create("/api/v1/namespaces", namespace_of(namespace))
            except NameTakenError:
                pass
            except BackendRefusedError as no:
                said = f"there is no namespace {namespace}, and the agent may not make it: {no.detail}"
                raise BackendRefusedError(no.code, said, is_passing=no.is_passing) from no
        units = self._units if self._pool.fence is None else self._pool.fence
        if units:
            wanted = quota_of(self._pool, namespace, units)
            path = f"/api/v1/namespaces/{namespace}/resourcequotas"
            try:
                self._api.create(path, wanted)
            except NameTakenError:
                self._api.patch(f"{path}/{wanted['metadata']['name']}", {"spec": wanted["spec"]})
        if (
            units or self._pool.fence == 0
        ):  # a pool that was not counted yet in this life has its fence at the next lease
            self._ready_namespaces.add(namespace)

    def _created(self, path: str, manifest: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """Return what was created (True), or what an earlier try of ours had. Raises BackendRefusedError."""
        try:
            return self._api.create(path, manifest), True
        except NameTakenError as no:
            name = manifest["metadata"]["name"]
            known = self._api.get(f"{path}/{name}")
            labels = dig(known, "metadata", "labels", otherwise={})
            if any(labels.get(key) != value for key, value in manifest["metadata"]["labels"].items()):
                said = f"there is a {manifest['kind']} {path.split('/')[-2]}/{name} of somebody else's"
                raise BackendRefusedError("name_taken", said, is_passing=True) from no
            if dig(known, "metadata", "deletionTimestamp") is not None:
                said = f"the {manifest['kind']} {name} is being deleted"
                raise BackendRefusedError("name_taken", said, is_passing=True) from no
            return known, False

    def _pods_of(self, namespace: str, name: str) -> list[dict[str, Any]]:
        selector = f"{POOL}={self._pool.pool_id},batch.kubernetes.io/job-name={name}"
        return listed(self._api.get(f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector), "items")

    def _asked_for(self, name: str) -> list[ClusterJob]:
        """Return the Job of a name that the copies lack: that it is gone is concluded from the server's word alone."""
        told = self._api.get(
            ALL_JOBS, labelSelector=f"{POOL}={self._pool.pool_id}", fieldSelector=f"metadata.name={name}"
        )
        for job in listed(told, "items"):
            self._jobs.put(job)
        return [
            read_lease(
                name, (at := str(dig(job, "metadata", "namespace"))), job, self._pods_of(at, name), None
            )
            for job in listed(told, "items")
        ]

    def _look(
        self, key: Name, job: dict[str, Any] | None, pods: list[dict[str, Any]], ended: dict[str, Any] | None,
        claim: dict[str, Any] | None,
    ) -> ClusterJob:  # fmt: skip
        namespace, name = key
        found = read_lease(name, namespace, job, pods, None if pods else ended)
        if found.phase == OVER and job is None and dig(claim, "status", "allocation"):
            return replace(found, phase=ENDING, code="", reason="its claim is still held")
        if found.reason == "NoPodYet" and job is not None:
            return replace(found, reason=self._why_no_pod(namespace, name))
        if found.phase not in (RUNNING, ENDING) or not pods:
            return found
        uid = str(dig(pods[0], "metadata", "uid"))
        if found.phase == RUNNING and uid not in self._checked:
            self._read_back(uid, namespace, name, pods[0])
        places = self._checked.get(uid)
        return found if places is None else replace(found, units=len(places), places=places)

    def _read_back(self, uid: str, namespace: str, name: str, pod: dict[str, Any]) -> None:
        """Ask the server itself, once, what a running pod was given."""
        claim = None
        try:
            pod = self._api.get(_pod_path(pod))
            if self._pool.kind == DRA:
                claim = self._api.get(f"{_of('resource.k8s.io/v1', namespace)}/resourceclaims/{name}")
        except NotThereError:
            pass  # without its claim it was given nothing
        while len(self._checked) > 20_000:
            self._checked.pop(next(iter(self._checked)))
        self._checked[uid] = given(self._pool, pod, claim, self._uuids())

    def _uuids(self) -> dict[tuple[str, str, str], str]:
        """Return the uuid of every device that tells one, by driver, pool and name."""
        if self._pool.kind != DRA:
            return {}
        found: dict[tuple[str, str, str], str] = {}
        for one in self._slices.objects().values():
            for device in listed(one, "spec", "devices"):
                uuid = dig(device, "attributes", "uuid", "string")
                if uuid:
                    key = (
                        str(dig(one, "spec", "driver")),
                        str(dig(one, "spec", "pool", "name")),
                        str(device["name"]),
                    )
                    found[key] = str(uuid)
        return found

    def _why_no_pod(self, namespace: str, name: str) -> str:
        """Return the controller's word for why a Job has no pod, asked for now and then: mostly a quota."""
        asked_at, why = self._why.get((namespace, name), (None, "NoPodYet"))
        if asked_at is None or self._clock() - asked_at >= EVENTS_EVERY_S:
            told = self._api.get(
                f"/api/v1/namespaces/{namespace}/events",
                fieldSelector=f"involvedObject.name={name},reason=FailedCreate",
            )
            said = [str(dig(one, "message", otherwise="")) for one in listed(told, "items")]
            why = f"FailedCreate: {said[-1]}" if said else "NoPodYet"
            if len(self._why) > 5_000:
                self._why.clear()
            self._why[namespace, name] = self._clock(), why
        return why

    def _sweep(self, held: dict[Name, dict[str, Any]], alive: set[Name], names: Collection[str]) -> None:
        """Delete our claims whose Job is over or was never created, and which nothing uses."""
        over = {name for name in held if name not in alive and is_of_pool(held[name], self._pool.pool_id)}
        jobs = self._jobs.objects()
        for namespace, name in over:
            if (name in names and (namespace, name) not in jobs) or dig(
                held[namespace, name], "status", "allocation"
            ):
                continue  # its Job may be on its way, or its host has not let go
            self._api.delete(f"{_of('resource.k8s.io/v1', namespace)}/resourceclaims/{name}")


def _of(group: str, namespace: str) -> str:
    return f"/apis/{group}/namespaces/{namespace}"


def _path(job: str) -> str:
    namespace, _, name = job.partition("/")
    return f"{_of('batch/v1', namespace)}/jobs/{name}"


def _pod_path(pod: dict[str, Any]) -> str:
    return f"/api/v1/namespaces/{dig(pod, 'metadata', 'namespace')}/pods/{dig(pod, 'metadata', 'name')}"


def _job_of_pod(pod: dict[str, Any]) -> Name:
    labels = dig(pod, "metadata", "labels", otherwise={})
    return str(dig(pod, "metadata", "namespace")), str(labels.get("batch.kubernetes.io/job-name", ""))


def _meta(one: dict[str, Any]) -> dict[str, Any]:
    names = ("name", "namespace", "uid", "labels", "resourceVersion", "deletionTimestamp")
    told = dig(one, "metadata", otherwise={})
    return {name: told[name] for name in names if name in told}


def _of_node(one: dict[str, Any]) -> dict[str, Any]:
    """Keep of a host what says whether it takes work and what it has; its images and addresses are much more."""
    status = {name: dig(one, "status", name) for name in ("conditions", "capacity", "allocatable")}
    spec = {name: dig(one, "spec", name) for name in ("unschedulable", "taints")}
    return {"metadata": _meta(one), "spec": spec, "status": status}


def _of_claim(one: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": _meta(one), "status": {"allocation": dig(one, "status", "allocation")}}


def _of_pod(one: dict[str, Any]) -> dict[str, Any]:
    """Keep of a pod, ours or not, where it is and what it holds."""
    spec: dict[str, Any] = {"nodeName": dig(one, "spec", "nodeName")}
    for name in ("containers", "initContainers"):
        spec[name] = [
            {"resources": dig(part, "resources", otherwise={})} for part in listed(one, "spec", name)
        ]
    return {"metadata": _meta(one), "spec": spec, "status": {"phase": dig(one, "status", "phase")}}
