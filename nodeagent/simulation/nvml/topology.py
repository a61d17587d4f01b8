"""Where simulated devices sit: pairs share a PCIe switch, fours a NUMA node, linked boards one domain of NVLink."""

from __future__ import annotations

from typing import Any

import pynvml

from nodeagent.drivers import errors
from nodeagent.simulation.machine.device import NvmlDevice
from nodeagent.simulation.nvml.session import NvmlSession, reads, refuse
from nodeagent.simulation.nvml.system import pci_info

# As the demo fleets have it (nodeagent/protocol/boards.py): two devices to a switch, four to a socket.
CARDS_PER_SWITCH, CARDS_PER_NODE, CORES_PER_NODE = 2, 4, 32
# Links of a device by architecture (NVIDIA data sheets: 12 on A100, 18 on H100 and later).
LINKS = {"ampere": 12, "hopper": 18, "blackwell": 18}


def _node(device: NvmlDevice) -> int:
    return device.index // CARDS_PER_NODE


class TopologyCalls(NvmlSession):
    """Calls about pairs of devices and their host."""

    @reads
    def nvmlDeviceGetTopologyCommonAncestor(self, one: Any, other: Any) -> int:
        """Return how far two devices are apart on PCIe."""
        a, b = self.whole(one), self.whole(other)
        if a is b:
            return int(pynvml.NVML_TOPOLOGY_INTERNAL)
        if a.index // CARDS_PER_SWITCH == b.index // CARDS_PER_SWITCH:
            return int(pynvml.NVML_TOPOLOGY_SINGLE)
        return int(pynvml.NVML_TOPOLOGY_NODE if _node(a) == _node(b) else pynvml.NVML_TOPOLOGY_SYSTEM)

    @reads
    def nvmlDeviceGetP2PStatus(self, one: Any, other: Any, index: int) -> int:
        """Return whether two devices reach each other's memory over NVLink or PCIe."""
        a, b = self.whole(one), self.whole(other)
        if a.gpu.mig_enabled or b.gpu.mig_enabled:
            return int(pynvml.NVML_P2P_STATUS_NOT_SUPPORTED)
        is_near = _node(a) == _node(b)
        if index == pynvml.NVML_P2P_CAPS_INDEX_NVLINK:
            is_near = a is not b and self._linked(a) and self._linked(b)
        return int(pynvml.NVML_P2P_STATUS_OK if is_near else pynvml.NVML_P2P_STATUS_NOT_SUPPORTED)

    @reads
    def nvmlDeviceGetNvLinkState(self, handle: Any, link: int) -> int:
        """Return whether a link is up; NOT_SUPPORTED on boards without."""
        return int(bool(self._peers(self.whole(handle), link)))

    @reads
    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: Any, link: int) -> Any:
        """Return the device at the other end of a link."""
        device = self.whole(handle)
        peers = self._peers(device, link)
        if not peers:
            raise refuse(errors.NOT_SUPPORTED)
        return pci_info(peers[link % len(peers)])

    nvmlDeviceGetNvLinkRemotePciInfo_v2 = nvmlDeviceGetNvLinkRemotePciInfo

    @reads
    def nvmlDeviceGetNumaNodeId(self, handle: Any) -> int:
        """Return the NUMA node."""
        return _node(self.whole(handle))

    @reads
    def nvmlDeviceGetCpuAffinity(self, handle: Any, words: int) -> Any:
        """Return the near CPU cores as bits in ``words`` 64-bit words."""
        first = _node(self.whole(handle)) * CORES_PER_NODE
        bits = ((1 << CORES_PER_NODE) - 1) << first
        table = (pynvml.c_ulonglong * words)()
        for place in range(words):
            table[place] = bits >> (64 * place) & (1 << 64) - 1
        return table

    def _linked(self, device: NvmlDevice) -> bool:
        return device.board.link == "nvlink"

    def _peers(self, device: NvmlDevice, link: int) -> list[NvmlDevice]:
        if not self._linked(device):
            raise refuse(errors.NOT_SUPPORTED)
        if not 0 <= link < LINKS.get(device.board.architecture, 0):
            raise refuse(errors.INVALID_ARGUMENT)
        return [other for other in self.host.devices if other is not device and self._linked(other)]
