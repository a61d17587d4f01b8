from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    """What is left of a lost grant may still be cleaned while its request has been granted again."""

    dependencies = [("leases", "0012_events_run_forward")]

    operations = [
        migrations.RemoveConstraint(model_name="lease", name="one_live_lease_per_part"),
        migrations.AddConstraint(
            model_name="lease",
            constraint=models.UniqueConstraint(
                condition=Q(("state__in", ("booked", "preparing", "active", "interrupted"))),
                fields=("request", "part"),
                name="one_wanted_lease_per_part",
            ),
        ),
        migrations.AddConstraint(
            model_name="lease",
            constraint=models.UniqueConstraint(
                condition=Q(
                    (
                        "state__in",
                        ("booked", "preparing", "active", "interrupted", "ending", "cleaning", "failed"),
                    )
                ),
                fields=("request", "generation", "part"),
                name="one_live_lease_per_part",
            ),
        ),
    ]
