from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [("fleet", "0004_nodes_that_sleep")]

    operations = [
        migrations.AddField("node", "key_changed_at", models.DateTimeField(blank=True, null=True)),
        migrations.AddField("node", "rotate_asked_at", models.DateTimeField(blank=True, null=True)),
        migrations.AddField("node", "runtime", models.CharField(blank=True, default="", max_length=40)),
        migrations.AddField("node", "drain_by", models.DateTimeField(blank=True, null=True)),
        migrations.AddField("node", "drain_asked_at", models.DateTimeField(blank=True, null=True)),
        migrations.AddConstraint(
            "node",
            models.CheckConstraint(
                condition=Q(drain_by=None) | Q(is_cordoned=True), name="node_drained_is_cordoned"
            ),
        ),
        migrations.AddField("device", "refusals", models.JSONField(blank=True, default=dict)),
        migrations.AddField(
            "healthevent",
            "node",
            models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="health_events",
                to="fleet.node",
            ),
        ),
        migrations.RunSQL(
            "UPDATE fleet_healthevent e SET node_id = d.node_id FROM fleet_device d WHERE d.id = e.device_id",
            migrations.RunSQL.noop,
        ),
        # The rows just written have foreign-key checks pending, before which the table cannot be altered.
        migrations.RunSQL("SET CONSTRAINTS ALL IMMEDIATE", migrations.RunSQL.noop),
        migrations.AlterField(
            "healthevent",
            "node",
            models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="health_events", to="fleet.node"
            ),
        ),
        migrations.AlterField(
            "healthevent",
            "device",
            models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="health_events",
                to="fleet.device",
            ),
        ),
        # On the way back a device is needed again: events of a whole node have no place in the older table.
        migrations.RunSQL(
            migrations.RunSQL.noop,
            "DELETE FROM fleet_healthevent WHERE device_id IS NULL; SET CONSTRAINTS ALL IMMEDIATE",
        ),
        migrations.AddField("healthevent", "action", models.CharField(blank=True, default="", max_length=20)),
        migrations.AddField(
            "healthevent", "cleared_by", models.CharField(blank=True, default="", max_length=150)
        ),
        migrations.AddConstraint(
            "healthevent",
            models.UniqueConstraint(
                condition=Q(cleared_at=None, device=None),
                fields=("node", "code"),
                name="node_health_event_open_once",
            ),
        ),
    ]
