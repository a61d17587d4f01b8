from typing import Any

from django.db import migrations, models


def keep_whole_ones(apps: Any, _editor: Any) -> None:
    """What was whole until now had been compared before its last part was kept."""
    whole = {"stored": models.F("size"), "left_out": "", "removed_at": None}
    apps.get_model("jobs", "Artifact").objects.filter(**whole).update(is_checked=True)


class Migration(migrations.Migration):
    dependencies = [("jobs", "0005_images")]

    operations = [
        migrations.AddField("artifact", "is_checked", models.BooleanField(default=False)),
        migrations.RunPython(keep_whole_ones, migrations.RunPython.noop),
        migrations.AddConstraint(
            "artifact",
            models.CheckConstraint(
                condition=models.Q(
                    ("is_checked", False),
                    models.Q(("left_out", ""), ("removed_at", None), ("stored", models.F("size"))),
                    _connector="OR",
                ),
                name="artifact_checked_is_whole",
            ),
        ),
    ]
