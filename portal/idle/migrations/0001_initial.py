import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

APPEND_ONLY = """
CREATE OR REPLACE FUNCTION idle_idlesnooze_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'idle_idlesnooze is append-only' USING ERRCODE = 'check_violation'; END $$;
DROP TRIGGER IF EXISTS idle_idlesnooze_append_only ON idle_idlesnooze;
CREATE TRIGGER idle_idlesnooze_append_only BEFORE UPDATE OR DELETE ON idle_idlesnooze
  FOR EACH ROW EXECUTE FUNCTION idle_idlesnooze_append_only();
"""
NOT_APPEND_ONLY = "DROP FUNCTION IF EXISTS idle_idlesnooze_append_only() CASCADE;"


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("catalog", "0006_discounts"),
        ("leases", "0025_approval_steps"),
        ("teams", "0004_approval_rules"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="IdleStanding",
            fields=[
                (
                    "lease",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="idle",
                        serialize=False,
                        to="leases.lease",
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("busy", "At work"),
                            ("held_idle", "Held idle"),
                            ("empty", "Empty"),
                            ("unknown", "Unknown"),
                        ],
                        max_length=10,
                    ),
                ),
                ("why", models.CharField(max_length=12)),
                ("since", models.DateTimeField()),
                ("judged_at", models.DateTimeField()),
                ("minutes", models.PositiveSmallIntegerField()),
                ("known", models.PositiveSmallIntegerField()),
                ("worked", models.PositiveSmallIntegerField(default=0)),
                ("util", models.FloatField(null=True)),
                ("sm", models.FloatField(null=True)),
                ("power_w", models.FloatField(null=True)),
                ("memory_mib", models.PositiveIntegerField(null=True)),
                ("processes", models.PositiveIntegerField(null=True)),
                (
                    "then",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("nothing", "Nothing, it is only shown"),
                            ("warn", "Its holder is told"),
                            ("reclaim", "Its holder is told, then it is taken back"),
                        ],
                        default="",
                        max_length=10,
                    ),
                ),
                ("warned_at", models.DateTimeField(null=True)),
                ("reclaim_at", models.DateTimeField(null=True)),
                ("snoozed_until", models.DateTimeField(null=True)),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("state__in", ["busy", "held_idle", "empty", "unknown"])),
                        name="idle_state_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("since__lte", models.F("judged_at"))),
                        name="idle_since_before_now",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("known__lte", models.F("minutes")), ("worked__lte", models.F("known"))
                        ),
                        name="idle_minutes_add_up",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("state__in", ("held_idle", "empty")),
                            models.Q(("reclaim_at", None), ("snoozed_until", None), ("warned_at", None)),
                            _connector="OR",
                        ),
                        name="only_idle_is_taken_back",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("reclaim_at", None), ("then", "reclaim"), _connector="OR"),
                        name="taken_back_by_a_rule",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="IdleRule",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("after_min", models.PositiveSmallIntegerField(default=60)),
                (
                    "then",
                    models.CharField(
                        choices=[
                            ("nothing", "Nothing, it is only shown"),
                            ("warn", "Its holder is told"),
                            ("reclaim", "Its holder is told, then it is taken back"),
                        ],
                        default="nothing",
                        max_length=10,
                    ),
                ),
                ("grace_min", models.PositiveSmallIntegerField(default=30)),
                ("snoozes", models.PositiveSmallIntegerField(default=2)),
                ("snooze_min", models.PositiveSmallIntegerField(default=60)),
                ("changed_at", models.DateTimeField()),
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
                    "flavor",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="idle_rules",
                        to="catalog.flavor",
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="idle_rules",
                        to="teams.team",
                    ),
                ),
            ],
            options={
                "ordering": ["id"],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("team", "flavor"), name="idle_rule_once", nulls_distinct=False
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("then__in", ["nothing", "warn", "reclaim"])),
                        name="idle_rule_action_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("after_min__gte", 15), ("after_min__lte", 240)),
                        name="idle_rule_after_sane",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("grace_min__gte", 5), ("grace_min__lte", 1440)),
                        name="idle_rule_leaves_time",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("snooze_min__gte", 5), ("snooze_min__lte", 1440), ("snoozes__lte", 10)
                        ),
                        name="idle_rule_snoozes_bounded",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="IdleSnooze",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("ordinal", models.PositiveSmallIntegerField()),
                ("at", models.DateTimeField()),
                ("until", models.DateTimeField()),
                ("reason", models.CharField(max_length=300)),
                (
                    "by",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "lease",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="snoozes",
                        to="leases.lease",
                    ),
                ),
            ],
            options={
                "ordering": ["lease", "ordinal"],
                "constraints": [
                    models.UniqueConstraint(fields=("lease", "ordinal"), name="idle_snooze_once"),
                    models.CheckConstraint(
                        condition=models.Q(("ordinal__gte", 1), ("ordinal__lte", 10)),
                        name="idle_snoozes_counted",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("until__gt", models.F("at"))), name="idle_snooze_lasts"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("reason", ""), _negated=True), name="idle_snooze_says_why"
                    ),
                ],
            },
        ),
        migrations.RunSQL(APPEND_ONLY, NOT_APPEND_ONLY),
    ]
