"""A double of a Kubernetes API server, over real HTTP, with just enough of its controllers, scheduler and kubelet.

It does what a server of 1.36 was seen to do (docs/adr/0050): versions, 409, selectors, pages, watches with bookmarks,
410 as a status and as an event in a stream, 401, 403 of quotas, deletions that wait, and it fails on demand. Nothing
happens by itself: ``start`` lets the controllers take their turns.
"""

from __future__ import annotations

import copy
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonschema

from nodeagent.backends.base import ClusterJob
from nodeagent.backends.kubernetes.backend import KubernetesBackend
from nodeagent.backends.kubernetes.client import KubernetesClient
from nodeagent.backends.kubernetes.kubeconfig import Login
from nodeagent.backends.kubernetes.quantities import dig, listed, whole
from nodeagent.backends.kubernetes.settings import DRA, HAMI, PLUGIN, KubernetesSettings
from tests.agent.pools.kubernetes_schemas import SCHEMAS

Tree = dict[str, Any]
Key = tuple[str, str, str]  # resource, namespace, name
PATH = re.compile(r"/apis?/(?:[a-z0-9.]+/)?v1(?:/namespaces/([^/]+)(?=/[a-z]))?/([a-z]+)(?:/([^/]+))?")
GIB = 1024**3
JOB_NAME = "batch.kubernetes.io/job-name"
TOKEN = "first"


