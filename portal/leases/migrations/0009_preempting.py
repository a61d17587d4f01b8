from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    """How often a request was preempted, and an index of the few leases that make room for somebody."""

    dependencies = [("leases", "0008_request_growing")]

    operations = [
        migrations.AddField(
            model_name="leaserequest",
            name="evictions",
            field=models.PositiveSmallIntegerField(default=0),
        ),
        migrations.AddIndex(
            model_name="lease",
            index=models.Index(
                fields=["clean_at"], name="lease_makes_room", condition=Q(preempted_for__isnull=False)
            ),
        ),
    ]
