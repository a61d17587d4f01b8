import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("notifications", "0005_alert_topics"),
    ]

    operations = [
        migrations.AlterField(
            model_name="contactpoint",
            name="muted",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(
                    choices=[
                        ("requests", "Requests and approvals"),
                        ("leases", "Leases"),
                        ("jobs", "Jobs"),
                        ("bookings", "Bookings and reservations"),
                        ("fleet", "Nodes and devices"),
                        ("budgets", "Budgets"),
                        ("alerts", "Alerts"),
                        ("team_alerts", "Alerts about my teams"),
                        ("escalated", "Alerts that nobody has acknowledged"),
                        ("other", "Everything else"),
                    ],
                    max_length=12,
                ),
                blank=True,
                default=list,
                size=None,
            ),
        ),
    ]