class KubernetesDouble:
    """Hosts n1 and n2 of eight GPUs each. ``kind`` is by what they give them."""

    wide = 8  # units of the widest lease: one pod's

    def __init__(self, kind: str = DRA, hosts: tuple[str, ...] = ("n1", "n2"), on_each: int = 8) -> None:
        self.kind, self.hosts = kind, hosts
        self.objects: dict[Key, Tree] = {}
        self.events: list[tuple[int, str, str, Tree]] = []
        self.version = self.compacted = 0
        self.tokens = {TOKEN}
        self.is_away = self.loses_answer = self.gives_nothing = self.answers_gone = False
        self.quota: int | None = None
        self.mutates: Callable[[Tree], None] = lambda one: None
        self.down: set[str] = set()
        self.rights: list[tuple[str, str, str]] = []
        self.changed = threading.Condition(threading.RLock())
        self.cuts = 0
        self.backend_: KubernetesBackend | None = None
        for host in hosts:
            self._host(host, on_each)
        for name in ("gpu", "mig"):
            own = "device.attributes['gpu.nvidia.com']"
            cel = f"device.driver == 'gpu.nvidia.com' && {own}.type == '{name}'"
            spec = {"selectors": [{"cel": {"expression": cel}}]}
            self.put("deviceclasses", {"metadata": {"name": f"{name}.nvidia.com"}, "spec": spec})
        self.put("namespaces", {"metadata": {"name": "other"}})
        double = self

        class Handler(_Handler):
            cluster = double

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        if self.backend_ is not None:
            self.backend_.close()
        with self.changed:
            self.is_away = True
            self.cuts += 1
            self.changed.notify_all()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def backend(self, **more: Any) -> KubernetesBackend:
        """Return a back end that asks whether the server answers at every look."""
        words: Tree = {
            "node": "pool-1", "kind": self.kind, "image": "registry.example/holder:1", "model": "a100-80gb",
            "memory_mib": 81920, "wait_s": 30, "pool_id": "p00l",
        }  # fmt: skip
        words |= {"classes": ("gpu.nvidia.com",)} if self.kind == DRA else {"resource": "nvidia.com/gpu"}
        clock = iter(range(0, 10**9, 60))
        login = Login("127.0.0.1", self.server.server_port, "", None, token=TOKEN)
        self.backend_ = KubernetesBackend(
            KubernetesClient(login), KubernetesSettings(**{**words, **more}), lambda: float(next(clock))
        )
        return self.backend_

    # What is stored

    def put(self, resource: str, one: Tree, namespace: str = "") -> Tree:
        """Store an object as a new version of itself."""
        with self.changed:
            self.version += 1
            meta = one.setdefault("metadata", {})
            meta["resourceVersion"] = str(self.version)
            if namespace:
                meta["namespace"] = namespace
            key = resource, meta.get("namespace", ""), meta["name"]
            meta.setdefault("uid", f"uid-{self.version:06}")
            word = "MODIFIED" if key in self.objects else "ADDED"
            self.objects[key] = one
            self.events.append((self.version, resource, word, copy.deepcopy(one)))
            self.changed.notify_all()
            return one

    def drop(self, resource: str, one: Tree) -> None:
        with self.changed:
            self.version += 1
            gone = copy.deepcopy(one)
            gone["metadata"]["resourceVersion"] = str(self.version)
            del self.objects[resource, one["metadata"].get("namespace", ""), one["metadata"]["name"]]
            self.events.append((self.version, resource, "DELETED", gone))
            self.changed.notify_all()

    def all(self, resource: str) -> list[Tree]:
        with self.changed:
            return [one for (kind, _ns, _name), one in self.objects.items() if kind == resource]

    def find(self, resource: str, job: str) -> Tree:
        namespace, _, name = job.rpartition("/")
        return self.objects[resource, namespace, name]

    def pod(self, job: str) -> Tree:
        return next(one for one in self.all("pods") if _job_of(one) == job)

    def _host(self, host: str, units: int) -> None:
        status: Tree = {"conditions": [{"type": "Ready", "status": "True"}]}
        labels = {"kubernetes.io/hostname": host, "nvidia.com/gpu.count": str(units)}
        if self.kind != DRA:
            status |= {
                "capacity": {"nvidia.com/gpu": str(units)},
                "allocatable": {"nvidia.com/gpu": str(units)},
            }
        self.put("nodes", {"metadata": {"name": host, "labels": labels}, "spec": {}, "status": status})
        if self.kind == DRA:
            devices = [
                {
                    "name": f"gpu-{n}",
                    "attributes": {
                        "type": {"string": "gpu"}, "uuid": {"string": f"GPU-{host}-{n}"},
                        "productName": {"string": "NVIDIA A100-SXM4-80GB"},
                    },
                    "capacity": {"memory": {"value": "80Gi"}},
                }
                for n in range(units)
            ]  # fmt: skip
            pool = {"name": host, "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": "gpu.nvidia.com", "nodeName": host, "pool": pool, "devices": devices}
            self.put("resourceslices", {"metadata": {"name": f"{host}-gpu"}, "spec": spec})

    # What tests do to it

    def start(self) -> None:
        """Let the controllers work until nothing moves, and the copies of the agent catch up."""
        with self.changed:
            before = -1
            while before != self.version:
                before = self.version
                for job in self.all("jobs"):
                    self._control(job)
                for pod in self.all("pods"):
                    self._schedule(pod)
                for pod in self.all("pods"):
                    self._serve(pod)
                for claim in self.all("resourceclaims"):
                    self._release(claim)
        self.catch_up()

    def catch_up(self) -> None:
        """Wait until the agent's copies know the newest version."""
        if self.backend_ is None or self.is_away:
            return
        for mirror in self.backend_.mirrors:
            if mirror.relists:
                assert mirror.wait_for(lambda one=mirror: one.version >= self.version, 20), mirror.path

    def cut(self) -> None:
        """Break all watches off in the midst of a line."""
        with self.changed:
            self.cuts += 1
            self.changed.notify_all()

    def compact(self) -> None:
        """Forget the past: whoever watches from before is told so."""
        with self.changed:
            self.compacted = self.version

    def twin_of(self, job: str) -> str:
        """Let the same Job be there once more, in another namespace."""
        for resource in ("resourceclaims", "jobs"):
            one = self.objects.get((resource, *job.split("/")))
            if one is not None:
                twin = copy.deepcopy(one)
                del twin["metadata"]["uid"]
                twin.pop("status", None)
                self.put(resource, twin, "elsewhere")
        self.catch_up()
        return f"elsewhere/{job.split('/')[1]}"

    def foreign(self, units: int, name: str = "train") -> str:
        """Let somebody else's Job run in the pool."""
        namespace = "berth-vision" if name.startswith("berth-") else "other"
        spec: Tree = {
            "containers": [{"name": "work", "resources": {"limits": {"nvidia.com/gpu": str(units)}}}]
        }
        if self.kind == DRA:
            wanted = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": units}}]
            claim = {"metadata": {"name": name}, "spec": {"devices": {"requests": wanted}}}
            self.put("resourceclaims", claim, namespace)
            spec = {
                "containers": [{"name": "work"}],
                "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            }
        self.put("jobs", {"metadata": {"name": name}, "spec": {"template": {"spec": spec}}}, namespace)
        self.start()
        return f"{namespace}/{name}"

    def remove(self, job: str) -> None:
        """Let somebody delete a Job."""
        self.delete("jobs", self.find("jobs", job), None)
        self.catch_up()

    @contextmanager
    def silent(self) -> Iterator[None]:
        self.is_away = True
        self.cut()
        yield
        self.is_away = False

    @contextmanager
    def without(self, host: str) -> Iterator[None]:
        """Let a host fall silent: its pods are to be deleted, and stay until it is back."""
        self.down.add(host)
        node = self.find("nodes", f"/{host}")
        node["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
        self.put("nodes", node)
        for pod in self.all("pods"):
            if dig(pod, "spec", "nodeName") == host:
                self.disrupt(pod, "DeletionByTaintManager")
        self.catch_up()
        yield
        self.down.discard(host)
        node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        self.put("nodes", node)
        self.start()

    def disrupt(self, pod: Tree, reason: str) -> None:
        """Let the cluster end a pod for a reason of its own."""
        said = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "so it is"}
        pod["status"].setdefault("conditions", []).append(said)
        self.delete("pods", pod, 30)
        self.catch_up()

    def live(self) -> list[ClusterJob]:
        return [
            ClusterJob(one["metadata"]["name"], _id(one), "")
            for one in self.all("jobs") if not listed(one, "status", "conditions")
        ]  # fmt: skip

    def limit_of(self, job: str) -> int:
        return int(self.find("jobs", job)["spec"]["activeDeadlineSeconds"])

    # What its controllers do

    def delete(self, resource: str, one: Tree, grace_s: int | None) -> None:
        meta = one["metadata"]
        if resource == "jobs":
            self.drop("jobs", one)
            for pod in self.all("pods"):
                if _job_of(pod) == _id(one):
                    self.delete("pods", pod, 30)
        elif resource == "pods" and dig(one, "spec", "nodeName"):
            meta.setdefault("deletionTimestamp", _now())
            grace_s = 30 if grace_s is None else grace_s
            meta["deletionGracePeriodSeconds"] = min(grace_s, meta.get("deletionGracePeriodSeconds", grace_s))
            self.put("pods", one)
        elif resource == "resourceclaims" and dig(one, "status", "allocation"):
            meta.setdefault("deletionTimestamp", _now())
            self.put("resourceclaims", one)
        else:
            self.drop(resource, one)

    def _control(self, job: Tree) -> None:
        """The controller of Jobs: one pod for each, and how that ended."""
        if listed(job, "status", "conditions") or job["spec"].get("suspend"):
            return
        pods = [one for one in self.all("pods") if _job_of(one) == _id(job)]
        if not dig(job, "status", "startTime"):
            job["status"] = {"startTime": _now(), "failed": 0}
            self.put("jobs", job)
        over = [one for one in pods if dig(one, "status", "phase") in ("Succeeded", "Failed")]
        if job["status"].get("had") and (over or not pods):
            told = {
                "type": "Failed",
                "status": "True",
                "reason": "BackoffLimitExceeded",
                "message": "it failed",
            }
            job["status"] |= {"failed": 1, "conditions": [told]}
            self.put("jobs", job)
        elif not pods and not job["status"].get("had"):
            self._create_pod(job)

    def _create_pod(self, job: Tree) -> None:
        template = copy.deepcopy(job["spec"]["template"])
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        wants = self._wants(template, None) if self.kind != DRA else 0
        if self.quota is not None and self.kind != DRA and wants > self.quota:
            said = f"pods {name!r} is forbidden: exceeded quota: berth-pool-1"
            event = {"metadata": {"name": f"{name}.1"}, "reason": "FailedCreate", "message": said}
            if ("events", namespace, f"{name}.1") not in self.objects:
                self.put("events", event | {"involvedObject": {"name": name}}, namespace)
            return
        if self.gives_nothing and self.kind == PLUGIN:
            template["spec"]["containers"][0]["resources"] = {}
        meta = template.get("metadata", {})
        labels = {**meta.get("labels", {}), JOB_NAME: name}
        pod = {
            "metadata": {"name": f"{name}-x7x", "labels": labels, "annotations": dict(meta.get("annotations", {}))},
            "spec": template["spec"], "status": {"phase": "Pending"},
        }  # fmt: skip
        self.put("pods", pod, namespace)
        job["status"]["had"] = True
        self.put("jobs", job)

    def _schedule(self, pod: Tree) -> None:
        """The scheduler: the first host that has what is asked."""
        if dig(pod, "spec", "nodeName") or dig(pod, "metadata", "deletionTimestamp"):
            return
        names = [one["resourceClaimName"] for one in listed(pod, "spec", "resourceClaims")]
        claim = (
            self.objects.get(("resourceclaims", pod["metadata"]["namespace"], names[0])) if names else None
        )
        wants = self._wants(pod, claim)
        for host in self.hosts:
            free = [name for name in self._units(host) if name not in self._taken(host)]
            if host in self.down or len(free) < wants:
                continue
            if claim is not None:
                given = [] if self.gives_nothing else free[:wants]
                results = [
                    {"request": listed(claim, "spec", "devices", "requests")[0]["name"], "driver": "gpu.nvidia.com",
                     "pool": host, "device": name}
                    for name in given
                ]  # fmt: skip
                reserved = [{"resource": "pods", "name": pod["metadata"]["name"]}]
                claim["status"] = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}
                self.put("resourceclaims", claim)
            if self.kind == HAMI:
                each = (
                    ""
                    if self.gives_nothing
                    else ":".join(f"{name},NVIDIA,81920,100" for name in free[:wants])
                )
                pod["metadata"].setdefault("annotations", {})["hami.io/vgpu-devices-allocated"] = f"{each}:;"
            pod["spec"]["nodeName"] = host
            self.put("pods", pod)
            return
        said = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "cannot allocate all claims",
        }
        if listed(pod, "status", "conditions") != [said]:
            pod["status"]["conditions"] = [said]
            self.put("pods", pod)

    def _serve(self, pod: Tree) -> None:
        """The kubelet of the pod's host."""
        host = dig(pod, "spec", "nodeName")
        if host in self.down or (host is None and not dig(pod, "metadata", "deletionTimestamp")):
            return
        if dig(pod, "metadata", "deletionTimestamp"):
            self.drop("pods", pod)
        elif dig(pod, "status", "phase") == "Pending":
            state = {"running": {"startedAt": _now()}}
            pod["status"] = {
                "phase": "Running",
                "containerStatuses": [{"name": "work", "ready": True, "state": state}],
            }
            self.put("pods", pod)

    def _release(self, claim: Tree) -> None:
        holders = {one["name"] for one in listed(claim, "status", "reservedFor")}
        alive = {
            one["metadata"]["name"]
            for one in self.all("pods")
            if one["metadata"]["namespace"] == claim["metadata"]["namespace"]
        }
        if dig(claim, "status", "allocation") and not holders & alive:
            claim["status"] = {}
            self.put("resourceclaims", claim)
        if dig(claim, "metadata", "deletionTimestamp") and not dig(claim, "status", "allocation"):
            self.drop("resourceclaims", claim)

    def _wants(self, pod: Tree, claim: Tree | None) -> int:
        if claim is None:
            limits = dig(listed(pod, "spec", "containers")[0], "resources", "limits", otherwise={})
            return whole(limits.get("nvidia.com/gpu", "0"))
        wanted = listed(claim, "spec", "devices", "requests")[0]
        return int((wanted.get("exactly") or wanted["firstAvailable"][0])["count"])

    def _units(self, host: str) -> list[str]:
        if self.kind == DRA:
            spec = self.find("resourceslices", f"/{host}-gpu")["spec"]
            return [one["name"] for one in spec["devices"] if not one.get("taints")]
        return [
            f"GPU-{host}-{n}"
            for n in range(whole(self.find("nodes", f"/{host}")["status"]["capacity"]["nvidia.com/gpu"]))
        ]

    def _taken(self, host: str) -> set[str]:
        if self.kind == DRA:
            results = [
                one for claim in self.all("resourceclaims")
                for one in listed(claim, "status", "allocation", "devices", "results")
            ]  # fmt: skip
            return {one["device"] for one in results if one["pool"] == host}
        count = sum(
            self._wants(one, None) for one in self.all("pods") if dig(one, "spec", "nodeName") == host
        )
        return set(self._units(host)[:count])

    # What it refuses

    def refuse(self, resource: str, namespace: str, one: Tree) -> tuple[int, str] | None:
        """Return why an object is not taken, as a server answers."""
        try:
            jsonschema.validate(one, SCHEMAS[resource])
        except jsonschema.ValidationError as no:
            return 400, f"strict decoding error: {no.message}"
        if namespace and ("namespaces", "", namespace) not in self.objects:
            return 404, f'namespaces "{namespace}" not found'
        if resource == "resourceclaims" and self.quota is not None:
            held = [
                claim for claim in self.all("resourceclaims") if claim["metadata"]["namespace"] == namespace
            ]
            if sum(self._wants({}, claim) for claim in [*held, one]) > self.quota:
                return 403, "resourceclaims is forbidden: exceeded quota: berth-pool-1, requested: 1"
        if (resource, namespace, one["metadata"]["name"]) in self.objects:
            return 409, f'{resource} "{one["metadata"]["name"]}" already exists'
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    cluster: KubernetesDouble

    def log_message(self, *_words: object) -> None:
        pass

    def _answer(self, status: int, told: Tree) -> None:
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _no(self, status: int, message: str) -> None:
        self._answer(status, {"kind": "Status", "status": "Failure", "message": message, "code": status})

    def _begin(self) -> tuple[str, str, str, dict[str, str], Tree] | None:
        """Return resource, namespace, name, query and body; None where it was answered already."""
        length = int(self.headers.get("Content-Length", "0"))
        body = json.loads(self.rfile.read(length)) if length else {}
        parts = urlsplit(self.path)
        query = {name: value[0] for name, value in parse_qs(parts.query).items()}
        if self.cluster.is_away:
            self.close_connection = True
            return None
        if self.headers.get("Authorization", "").removeprefix("Bearer ") not in self.cluster.tokens:
            self._no(401, "Unauthorized")
            return None
        if parts.path == "/version":
            self._answer(200, {"major": "1", "minor": "36", "gitVersion": "v1.36.2"})
            return None
        found = PATH.fullmatch(parts.path)
        if found is None:
            self._no(404, f"the server could not find {parts.path}")
            return None
        verb = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}.get(
            self.command, "get" if found[3] else "list"
        )
        group = parts.path.split("/")[2] if parts.path.startswith("/apis/") else ""
        self.cluster.rights.append((group, found[2], "watch" if query.get("watch") else verb))
        return found[2], found[1] or "", found[3] or "", query, body

    def do_GET(self) -> None:
        asked = self._begin()
        if asked is None:
            return
        resource, namespace, name, query, _body = asked
        if name:
            with self.cluster.changed:
                one = copy.deepcopy(self.cluster.objects.get((resource, namespace, name)))
            return self._no(404, f'{resource} "{name}" not found') if one is None else self._answer(200, one)
        takes = _filter(namespace, query)
        if query.get("watch"):
            return self._watch(resource, takes, int(query["resourceVersion"]))
        with self.cluster.changed:
            at = int(query.get("continue") or 0)
            items = [copy.deepcopy(one) for one in self.cluster.all(resource) if takes(one)]
            limit = int(query.get("limit", "500"))
            meta = {"resourceVersion": str(self.cluster.version)}
        if at + limit < len(items):
            meta["continue"] = str(at + limit)
        return self._answer(200, {"metadata": meta, "items": items[at : at + limit]})

    def do_POST(self) -> None:
        asked = self._begin()
        if asked is None:
            return
        resource, namespace, _name, query, body = asked
        assert query.get("fieldValidation") == "Strict"
        with self.cluster.changed:
            no = self.cluster.refuse(resource, namespace, body)
            if no is None:
                if resource == "jobs":
                    self.cluster.mutates(body)
                body = copy.deepcopy(self.cluster.put(resource, body, namespace))
            loses = resource == "jobs" and self.cluster.loses_answer
            self.cluster.loses_answer = self.cluster.loses_answer and not loses
        if loses:
            self.close_connection = True
            return
        if no is not None:
            self._no(*no)
        else:
            self._answer(201, body)

    def do_PATCH(self) -> None:
        asked = self._begin()
        if asked is None:
            return
        resource, namespace, name, _query, body = asked
        with self.cluster.changed:
            one = self.cluster.objects.get((resource, namespace, name))
            if one is not None:
                _merge(one, body)
                self.cluster.put(resource, one)
        if one is None:
            self._no(404, f'{resource} "{name}" not found')
        else:
            self._answer(200, one)

    def do_DELETE(self) -> None:
        asked = self._begin()
        if asked is None:
            return
        resource, namespace, name, _query, body = asked
        with self.cluster.changed:
            one = self.cluster.objects.get((resource, namespace, name))
            if one is not None:
                self.cluster.delete(resource, one, body.get("gracePeriodSeconds"))
        if one is None:
            self._no(404, f'{resource} "{name}" not found')
        else:
            self._answer(200, one)

    def _watch(self, resource: str, takes: Callable[[Tree], bool], since: int) -> None:
        cluster = self.cluster
        gone = {
            "type": "ERROR",
            "object": {"kind": "Status", "code": 410, "message": "too old resource version"},
        }
        if since < cluster.compacted and cluster.answers_gone:
            return self._no(410, "too old resource version")
        self.close_connection = True
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        cuts = cluster.cuts
        try:
            if since < cluster.compacted:
                return self._line(gone)
            while True:
                with cluster.changed:
                    while cluster.version <= since and cluster.cuts == cuts:
                        cluster.changed.wait(5)
                    if cluster.cuts != cuts:
                        break
                    news = [event for event in cluster.events if event[0] > since and event[1] == resource]
                    since = cluster.version
                for _at, _resource, word, one in news:
                    if takes(one):
                        self._line({"type": word, "object": one})
                self._line({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(since)}}})
            half = b'{"type": "MODIFIED", "obj'
            self.wfile.write(f"{len(half):x}\r\n".encode() + half + b"\r\n")
            self.wfile.flush()
        except OSError:
            pass

    def _line(self, event: Tree) -> None:
        line = json.dumps(event).encode() + b"\n"
        self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        self.wfile.flush()


