"""A pool of a Kubernetes cluster beyond what every back end does: how it is counted, asked for, read back and ended."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from nodeagent import cli
from nodeagent.backends.base import BackendRefusedError, LeaseOrder
from nodeagent.backends.kubernetes.counting import by_names, by_slices
from nodeagent.backends.kubernetes.manifests import (
    HOLDER,
    claim_of,
    difference,
    job_of,
    namespace_of,
    quota_of,
)
from nodeagent.backends.kubernetes.quantities import instant, quantity
from nodeagent.backends.kubernetes.reading import ASKED_S, given, read_lease
from nodeagent.backends.kubernetes.selectors import (
    MissingAttributeError,
    SelectedDevice,
    UnreadableSelectorError,
    matches,
)
from nodeagent.backends.kubernetes.settings import DRA, HAMI, PLUGIN, KubernetesSettings
from tests.agent.pools.bench import PoolBench
from tests.agent.pools.kubernetes_double import KubernetesDouble
from tests.agent.pools.kubernetes_schemas import SCHEMAS

OWN = "device.attributes['gpu.nvidia.com']"


@pytest.fixture
def double(request: pytest.FixtureRequest) -> Iterator[KubernetesDouble]:
    cluster = KubernetesDouble(getattr(request, "param", DRA))
    yield cluster
    cluster.close()


@pytest.fixture
def bench(double: KubernetesDouble, tmp_path: Path) -> PoolBench:
    return PoolBench(double, double.backend(), tmp_path)


def pool(**words: Any) -> KubernetesSettings:
    usual: dict[str, Any] = {
        "node": "pool_1", "kind": DRA, "image": "i", "model": "a100-80gb", "memory_mib": 81920, "pool_id": "p00l",
        "classes": ("gpu.nvidia.com",),
    }  # fmt: skip
    return KubernetesSettings(**(usual | words))


ORDER = LeaseOrder("berth-lse-1-g1", "lse-1", 1, "bob", "vision", 2, 600, cpu_milli=8000, memory_mib=65536)
KINDS = {
    "whole": pool(),
    "profile": pool(
        classes=("mig.nvidia.com",), profile="1g.10gb", selector=f"{OWN}.productName.contains('H100')"
    ),
    "share": pool(share_mib=20480, nodes=(("rack", "r1"),)),
    "first available": pool(classes=("big.example.org", "gpu.nvidia.com")),
    "plugin": pool(kind=PLUGIN, classes=(), resource="nvidia.com/mig-1g.10gb"),
    "hami": pool(kind=HAMI, classes=(), resource="nvidia.com/gpu", share_mib=20480, cores=25, replicas=4),
}


# What is sent


@pytest.mark.parametrize("kind", KINDS)
def test_manifests_have_the_form_that_a_strict_server_takes(kind: str) -> None:
    settings = KINDS[kind]

    sent = {
        "namespaces": namespace_of("berth-vision"),
        "resourcequotas": quota_of(settings, "berth-vision", 16),
        "jobs": job_of(ORDER, settings, "berth-vision", ("n9",)),
    }
    if settings.kind == DRA:
        sent["resourceclaims"] = claim_of(ORDER, settings, "berth-vision")

    for name, manifest in sent.items():
        jsonschema.validate(manifest, SCHEMAS[name])
        broken = copy.deepcopy(manifest)
        broken["metadata"]["lables"] = {}
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, SCHEMAS[name])
    assert all(len(one) < 64 for one in sent["jobs"]["metadata"]["labels"].values())


def test_units_are_asked_for_by_what_the_pool_says() -> None:
    def asked(kind: str) -> Any:
        return claim_of(ORDER, KINDS[kind], "n")["spec"]["devices"]["requests"][0]

    def limits(kind: str) -> Any:
        return job_of(ORDER, KINDS[kind], "n")["spec"]["template"]["spec"]["containers"][0]["resources"][
            "limits"
        ]

    assert asked("whole")["exactly"] == {
        "deviceClassName": "gpu.nvidia.com",
        "allocationMode": "ExactCount",
        "count": 2,
    }
    assert asked("profile")["exactly"]["selectors"][0]["cel"]["expression"] == (
        f"({OWN}.productName.contains('H100')) && 'profile' in {OWN} && {OWN}.profile == '1g.10gb'"
    )
    assert asked("share")["exactly"]["capacity"] == {"requests": {"memory": "20480Mi"}}
    assert [one["deviceClassName"] for one in asked("first available")["firstAvailable"]] == [
        "big.example.org",
        "gpu.nvidia.com",
    ]
    assert limits("plugin")["nvidia.com/mig-1g.10gb"] == "2"
    assert limits("hami") == {
        "cpu": "8000m", "memory": "65536Mi", "nvidia.com/gpu": "2", "nvidia.com/gpumem": "20480",
        "nvidia.com/gpucores": "25",
    }  # fmt: skip
    assert job_of(ORDER, KINDS["hami"], "n")["spec"]["template"]["spec"]["schedulerName"] == "hami-scheduler"


def test_quota_names_what_counts_and_not_what_is_accepted_and_counts_nothing() -> None:
    assert quota_of(KINDS["whole"], "n", 16)["spec"]["hard"] == {
        "gpu.nvidia.com.deviceclass.resource.k8s.io/devices": "16"
    }
    assert quota_of(KINDS["plugin"], "n", 7)["spec"]["hard"] == {"requests.nvidia.com/mig-1g.10gb": "7"}


def test_difference_is_found_by_its_place_and_defaults_of_the_server_are_none() -> None:
    sent = {"a": {"limits": {"cpu": "8000m"}}, "list": [{"x": 1}]}

    assert difference(sent, {"a": {"limits": {"cpu": "8"}, "own": 1}, "list": [{"x": 1, "y": 2}]}) == ""
    assert difference(sent, {"a": {"limits": {"cpu": "4"}}, "list": [{"x": 1}]}) == ".a.limits.cpu"
    assert difference(sent, {"a": {"limits": {"cpu": "8"}}, "list": [{"x": 1}, {}]}) == ".list"


# What is counted


def device(**attributes: Any) -> SelectedDevice:
    told = {
        name: {"string": value} if isinstance(value, str) else {"bool": value}
        for name, value in attributes.items()
    }
    return SelectedDevice.of(
        "gpu.nvidia.com", {"attributes": told, "capacity": {"memory": {"value": "80Gi"}}}
    )


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        ("", True),
        ("device.driver == 'gpu.nvidia.com'", True),
        (f"{OWN}.type == 'gpu' && {OWN}.big == true", True),
        ('device.attributes["gpu.nvidia.com"]["type"] != "mig"', True),
        (f"({OWN}.productName.lowerAscii().contains('h100'))", True),
        (f"{OWN}.productName.startsWith('AMD')", False),
        ("device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('70Gi')) >= 0", True),
        ("device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('81Gi')) >= 0", False),
        (f"'profile' in {OWN} && {OWN}.profile == '1g.10gb'", False),
        ("'resource.kubernetes.io/x' in device.attributes['y'] && device.driver == 'a && b'", False),
    ],
)
def test_selector_is_evaluated_as_the_scheduler_would(expression: str, holds: bool) -> None:
    assert matches(expression, device(type="gpu", productName="NVIDIA H100 80GB", big=True)) is holds


def test_selector_that_reads_what_a_device_lacks_or_more_than_is_known_here_is_no_guess() -> None:
    with pytest.raises(MissingAttributeError, match="/index"):
        matches(f"{OWN}.index == 3", device(type="gpu"))
    with pytest.raises(UnreadableSelectorError, match="matches"):
        matches(f"{OWN}.type.matches('g.u')", device(type="gpu"))
    assert matches(f"{OWN}.index == 3 && {OWN}.type == 'mig'", device(type="gpu")) is False


CLASSES = {"gpu.nvidia.com": [f"{OWN}.type == 'gpu'"], "mig.nvidia.com": [f"{OWN}.type == 'mig'"]}
READY = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}


def slice_of(
    devices: list[dict[str, Any]], host: str = "n1", generation: int = 1, **more: Any
) -> dict[str, Any]:
    group = {"name": host, "generation": generation}
    return {"spec": {"driver": "gpu.nvidia.com", "nodeName": host, "pool": group, "devices": devices, **more}}


def gpu(name: str, **more: Any) -> dict[str, Any]:
    told = {"type": {"string": "gpu"}, "productName": {"string": "H100"}}
    return {"name": name, "attributes": told, "capacity": {"memory": {"value": "80Gi"}}, **more}


def held(*devices: str, **more: Any) -> dict[str, Any]:
    results = [{"driver": "gpu.nvidia.com", "pool": "n1", "device": name, **more} for name in devices]
    return {"status": {"allocation": {"devices": {"results": results}}}}


def test_slices_of_one_card_are_counted_by_what_they_draw_on_and_a_card_that_is_taken_whole_has_none() -> (
    None
):
    size = {"type": {"string": "mig"}, "profile": {"string": "3g.40gb"}}
    other = {"type": {"string": "mig"}, "profile": {"string": "1g.10gb"}}

    def draws(memory: int) -> Any:
        return [{"counterSet": "gpu-0", "counters": {"memory": {"value": f"{memory}Gi"}}}]

    devices = [
        gpu("gpu-0", consumesCounters=draws(80)),
        *({"name": f"s{n}", "attributes": size, "consumesCounters": draws(40)} for n in range(3)),
        {"name": "t", "attributes": other, "consumesCounters": draws(10)},
    ]
    counters = [{"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}]
    slices = [slice_of(devices, sharedCounters=counters), slice_of([gpu("old")], generation=0)]
    mig = pool(classes=("mig.nvidia.com",), profile="3g.40gb")

    def used(*names: str) -> tuple[int, int]:
        # What others hold draws on the same card whether this pool lends such or not.
        facts = by_slices(mig, CLASSES, slices, [held(*names)] if names else [], {"n1": READY}).facts
        return facts.units, facts.used

    assert [used(), used("s0"), used("t"), used("gpu-0")] == [(2, 0), (2, 1), (2, 1), (2, 2)]


def test_shares_are_counted_by_memory_and_only_of_cards_that_may_be_shared() -> None:
    slices = [slice_of([gpu("gpu-0", allowMultipleAllocations=True), gpu("gpu-1")])]
    taken = held("gpu-0", consumedCapacity={"memory": "30Gi"})

    facts = by_slices(pool(share_mib=20480), CLASSES, slices, [taken], {"n1": READY}).facts

    assert (facts.units, facts.used, facts.most_on_one) == (4, 2, 4)


def test_device_with_a_taint_is_away_and_slices_without_what_is_read_are_told_of() -> None:
    slices = [slice_of([gpu("gpu-0"), gpu("gpu-1", taints=[{"key": "sick", "effect": "NoExecute"}])])]
    cordoned = {**READY, "spec": {"unschedulable": True}}

    sick = by_slices(pool(), CLASSES, slices, [], {"n1": READY}).facts
    closed = by_slices(pool(), CLASSES, slices, [], {"n1": cordoned}).facts
    unguarded = by_slices(pool(selector=f"{OWN}.index == 0"), CLASSES, slices, [], {"n1": READY}).facts
    unread = by_slices(pool(selector="1 < 2", units=3), CLASSES, slices, [], {"n1": READY}).facts
    nowhere = by_slices(pool(classes=("x",)), CLASSES, slices, [], {"n1": READY}).facts

    assert (sick.units, sick.away, sick.notes[0][0]) == (2, 1, "hosts_away")
    assert "gpu-1 with the taint sick" in sick.notes[0][1]
    assert (closed.away, closed.most_on_one) == (2, 0)
    assert (unguarded.units, [code for code, _said in unguarded.notes]) == (
        0,
        ["selector_unguarded", "no_units"],
    )
    assert (unread.units, [code for code, _said in unread.notes]) == (3, ["selector_unreadable"])
    assert [code for code, _said in nowhere.notes] == ["no_class", "no_units"]


def node(units: int, **labels: str) -> dict[str, Any]:
    told = {name.replace("__", "/").replace("_", "."): value for name, value in labels.items()}
    status = {
        **READY["status"],
        "capacity": {"nvidia.com/gpu": str(units)},
        "allocatable": {"nvidia.com/gpu": str(units)},
    }
    return {"metadata": {"labels": told}, "status": status}


def test_replicas_and_slices_under_the_name_of_a_gpu_are_counted_as_what_they_are() -> None:
    nodes = {
        "whole": node(8, nvidia_com__gpu_replicas="1"),
        "timed": node(32, nvidia_com__gpu_replicas="4"),
        "mig": node(14, nvidia_com__gpu_product="NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"),
    }

    def found(**words: Any) -> Any:
        return by_names(pool(kind=PLUGIN, resource="nvidia.com/gpu", **words), nodes, [])

    whole, shares, slices = found(), found(replicas=4), found(profile="1g.10gb")

    assert (whole.facts.units, whole.misfits) == (8, ("mig", "timed"))
    assert "gives each GPU to 4 at a time" in whole.facts.notes[0][1]
    assert (shares.facts.units, shares.misfits) == (32, ("mig", "whole"))
    assert (slices.facts.units, slices.misfits) == (22, ("timed",))


def test_pods_of_others_hold_what_they_ask_for() -> None:
    def pod(phase: str = "Running", **limits: str) -> dict[str, Any]:
        told = {name.replace("_", "nvidia.com/"): value for name, value in limits.items()}
        spec = {"nodeName": "n1", "containers": [{"resources": {"limits": told}}]}
        return {"spec": spec, "status": {"phase": phase}}

    hami = pool(kind=HAMI, resource="nvidia.com/gpu", share_mib=20480, replicas=4)
    pods = [pod(_gpu="2", _gpumem="30000"), pod(_gpu="1"), pod("Succeeded", _gpu="8")]
    by_share = by_names(hami, {"n1": node(0, nvidia_com__gpu_count="4")}, pods).facts
    by_name = by_names(pool(kind=PLUGIN, resource="nvidia.com/gpu"), {"n1": node(8)}, pods).facts

    assert (by_share.units, by_share.used) == (16, 2 * 2 + 4)
    assert (by_name.units, by_name.used) == (8, 3)


# What is read


def test_share_of_hami_that_is_smaller_than_asked_is_no_unit() -> None:
    hami = pool(kind=HAMI, resource="nvidia.com/gpu", share_mib=20480)
    told = "GPU-1,NVIDIA,20480,25:GPU-2,NVIDIA,1024,25:;"
    pod = {
        "metadata": {"uid": "u", "annotations": {"hami.io/vgpu-devices-allocated": told}},
        "spec": {"nodeName": "n1"},
    }

    assert given(hami, pod, None, {}) == ("n1/GPU-1/u-0",)


def test_pod_that_lost_its_claim_on_the_way_was_given_nothing() -> None:
    result = {"request": "unit", "driver": "d", "pool": "n1", "device": "gpu-0"}
    claim = {"status": {"allocation": {"devices": {"results": [result, {**result, "adminAccess": True}]}}}}
    spec = {
        "resourceClaims": [{"name": "unit"}],
        "containers": [{"resources": {"claims": [{"name": "unit"}]}}],
    }

    assert given(pool(), {"spec": spec}, claim, {("d", "n1", "gpu-0"): "GPU-1"}) == ("n1/GPU-1",)
    assert given(pool(), {"spec": {**spec, "containers": [{}]}}, claim, {}) == ()


def test_pod_that_was_asked_to_end_runs_until_it_has_ended() -> None:
    state = {"state": {"running": {"startedAt": "2026-08-01T10:00:00Z"}}, "name": "work"}
    pod = {"status": {"phase": "Running", "containerStatuses": [state]}}

    def phase(grace_s: int) -> str:
        meta = {"deletionTimestamp": "2026-08-01T11:00:00Z", "deletionGracePeriodSeconds": grace_s}
        return read_lease("n", "ns", {}, [{**pod, "metadata": meta}], None).phase

    assert (phase(ASKED_S), phase(30)) == ("running", "ending")
    assert read_lease("n", "ns", {}, [pod], None).started_at == 1785578400


@pytest.mark.parametrize(
    ("pod", "code"),
    [
        ({"status": {"reason": "UnexpectedAdmissionError", "message": "no device"}}, "not_as_asked"),
        ({"status": {"reason": "Evicted", "message": "low on disk"}}, "cluster_ended"),
        (
            {
                "status": {
                    "containerStatuses": [{"name": "work", "state": {"terminated": {"reason": "OOMKilled"}}}]
                }
            },
            "out_of_memory",
        ),
        ({"metadata": {"deletionTimestamp": "2026-08-01T11:00:00Z"}}, "removed_by_other"),
        ({}, "cluster_ended"),
    ],
)
def test_job_that_is_over_says_why(pod: dict[str, Any], code: str) -> None:
    pod = {**pod, "status": {"phase": "Failed", **pod.get("status", {})}}

    assert read_lease("n", "ns", {}, [pod], None).code == code


def test_quantities_and_instants_are_read_or_unknown() -> None:
    assert [quantity(one) for one in ("80Gi", "500m", "1e3", "2k", "x", None)][:4] == [
        80 * 2**30,
        0.5,
        1000,
        2000,
    ]
    assert [quantity("x"), quantity(None), instant("soon"), instant(None)] == [None] * 4


# What befalls a lease


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("PreemptionByScheduler", "cluster_preempted"),
        ("DeletionByTaintManager", "host_lost"),
        ("DeletionByDeviceTaintManager", "device_lost"),
        ("EvictionByEvictionAPI", "cluster_ended"),
    ],
)
def test_pod_that_the_cluster_ends_fails_its_lease_with_the_reason(
    reason: str, code: str, bench: PoolBench, double: KubernetesDouble
) -> None:
    bench.want("a")
    job = bench.until("ready").entrance["job"]

    double.disrupt(double.pod(job), reason)

    assert bench.until("failed").code == code
    bench.drop("a")
    bench.until("gone")
    assert double.all("pods") == []


def test_job_that_a_webhook_changed_is_ended_and_the_place_is_named(
    bench: PoolBench, double: KubernetesDouble
) -> None:
    def shorten(job: dict[str, Any]) -> None:
        job["spec"]["template"]["spec"]["containers"][0]["image"] = "their/own:1"

    double.mutates = shorten
    bench.want("a")

    failed = bench.until("failed", within=5)

    assert failed.code == "job_changed"
    assert "containers[0].image is not what was sent" in failed.detail
    assert [double.all(kind) for kind in ("jobs", "resourceclaims")] == [[], []]


@pytest.mark.parametrize("double", [DRA, PLUGIN], indirect=True)
def test_quota_of_a_namespace_is_a_reason_to_wait_and_then_to_queue_again(
    bench: PoolBench, double: KubernetesDouble
) -> None:
    double.quota = 1
    bench.want("a", 2)
    for _turn in range(3):
        bench.turn()
        double.start()
    waiting = bench.report()
    failed = bench.until("failed")

    assert waiting is not None
    assert "exceeded_quota" in waiting.entrance["reason"]
    assert (failed.code, "exceeded quota" in failed.detail) == ("cluster_busy", True)
    assert [list(one["spec"]["hard"].values()) for one in double.all("resourcequotas")] == [["16"]]


def test_pod_that_the_scheduler_gives_up_on_fails_at_once(bench: PoolBench, double: KubernetesDouble) -> None:
    bench.cluster.foreign(8)
    bench.cluster.foreign(8, name="eval")
    bench.want("a")
    for _turn in range(2):
        bench.turn()
        double.start()
    pod = double.pod("berth-vision/berth-a-g1")
    said = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "SchedulerError",
        "message": "no such key: index",
    }
    pod["status"]["conditions"] = [said]
    double.put("pods", pod)
    double.catch_up()

    for _turn in range(2):
        bench.turn()

    report = bench.report()
    assert report is not None
    assert (report.phase, report.code, "no such key: index" in report.detail) == (
        "failed",
        "not_offered",
        True,
    )


def test_claim_without_a_job_is_swept_away_and_one_in_use_is_not(
    bench: PoolBench, double: KubernetesDouble
) -> None:
    bench.want("a")
    bench.until("ready")
    left = claim_of(ORDER, pool(), "berth-vision")
    double.put("resourceclaims", left, "berth-vision")
    double.catch_up()

    bench.look()

    assert [one["metadata"]["name"] for one in double.all("resourceclaims")] == ["berth-a-g1"]


def test_lease_wider_than_a_host_and_a_team_that_is_no_namespace_are_refused_with_a_sentence(
    bench: PoolBench,
) -> None:
    backend = bench.backend
    with pytest.raises(BackendRefusedError, match="a lease is one pod") as wide:
        backend.ensure(LeaseOrder("berth-a-g1", "a", 1, "bob", "vision", 9, 600))
    with pytest.raises(BackendRefusedError, match="is no name of a namespace"):
        backend.ensure(LeaseOrder("berth-a-g1", "a", 1, "bob", "Vision_Lab", 1, 600))

    assert wide.value.code == "not_offered"


def test_notice_is_written_where_programs_read_it_and_grace_is_theirs(
    bench: PoolBench, double: KubernetesDouble
) -> None:
    bench.want("a")
    job = bench.until("ready").entrance["job"]

    bench.backend.tell(job)
    bench.backend.end(job, asks=True)
    asked = copy.deepcopy(double.pod(job))
    bench.backend.end(job, asks=False)

    assert "will be ended" in asked["metadata"]["annotations"]["berth.dev/notice"]
    assert asked["metadata"]["deletionGracePeriodSeconds"] == ASKED_S
    assert double.pod(job)["metadata"]["deletionGracePeriodSeconds"] == 1


def test_holder_passes_the_signal_on_and_waits_for_all_programs(tmp_path: Path) -> None:
    """As the first process of a container: programs beside it are told, and it ends when the last one has."""
    alone = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("process namespaces cannot be made here")
    told = tmp_path / "told"
    program = (
        f'(trap "sleep 0.2; echo told > {told}; exit" TERM; while :; do sleep 0.05; done) & exec sh -c "$0"'
    )

    with subprocess.Popen([*alone, "sh", "-c", program, HOLDER]) as outer:
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        for _try in range(200):  # before its trap is set, the first process of a namespace is deaf
            with suppress(ProcessLookupError):
                for child in children.read_text().split() if children.exists() else ():
                    os.kill(int(child), signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                outer.wait(0.1)
                break
        code = outer.poll()
        outer.kill()

    assert (code, told.read_text()) == (0, "told\n")


def test_pool_that_was_not_counted_yet_has_its_fence_with_the_next_lease(double: KubernetesDouble) -> None:
    backend = double.backend()
    backend.ensure(ORDER)
    before = double.all("resourcequotas")
    backend.facts()

    backend.ensure(replace(ORDER, name="berth-lse-2-g1", lease="lse-2"))

    assert (before, len(double.all("resourcequotas"))) == ([], 1)


# How it is described


WORDS = (
    "check", "--node", "p", "--driver", "kubernetes", "--kube-image", "holder:1", "--kube-class", "gpu.nvidia.com",
    "--kube-model", "a100-80gb", "--kube-config", "/nowhere/config",
)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "/nowhere/config cannot be read"),
        (("--kube-kind", "vgpu"), "one of dra, plugin, hami"),
        (("--kube-image", ""), "--kube-image"),
        (("--kube-class", ""), "--kube-class"),
        (("--kube-class", "", "--kube-kind", "plugin"), "--kube-resource"),
        (("--kube-kind", "plugin", "--kube-resource", "nvidia.com/gpu"), "--kube-class means nothing"),
        (("--kube-namespace", "Berth"), "--kube-namespace"),
        (("--kube-profile", "half"), "--kube-profile"),
        (("--kube-nodes", "rack"), "--kube-nodes"),
        (("--kube-share", "lots"), "--kube-share is a whole number"),
        (("--kube-model", "x"), "--kube-memory"),
        (("--slurm-gres", "gpu"), "--slurm-gres is not known to --driver kubernetes"),
        (("--kube-wait", "271"), "from 1 to 270"),
    ],
)
def test_description_that_makes_no_sense_ends_the_start(
    words: tuple[str, ...], sentence: str, capsys: Any
) -> None:
    assert cli.main([*WORDS, *words], {}) == cli.USAGE

    assert sentence in capsys.readouterr().err


def test_check_says_what_a_pool_consists_of(double: KubernetesDouble, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "config"
    tree = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": f"http://127.0.0.1:{double.server.server_port}"}}],
        "users": [{"name": "u", "user": {"token": "first"}}],
    }
    file.write_text(json.dumps(tree))

    code = cli.main([*WORDS, "--kube-config", str(file)], {})

    assert code == cli.OK
    said = capsys.readouterr().out
    assert "kubernetes v1.36.2" in said
    assert "units     16" in said
