from django.db import migrations, models
from django.db.models import F


def of_the_active_one(apps, _editor):
    """The version in force was put in force when it was made: until now nothing else could be done."""
    apps.get_model("policies", "Policy").objects.filter(is_active=True).update(activated_at=F("created_at"))


class Migration(migrations.Migration):
    dependencies = [("policies", "0004_queue_and_time")]

    operations = [
        migrations.AddField(
            model_name="policy",
            name="activated_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.RunPython(of_the_active_one, migrations.RunPython.noop),
    ]