def _filter(namespace: str, query: dict[str, str]) -> Callable[[Tree], bool]:
    """Return whether an object is in the namespace and meets the selectors of a request."""
    labels = [one.split("=") for one in query.get("labelSelector", "").split(",") if one]
    fields = [
        re.fullmatch(r"([A-Za-z.]+)(!?=)(.*)", one)
        for one in query.get("fieldSelector", "").split(",")
        if one
    ]

    def takes(one: Tree) -> bool:
        own = dig(one, "metadata", "labels", otherwise={})
        return (
            (not namespace or dig(one, "metadata", "namespace") == namespace)
            and all(own.get(name) == value for name, value in labels)
            and all((str(dig(one, *f[1].split("."))) == f[3]) == (f[2] == "=") for f in fields if f)
        )

    return takes


def _merge(one: Tree, change: Tree) -> None:
    for name, value in change.items():
        if isinstance(value, dict):
            _merge(one.setdefault(name, {}), value)
        elif value is None:
            one.pop(name, None)
        else:
            one[name] = value


def _id(one: Tree) -> str:
    return f"{one['metadata']['namespace']}/{one['metadata']['name']}"


def _job_of(pod: Tree) -> str:
    return f"{pod['metadata']['namespace']}/{dig(pod, 'metadata', 'labels', JOB_NAME)}"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
