from __future__ import annotations

import pytest
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from portal.fleet.models import Device, HealthEvent
from tests.portal.builders import World

pytestmark = pytest.mark.django_db

BEFORE, HARDWARE = ("fleet", "0004_nodes_that_sleep"), ("fleet", "0005_agents_on_hardware")


def test_going_back_before_events_of_whole_nodes_forgets_those_and_keeps_events_of_devices(
    world: World,
) -> None:
    device = Device.objects.earliest("id")
    said = {"node": device.node, "severity": "warning", "detail": "d", "at": world.now}
    HealthEvent.objects.create(code="events_unwatched", **said)
    HealthEvent.objects.create(code="63", device=device, **said)
    loader = MigrationLoader(connection)
    migration = loader.graph.nodes[HARDWARE]
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")

    with connection.schema_editor() as editor:
        migration.unapply(loader.project_state(BEFORE), editor)

    with connection.cursor() as cursor:
        cursor.execute("SELECT code, device_id FROM fleet_healthevent")
        assert cursor.fetchall() == [("63", device.pk)]
