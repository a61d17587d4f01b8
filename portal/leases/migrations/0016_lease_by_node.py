"""One index of leases serves both ways to look at a node's: all of them, and those given back after an instant."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0014_sizes_of_devices"),
        ("leases", "0015_series_approval"),
    ]

    operations = [
        migrations.AlterField(
            model_name="lease",
            name="node",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="leases",
                to="fleet.node",
            ),
        ),
        migrations.AddIndex(
            model_name="lease",
            index=models.Index(fields=["node", "clean_at"], name="lease_by_node"),
        ),
    ]
