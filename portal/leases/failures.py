"""Why a lease failed, in words for its holder, and what becomes of its request.

Nodes say ``code: detail``. The code is anybody's who sees the lease; the detail is the node's own English and may
name what belongs to others, so it is for operators.
"""

from __future__ import annotations

import re
from typing import Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.leases.models import Lease
from portal.leases.selectors import CLUSTER_BUSY, MAX_FAULTS, fault_count
from portal.leases.states import LeaseState, RequestState

FORGOTTEN: Final = "the node's agent came back without its records of this lease"
ENDED_BY_NODE: Final = "the node ended it"
UNHEARD: Final = "the node fell silent before it was ready"
BEGUN: Final = (LeaseState.PREPARING, LeaseState.ACTIVE, LeaseState.INTERRUPTED)
_SAID = re.compile(r"([a-z][a-z0-9_]*)(?::|$)")
_TEXTS: dict[str, object] = {
    FORGOTTEN: gettext_lazy("The node's agent came back without its records of this lease."),
    ENDED_BY_NODE: gettext_lazy("The node ended it."),
    UNHEARD: gettext_lazy("The node fell silent before it was ready."),
    "conflict": gettext_lazy("Something else stands in its place on the GPU."),
    "other_team": gettext_lazy("Another team's programs share this GPU, and one fault would end both."),
    "in_use": gettext_lazy("Programs of nobody's lease kept its GPU busy."),
    "mig_mode_refused": gettext_lazy("Its GPU could not change its MIG mode: something keeps it open."),
    "gpu_lost": gettext_lazy("Its GPU does not answer any more."),
    "partition_lost": gettext_lazy("Its slice was removed on the node, not by Berth."),
    "unknown_device": gettext_lazy("Its GPU is no longer in the node."),
    "empty_lease": gettext_lazy("The node was told of no place for it."),
    "lease_ended": gettext_lazy("It had ended on the node already."),
    "rebooted": gettext_lazy("The node restarted, and what it held is gone."),
    "refused_by_driver": gettext_lazy("The driver of the GPU refused to make its slice."),
    "not_offered": gettext_lazy("The node cannot give this GPU in this way."),
    "driver_error": gettext_lazy("The node could not make its slice."),
    "scratch": gettext_lazy("The node could not make its scratch folder."),
    "no_account": gettext_lazy("Its holder has no account on the node."),
    CLUSTER_BUSY: gettext_lazy("The cluster did not start its job in time."),
    "not_as_asked": gettext_lazy("The cluster gave its job other GPUs than it asked for."),
    "removed_by_other": gettext_lazy("Somebody ended its job in the cluster, not by Berth."),
    "host_lost": gettext_lazy("The cluster lost the host that it ran on."),
    "cluster_preempted": gettext_lazy("The cluster took its GPUs for another job."),
    "cluster_ended": gettext_lazy("The cluster ended its job before its time."),
    "out_of_memory": gettext_lazy("Its programs took more memory than the cluster gives, which ended them."),
    "device_lost": gettext_lazy("The cluster took its GPU out of service."),
    "job_changed": gettext_lazy("A rule of the cluster changed its job, so it was not let in."),
    "no_association": gettext_lazy("Its team or holder may not submit jobs in the cluster."),
    "over_limit": gettext_lazy("A limit of the cluster kept its job from starting."),
    **dict.fromkeys(
        ("not_allowed", "cluster_refused", "name_taken", "no_partition"),
        gettext_lazy("The cluster refused its job."),
    ),
    **dict.fromkeys(
        ("no_runtime", "no_systemd", "systemd", "unit_differs", "no_node", "unreadable", "bad_name", "cdi"),
        gettext_lazy("The node could not open it to its holder."),
    ),
}


def failure_code(fault: str) -> str:
    """Return the stable word of a fault, "" where it has none."""
    if fault in _TEXTS:
        return "" if " " in fault else fault
    found = _SAID.match(fault)
    return found[1] if found else ""


def public_fault(fault: str) -> str:
    """Return what of a fault anybody may read who sees the lease: its code, or our own sentence."""
    return fault if fault in _TEXTS else failure_code(fault)


def failure_detail(fault: str) -> str:
    """Return what the node said beyond the code, in its own words: for operators."""
    return fault.removeprefix(failure_code(fault)).lstrip(": ")


def failure_text(fault: str) -> str:
    """Return why a lease failed, as a sentence in the reader's language."""
    said = _TEXTS.get(fault) or _TEXTS.get(failure_code(fault))
    return str(said) if said else _("The node could not keep it.")


def why_failed(lease: Lease) -> str:
    """Return why a lease failed, in the reader's language; one without a fault of its own ended with another.

    Its request must be at hand.
    """
    if lease.is_extra and not lease.fault:
        return _("The lease it was grown from failed.")
    if lease.request.nodes != 1 and not lease.fault:
        return _("Another part of its gang failed, and all parts run together.")
    return failure_text(lease.fault)


def aftermath_text(lease: Lease) -> str:
    """Return what becomes of a failed lease's request; its relations must be at hand."""
    request = lease.request
    if lease.is_extra and lease.fault:
        base = request.leases.filter(generation=lease.generation, is_extra=False, state__in=BEGUN)
        return _("The lease it was grown from stays.") if base.exists() else ""
    if request.state == RequestState.QUEUED:
        return _("Its request is back in the queue with the time that is left.")
    if request.state == RequestState.IMPOSSIBLE and request.reasons:
        return _("Its request went back into the queue, but cannot be served any more; its page says why.")
    if request.state == RequestState.IMPOSSIBLE:
        return _("It failed too often, so its request was given up; an operator was told.")
    if request.state != RequestState.GRANTED:
        return ""
    if request.leases.filter(generation__gt=lease.generation).exists():
        return _("Its request went back into the queue and has a new lease.")
    if fault_count(request) >= MAX_FAULTS:
        return _("It failed too often: once everything it held is clean, its request is given up.")
    return _(
        "Once everything it held is clean, its request goes back into the queue with the time that is left."
    )
