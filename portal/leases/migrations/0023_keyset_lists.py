"""Indexes from which a list takes each team's rows in its order, however many there are.

Not concurrently, as all of an upgrade: each build keeps writes to its table waiting, about three seconds for a million
rows.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("leases", "0022_needs_containers")]

    operations = [
        migrations.RemoveIndex(model_name="lease", name="lease_by_team"),
        migrations.RemoveIndex(model_name="leaserequest", name="request_by_team"),
        migrations.AddIndex("lease", models.Index(fields=["team", "starts_at", "id"], name="lease_by_start")),
        migrations.AddIndex("lease", models.Index(fields=["team", "not_after", "id"], name="lease_by_end")),
        migrations.AddIndex("lease", models.Index(fields=["team", "id"], name="lease_by_team")),
        migrations.AddIndex(
            "leaserequest", models.Index(fields=["team", "state", "id"], name="request_by_team_and_state")
        ),
        migrations.AddIndex(
            "leaserequest",
            models.Index(fields=["team", "state", "quote_micro", "id"], name="request_by_quote"),
        ),
        migrations.AddIndex("leaserequest", models.Index(fields=["team", "id"], name="request_by_team")),
    ]
