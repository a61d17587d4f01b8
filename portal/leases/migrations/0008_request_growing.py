from django.db import migrations, models
from django.db.models import F, Q


class Migration(migrations.Migration):
    """Elastic requests that may grow are looked for every second: by an index of them alone."""

    dependencies = [("leases", "0007_bookings")]

    operations = [
        migrations.AddIndex(
            model_name="leaserequest",
            index=models.Index(
                fields=["id"],
                name="request_growing",
                condition=Q(state="granted", most_count__gt=F("count")),
            ),
        ),
    ]
