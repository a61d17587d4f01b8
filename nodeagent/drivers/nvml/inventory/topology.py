"""Which devices of a host lie close together, asked of NVML pair by pair."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from nodeagent.drivers.nvml.inventory.identity import ask

# Numbers of nvml.h: a common ancestor at most this far means one PCIe switch; NVLink among the peer caps.
TOPOLOGY_SINGLE = 10
P2P_CAPS_NVLINK = 2
P2P_STATUS_OK = 0

Together = Callable[[Any, Any], bool]


class DeviceLinks(NamedTuple):
    """The link domain and PCIe switch of a device; "" where it has no company or the driver does not say."""

    link_domain: str
    pcie_switch: str


def links_of(nvml: Any, handles: Mapping[str, Any]) -> dict[str, DeviceLinks]:
    """Return where each device sits, by uuid. Devices form a group where a chain of pairs is close."""
    links = _groups(
        handles, lambda a, b: ask(nvml, "nvmlDeviceGetP2PStatus", a, b, P2P_CAPS_NVLINK) == P2P_STATUS_OK
    )
    switches = _groups(handles, lambda a, b: _is_near(ask(nvml, "nvmlDeviceGetTopologyCommonAncestor", a, b)))
    return {
        uuid: DeviceLinks(
            f"nvlink-{links[uuid]}" if uuid in links else "",
            f"pcie-{switches[uuid]}" if uuid in switches else "",
        )
        for uuid in handles
    }


def _is_near(ancestor: Any) -> bool:
    return ancestor is not None and int(ancestor) <= TOPOLOGY_SINGLE


def _groups(handles: Mapping[str, Any], is_close: Together) -> dict[str, int]:
    """Number the groups of devices that are close, by the place of their first device; alone is in no group."""
    uuids = list(handles)
    first = {uuid: place for place, uuid in enumerate(uuids)}
    for place, one in enumerate(uuids):
        for other in uuids[place + 1 :]:
            if first[one] != first[other] and is_close(handles[one], handles[other]):
                low, high = sorted((first[one], first[other]))
                first = {uuid: low if group == high else group for uuid, group in first.items()}
    sizes = list(first.values())
    return {uuid: group for uuid, group in first.items() if sizes.count(group) > 1}
