"""What requests are filed under: a project, a cost centre, tags."""

import django.db.models.deletion
from django.db import migrations, models

TAGS_ARE_TEXTS = """
ALTER TABLE leases_requestlabels ADD CONSTRAINT request_tags_are_texts CHECK (jsonb_typeof(tags) = 'object'
  AND NOT jsonb_path_exists(tags, 'strict $.* ? (@.type() != "string")'));
"""


class Migration(migrations.Migration):
    dependencies = [
        ("leases", "0025_approval_steps"),
        ("teams", "0006_labels"),
    ]

    operations = [
        migrations.CreateModel(
            name="RequestLabels",
            fields=[
                (
                    "request",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        primary_key=True,
                        related_name="labels",
                        serialize=False,
                        to="leases.leaserequest",
                    ),
                ),
                ("cost_centre", models.CharField(blank=True, max_length=40)),
                ("tags", models.JSONField(blank=True, default=dict)),
                (
                    "project",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="teams.project",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "request labels",
            },
        ),
        migrations.RunSQL(TAGS_ARE_TEXTS, migrations.RunSQL.noop),
    ]
