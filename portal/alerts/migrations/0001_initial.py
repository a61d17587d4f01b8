from datetime import UTC, datetime

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import portal.common.ids

# An alert goes forward only: pending, firing, resolved.
FORWARD = """
CREATE OR REPLACE FUNCTION alerts_alert_forward() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (OLD.state = 'resolved' AND NEW.state <> 'resolved') OR (OLD.state = 'firing' AND NEW.state = 'pending') THEN
    RAISE EXCEPTION 'alert %: % -> %', OLD.uid, OLD.state, NEW.state USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
DROP TRIGGER IF EXISTS alerts_alert_forward ON alerts_alert;
CREATE TRIGGER alerts_alert_forward BEFORE UPDATE OF state ON alerts_alert
  FOR EACH ROW EXECUTE FUNCTION alerts_alert_forward();
"""
NOT_FORWARD = "DROP FUNCTION IF EXISTS alerts_alert_forward() CASCADE;"
# What an installation watches from its first day: metric, threshold, for how many seconds, severity, on or off. What
# is off is told by other notifications already, or depends on what a site calls normal.
FIRST_RULES = (
    ("node_silence", 300, 60, "critical", True),
    ("device_temp", 90, 300, "warning", True),
    ("ecc", 0, 0, "warning", True),
    ("health_critical", 0, 1800, "warning", True),
    ("outbox", 60, 120, "critical", True),
    ("deliveries", 900, 0, "warning", True),
    ("queue_wait", 14_400, 600, "warning", False),
    ("budget_forecast", 100, 3600, "warning", False),
    ("xid", 0, 0, "warning", False),
    ("invariants", 0, 0, "critical", False),
)


