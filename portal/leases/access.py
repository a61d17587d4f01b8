"""How a holder gets into a lease, as its node told when it opened it.

A node's words end up in its holder's shell: what they may be is checked when they are stored, and once more here,
because rows may be older than the check.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nodeagent.protocol.forms import is_device_node
from nodeagent.protocol.messages import LeaseReport, SlotAccess
from nodeagent.protocol.variables import allowed, merged
from portal.leases.models import Lease, Placement

_DEVICES = "CUDA_VISIBLE_DEVICES"

# What goes into a command that people paste: names of units and CDI devices, nothing a shell would read.
_NAME = re.compile(r"[A-Za-z0-9/][A-Za-z0-9._@:/=+-]{0,150}")
_IS_ISOLATED = {"yes": True, "no": False}


@dataclass(frozen=True, slots=True)
class WayIn:
    """``unit`` to enter on the node, ``cdi`` name for containers, file with the environment; "" where there is none.

    ``cdi_dir`` is where Podman must be told to look for that name; "": it does by itself (docs/access.md).
    ``is_isolated`` says whether the node keeps other leases' devices out of it; None is unknown. ``scratch`` is the
    lease's own folder on the node, which goes with it, ``scratch_gib`` what it may hold (None: no limit), ``data_sets``
    where the team's are. ``job`` is its number in a cluster, ``host`` where that runs ("": it waits), ``reason`` the
    cluster's word for why it waits.
    """

    runtime: str = ""
    unit: str = ""
    cdi: str = ""
    cdi_dir: str = ""
    env_file: str = ""
    is_isolated: bool | None = None
    scratch: str = ""
    scratch_gib: int | None = None
    data_sets: str = ""
    job: str = ""
    host: str = ""
    reason: str = ""

    def commands(self, lease: str) -> list[tuple[str, str]]:
        """Return what to type on the node, each with the kind of way: unit, docker, podman, job, pod, file."""
        found = [("unit", f"sudo berth-agent enter {lease}")] if self.unit else []
        if self.cdi:
            where = f" --cdi-spec-dir {self.cdi_dir}" if self.cdi_dir else ""
            engines = {"docker": "docker", "podman": f"sudo podman{where}"}
            found += [
                (kind, f"{engine} run --rm -it --device {self.cdi} IMAGE") for kind, engine in engines.items()
            ]
        if self.job and self.host and self.runtime == "kubernetes":
            namespace, _, name = self.job.partition("/")
            found.append(("pod", f"kubectl -n {namespace} exec -it job/{name} -- sh"))
        elif self.job and self.host:
            found.append(("job", f"srun --jobid={self.job} --overlap --pty bash"))
        if self.env_file:
            found.append(("file", f". {self.env_file}"))
        return found


def way_in(placements: Sequence[Placement]) -> WayIn:
    """Return how the lease of these placements is entered, as far as its agent said."""
    for placement in placements:
        told = placement.access.get("entrance") if isinstance(placement.access, dict) else None
        if isinstance(told, dict) and told:
            return WayIn(
                runtime=_name(told.get("runtime")),
                unit=_name(told.get("unit")),
                cdi=_name(told.get("cdi")),
                cdi_dir=_name(told.get("cdi_dir")),
                env_file=_name(told.get("env_file")),
                is_isolated=_IS_ISOLATED.get(str(told.get("isolated"))),
                scratch=_path(told.get("scratch")),
                scratch_gib=_count(told.get("scratch_gib")),
                data_sets=_path(told.get("data")),
                job=_name(told.get("job")),
                host=_name(told.get("host")),
                reason=_name(told.get("reason")),
            )
    return WayIn()


def scratch_of(lease: Lease) -> str:
    """Return the scratch folder that a lease has, or had, on its node; "" where it had none, as far as is known."""
    return way_in(list(Placement.objects.filter(lease=lease).order_by("id")[:1])).scratch


def commands_of(lease: Lease, way: WayIn) -> list[str]:
    """Return the commands alone."""
    return [line for _kind, line in way.commands(lease.uid)]


def access_of(slot: SlotAccess, lease: LeaseReport) -> dict[str, Any]:
    """Return what is kept of how one slot is reached: of a node's words only those that may be used."""
    entrance = {word: text for word, text in lease.entrance.items() if _name(text)}
    return {"env": allowed(slot.env), "nodes": _nodes(slot.nodes), "entrance": entrance}


def waiting_of(lease: LeaseReport) -> dict[str, Any]:
    """Return what is kept of a lease that its node does not let its holder into yet."""
    return {"entrance": {word: text for word, text in lease.entrance.items() if _name(text)}}


def environment(placement: Placement) -> dict[str, str]:
    """Return the variables of one placement; of a node that told none, what points CUDA at the partition."""
    told = placement.access.get("env") if isinstance(placement.access, dict) else None
    if told or not placement.partition_uuid:
        return allowed(told)
    return allowed({_DEVICES: placement.partition_uuid})


def whole_environment(placements: Sequence[Placement], gang: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a lease: those of all its placements as one, its folders, and ``gang``, our own."""
    way = way_in(placements)
    folders = {"BERTH_SCRATCH": way.scratch, "BERTH_DATA_SETS": way.data_sets}
    found = merged(environment(placement) for placement in placements)
    return found | {name: path for name, path in folders.items() if path} | dict(gang)


def device_nodes(placement: Placement) -> list[str]:
    """Return the device nodes that were opened for one placement."""
    return _nodes(placement.access.get("nodes") if isinstance(placement.access, dict) else None)


def _nodes(told: object) -> list[str]:
    paths = told if isinstance(told, list | tuple) else ()
    return [path for path in paths if isinstance(path, str) and is_device_node(path)]


def _path(value: object) -> str:
    path = _name(value)
    return path if path.startswith("/") and ".." not in path.split("/") else ""


def _count(value: object) -> int | None:
    return int(value) if isinstance(value, str) and re.fullmatch(r"[1-9][0-9]{0,6}", value) else None


def _name(value: object) -> str:
    return value if isinstance(value, str) and _NAME.fullmatch(value) else ""
