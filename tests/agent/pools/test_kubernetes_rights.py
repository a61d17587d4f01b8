"""The rights that the docs ask for are those that the agent uses: none is missing, none is too many."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import yaml

from nodeagent.backends.kubernetes.settings import DRA, PLUGIN
from tests.agent.pools.bench import PoolBench
from tests.agent.pools.kubernetes_double import KubernetesDouble

Right = tuple[str, str, str]
RIGHTS = Path("deploy/kubernetes/agent-rights.yaml")


def granted() -> set[Right]:
    """Return what the manifest grants, as group, resource and verb."""
    role = next(one for one in yaml.safe_load_all(RIGHTS.read_text()) if one["kind"] == "ClusterRole")
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group, resource, verb in product(rule["apiGroups"], rule["resources"], rule["verbs"])
    }


def walked(kind: str, state: Path) -> set[Right]:
    """Return what the agent asked for while a lease lived, was told, extended, met a twin of its name and ended."""
    double = KubernetesDouble(kind)
    try:
        bench = PoolBench(double, double.backend(), state)
        bench.cluster.loses_answer = True
        bench.want("a", remaining_s=600)
        job = bench.until("ready").entrance["job"]
        bench.want("a", remaining_s=7200)
        bench.turn()
        bench.backend.tell(job)
        bench.drop("a")
        bench.until("gone")
        double.quota = 1
        bench.want("b", 2)
        for _turn in range(3):  # by names the controller is refused, and its event says so
            bench.turn()
            double.start()
        PoolBench(double, double.backend(), state).backend._prepare(
            "berth-vision"
        )  # the fence is there already
        return set(double.rights)
    finally:
        double.close()


def test_rights_in_the_manifest_are_those_that_are_used(tmp_path: Path) -> None:
    used: set[Right] = set()
    for kind in (DRA, PLUGIN):
        (tmp_path / kind).mkdir()
        used |= walked(kind, tmp_path / kind)

    assert used == granted()


@pytest.mark.parametrize("word", ["'*'", "secrets", "impersonate", "escalate", "pods/exec"])
def test_rights_stay_small(word: str) -> None:
    assert word not in RIGHTS.read_text().partition("kind: ClusterRole")[2]
