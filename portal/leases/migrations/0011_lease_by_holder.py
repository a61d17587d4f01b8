from django.db import migrations, models
from django.db.models import F, Q
from django.db.models.functions import Coalesce


class Migration(migrations.Migration):
    """The leases of a person in a team by their end, so that settling usage reads the unsettled ones only."""

    dependencies = [("leases", "0010_mps_one_team")]

    operations = [
        migrations.AddIndex(
            model_name="lease",
            index=models.Index(
                F("team"),
                F("user"),
                Coalesce("ended_at", "not_after"),
                name="lease_by_holder",
                condition=~Q(state="booked"),
            ),
        ),
    ]
