"""A pool of a Kubernetes cluster as the options describe it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from nodeagent.backends.kubernetes.backend import KubernetesBackend
from nodeagent.backends.kubernetes.client import KubernetesClient
from nodeagent.backends.kubernetes.kubeconfig import KubeconfigError, from_file, in_cluster
from nodeagent.backends.kubernetes.settings import (
    CLASS,
    DRA,
    HAMI,
    IMAGE,
    KINDS,
    LABEL_PAIR,
    NAMESPACE,
    PLUGIN,
    PROFILE,
    RESOURCE,
    KubernetesSettings,
)
from nodeagent.commands.options import MOST_HOST, UsageError, described, whole

MOST_UNITS: Final = 10_000
MOST_SELECTOR: Final = 4_000


def kubernetes_settings(options: argparse.Namespace, *, wait_s: int, pool_id: str = "") -> KubernetesSettings:
    """Return the pool that the options describe; raises UsageError."""
    kind = options.kube_kind or DRA
    if kind not in KINDS:
        raise UsageError(f"--kube-kind is one of {', '.join(KINDS)}, not {kind[:40]!r}")
    if not IMAGE.fullmatch(options.kube_image):
        raise UsageError(
            "name the image that leases run in with --kube-image: it needs /bin/sh, kill and sleep"
        )
    namespace = options.kube_namespace or "berth-{team}"
    if not NAMESPACE.fullmatch(namespace):
        raise UsageError(
            "--kube-namespace has small letters, digits and dashes, and {team} for the team's name"
        )
    if options.kube_profile and not PROFILE.fullmatch(options.kube_profile):
        raise UsageError("--kube-profile is a size of MIG, such as 1g.10gb")
    nodes = [one for one in options.kube_nodes.split(",") if one]
    if not all(LABEL_PAIR.fullmatch(one) for one in nodes):
        raise UsageError("--kube-nodes are labels of hosts: NAME=VALUE, separated by commas")
    _require_kind(options, kind)
    share_gib = _number(options, "kube_share", MOST_HOST)
    replicas = _number(options, "kube_replicas", 1000) or 1
    classes, resource = tuple(one for one in options.kube_class.split(",") if one), options.kube_resource
    if kind == DRA and not (classes and all(CLASS.fullmatch(one) for one in classes)):
        raise UsageError(
            "name the device class to lend with --kube-class, as kubectl get deviceclasses lists it"
        )
    if kind != DRA and not RESOURCE.fullmatch(resource):
        raise UsageError("name what containers ask for with --kube-resource, such as nvidia.com/gpu")
    if len(options.kube_selector) > MOST_SELECTOR:
        raise UsageError(f"--kube-selector has at most {MOST_SELECTOR} characters")
    if kind == HAMI and (share_gib > 0) != (replicas > 1):
        raise UsageError(
            "a share of HAMi has memory (--kube-share), and a card so many of them (--kube-replicas)"
        )
    usual = classes[0] if classes else resource.rpartition("/")[2]
    model, vendor, memory_mib = described(options, "kube", usual)
    fence = options.kube_fence
    return KubernetesSettings(
        node=options.node, kind=kind, image=options.kube_image, model=model, vendor=vendor,
        memory_mib=share_gib * 1024 or memory_mib, namespace=namespace, classes=classes,
        selector=options.kube_selector, profile=options.kube_profile, resource=resource, share_mib=share_gib * 1024,
        cores=_number(options, "kube_cores", 100), replicas=replicas, units=_number(options, "kube_units", MOST_UNITS),
        fence=None if not fence else 0 if fence == "0" else whole(fence, "--kube-fence", MOST_UNITS),
        nodes=tuple((name, value) for name, _, value in (one.partition("=") for one in nodes)), wait_s=wait_s,
        pool_id=pool_id,
    )  # fmt: skip


def open_kubernetes(
    options: argparse.Namespace, *, wait_s: int, pool_id: str = "", environ: Mapping[str, str] = os.environ
) -> KubernetesBackend:
    """Return the back end; nothing is asked of the cluster yet. Raises UsageError."""
    settings = kubernetes_settings(options, wait_s=wait_s, pool_id=pool_id)
    try:
        if options.kube_config:
            login = from_file(Path(options.kube_config), options.kube_context)
        else:
            login = in_cluster(environ)
    except KubeconfigError as no:
        raise UsageError(str(no)) from no
    return KubernetesBackend(KubernetesClient(login), settings)


def _require_kind(options: argparse.Namespace, kind: str) -> None:
    """Refuse what another kind of pool knows: it would be passed over without a word."""
    known = {
        "kube_class": (DRA,), "kube_selector": (DRA,), "kube_profile": (DRA, PLUGIN), "kube_resource": (PLUGIN, HAMI),
        "kube_share": (DRA, HAMI), "kube_cores": (HAMI,), "kube_replicas": (PLUGIN, HAMI),
    }  # fmt: skip
    for name, kinds in known.items():
        if getattr(options, name) and kind not in kinds:
            raise UsageError(f"--{name.replace('_', '-')} means nothing to --kube-kind {kind}")


def _number(options: argparse.Namespace, name: str, most: int) -> int:
    """Return a number, 0 where it was not given; raises UsageError."""
    text = getattr(options, name)
    return whole(text, f"--{name.replace('_', '-')}", most) if text else 0
