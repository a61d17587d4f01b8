"""Tags of teams, and projects that requests are filed under."""

import django.db.models.deletion
from django.db import migrations, models

# Tags are names with texts; anything else could not be shown or written to a file.
TAGS_ARE_TEXTS = """
ALTER TABLE {table} ADD CONSTRAINT {name} CHECK (jsonb_typeof(tags) = 'object'
  AND NOT jsonb_path_exists(tags, 'strict $.* ? (@.type() != "string")'));
"""


class Migration(migrations.Migration):
    dependencies = [
        ("teams", "0005_team_invitations"),
    ]

    operations = [
        migrations.AddField(
            model_name="team",
            name="tags",
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.CreateModel(
            name="Project",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("code", models.CharField(max_length=40, unique=True)),
                ("name", models.CharField(max_length=80)),
                ("cost_centre", models.CharField(blank=True, max_length=40)),
                ("tags", models.JSONField(blank=True, default=dict)),
                ("is_ended", models.BooleanField(default=False)),
                ("created_at", models.DateTimeField()),
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="projects", to="teams.team"
                    ),
                ),
            ],
            options={
                "ordering": ["code"],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("code", ""), _negated=True), models.Q(("name", ""), _negated=True)
                        ),
                        name="project_has_code_and_name",
                    )
                ],
            },
        ),
        *(
            migrations.RunSQL(
                TAGS_ARE_TEXTS.format(table=f"teams_{table}", name=f"{table}_tags_are_texts"),
                migrations.RunSQL.noop,
            )
            for table in ("team", "project")
        ),
        # A worker of the release before may still make a team.
        migrations.RunSQL(
            "ALTER TABLE teams_team ALTER COLUMN tags SET DEFAULT '{}'", migrations.RunSQL.noop
        ),
    ]
