from __future__ import annotations

import re
from datetime import timedelta

from portal.fleet.models import Device
from tests.portal.builders import World
from tests.web.conftest import SignedIn

PAGE = "/finance/capacity/"


def test_finance_opens_a_node_and_goes_down_to_the_leases_of_its_devices(
    world: World, signed_in: SignedIn
) -> None:
    lease = world.active("bob", "h100", duration_s=7200, at=world.now - timedelta(minutes=10))
    device = lease.placements.get().device
    finance, bob = signed_in("finance"), signed_in("bob")

    closed = finance.get(PAGE).text
    opened = finance.get(PAGE, {"node": device.node.name}).text

    assert (closed.count("Device 0"), closed.count('aria-expanded="true"')) == (0, 0)
    assert (opened.count("Device 0"), opened.count('aria-expanded="true"')) == (1, 1)
    links = set(re.findall(r'href="(/finance/months/[\d-]+/capacity/GPU-[^"]+)"', opened))
    assert {link.split("/")[-2].split("?")[0] for link in links} <= set(
        Device.objects.filter(node=device.node).values_list("uuid", flat=True)
    )
    assert bob.get(PAGE).status_code == 403
    assert finance.get(PAGE, {"node": "gpu-99"}).text.count("Device 0") == 0
    month = re.search(r"/finance/months/([\d-]+)/capacity/", opened)
    assert month is not None
    assert lease.uid in finance.get(f"/finance/months/{month[1]}/capacity/{device.uuid}/").text
    assert finance.get(f"/finance/months/{month[1]}/capacity/GPU-none/").status_code == 404
