from __future__ import annotations

from collections.abc import Callable

import pynvml
import pytest

from nodeagent.drivers.nvml.inventory import topology
from nodeagent.drivers.nvml.inventory.topology import DeviceLinks, links_of


class Refused(Exception):
    """What the library raises when a driver does not know the call."""


class Library:
    """Two answers about pairs of devices, given by functions of their places."""

    NVMLError = Refused

    def __init__(
        self, linked: Callable[[int, int], bool] | None, ancestor: Callable[[int, int], int] | None
    ) -> None:
        self.linked, self.ancestor = linked, ancestor

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, caps: int) -> int:  # noqa: N802 - the library's name
        assert caps == pynvml.NVML_P2P_CAPS_INDEX_NVLINK
        if self.linked is None:
            raise Refused
        return pynvml.NVML_P2P_STATUS_OK if self.linked(one, other) else pynvml.NVML_P2P_STATUS_NOT_SUPPORTED

    def nvmlDeviceGetTopologyCommonAncestor(self, one: int, other: int) -> int:  # noqa: N802 - the library's name
        if self.ancestor is None:
            raise Refused
        return self.ancestor(one, other)


CARDS = {f"GPU-{place}": place for place in range(4)}


def test_devices_behind_one_nvswitch_are_one_domain_and_pairs_share_a_switch() -> None:
    def ancestor(one: int, other: int) -> int:
        same = one // 2 == other // 2
        return int(pynvml.NVML_TOPOLOGY_SINGLE if same else pynvml.NVML_TOPOLOGY_SYSTEM)

    found = links_of(Library(lambda one, other: True, ancestor), CARDS)

    assert list(found.values()) == [
        DeviceLinks("nvlink-0", "pcie-0"),
        DeviceLinks("nvlink-0", "pcie-0"),
        DeviceLinks("nvlink-0", "pcie-2"),
        DeviceLinks("nvlink-0", "pcie-2"),
    ]


def test_bridged_pairs_are_domains_of_their_own_and_a_device_alone_is_in_none() -> None:
    found = links_of(Library(lambda one, other: {one, other} == {1, 3}, lambda one, other: 40), CARDS)

    assert [links.link_domain for links in found.values()] == ["", "nvlink-1", "", "nvlink-1"]
    assert {links.pcie_switch for links in found.values()} == {""}


def test_a_chain_of_links_is_one_domain() -> None:
    found = links_of(Library(lambda one, other: other - one == 1, None), CARDS)

    assert {links.link_domain for links in found.values()} == {"nvlink-0"}


def test_a_driver_that_does_not_say_leaves_it_unknown() -> None:
    assert set(links_of(Library(None, None), CARDS).values()) == {DeviceLinks("", "")}


@pytest.mark.parametrize("name", ["nvmlDeviceGetP2PStatus", "nvmlDeviceGetTopologyCommonAncestor"])
def test_the_calls_are_those_of_the_binding(name: str) -> None:
    assert callable(getattr(pynvml, name))
    assert topology.P2P_CAPS_NVLINK == pynvml.NVML_P2P_CAPS_INDEX_NVLINK
    assert topology.TOPOLOGY_SINGLE == pynvml.NVML_TOPOLOGY_SINGLE
    assert topology.P2P_STATUS_OK == pynvml.NVML_P2P_STATUS_OK
