from datetime import UTC, datetime

from django.conf import settings
from django.db import migrations, models

# What is about a team and off until a site says what is normal there: metric, threshold, for how many seconds.
TEAM_RULES = (
    ("team_queue_wait", 14_400, 600),
    ("team_idle", 0, 3600),
)


def add_team_rules(apps, _editor):
    now = datetime.now(UTC)
    rule = apps.get_model("alerts", "AlertRule")
    rule.objects.bulk_create(
        rule(
            metric=metric,
            comparison="above",
            threshold=threshold,
            for_s=for_s,
            severity="warning",
            audience="team",
            grouping="team",
            is_on=False,
            changed_at=now,
        )
        for metric, threshold, for_s in TEAM_RULES
    )


class Migration(migrations.Migration):
    dependencies = [
        ("alerts", "0002_intake_pauses"),
        ("fleet", "0017_intake_pauses"),
        ("teams", "0007_delegation"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name="alertrule",
            name="alert_rule_words_known",
        ),
        migrations.AddField(
            model_name="alertrule",
            name="audience",
            field=models.CharField(
                choices=[
                    ("operators", "Operators"),
                    ("both", "Operators and the admins of the team"),
                    ("team", "The admins of the team"),
                ],
                default="operators",
                max_length=10,
            ),
        ),
        migrations.AddIndex(
            model_name="alert",
            index=models.Index(
                condition=models.Q(("resolved_at__isnull", False), ("team__isnull", False)),
                fields=["team", "-resolved_at"],
                name="alert_history_of_a_team",
            ),
        ),
        migrations.AddConstraint(
            model_name="alertrule",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("action__in", ["nothing", "cordon", "quarantine", "pause"]),
                    ("audience__in", ["operators", "both", "team"]),
                    ("comparison__in", ["above", "below"]),
                    ("grouping__in", ["rule", "node", "team"]),
                    ("severity__in", ["info", "warning", "critical"]),
                ),
                name="alert_rule_words_known",
            ),
        ),
        migrations.RunPython(add_team_rules, migrations.RunPython.noop),
    ]
