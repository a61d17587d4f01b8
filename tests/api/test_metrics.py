"""Figures for Prometheus: what they say, to whom, at what cost, and that dashboards and rules ask for no others."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from nodeagent.link.exporter import HOST_FAMILIES
from nodeagent.protocol.dcgm_fields import FIELDS
from portal.api.metric_families import FAMILIES
from portal.common.live import redis_client
from portal.fleet.models import Device, HealthEvent
from portal.gateway.stream_counts import COUNTS
from portal.telemetry.frames import DeviceNow, ExtraFigures, Frame, SlotNow, pack
from portal.telemetry.latest import LATEST
from tests.portal.builders import World

DEPLOY = Path(__file__).parents[2] / "deploy"
KNOWN = {*FAMILIES, *FIELDS, *HOST_FAMILIES}
NAME = re.compile(r"\b(?:berth|DCGM_FI)_[A-Za-z0-9_]+")


def series(text: str) -> dict[tuple[str, ...], float]:
    """Return values by name and label values."""
    return {
        (one.name, *one.labels.values()): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


@pytest.fixture
def told() -> Any:
    """Redis with what one test tells, and as it was afterwards."""
    client = redis_client()
    client.delete(LATEST, COUNTS)
    yield client
    client.delete(LATEST, COUNTS)


@pytest.mark.django_db
def test_figures_of_queue_fleet_and_gateways(world: World, client: Client, told: Any) -> None:
    now = timezone.now()
    world.active("bob", at=now - timedelta(minutes=10))
    world.submit("bob")
    fresh, old = {"at": now.timestamp(), "terminals": 2, "apps": 1}, {"at": now.timestamp() - 99, "apps": 7}
    told.hset(COUNTS, mapping={"a": json.dumps(fresh), "b": json.dumps(old)})

    found = series(client.get("/metrics").content.decode())

    assert found["berth_requests_waiting", "h100-1g-10gb", "h100-80gb"] == 1
    assert found["berth_capacity_gpus", "h100-80gb"] == 8
    assert 0 < found["berth_allocated_gpus", "h100-80gb"] < 1
    assert found["berth_queue_starts",] == 1
    assert found["berth_queue_wait_seconds", "0.9"] == 0
    assert (found["berth_gateway_streams", "terminals"], found["berth_gateway_streams", "apps"]) == (2, 1)
    assert not any(name[0] == "berth_budget_used_ratio" for name in found)
    assert {name[0].removesuffix("_total") for name in found if "_cycle_step" not in name[0]} <= set(FAMILIES)


@pytest.mark.django_db
def test_devices_by_lease_and_team_without_what_is_unknown_or_old(
    world: World, client: Client, told: Any
) -> None:
    lease, now = world.active("bob"), timezone.now().timestamp()
    one, other = Device.objects.order_by("pk")[:2]
    HealthEvent.objects.create(
        node=one.node, device=one, code="63", severity="warning", detail="", at=timezone.now()
    )
    slot = SlotNow(
        lease.uid, lease.team_id, one.uuid, 3, 1, False, 50.0, 100, 1000, "nvml",
        ExtraFigures(40.0, None, None, None, {}),
    )  # fmt: skip
    row = DeviceNow(one.uuid, 7.0, 100, 8000, None, 55.0, "nvml")
    told.hset(LATEST, one.node.name, pack(Frame(one.node.name, now, "b", 1, (row,), (slot,))))
    stale = Frame("gone", now - 3600, "b", 1, (row._replace(uuid=other.uuid),), ())
    told.hset(LATEST, "gone", pack(stale))

    text = client.get("/metrics/devices").content.decode()

    found = series(text)
    # By name of the label: Hostname, UUID, gpu, lease, modelName, slice, team.
    whose = (one.node.name, one.uuid, str(one.index))
    assert found["DCGM_FI_DEV_GPU_TEMP", *whose, "", "h100-80gb", "", ""] == 55
    assert found["DCGM_FI_DEV_XID_ERRORS", *whose, "", "h100-80gb", "", ""] == 63
    assert found["DCGM_FI_PROF_SM_ACTIVE", *whose, lease.uid, "h100-80gb", "3", "perception"] == 0.4
    assert "DCGM_FI_DEV_POWER_USAGE" not in text
    assert other.uuid not in text


@pytest.mark.django_db
def test_a_scrape_costs_the_same_however_much_waits(world: World, client: Client) -> None:
    def queries(path: str) -> int:
        with CaptureQueriesContext(connection) as seen:
            client.get(path)
        return len(seen)

    before = [queries(path) for path in ("/metrics", "/metrics/devices")]
    for _nth in range(3):
        world.active("bob")
        world.submit("bob")

    assert [queries(path) for path in ("/metrics", "/metrics/devices")] == before
    assert before[0] <= 24


@pytest.mark.django_db
def test_figures_are_for_this_host_the_scraper_and_operators(
    world: World, client: Client, settings: Any
) -> None:
    far = {"REMOTE_ADDR": "192.0.2.7"}
    operator, bob = world.token("operator", "read"), world.token("bob")

    def status(secret: str, path: str = "/metrics") -> int:
        return client.get(path, headers={"Authorization": f"Bearer {secret}"}, **far).status_code

    assert client.get("/metrics", **far).status_code == 403
    assert client.get("/metrics/devices", **far).status_code == 403
    assert client.get("/metrics", headers={"X-Forwarded-For": "192.0.2.7"}).status_code == 403
    assert (status(bob), status(operator), status(operator, "/metrics/devices")) == (403, 200, 200)
    assert status("") == 403
    settings.METRICS_TOKEN = "s" * 30
    assert (status("s" * 30), status("s" * 29), status("ü")) == (200, 403, 403)
    client.force_login(world.user("operator"))
    assert client.get("/metrics", **far).status_code == 200


def asked_for() -> dict[str, str]:
    """Return what each panel of the dashboard and each rule asks."""
    dashboard = json.loads((DEPLOY / "grafana" / "berth.json").read_text())
    rules = yaml.safe_load((DEPLOY / "prometheus" / "berth.rules.yml").read_text())
    asked = {
        f"panel {panel['title']}": " ".join(target["expr"] for target in panel["targets"])
        for panel in dashboard["panels"]
        if panel["type"] != "row"
    }
    asked |= {f"list {var['name']}": str(var["query"]) for var in dashboard["templating"]["list"]}
    return asked | {rule["alert"]: rule["expr"] for group in rules["groups"] for rule in group["rules"]}


def test_dashboard_and_rules_ask_for_what_is_exported() -> None:
    unknown = {
        f"{who}: {name}"
        for who, text in asked_for().items()
        for name in NAME.findall(text)
        if re.sub(r"_(bucket|sum|count|total)$", "", name) not in KNOWN and name not in KNOWN
    }

    assert not unknown
    assert len({name for text in asked_for().values() for name in NAME.findall(text)}) > 20


def test_docs_name_every_figure() -> None:
    page = (DEPLOY.parent / "docs" / "monitoring.md").read_text()

    assert not {name for name in KNOWN if f"`{name}" not in page}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not here")
def test_promtool_takes_the_rules() -> None:
    rules = DEPLOY / "prometheus" / "berth.rules.yml"
    done = subprocess.run(
        ["promtool", "check", "rules", str(rules)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