def add_first_rules(apps, _editor):
    now = datetime.now(UTC)
    rule = apps.get_model("alerts", "AlertRule")
    rule.objects.bulk_create(
        rule(
            metric=metric,
            comparison="above",
            threshold=threshold,
            for_s=for_s,
            severity=severity,
            is_on=is_on,
            changed_at=now,
        )
        for metric, threshold, for_s, severity, is_on in FIRST_RULES
    )


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("fleet", "0016_images_of_nodes"),
        ("teams", "0007_delegation"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="AlertRule",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(blank=True, max_length=80)),
                ("metric", models.CharField(max_length=40)),
                (
                    "comparison",
                    models.CharField(choices=[("above", "above"), ("below", "below")], max_length=5),
                ),
                ("threshold", models.FloatField()),
                ("for_s", models.PositiveIntegerField(default=0)),
                (
                    "severity",
                    models.CharField(
                        choices=[("info", "Information"), ("warning", "Warning"), ("critical", "Critical")],
                        default="warning",
                        max_length=8,
                    ),
                ),
                (
                    "grouping",
                    models.CharField(
                        choices=[
                            ("rule", "All of the rule"),
                            ("node", "Those of a node"),
                            ("team", "Those of a team"),
                        ],
                        default="rule",
                        max_length=4,
                    ),
                ),
                ("escalate_min", models.PositiveSmallIntegerField(blank=True, null=True)),
                (
                    "action",
                    models.CharField(
                        choices=[
                            ("nothing", "Nothing, people are told"),
                            ("cordon", "The node is cordoned"),
                            ("quarantine", "The device goes into quarantine"),
                        ],
                        default="nothing",
                        max_length=10,
                    ),
                ),
                ("is_on", models.BooleanField(default=True)),
                ("changed_at", models.DateTimeField()),
                ("removed_at", models.DateTimeField(blank=True, null=True)),
                ("evaluated_at", models.DateTimeField(blank=True, null=True)),
                ("matched", models.PositiveIntegerField(default=0)),
                ("folded", models.PositiveIntegerField(default=0)),
                (
                    "changed_by",
                    models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "device_model",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="fleet.devicemodel",
                    ),
                ),
                (
                    "escalate_to",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "node",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="fleet.node",
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="teams.team",
                    ),
                ),
            ],
            options={
                "ordering": ["id"],
            },
        ),
        migrations.CreateModel(
            name="Alert",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("uid", models.CharField(default=portal.common.ids.alert_uid, max_length=24, unique=True)),
                ("subject", models.CharField(max_length=100)),
                ("about", models.CharField(max_length=160)),
                (
                    "state",
                    models.CharField(
                        choices=[("pending", "Pending"), ("firing", "Firing"), ("resolved", "Resolved")],
                        max_length=8,
                    ),
                ),
                ("value", models.FloatField()),
                ("pending_at", models.DateTimeField()),
                ("seen_at", models.DateTimeField()),
                ("firing_at", models.DateTimeField(null=True)),
                ("gone_at", models.DateTimeField(null=True)),
                ("resolved_at", models.DateTimeField(null=True)),
                ("notified_at", models.DateTimeField(null=True)),
                ("escalated_at", models.DateTimeField(null=True)),
                ("end_told_at", models.DateTimeField(null=True)),
                ("acknowledged_at", models.DateTimeField(null=True)),
                ("acted_at", models.DateTimeField(null=True)),
                ("held_back_at", models.DateTimeField(null=True)),
                (
                    "acknowledged_by",
                    models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "device",
                    models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="alerts",
                        to="fleet.device",
                    ),
                ),
                (
                    "node",
                    models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="alerts",
                        to="fleet.node",
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="alerts",
                        to="teams.team",
                    ),
                ),
                (
                    "rule",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="alerts",
                        to="alerts.alertrule",
                    ),
                ),
            ],
            options={
                "ordering": ["-pending_at", "-id"],
            },
        ),
        migrations.CreateModel(
            name="AlertSilence",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("uid", models.CharField(default=portal.common.ids.silence_uid, max_length=24, unique=True)),
                ("reason", models.CharField(max_length=200)),
                ("starts_at", models.DateTimeField()),
                ("ends_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                (
                    "made_by",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "node",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="fleet.node",
                    ),
                ),
                (
                    "rule",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="silences",
                        to="alerts.alertrule",
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="teams.team",
                    ),
                ),
            ],
            options={
                "ordering": ["ends_at", "id"],
            },
        ),
        migrations.AddConstraint(
            model_name="alertrule",
            constraint=models.UniqueConstraint(
                condition=models.Q(models.Q(("name", ""), _negated=True), ("removed_at", None)),
                fields=("name",),
                name="alert_rule_name_once",
            ),
        ),
        migrations.AddConstraint(
            model_name="alertrule",
            constraint=models.CheckConstraint(
                condition=models.Q(("threshold__gte", -1000000000000.0), ("threshold__lte", 1000000000000.0)),
                name="alert_threshold_sane",
            ),
        ),
        migrations.AddConstraint(
            model_name="alertrule",
            constraint=models.CheckConstraint(
                condition=models.Q(("for_s__lte", 86400)), name="alert_for_a_day_at_most"
            ),
        ),
        migrations.AddConstraint(
            model_name="alertrule",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("action__in", ["nothing", "cordon", "quarantine"]),
                    ("comparison__in", ["above", "below"]),
                    ("grouping__in", ["rule", "node", "team"]),
                    ("severity__in", ["info", "warning", "critical"]),
                ),
                name="alert_rule_words_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="alertrule",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("escalate_min", None),
                    models.Q(("escalate_min__gte", 1), ("escalate_min__lte", 10080)),
                    _connector="OR",
                ),
                name="alert_escalates_later",
            ),
        ),
        migrations.AddConstraint(
            model_name="alertrule",
            constraint=models.CheckConstraint(
                condition=models.Q(("folded__lte", models.F("matched"))), name="alert_folds_what_matched"
            ),
        ),
        migrations.AddIndex(
            model_name="alert",
            index=models.Index(condition=models.Q(("resolved_at", None)), fields=["rule"], name="alert_open"),
        ),
        migrations.AddIndex(
            model_name="alert",
            index=models.Index(
                condition=models.Q(("resolved_at", None), _negated=True),
                fields=["-resolved_at", "-id"],
                name="alert_history",
            ),
        ),
        migrations.AddConstraint(
            model_name="alert",
            constraint=models.UniqueConstraint(
                condition=models.Q(("resolved_at", None)), fields=("rule", "subject"), name="alert_open_once"
            ),
        ),
        migrations.AddConstraint(
            model_name="alert",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("firing_at", None), ("resolved_at", None), ("state", "pending")),
                    models.Q(("firing_at__isnull", False), ("resolved_at", None), ("state", "firing")),
                    models.Q(
                        ("firing_at__isnull", False), ("resolved_at__isnull", False), ("state", "resolved")
                    ),
                    _connector="OR",
                ),
                name="alert_times_fit_its_state",
            ),
        ),
        migrations.AddConstraint(
            model_name="alert",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("firing_at", None), ("firing_at__gte", models.F("pending_at")), _connector="OR"
                    ),
                    models.Q(
                        ("resolved_at", None), ("resolved_at__gte", models.F("firing_at")), _connector="OR"
                    ),
                ),
                name="alert_runs_forward",
            ),
        ),
        migrations.AddConstraint(
            model_name="alert",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("acknowledged_at", None), ("acknowledged_by", None)),
                    models.Q(("acknowledged_at__isnull", False), ("acknowledged_by__isnull", False)),
                    _connector="OR",
                ),
                name="alert_acknowledged_by_somebody",
            ),
        ),
        migrations.AddIndex(
            model_name="alertsilence",
            index=models.Index(
                condition=models.Q(("ended_at", None)), fields=["ends_at"], name="silence_live"
            ),
        ),
        migrations.AddConstraint(
            model_name="alertsilence",
            constraint=models.CheckConstraint(
                condition=models.Q(("ends_at__gt", models.F("starts_at"))), name="silence_ends_later"
            ),
        ),
        migrations.AddConstraint(
            model_name="alertsilence",
            constraint=models.CheckConstraint(
                condition=models.Q(("reason", ""), _negated=True), name="silence_says_why"
            ),
        ),
        migrations.AddConstraint(
            model_name="alertsilence",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("rule__isnull", False), ("node__isnull", False), ("team__isnull", False), _connector="OR"
                ),
                name="silence_of_something",
            ),
        ),
        migrations.RunSQL(FORWARD, NOT_FORWARD),
        migrations.RunPython(add_first_rules, migrations.RunPython.noop),
    ]
