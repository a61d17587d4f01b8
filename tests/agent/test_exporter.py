"""The agent's page for Prometheus."""

from __future__ import annotations

import asyncio
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from nodeagent import cli
from nodeagent.drivers.base import DriverReading
from nodeagent.link.exporter import ListenError, MetricsExporter, listen_address
from nodeagent.protocol.messages import DeviceSample, HealthFact
from nodeagent.reconcile.worker import Worker
from tests.agent.builder import SimulatedNode, lease


class Page:
    """What a scrape of a node gives, and how often its devices were read for it."""

    def __init__(self, node: SimulatedNode) -> None:
        self.node, self.readings = node, 0
        self.worker = Worker(node.reconciler, node.driver, node.time)
        self.exporter = MetricsExporter(self.worker, node.time, lambda: False)

    async def text(self) -> str:
        families = await self.exporter.read()
        registry = CollectorRegistry()
        registry.register(type("Kept", (), {"collect": lambda _self: families})())
        return generate_latest(registry).decode()


async def test_devices_and_slices_carry_lease_and_team_and_hostile_names_stay_inside_their_label(make_node):
    node = make_node(count=2)
    node.desire(lease("lse-a", node.mig("1g.10gb", 2)), lease('x"}\nevil 1', node.whole(1)))

    text = await Page(node).text()

    uuids = [fact.uuid for fact in node.facts]
    begin = f'DCGM_FI_DEV_FB_FREE{{Hostname="gpu-01",UUID="{uuids[0]}",gpu="0"'
    assert f'{begin},lease="lse-a",modelName="h100-80gb",slice="2",team="vision"}}' in text
    assert f'{begin},lease="",modelName="h100-80gb",slice="",team=""}}' in text
    assert r'lease="x\"}\nevil 1",modelName="h100-80gb",slice="",team="vision"' in text
    assert "\nevil" not in text
    assert 'berth_agent_leases{phase="ready"} 2.0' in text
    assert "berth_agent_connected 0.0" in text


async def test_what_is_unknown_is_left_out_and_an_open_xid_is_told(node, monkeypatch):
    reading = DriverReading((DeviceSample(node.device(), None, 1024, None, 40.0),))
    page = Page(node)
    monkeypatch.setattr(node.driver, "metrics", lambda: reading)
    node.reconciler.observe_health(
        (HealthFact(node.device(), "48", "critical", "double bit"),), node.time.now
    )

    told = await page.text()
    node.reconciler.observe_health(None, node.time.now)
    blind = await page.text()

    assert "DCGM_FI_DEV_GPU_UTIL" not in told
    assert "DCGM_FI_DEV_POWER_USAGE" not in told
    assert [line[-5:] for line in told.splitlines() if line.startswith("DCGM_FI_DEV_XID")] == [" 48.0"]
    assert "DCGM_FI_DEV_XID_ERRORS" not in blind


async def test_a_scrape_takes_what_was_read_a_moment_ago(node):
    page = Page(node)
    first = await page.worker.measure()

    assert await page.worker.recent_reading(10**9) is first
    node.time.advance(2)
    assert await page.worker.recent_reading(10**9) is not first


async def test_it_is_served_over_http_and_a_taken_port_is_a_sentence(node):
    page = Page(node)
    with page.exporter.serving("127.0.0.1", 0) as port:
        got = await asyncio.to_thread(
            lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read()
        )
        with (
            pytest.raises(ListenError, match="cannot serve metrics at"),
            page.exporter.serving("127.0.0.1", port),
        ):
            pass

    assert b"DCGM_FI_DEV_GPU_TEMP{" in got


@pytest.mark.parametrize(
    "address", ["9835", ":9835", "host", "host:0", "host:99999", "a@b:1", "h:1/x", "[::1"]
)
def test_addresses_that_make_no_sense_end_the_start(address, tmp_path, capsys):
    words = ["--portal", "ws://127.0.0.1:9", "--node", "n", "--state", str(tmp_path), "--driver", "simulated"]

    assert cli.main([*words, "--board", "l40s", "--metrics", address], {}) == 2
    assert "--metrics" in capsys.readouterr().err


def test_addresses_name_host_and_port():
    assert listen_address("127.0.0.1:9835") == ("127.0.0.1", 9835)
    assert listen_address("[::1]:9835") == ("::1", 9835)
