"""What an administrator says of a pool of a Kubernetes cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

DRA: Final = "dra"
PLUGIN: Final = "plugin"
HAMI: Final = "hami"
KINDS: Final = (DRA, PLUGIN, HAMI)
LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
NAMESPACE: Final = re.compile(r"(?:[a-z0-9-]|\{team\}){1,63}")
# A device class, or a resource with the domain of its vendor.
CLASS: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
RESOURCE: Final = re.compile(r"[a-z0-9.-]{1,200}/[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
PROFILE: Final = re.compile(r"[0-9]{1,2}[cg]\.[0-9a-z.+-]{2,20}")
IMAGE: Final = re.compile(r"[a-z0-9][A-Za-z0-9._:/@-]{0,400}")
LABEL_PAIR: Final = re.compile(r"(?:[a-z0-9.-]{1,200}/)?[A-Za-z0-9][A-Za-z0-9._-]{0,62}=[A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """One pool: where its units come from, what one is called and has, and in which namespace leases are.

    ``kind``: by dynamic resource allocation, by the device plugin, or by HAMi. ``classes`` are device classes, of which
    the first that can serve does; ``selector`` narrows them in CEL, ``profile`` to one size of MIG. ``resource`` is the
    name that containers ask for. ``share_mib`` is the memory of a unit where units share a device (0: they do not),
    ``cores`` its percent of compute (HAMi), ``replicas`` into how many units a device is cut. ``units`` is what is lent
    where it cannot be counted (0: it is counted), ``fence`` what a namespace may hold at most (None: all of the pool,
    0: no quota is set). ``nodes`` are labels of the hosts. ``pool_id`` marks what this agent made.
    """

    node: str
    kind: str
    image: str
    model: str
    memory_mib: int
    vendor: str = "nvidia"
    namespace: str = "berth-{team}"
    classes: tuple[str, ...] = ()
    selector: str = ""
    profile: str = ""
    resource: str = ""
    share_mib: int = 0
    cores: int = 0
    replicas: int = 1
    units: int = 0
    fence: int | None = None
    nodes: tuple[tuple[str, str], ...] = ()
    wait_s: int = 240
    pool_id: str = ""

    @property
    def expression(self) -> str:
        """Return what a device must be beyond its class, in CEL; "" for any."""
        parts = [f"({self.selector})"] if self.selector else []
        if self.profile:
            own = "device.attributes['gpu.nvidia.com']"
            # Without the first half a device that has no such attribute would stop the scheduler for every claim.
            parts.append(f"'profile' in {own} && {own}.profile == '{self.profile}'")
        return " && ".join(parts)
