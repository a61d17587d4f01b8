"""Reports of months that are sent to people by themselves."""

import django.contrib.postgres.fields
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0015_usage_labels"),
        ("teams", "0006_labels"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="ReportMailing",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("day", models.PositiveSmallIntegerField(blank=True, null=True)),
                (
                    "formats",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=5), size=None
                    ),
                ),
                ("language", models.CharField(max_length=10)),
                ("is_on", models.BooleanField(default=True)),
                ("created_at", models.DateTimeField()),
                (
                    "made_by",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("recipients", models.ManyToManyField(related_name="+", to=settings.AUTH_USER_MODEL)),
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="teams.team"
                    ),
                ),
            ],
            options={
                "ordering": ["pk"],
            },
        ),
        migrations.CreateModel(
            name="ReportSending",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("sent_at", models.DateTimeField()),
                (
                    "mailing",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="sendings",
                        to="billing.reportmailing",
                    ),
                ),
                (
                    "period",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="billing.billingperiod",
                    ),
                ),
            ],
            options={
                "ordering": ["-sent_at", "-pk"],
            },
        ),
        migrations.AddConstraint(
            model_name="reportmailing",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("day", None), models.Q(("day__gte", 1), ("day__lte", 28)), _connector="OR"
                ),
                name="mailing_day_of_each_month",
            ),
        ),
        migrations.AddConstraint(
            model_name="reportmailing",
            constraint=models.CheckConstraint(
                condition=models.Q(("formats__len__gt", 0)), name="mailing_sends_something"
            ),
        ),
        migrations.AddConstraint(
            model_name="reportsending",
            constraint=models.UniqueConstraint(
                fields=("mailing", "period"), name="mailing_sends_a_month_once"
            ),
        ),
    ]
