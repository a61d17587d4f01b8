from django.db import migrations, models


class Migration(migrations.Migration):
    """Requests of jobs that run in images: only nodes that run containers can serve them."""

    dependencies = [("leases", "0021_templates")]
    operations = [
        migrations.AddField(
            model_name="leaserequest",
            name="needs_containers",
            field=models.BooleanField(default=False),
        ),
    ]
