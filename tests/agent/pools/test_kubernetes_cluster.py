"""A real cluster: what is sent is taken by its API server, and a lease lives there.

Runs against the cluster of KUBECONFIG. The pool is described by the agent's own variables (BERTH_KUBE_CLASS,
BERTH_KUBE_IMAGE, ...; docs/kubernetes.md); without units to lend only the manifests are tried.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent import cli
from nodeagent.backends.base import BackendAwayError
from nodeagent.backends.kubernetes.backend import KubernetesBackend
from nodeagent.backends.kubernetes.client import KubernetesClient
from nodeagent.backends.kubernetes.kubeconfig import KubeconfigError, from_file
from nodeagent.backends.kubernetes.manifests import claim_of, job_of, namespace_of, quota_of
from nodeagent.backends.kubernetes.settings import DRA
from nodeagent.commands.kubernetes_pool import kubernetes_settings
from nodeagent.host.clock import boot_clock
from tests.agent.pools.bench import PoolBench
from tests.agent.pools.test_kubernetes_pool import KINDS, ORDER

pytestmark = pytest.mark.needs_cluster


@pytest.fixture(scope="module")
def api() -> KubernetesClient:
    """The cluster's API; skipped, with the reason, where there is none."""
    file = os.environ.get("KUBECONFIG", "")
    if not file:
        pytest.skip("KUBECONFIG names no cluster")
    try:
        client = KubernetesClient(from_file(Path(file)))
        client.get("/version")
    except (KubeconfigError, BackendAwayError) as no:
        pytest.skip(f"the cluster of KUBECONFIG cannot be used: {no}")
    return client


@pytest.mark.parametrize("kind", KINDS)
def test_server_takes_every_manifest_with_strict_validation(kind: str, api: KubernetesClient) -> None:
    pool = KINDS[kind]
    sent: dict[str, dict[str, Any]] = {
        "/api/v1/namespaces": namespace_of(f"berth-{secrets.token_hex(4)}"),
        "/api/v1/namespaces/default/resourcequotas": quota_of(pool, "default", 16),
        "/apis/batch/v1/namespaces/default/jobs": job_of(ORDER, pool, "default", ("n9",)),
    }
    if pool.kind == DRA:
        claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
        sent[claims] = claim_of(ORDER, pool, "default")

    for path, manifest in sent.items():
        kept, _headers = api.call(
            "POST", path, manifest, query={"dryRun": "All", "fieldValidation": "Strict"}
        )
        assert kept["metadata"]["name"] == manifest["metadata"]["name"]


class _Cluster:
    def start(self) -> None:
        """Nothing: its own controllers do what there is to do."""


@pytest.fixture
def bench(api: KubernetesClient, tmp_path: Path) -> Iterator[PoolBench]:
    if not os.environ.get("BERTH_KUBE_IMAGE"):
        pytest.skip("BERTH_KUBE_IMAGE and the other variables of a pool describe none")
    options = cli.parser({**os.environ, "BERTH_DRIVER": "kubernetes"}).parse_args([])
    settings = kubernetes_settings(options, wait_s=240, pool_id=secrets.token_hex(8))
    backend = KubernetesBackend(api, settings)
    backend.reachable()
    facts = backend.facts()
    if facts.units - facts.away - facts.used < 1:
        pytest.skip(f"the pool has no free unit: {facts}")
    yield PoolBench(_Cluster(), backend, tmp_path, boot_clock)
    backend.close()


def test_lease_is_a_pod_that_was_given_what_was_asked_and_leaves_nothing(bench: PoolBench) -> None:
    lease = f"lse-{secrets.token_hex(6)}"
    bench.want(lease, remaining_s=300)
    ready = bench.until("ready", lease, within=100_000)

    bench.want(lease, remaining_s=7200)
    bench.turn()
    bench.drop(lease)
    gone = bench.until("gone", lease, within=100_000)

    assert len(ready.access) == 1
    assert gone.reason == "withdrawn"
    assert not bench.backend.observe([f"berth-{lease}-g1"], strays=True)
